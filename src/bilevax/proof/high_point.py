"""The high-point relaxation of a convex f: a lower bound from the rows alone, where nothing is branched on.

f is minimised over x and y together; the lower level's optimality is left out. At the minimiser z with multipliers
``nu``, convexity says that any feasible point has at least the value

    f(z) + nu' G z - (nu+' upper - nu-' lower) + min over d of  r' d + d' P d / 2,      r = grad f(z) + G' nu,

with G the rows and P a curvature that f has everywhere. The residual r is zero up to rounding wherever P is; elsewhere
it costs ``r^2 / (2 P)``. No solver is believed: whatever z and nu are, that is a bound.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from bilevax._support.memory import Frozen, remembered
from bilevax._support.precision import float64
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, Objective
from bilevax.model.analysis import analyse, on_flat_vectors
from bilevax.model.compressed_rows import joint_matrix
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem
from bilevax.model.quadratic import gradient_numbers
from bilevax.proof.induced import inducing_x
from bilevax.proof.relaxation import balanced_part
from bilevax.proof.settings import PROOF


def high_point_bound(flat: FlatProblem, start: np.ndarray | None) -> tuple[float, tuple[np.ndarray | None, ...]]:
    """Return a lower bound on Phi, minus infinity where there is none, and some x where Phi might attain that."""
    if flat.problem.curved or flat.x_rows.balls or flat.y_rows.balls or not flat.upper_is_convex:
        return -np.inf, ()
    rows, n_x = _rows(flat), flat.n_x
    f = Objective(
        value=lambda z: flat.value("upper", z[:n_x], z[n_x:]),
        gradient=lambda z: np.concatenate(flat.gradients("upper", z[:n_x], z[n_x:])),
        hessian=lambda z: flat.upper_hessian(z[:n_x], z[n_x:]),
    )
    found = minimise(f, rows, start)
    x, y = found.y[:n_x], found.y[n_x:]
    return _proven(flat, f, rows, found.y, found.multipliers), (x, inducing_x(flat, x, y))


def _rows(flat: FlatProblem) -> Constraints:
    sides = lambda name: np.concatenate([getattr(part, name) for part in (flat.rows, flat.x_rows, flat.y_rows)])
    matrix = joint_matrix(flat.rows.B, flat.rows.A, flat.x_rows.matrix, flat.y_rows.matrix)
    return Constraints(matrix, sides("lower"), sides("upper"))


def _proven(flat: FlatProblem, f: Objective, rows: Constraints, z: np.ndarray, multipliers: np.ndarray) -> float:
    gradient, curvature = f.gradient(z), _curvature(flat)
    hard, matrix = curvature == 0, sp.csr_matrix(rows.matrix)
    finite = np.isfinite(np.where(multipliers > 0, rows.upper, rows.lower))
    exact = balanced_part(matrix[:, hard].toarray(), np.where(finite, multipliers, 0.0), gradient[hard], floor=0.0)
    if exact is None:
        return -np.inf
    left = np.where(hard, 0.0, gradient + matrix.T @ exact)
    side = np.where(exact > 0, rows.upper, rows.lower)
    terms = np.where(exact != 0, exact * (matrix @ z - np.where(exact != 0, side, 0.0)), 0.0)
    value, lost = f.value(z), 0.5 * np.sum(left**2 / np.where(hard, 1.0, curvature))
    sizes = np.abs(exact) @ (abs(matrix) @ np.abs(z)) + abs(value) + np.abs(terms).sum()
    bound = float(value + terms.sum() - lost - PROOF.margin * sizes)
    return bound if np.isfinite(bound) else -np.inf


def _curvature(flat: FlatProblem) -> np.ndarray:
    """Return a diagonal that f minus half its square form is convex with, in the units of ``flat``."""
    of_x = separate_curvature(flat.problem, *flat.shapes)
    return np.concatenate([flat.scales.upper * flat.scales.x**2 * of_x, np.zeros(flat.n_y)])


@remembered
def separate_curvature(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> np.ndarray:
    """Return the second derivatives of f in x where it is a sum of squares there, apart from y; zeros elsewhere."""
    fn = on_flat_vectors(problem, "upper", x_like.tree, y_like.tree)
    n_x, n_y = (sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(like.tree)) for like in (x_like, y_like))
    gradient = jax.grad(fn, argnums=0)
    with float64():
        degree = analyse(lambda x, y: jnp.sum(gradient(x, y)), n_x, n_y).degree
        numbers = gradient_numbers(gradient, n_x, n_y) if degree is not None and degree <= 1 else None
    if numbers is None:
        return np.zeros(n_x)
    slopes = numbers[1]
    apart = not np.any(slopes[n_x:]) and not np.any(slopes[:n_x] - np.diag(np.diag(slopes[:n_x])))
    return np.maximum(np.diag(slopes[:n_x]), 0.0) if apart else np.zeros(n_x)
