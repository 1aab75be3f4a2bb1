"""The high-point relaxation: f minimised over x and y together, under the rows and sets of both levels.

It drops the lower level's optimality and keeps its rows, so it is an ordinary problem with linear constraints. Its x is
one more start for the exact descent. If f is convex its value is a lower bound on Phi, and where y is optimal for the
lower level at that x the bound is attained: x is a global minimiser.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax._support import clock, full
from bilevax._support.elimination import eliminates
from bilevax._support.heap import give_back
from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.programs.cholesky import factorise, lifted
from bilevax.solvers.default.programs.convexify import convexified, is_full
from bilevax.solvers.default.programs.feasible import joint_rows
from bilevax.solvers.default.programs.quadratic import solve_by_rows, solve_qp
from bilevax.solvers.default.settings import RELAXATION, SIZES


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
        return self.bound and value - self.value <= RELAXATION.attained * (1 + abs(self.value))


def high_point_relaxation(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> HighPoint | None:
    """Minimise f over (x, y) from a point that satisfies the rows; None where no minimum was found."""
    if (found := _of_large_quadratic(flat, x, y)) is not None:
        return found
    give_back(len(x) + len(y))
    rows, point = joint_rows(flat), np.concatenate([x, y])
    value_at = lambda v: flat.value("upper", v[: flat.n_x], v[flat.n_x :])
    value, convex, known, hessian, dense = value_at(point), True, None, None, None
    for _ in range(RELAXATION.steps):
        here = point[: flat.n_x], point[flat.n_x :]
        gradient = np.concatenate(flat.gradients("upper", *here))
        curvature = flat.upper_hessian(*here)
        large = curvature.nnz + rows.matrix.nnz > RELAXATION.most_entries and not eliminates(curvature, rows.matrix)
        if curvature is not known:
            if large and (known is not None or not is_full(curvature)):
                return None  # dearer than the whole search
            hessian, shifted = convexified(curvature)
            give_back(len(point))
            suits = not rows.balls and (is_full(curvature) or SIZES.smallest_full < len(point) <= RELAXATION.few)
            dense = (hessian.toarray(), rows.matrix.toarray()) if suits else None
            known, convex = curvature, convex and not shifted
        reach = RELAXATION.reach * (1 + np.abs(point).max(initial=0.0))
        trace = RELAXATION.trace * (1 + np.abs(gradient).max()) / reach
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
        if -slope <= RELAXATION.least_decrease * (1 + abs(value)):
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


def _of_large_quadratic(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> HighPoint | None:
    """Minimise f where it is a strictly convex quadratic of many variables: one step, and one factorisation.

    None where it is not, or that is not accurate.
    """
    quadratic, point = flat.quadratics["upper"], np.concatenate([x, y])
    if quadratic is None or len(point) <= SIZES.directions:
        return None
    if np.count_nonzero(quadratic.numbers) <= SIZES.full * quadratic.numbers.size:
        return None
    rows = joint_rows(flat)
    if rows.balls:
        return None
    clock.check()
    try:
        factor = factorise(quadratic.own_curvature(), overwrite=True)
    except np.linalg.LinAlgError:
        return None
    gradient, steps = np.concatenate(quadratic.gradients(x, y)), rows.around(point)
    hessian = spl.LinearOperator((len(point), len(point)), matvec=quadratic.times, dtype=float)  # pyright: ignore
    step = solve_by_rows(hessian, gradient, full.as_array(steps.matrix), steps.lower, steps.upper, factor)
    if step is None or np.abs(step).max() > RELAXATION.reach * (1 + np.abs(point).max()):
        return None
    end = point + step
    return HighPoint(end[: flat.n_x], end[flat.n_x :], flat.value("upper", end[: flat.n_x], end[flat.n_x :]), True)
