"""Phi_delta to first order, for the methods that follow its gradient: SFLCB, BLOCC and the projected penalty method."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.multipliers import Residual, Rows, projected_gradient, system_residuals


def gradients_of_k(
    problem: BilevelProblem, delta: Any, x: PyTree, y: PyTree, z: PyTree, force_y: Any, force_z: Any
) -> tuple[PyTree, PyTree, PyTree]:
    """Return the gradients of K in x, y and z, where the rows pull with ``force_y`` and ``force_z``."""
    pull_x = problem.adjoint_x(x, y, trees.subtract(force_y, force_z))
    pull_y, pull_z = problem.adjoint_y(x, y, force_y), problem.adjoint_y(x, z, force_z)
    return gradients_with_pulls(problem, delta, x, y, z, pull_x, pull_y, pull_z)


def gradients_with_pulls(
    problem: BilevelProblem, delta: Any, x: PyTree, y: PyTree, z: PyTree, pull_x: PyTree, pull_y: PyTree, pull_z: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """Return `gradients_of_k` where it is known already how the rows pull at x, y and z."""
    penalised = lambda x, y: delta * problem.upper_value(x, y) + problem.lower_value(x, y)
    penalised_x, penalised_y = jax.grad(penalised, argnums=(0, 1))(x, y)
    lower_x, lower_z = jax.grad(problem.lower_value, argnums=(0, 1))(x, z)
    grad_x = jax.tree.map(lambda a, b, c: a - b + c, penalised_x, lower_x, pull_x)
    grad_y = jax.tree.map(jnp.add, penalised_y, pull_y)
    grad_z = jax.tree.map(lambda a, b: -a - b, lower_z, pull_z)
    return grad_x, grad_y, grad_z


def penalty_residuals(
    problem: BilevelProblem, delta: Any, x: PyTree, y: PyTree, z: PyTree, u: Rows, v: Rows
) -> dict[str, Residual]:
    """Return the residuals of both inner problems and of the gradient of Phi_delta.

    In the largest-entry norm, with t = min(1, delta) / 10 since the gradient sees the residuals divided by delta,
    they are small when

        |y - P_Y(y - grad_y (delta f + g) - A'u)|             <= t (atol + rtol (1 + |A'u| + |grad_y (delta f + g)|))
        |h(x, y) - clip(h(x, y) + u, lower, upper)|           <= t (atol + rtol (1 + |h(x, y)| + |u|))
        the same two of g alone, with z and v
        |x - P_X(x - grad Phi_delta)|                         <= (atol + rtol (1 + |grad Phi_delta|)) / 2
    """
    grad_x, grad_y, grad_z = gradients_of_k(problem, delta, x, y, z, u, v)
    tight = 0.1 * jnp.minimum(delta, 1.0)
    stationarity_y, rows_y = system_residuals(problem, x, y, u, grad_y, factor=tight)
    stationarity_z, rows_z = system_residuals(problem, x, z, v, jax.tree.map(jnp.negative, grad_z), factor=tight)
    return {
        "rows_y": rows_y,
        "rows_z": rows_z,
        "stationarity_y": stationarity_y,
        "stationarity_z": stationarity_z,
        "gradient": projected_gradient(
            problem.x_set.project, x, jax.tree.map(lambda leaf: leaf / delta, grad_x), factor=0.5
        ),
    }
