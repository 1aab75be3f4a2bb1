"""How far f moves over the minimisers of a lower level that is too large to be tilted."""

import numpy as np
import scipy.sparse as sp

from bilevax._support.programs import linprog
from bilevax.convex.problem import ConvexSolution
from bilevax.exact.active_rows import Margin, active_rows, project_out, unit_rows
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.flat import FlatProblem


def error_by_curvature(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float | None:
    """Return how far f may be off where the curvature of g alone tells that f is the same at all minimisers; else None.

    Along the line between two minimisers a convex g is constant, so they differ by some v with H v = 0 at either of
    them. Where H is a diagonal, they agree in all entries of y in which g is curved: if f, a quadratic, does not change
    with the others, nothing is left to find out by tilting.
    """
    hessian, of_upper = flat.hessian("lower", "y", "y", x, lower.y), flat.upper_constants
    curvature = hessian.diagonal()
    if of_upper is None or hessian.count_nonzero() > np.count_nonzero(curvature):
        return None
    curved = curvature > EXACT_TOLERANCES.curved * (1 + curvature.max(initial=0.0))
    f_y, others = flat.gradients("upper", x, lower.y)[1], flat.n_x + np.flatnonzero(~curved)
    if np.any(f_y[~curved]) or of_upper[others][:, others].count_nonzero():
        return None
    steepest = 1 + float(np.abs(flat.gradients("lower", x, lower.y)[1]).max())
    return float(np.sum(np.abs(f_y[curved]) / curvature[curved])) * lower.residual * steepest


def value_spread(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return how far f is seen to move over the minimisers of the lower level; 0 where there is only one.

    Other minimisers y + v have H v = 0, keep the strongly active rows active and satisfy the others. If f does not move
    along a random v of the first two kinds it moves along none; otherwise f is evaluated at corners of their set.
    """
    if lower.unique:
        return 0.0
    tolerances, everything = EXACT_TOLERANCES, unit_rows(flat, x, lower)
    margin = Margin(tolerances.spread_margin, tolerances.spread_margin)
    active = active_rows(flat, x, lower, everything, margin)
    strong = active.a[active.equality | (active.multiplier > active.zero)]
    fixed = sp.vstack([flat.hessian("lower", "y", "y", x, lower.y), strong], format="csr")
    random = np.random.default_rng(0)
    reach = 1 + np.abs(lower.y).max(initial=0.0)
    here = flat.value("upper", x, lower.y)
    moved = lambda v: abs(flat.value("upper", x, lower.y + v) - here)
    free = project_out(fixed, random.standard_normal(flat.n_y))
    if np.abs(free).max() <= tolerances.spread_direction:
        return 0.0
    step = tolerances.spread_step * reach * free
    if max(moved(step), moved(-step)) <= tolerances.spread_value * (1 + abs(here)):
        return 0.0
    if flat.n_y > EXACT_SETTINGS.most_corners:
        return np.inf
    a, low, high, image = everything.a, everything.lower, everything.upper, everything.value
    finite = [np.isfinite(high), np.isfinite(low)]
    rows = sp.vstack([a[finite[0]], -a[finite[1]]])
    slack = np.maximum(np.concatenate([(high - image)[finite[0]], (image - low)[finite[1]]]), 0.0)
    f_y = flat.gradients("upper", x, lower.y)[1]
    corners = [
        linprog(cost, A_ub=rows, b_ub=slack, A_eq=fixed, b_eq=np.zeros(fixed.shape[0]), bounds=(-reach, reach))
        for cost in (f_y, -f_y, *random.standard_normal((EXACT_SETTINGS.corner_directions, flat.n_y)))
    ]
    return float(max(moved(corner.x) if corner.status == 0 else np.inf for corner in corners))
