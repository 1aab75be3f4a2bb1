"""Start points of SFLCB under the corollaries of its theorems: y, z and the multipliers near the answer at a fixed x.

The coupled corollary asks for the dual of the lower level to be solved to a proven distance, the uncoupled one for
SFLCB itself with x held where it is.
"""

import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax.model.problem import BilevelProblem, place, validate
from bilevax.paper.constants import TheoryConstants, check_full_row_rank, estimate_constants
from bilevax.solvers.sflcb import SFLCB, SFLCBState


def warm_start_coupled(
    problem: BilevelProblem,
    solver: SFLCB,
    x0: PyTree,
    y0: PyTree = None,
    *,
    constants: TheoryConstants | None = None,
    accuracy: float | None = None,
    max_steps: int = 100_000,
) -> SFLCBState:
    """Return the start of the coupled corollary: y, z near y*(x0) and u, v near its multipliers.

    Proximal gradient ascent on the dual of the lower level at x0, with the inner minimisation over y by projected
    gradient steps: linear convergence where A has full row rank and Y is the whole space. It then stops when the
    error bounds prove ``|z - y*(x0)| <= accuracy`` and ``|v - v*(x0)| <= accuracy``.

    Parameters
    ----------
    problem, solver, x0, y0
        The problem, the solver to start (its delta is the default accuracy), and where to begin.
    constants
        What is known of the problem; estimated when absent.
    accuracy
        The distance to reach; the corollary's own, delta, when absent.
    max_steps
        Limit of dual steps.

    Returns
    -------
    SFLCBState
        For ``bilevax.solve(..., warm_start=state)``.
    """
    with float64():
        x, y_like, y = validate(problem, x0, y0)
        if constants is None:
            constants = estimate_constants(problem, x, y, theta_bar=math.nan)  # theta_bar plays no part here
        check_full_row_rank(constants)
        accuracy = float(solver.delta if accuracy is None else accuracy)
        mu_g, l_g1, a = constants.mu_g, constants.l_g1, constants.sigma_max_a
        # The dual is concave with curvature between sigma_min(A)^2 / l_g1 and sigma_max(A)^2 / mu_g. A step of
        # length eta that moves v by r proves |v - v*| <= 2 r / (curvature eta), and then
        # |z(v) - z*| <= sigma_max(A) / mu_g |v - v*|.
        curvature, eta = constants.sigma_min_a**2 / l_g1, mu_g / a**2
        accuracy_v = accuracy * min(1.0, mu_g / (2 * a))
        accuracy_z = min(accuracy / 2, accuracy_v * curvature / (4 * a))
        placed = place(problem, np.float64)
        x = placed.x_set.project(x)
        z = placed.y_set.project(trees.zeros(y_like) if y is None else y)
        moves = (accuracy_z * mu_g / (2 * l_g1), accuracy_v * curvature * eta / 4)
        z, v, moved = _dual_ascent(placed, x, z, 1 / l_g1, eta, moves, max_steps)
        if not moved <= moves[1]:
            _warn_short("warm_start_coupled", max_steps, float(moved), moves[1])
        slack = _clipped(placed, placed.rows(x, z))
        return jax.tree.map(np.asarray, SFLCBState(x, z, z, slack, slack, v, v))


def warm_start_uncoupled(
    problem: BilevelProblem,
    solver: SFLCB,
    x0: PyTree,
    y0: PyTree = None,
    *,
    tolerance: float | None = None,
    max_steps: int = 1_000_000,
) -> SFLCBState:
    """Return the start of the uncoupled corollary: SFLCB itself with x frozen at x0.

    It stops when these are at most the tolerance, in the Euclidean norm: the residuals ``h(x0, y) - s_y`` and
    ``h(x0, z) - s_z``, the move of (y, s_y) divided by eta_y, and that of (z, s_z) divided by eta_z.

    Parameters
    ----------
    problem, solver, x0, y0
        The problem, the solver whose steps are taken, and where to begin.
    tolerance
        The solver's delta when absent, which puts y, z, u and v at distances O(delta) where LICQ holds at x0.
    max_steps
        Limit of steps.

    Returns
    -------
    SFLCBState
        For ``bilevax.solve(..., warm_start=state)``.
    """
    with float64():
        x, y_like, y = validate(problem, x0, y0)
        tolerance = float(solver.delta if tolerance is None else tolerance)
        placed = place(problem, np.float64)
        x = placed.x_set.project(x)
        start = solver.init(placed, x, placed.y_set.project(trees.zeros(y_like) if y is None else y))
        state, residual = _frozen_run(placed, solver, start, tolerance, max_steps)
        if not residual <= tolerance:
            _warn_short("warm_start_uncoupled", max_steps, float(residual), tolerance)
        return jax.tree.map(np.asarray, state)


@eqx.filter_jit
def _dual_ascent(
    problem: BilevelProblem, x: PyTree, z: PyTree, step_z: Any, eta: Any, moves: tuple[Any, Any], max_steps: Any
) -> tuple[PyTree, Any, Any]:
    """Return (z, v, |move of v|) of proximal gradient ascent on the dual, until z and v move less than ``moves``."""

    def minimise_inner(z: PyTree, v: Any) -> PyTree:
        lagrangian = lambda z: problem.lower_value(x, z) + trees.dot(v, problem.rows(x, z))

        def step(carry: Any) -> Any:
            z, _, count = carry
            new = problem.y_set.project(trees.add_scaled(z, -step_z, jax.grad(lagrangian)(z)))
            return new, _norm(trees.subtract(new, z)), count + 1

        unfinished = lambda carry: (carry[1] > moves[0]) & (carry[2] < max_steps)
        return jax.lax.while_loop(unfinished, step, (z, jnp.full_like(step_z, jnp.inf), 0))[0]

    def step(carry: Any) -> Any:
        _, _, z, v, _, count = carry
        z = minimise_inner(z, v)
        ahead = trees.add_scaled(v, eta, problem.rows(x, z))
        # The prox of the support function of [lower, upper], which gives every kind of row its sign.
        prox = lambda w, low, high: jnp.maximum(w - eta * high, 0.0) + jnp.minimum(w - eta * low, 0.0)
        new = jax.tree.map(prox, ahead, *problem.row_bounds(ahead))
        return z, v, z, new, _norm(trees.subtract(new, v)), count + 1

    zero = jax.tree.map(jnp.zeros_like, problem.rows(x, z))
    unfinished = lambda carry: (carry[4] > moves[1]) & (carry[5] < max_steps)
    start = (z, zero, z, zero, jnp.full_like(eta, jnp.inf), 0)
    # The pair whose move was measured is kept beside the pair to go on from.
    z, v, _, _, moved, _ = jax.lax.while_loop(unfinished, step, start)
    return z, v, moved


@eqx.filter_jit
def _frozen_run(
    problem: BilevelProblem, solver: SFLCB, start: SFLCBState, tolerance: Any, max_steps: Any
) -> tuple[SFLCBState, Any]:
    """Return (state, residual) of SFLCB with x held, when the residual reaches the tolerance."""

    def step(carry: Any) -> Any:
        old, _, count = carry
        new = solver.step(problem, old)._replace(x=old.x)
        moved = trees.subtract(new, old)
        residuals = [
            _norm((moved.y, moved.s_y)) / solver.eta_y,
            _norm((moved.z, moved.s_z)) / solver.eta_z,
            _norm(moved.u) / solver.eta_u,  # u moves by eta_u times the residual of the rows
            _norm(moved.v) / solver.eta_v,
        ]
        return new, jnp.stack(residuals).max(), count + 1

    unfinished = lambda carry: (carry[1] > tolerance) & (carry[2] < max_steps)
    state, residual, _ = jax.lax.while_loop(unfinished, step, (start, jnp.asarray(jnp.inf), 0))
    return state, residual


def _clipped(problem: BilevelProblem, rows: Any) -> Any:
    return jax.tree.map(jnp.clip, rows, *problem.row_bounds(rows))


def _norm(tree: Any) -> Any:
    return jnp.sqrt(trees.dot(tree, tree))


def _warn_short(name: str, steps: int, reached: float, wanted: float) -> None:
    warnings.warn(f"{name}: stopped after {steps} steps at {reached:.3g}, short of {wanted:.3g}.", stacklevel=3)
