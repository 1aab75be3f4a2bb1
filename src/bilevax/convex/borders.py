"""Where an objective is defined: bounds that are borders of its domain, as 0 is of a logarithm's, and points inside.

At such a border the gradient is infinite. No minimiser lies on it, so it is no row that may be active.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse

from bilevax.convex.newton_program import interior_point
from bilevax.convex.optimality import Local, Rows
from bilevax.convex.problem import Objective

# Up to so many variables each is tried alone; of more, so many random groups.
_SINGLE, _GROUPS = 100, 16


def with_domain(objective: Objective, rows: Rows, start: np.ndarray) -> tuple[Rows, np.ndarray]:
    """The rows without bounds that are borders of the objective's domain, and the start moved inside them."""
    if rows.domain.bounded:
        return rows, start
    low, high = rows.bounds
    free = low < high
    inset = 0.1 * np.minimum(1.0, np.where(np.isfinite(high - low), high - low, 1.0))
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
    """The bounds at which the gradient is infinite: it grows as fast on every hundredth part of the way there.

    Where a function is guarded (0 log 0 = 0) the gradient at the bound may be finite, but it does not go on from there.
    """

    def infinite(among: np.ndarray) -> np.ndarray:
        at = lambda part: objective.gradient(np.where(among, bound + part * (centre - bound), centre))
        near, nearer, nearest, there = (np.sign(centre - bound) * at(part) for part in (1e-6, 1e-8, 1e-10, 0.0))
        grows = nearer - nearest > np.maximum(0.5 * (near - nearer), 1e-10 * abs(nearer))
        return among & grows & ~(np.isfinite(there) & (there <= nearest))

    found = infinite(bounded) if bounded.any() else bounded
    if not found.any():
        return found
    coupled = abs(sparse.csc_matrix(objective.hessian(centre))[:, np.flatnonzero(found)])
    if coupled.nnz <= found.sum():
        return found
    # What is infinite for several variables at once may not be so for each of them: log(a + b).
    index, random = np.flatnonzero(found), np.random.default_rng(0)
    groups = np.eye(index.size, dtype=bool) if index.size <= _SINGLE else random.random((_GROUPS, index.size)) < 0.5
    for group in groups:
        among = np.zeros(len(found), bool)
        among[index[group]] = True
        found &= ~among | infinite(among)
    return found


def _somewhere_inside(objective: Objective, rows: Rows, start: np.ndarray) -> np.ndarray:
    """A point where the objective is finite, if one is found: inside the rows, else wherever one may be expected."""
    interior, random = interior_point(rows, start), np.random.default_rng(0)
    points = [interior, np.ones(start.size), -np.ones(start.size)]
    points += [size * random.standard_normal(start.size) for size in (1.0, 0.1, 10.0) for _ in range(20)]
    return next((point for point in points if Local(objective, point).finite), interior)
