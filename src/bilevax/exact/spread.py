"""How far f moves over the minimisers of a large lower level."""

import numpy as np
import scipy.sparse as sp

from bilevax.convex.problem import ConvexSolution
from bilevax.convex.programs import linprog
from bilevax.exact.active_rows import Margin, active_rows, project_out, unit_rows
from bilevax.model.flat import FlatProblem

_MAX_SPREAD = 5000  # variables beyond which corners of the set of minimisers are not looked for


def value_spread(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return how far f is seen to move over the minimisers of the lower level; 0 where there is only one.

    A minimiser y + v has H v = 0, keeps the strongly active rows active, and satisfies the others. If f does not move
    along a random direction of that kind it depends on none of them; otherwise corners of their set are tried.
    """
    if lower.unique:
        return 0.0
    everything = unit_rows(flat, x, lower)
    active = active_rows(flat, x, lower, everything, Margin(1e-7, 1e-7))
    strong = active.a[active.equality | (active.multiplier > active.zero)]
    fixed = sp.vstack([flat.hessian("lower", "y", "y", x, lower.y), strong], format="csr")
    random = np.random.default_rng(0)
    reach = 1 + np.abs(lower.y).max(initial=0.0)
    here = flat.value("upper", x, lower.y)
    moved = lambda v: abs(flat.value("upper", x, lower.y + v) - here)
    free = project_out(fixed, random.standard_normal(flat.n_y))
    small = 1e-9 * (1 + abs(here))
    if np.abs(free).max() <= 1e-8 or max(moved(0.1 * reach * free), moved(-0.1 * reach * free)) <= small:
        return 0.0
    if flat.n_y > _MAX_SPREAD:
        return np.inf
    a, low, high, image = everything.a, everything.lower, everything.upper, everything.value
    finite = [np.isfinite(high), np.isfinite(low)]
    rows = sp.vstack([a[finite[0]], -a[finite[1]]])
    slack = np.maximum(np.concatenate([(high - image)[finite[0]], (image - low)[finite[1]]]), 0.0)
    f_y = flat.gradients("upper", x, lower.y)[1]
    corners = [
        linprog(cost, A_ub=rows, b_ub=slack, A_eq=fixed, b_eq=np.zeros(fixed.shape[0]), bounds=(-reach, reach))
        for cost in (f_y, -f_y, *random.standard_normal((4, flat.n_y)))
    ]
    return float(max(moved(corner.x) if corner.status == 0 else np.inf for corner in corners))
