"""What LV-HBA and BiC-GAFFA share: a penalty that grows with the steps, and proximal terms on theta and multipliers."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import CompiledSolver
from bilevax.solvers.multipliers import Rows
from bilevax.solvers.parameters import POSITIVE, SLOW_GROWTH, assign


class GrowingPenalty(CompiledSolver):
    """A single-loop method that descends on ``f / c_k + g`` minus a regularised value of the lower level.

    The penalty is ``c_k = c0 (k + 1)^p``; each method documents its parameters.
    """

    alpha: Any
    beta: Any
    eta: Any
    gamma1: Any
    gamma2: Any
    c0: Any
    p: Any

    default_max_steps: ClassVar[int] = 100_000

    # How much tighter than the tolerances the stopping test is: of the proximal problem, where errors count c_k times,
    # and of the conditions on x, y and the multipliers.
    _inner_factor: ClassVar[float] = 0.1
    _outer_factor: ClassVar[float] = 0.25

    def __init__(self, alpha: float, beta: float, eta: float, gamma1: float, gamma2: float, c0: float, p: float):
        assign(self, POSITIVE, alpha=alpha, beta=beta, eta=eta, gamma1=gamma1, gamma2=gamma2, c0=c0)
        assign(self, SLOW_GROWTH, p=p)

    def _penalty(self, count: Any) -> Any:
        """Return c_k after so many steps."""
        return self.c0 * (count + 1) ** self.p

    def _tight_factor(self, penalty: Any) -> Any:
        """Return the factor of the tolerances for the proximal problem."""
        return self._inner_factor * jnp.minimum(1.0, 1 / penalty)

    def _objective_gradient(self, problem: BilevelProblem, x: PyTree, y: PyTree, penalty: Any) -> tuple[PyTree, PyTree]:
        """Return the gradient of ``f / c_k + g`` in x and y."""
        objective = lambda x, y: problem.upper_value(x, y) / penalty + problem.lower_value(x, y)
        return jax.grad(objective, argnums=(0, 1))(x, y)

    def _theta_slope(self, problem: BilevelProblem, x: PyTree, y: PyTree, theta: PyTree, multipliers: Rows) -> PyTree:
        """Return ``grad_y g(x, theta) + A' multipliers + (theta - y) / gamma1``."""
        slope = jax.grad(problem.lower_value, argnums=1)(x, theta)
        pull = problem.adjoint_y(x, theta, multipliers)
        return jax.tree.map(lambda a, b, t, o: a + b + (t - o) / self.gamma1, slope, pull, theta, y)

    def _theta_step(self, problem: BilevelProblem, theta: PyTree, slope: PyTree) -> PyTree:
        """Return theta after a projected gradient step."""
        return problem.y_set.project(trees.add_scaled(theta, -self.eta, slope))

    def _multiplier_ascent(self, problem: BilevelProblem, x: PyTree, theta: PyTree, lam: Rows, z: Rows) -> Rows:
        """Return ``h(x, theta) - (lam - z) / gamma2``."""
        return jax.tree.map(lambda row, new, old: row - (new - old) / self.gamma2, problem.rows(x, theta), lam, z)
