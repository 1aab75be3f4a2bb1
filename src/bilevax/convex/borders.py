"""Where an objective is defined: bounds that are borders of its domain, as 0 is of a logarithm's, and points inside.

At such a border the gradient is infinite, so no minimiser lies on it: the bound is not among the rows that may be
active.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse

from bilevax.convex.newton_program import interior_point
from bilevax.convex.optimality import Local, Rows
from bilevax.convex.problem import Objective
from bilevax.convex.settings import DOMAIN


def with_domain(objective: Objective, rows: Rows, start: np.ndarray) -> tuple[Rows, np.ndarray]:
    """The rows without bounds that are borders of the objective's domain, and the start moved inside them."""
    if rows.domain.bounded:
        return rows, start
    low, high = rows.bounds
    free = low < high
    inset = DOMAIN.inset * np.minimum(1.0, np.where(np.isfinite(high - low), high - low, 1.0))
    centre = np.where(free, np.clip(start, low + inset, high - inset), start)
    if not np.all(np.isfinite(objective.gradient(centre))):
        return rows, start if Local(objective, start).finite else _somewhere_inside(objective, rows, start)
    below = _borders(objective, centre, low, free & np.isfinite(low))
    above = _borders(objective, centre, high, free & np.isfinite(high))
    if not (below.any() or above.any()):
        return rows, start
    rows = rows.with_domain(below, above)
    return rows, rows.domain.inside(start, centre)


def _borders(objective: Objective, centre: np.ndarray, bound: np.ndarray, bounded: np.ndarray) -> np.ndarray:
    """The bounds at which the gradient is infinite.

    On the way there it is compared at three distances, each a hundredth of the one before. That of a logarithm grows by
    as much from the second to the third as from the first to the second; a finite one hardly changes any more. At the
    bound itself it may be finite, where a function is guarded (0 log 0 = 0), but then it is smaller than just before.
    """

    def infinite(among: np.ndarray) -> np.ndarray:
        at = lambda part: objective.gradient(np.where(among, bound + part * (centre - bound), centre))
        near, nearer, nearest, there = (np.sign(centre - bound) * at(part) for part in (*DOMAIN.approach, 0.0))
        grows = nearer - nearest > np.maximum(DOMAIN.growth * (near - nearer), DOMAIN.growth_rounding * abs(nearer))
        return among & grows & ~(np.isfinite(there) & (there <= nearest))

    found = infinite(bounded) if bounded.any() else bounded
    if not found.any():
        return found
    coupled = abs(sparse.csc_matrix(objective.hessian(centre))[:, np.flatnonzero(found)])
    if coupled.nnz <= found.sum():
        return found
    # What is infinite for several variables at once may not be so for each of them: log(a + b).
    index, random = np.flatnonzero(found), np.random.default_rng(0)
    few = index.size <= DOMAIN.single_variables
    groups = np.eye(index.size, dtype=bool) if few else random.random((DOMAIN.groups, index.size)) < 0.5
    for group in groups:
        among = np.zeros(len(found), bool)
        among[index[group]] = True
        found &= ~among | infinite(among)
    return found


def _somewhere_inside(objective: Objective, rows: Rows, start: np.ndarray) -> np.ndarray:
    """A point where the objective is finite, if one is found: inside the rows, else wherever one may be expected."""
    interior, random = interior_point(rows, start), np.random.default_rng(0)
    points = [interior, np.ones(start.size), -np.ones(start.size)]
    sizes = np.repeat(DOMAIN.random_sizes, DOMAIN.random_points)
    points += [size * random.standard_normal(start.size) for size in sizes]
    return next((point for point in points if Local(objective, point).finite), interior)
