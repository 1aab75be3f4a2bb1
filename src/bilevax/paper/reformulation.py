"""The single-level reformulation: Phi_delta with its gradient, the augmented Lagrangian K, and the potential V.

    Phi_delta(x) = min over y, max over z of  f(x, y) + [g(x, y) - g(x, z)] / delta,   y and z feasible at x

Everything but `augmented_lagrangian` is exact and runs on the host in float64, whatever JAX's settings: the
minimisers come from ``bilevax.convex``, which shares no code with the solvers.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, PyTree

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax.certificate.certify import certify
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.exact.lower import objective_at, solve_flat
from bilevax.exact.lower_level import wrap
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, place, validate
from bilevax.solvers.sflcb import SFLCB, SFLCBState


@dataclasses.dataclass(frozen=True)
class Penalised:
    """Phi_delta at a point, with everything it is made of.

    Attributes
    ----------
    value, gradient
        Phi_delta(x), and its gradient in the structure of x. Where the multipliers are not unique (no LICQ)
        Phi_delta may have a kink, and this is the formula for one choice of them.
    y, z
        The minimisers of ``delta f + g`` (the paper's y*_delta) and of g (y*).
    u, v
        Their row multipliers, in the form in which the coupling was given.
    """

    value: float
    gradient: PyTree
    y: PyTree
    z: PyTree
    u: PyTree
    v: PyTree


@dataclasses.dataclass(frozen=True)
class Potential:
    """The potential V = K / 4 + 2 q - d of the convergence proofs, and its parts.

    Attributes
    ----------
    value
        V.
    lagrangian
        K at the state.
    d
        The minimum of K over (y, s_y), at the state's x, z, s_z, u, v.
    q
        The maximum of K over (z, s_z), at the state's x and v and at the exact y*_delta(x).
    inner
        The state with (y, s_y) and (z, s_z) replaced by the minimiser and the maximiser of K.
    """

    value: float
    lagrangian: float
    d: float
    q: float
    inner: SFLCBState


def penalised(problem: BilevelProblem, x: PyTree, delta: float, y_like: PyTree = None) -> Penalised:
    """Return Phi_delta(x) and its gradient, with the exact minimisers and multipliers of both systems.

    The gradient is the paper's (Lemma "nabla phi delta"):

        grad_x f(x, y) + [grad_x g(x, y) + B'u - grad_x g(x, z) - B'v] / delta

    Parameters
    ----------
    problem, x
        The problem and the point.
    delta
        The penalty, a number > 0 for which ``g + delta f`` is convex in y.
    y_like
        An example of y, or its shapes, where the problem does not tell them.

    Raises
    ------
    ValueError
        If one of the two lower-level problems has no minimiser at x; it says why.
    """
    if not (np.isfinite(delta) and delta > 0):
        raise ValueError(f"delta: expected a number > 0, got {delta}.")
    delta = float(delta)
    with float64():
        example = None if y_like is None else jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), y_like)
        x, y_like, _ = validate(problem, x, example)
    flat = FlatProblem(problem, x, y_like)
    point = trees.flatten_host(x)
    z = _proven(solve_flat(flat, point), "g")
    y = _proven(solve_flat(flat, point, z.y, penalty=delta), f"g + {delta:g} f")
    rows = flat.rows
    change = (y.multipliers - z.multipliers)[: rows.B.shape[0]]
    excess = flat.value("lower", point, y.y) - flat.value("lower", point, z.y)
    difference = flat.gradients("lower", point, y.y)[0] - flat.gradients("lower", point, z.y)[0]
    gradient = flat.gradients("upper", point, y.y)[0] + (difference + rows.B.T @ change) / delta
    penalised_system, lower_system = wrap(flat, y), wrap(flat, z)
    return Penalised(
        value=flat.value("upper", point, y.y) + excess / delta,
        gradient=flat.x_tree(gradient),
        y=penalised_system.y,
        z=lower_system.y,
        u=penalised_system.multipliers,
        v=lower_system.multipliers,
    )


def penalised_value(problem: BilevelProblem, x: PyTree, delta: float, y_like: PyTree = None) -> float:
    """Return Phi_delta(x); see `penalised`."""
    return penalised(problem, x, delta, y_like).value


def penalised_gradient(problem: BilevelProblem, x: PyTree, delta: float, y_like: PyTree = None) -> PyTree:
    """Return the gradient of Phi_delta at x, in the structure of x; see `penalised`."""
    return penalised(problem, x, delta, y_like).gradient


def hypergradient(problem: BilevelProblem, x: PyTree, y: PyTree = None) -> PyTree | None:
    """Return the exact gradient of Phi at x, or None where Phi has none (a kink, a border of its domain).

    It comes from differentiating the KKT system of the lower level; y only gives the structure and a start.
    """
    return certify(problem, x, y).hypergradient


def augmented_lagrangian(problem: BilevelProblem, solver: SFLCB, state: SFLCBState) -> Float[Array, ""]:
    """Return K at a state, a pure JAX function; delta, rho1 and rho2 are the solver's.

    K = delta f(x, y) + g(x, y) - g(x, z) + u'(h(x, y) - s_y) - v'(h(x, z) - s_z)
        + rho1/2 |h(x, y) - s_y|^2 - rho2/2 |h(x, z) - s_z|^2
    """
    x, y, z, s_y, s_z, u, v = state
    residual_y = trees.subtract(problem.rows(x, y), s_y)
    residual_z = trees.subtract(problem.rows(x, z), s_z)
    objective = solver.delta * problem.upper_value(x, y) + problem.lower_value(x, y) - problem.lower_value(x, z)
    pull_y = trees.dot(u, residual_y) + 0.5 * solver.rho1 * trees.dot(residual_y, residual_y)
    pull_z = trees.dot(v, residual_z) + 0.5 * solver.rho2 * trees.dot(residual_z, residual_z)
    return objective + pull_y - pull_z


def inner_optimum(problem: BilevelProblem, solver: SFLCB, state: SFLCBState) -> SFLCBState:
    """Return the state with K minimised over (y, s_y) and maximised over (z, s_z), exactly, at its x, u and v.

    These are the paper's y'*_delta(x, u) and z'*(x, v); the y, z and slacks of the given state only start the search.
    """
    for name in ("rho1", "rho2"):
        if not getattr(solver, name) > 0:
            raise ValueError(
                f"{name}: expected a number > 0, else K need not have an optimum, got {getattr(solver, name)}."
            )
    flat = FlatProblem(problem, state.x, state.y)
    x, u, v = (trees.flatten_host(part) for part in (state.x, state.u, state.v))
    offset = _row_offset(flat)
    best = {}
    for name, slack, multipliers, rho, penalty in (
        ("y", "s_y", u, solver.rho1, solver.delta),
        ("z", "s_z", v, solver.rho2, 0.0),
    ):
        start = np.concatenate(
            [trees.flatten_host(getattr(state, name)), trees.flatten_host(getattr(state, slack)) - offset]
        )
        objective = _augmented_objective(flat, x, multipliers, float(rho), float(penalty))
        solution = _proven(minimise(objective, _slack_constraints(flat), start), f"K in ({name}, {slack})")
        best[name] = flat.y_tree(solution.y[: flat.n_y])
        best[slack] = flat.row_tree(solution.y[flat.n_y :] + offset)
    return state._replace(**best)


def potential(problem: BilevelProblem, solver: SFLCB, state: SFLCBState) -> Potential:
    """Return V = K / 4 + 2 q - d at a state, every inner optimum solved exactly.

    With the step sizes of `bilevax.paper.step_sizes` each step of SFLCB decreases V by an amount that the paper states.
    """
    flat = FlatProblem(problem, state.x, state.y)
    inner = inner_optimum(problem, solver, state)
    x = trees.flatten_host(state.x)
    y_delta = _proven(solve_flat(flat, x, trees.flatten_host(state.y), float(solver.delta)), "g + delta f")
    with float64():
        placed = place(problem, np.float64)
        y = flat.y_tree(y_delta.y)
        # With the slack at the row's own value the rows pull with nothing, so K there is q.
        at_optimum = inner._replace(y=y, s_y=placed.rows(_float64(state.x), _float64(y)))
        value = lambda at: float(_lagrangian(placed, solver, _float64(at)))
        lagrangian, q = value(state), value(at_optimum)
        d = value(state._replace(y=inner.y, s_y=inner.s_y))
    return Potential(lagrangian / 4 + 2 * q - d, lagrangian, d, q, inner)


_lagrangian = eqx.filter_jit(augmented_lagrangian)


def _augmented_objective(
    flat: FlatProblem, x: np.ndarray, multipliers: np.ndarray, rho: float, penalty: float
) -> Objective:
    """Return ``g + penalty f + multipliers'r + rho/2 |r|^2`` with ``r = B x + A y - s``, as a function of (y, s)."""
    plain, rows, n_y = objective_at(flat, x, penalty), flat.rows, flat.n_y
    extended = sp.hstack([rows.A, -sp.eye(rows.A.shape[0])], format="csr")
    shift, augmentation = rows.B @ x, rho * (extended.T @ extended)
    residual = lambda w: extended @ w + shift

    def value(w: np.ndarray) -> float:
        r = residual(w)
        return plain.value(w[:n_y]) + float(multipliers @ r + 0.5 * rho * r @ r)

    def gradient(w: np.ndarray) -> np.ndarray:
        own = np.concatenate([plain.gradient(w[:n_y]), np.zeros(len(shift))])
        return own + extended.T @ (multipliers + rho * residual(w))

    def hessian(w: np.ndarray) -> sp.csc_matrix:
        own = sp.block_diag([plain.hessian(w[:n_y]), sp.csc_matrix((len(shift), len(shift)))])
        return sp.csc_matrix(own + augmentation)

    return Objective(value, gradient, hessian)


def _slack_constraints(flat: FlatProblem) -> Constraints:
    """Return y in Y and ``lower <= s <= upper`` on (y, s)."""
    rows, simple = flat.rows, flat.y_rows
    return Constraints(
        matrix=sp.block_diag([simple.matrix, sp.eye(len(rows.lower))], format="csr"),
        lower=np.concatenate([simple.lower, rows.lower]),
        upper=np.concatenate([simple.upper, rows.upper]),
        balls=simple.balls,
    )


def _row_offset(flat: FlatProblem) -> np.ndarray:
    """Return the rows at (0, 0): `FlatProblem` keeps its slacks without it, a state keeps them with it."""
    with float64():
        rows = place(flat.problem, np.float64).rows(trees.zeros(flat.x_like), trees.zeros(flat.y_like))
    return trees.flatten_host(rows)


def _proven(solution: ConvexSolution, name: str) -> ConvexSolution:
    if solution.outcome is not Outcome.OPTIMAL:
        raise ValueError(f"{name}: expected a proven minimiser, but {solution.outcome.value}.")
    return solution


def _float64(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, np.float64), tree)
