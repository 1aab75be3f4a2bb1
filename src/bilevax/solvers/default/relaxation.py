"""The high-point relaxation: f minimised over x and y together, under the rows and sets of both levels.

It drops the lower level's optimality and keeps its rows, so it is an ordinary problem with linear constraints. Its x is
one more start for the exact descent. If f is convex its value is a lower bound on Phi, and where y is optimal for the
lower level at that x the bound is attained: x is a global minimiser.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp

from bilevax.model.flat import FlatProblem
from bilevax.model.sets import SetRows
from bilevax.solvers.default.cholesky import factorise, lifted
from bilevax.solvers.default.quadratic_program import solve_by_rows, solve_qp


@dataclasses.dataclass(frozen=True)
class HighPoint:
    """The minimiser of f on {(x, y) : x in X, y in Y, rows}.

    ``bound`` tells whether its value bounds Phi from below: f was convex at all points on the way.
    """

    x: np.ndarray
    y: np.ndarray
    value: float
    bound: bool

    def bounds(self, value: float) -> bool:
        """Return whether this value of Phi attains the bound, so that no x can do better."""
        return self.bound and value - self.value <= 1e-9 * (1 + abs(self.value))


def joint_rows(flat: FlatProblem) -> SetRows:
    """Return all rows and balls on the stacked vector (x, y)."""
    rows, x_rows, y_rows = flat.rows, flat.x_rows, flat.y_rows
    return SetRows(
        matrix=sp.block_array([[rows.B, rows.A], [x_rows.matrix, None], [None, y_rows.matrix]], format="csr"),
        lower=np.concatenate([rows.lower, x_rows.lower, y_rows.lower]),
        upper=np.concatenate([rows.upper, x_rows.upper, y_rows.upper]),
        balls=(*x_rows.balls, *(dataclasses.replace(ball, index=ball.index + flat.n_x) for ball in y_rows.balls)),
    )


def high_point_relaxation(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> HighPoint | None:
    """Minimise f over (x, y) from a point that satisfies the rows; None where no minimum was found."""
    rows, point = joint_rows(flat), np.concatenate([x, y])
    value_at = lambda v: flat.value("upper", v[: flat.n_x], v[flat.n_x :])
    value, convex, known, hessian, dense = value_at(point), True, None, None, None
    for _ in range(_MAX_STEPS):
        here = point[: flat.n_x], point[flat.n_x :]
        gradient = np.concatenate(flat.gradients("upper", *here))
        curvature = flat.upper_hessian(*here)
        large = curvature.nnz + rows.matrix.nnz > _MOST_ENTRIES
        if curvature is not known:
            if large and (known is not None or not _full(curvature)):
                return None  # dearer than the whole search
            hessian, shifted = convexified(curvature)
            suits = not rows.balls and (_full(curvature) or _SMALLEST_FULL < len(point) <= _FEW)
            dense = (hessian.toarray(), rows.matrix.toarray()) if suits else None
            known, convex = curvature, convex and not shifted
        reach = _REACH * (1 + np.abs(point).max(initial=0.0))
        trace = _TRACE * (1 + np.abs(gradient).max()) / reach
        steps = rows.around(point)
        step = None
        if dense is not None:
            step = solve_by_rows(lifted(dense[0], trace), gradient, dense[1], steps.lower, steps.upper)
        if step is None and not large:
            whole = hessian + trace * sp.eye(len(point))
            step = solve_qp(whole, gradient, steps.matrix, steps.lower, steps.upper, steps.balls)
        if step is None or np.abs(step).max(initial=0.0) > reach:
            return None
        slope = float(gradient @ step)
        if -slope <= _LEAST_DECREASE * (1 + abs(value)):
            # The last Newton step is below what f can show, and makes the point accurate.
            point = point + step
            return HighPoint(point[: flat.n_x], point[flat.n_x :], value, convex)
        for length in 0.5 ** np.arange(20):
            trial = value_at(point + length * step)
            if trial <= value + 1e-4 * length * slope:
                point, value = point + length * step, trial
                break
        else:
            return HighPoint(*here, value, False)
    return None


_MAX_STEPS = 60
_REACH = 1e4  # farther away than this many times the point's own size counts as unbounded
_TRACE = 1e-8  # of curvature, so that every step is bounded
_LEAST_DECREASE = 1e-12  # of f, relative: less ends the search
_LARGEST_DENSE = 1500
_SMALLEST_FULL = 150
_FEW = 600  # up to so many variables arrays are no loss even where they hold zeros
_MOST_ENTRIES = 1_000_000


def convexified(hessian: sp.csc_matrix) -> tuple[sp.csc_matrix, bool]:
    """Return the Hessian with its negative curvature reversed, and whether it had any."""
    diagonal = hessian.diagonal()
    size = max(np.abs(hessian.data).max(initial=0.0), 1e-300)
    if hessian.count_nonzero() == np.count_nonzero(diagonal):
        return sp.csc_matrix(sp.diags(np.abs(diagonal))), bool(diagonal.min(initial=0.0) < -1e-12 * size)
    if hessian.shape[0] <= _LARGEST_DENSE or _full(hessian):
        dense = hessian.toarray()
        try:
            factorise(lifted(dense, 1e-12 * size))
            return hessian, False
        except np.linalg.LinAlgError:
            if len(dense) <= _LARGEST_DENSE:
                values, vectors = np.linalg.eigh(dense)
                return sp.csc_matrix((vectors * np.abs(values)) @ vectors.T), bool(values[0] < -1e-10 * size)
    # Gershgorin's bound: crude, but it needs no factorisation.
    excess = np.asarray(abs(hessian).sum(axis=1)).ravel() - np.abs(diagonal) - diagonal
    return hessian + sp.diags(np.maximum(excess, 0.0)), bool(excess.max() > 0)


def _full(matrix: sp.csc_matrix) -> bool:
    """Return whether a matrix is so large and full that arrays are the better form for it."""
    return matrix.shape[0] > _SMALLEST_FULL and matrix.nnz > 0.2 * matrix.shape[0] * matrix.shape[1]
