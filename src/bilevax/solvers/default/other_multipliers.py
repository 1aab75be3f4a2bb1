"""Other multipliers of the same (x, y), where active rows are dependent and the multipliers not unique."""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax.solvers.default.interior import InteriorLower
from bilevax.solvers.default.joint_point import (
    BIACTIVE,
    BIACTIVE_MARGIN,
    EXACT,
    INACTIVE,
    JointPoint,
    classify,
    point_at,
    residual,
)
from bilevax.solvers.default.quadratic_program import solve_sparse_qp


def other_multipliers(lower: InteriorLower, point: JointPoint) -> Iterator[JointPoint]:
    """Yield the point with other multipliers: those with the largest and the least ``multiplier' B`` along each x.

    With other multipliers other rows are strongly active, and those that no longer are may become inactive. Two links
    of a road, one after the other, are both full: either of them can carry the price of the traffic.
    """
    sides = classify(lower, point, BIACTIVE_MARGIN)
    active, free = sides.rows != INACTIVE, (sides.below == INACTIVE) & (sides.above == INACTIVE) & ~lower.fixed
    rows, B, now = lower.A[active], lower.B[active], point.multiplier[active]
    # Conditions on a change of the multipliers: the signs of grad_y g + A' multiplier, and of the multipliers.
    matrix = sp.vstack([rows.T, sp.eye(len(now))], format="csr")
    least = np.where(lower.inequality[active], -now, -np.inf)
    low = np.where(sides.above != INACTIVE, -np.inf, np.where(free, 0.0, -np.maximum(point.reduced, 0.0)))
    high = np.where(sides.below != INACTIVE, np.inf, np.where(free, 0.0, np.maximum(-point.reduced, 0.0)))
    low, high = np.concatenate([low, least]), np.concatenate([high, np.full(len(now), np.inf)])
    used = np.concatenate([~lower.fixed, np.ones(len(now), bool)]) & (np.isfinite(low) | np.isfinite(high))
    weight = sp.eye(len(now), format="csc") * (_NEARBY / lower.multiplier_scale)

    def furthest(along: np.ndarray) -> np.ndarray:
        solved = solve_sparse_qp(weight, -along, matrix[used], low[used], high[used])
        return np.zeros(len(now)) if solved is None else np.maximum(solved[0], least)

    # A random change of the multipliers in the null space of A' tells along which x they differ.
    silent = sides.rows[active] == BIACTIVE
    carrying = ~silent | (furthest(silent.astype(float)) > BIACTIVE_MARGIN * lower.multiplier_scale)
    random, part, count = np.random.default_rng(0).standard_normal(carrying.sum()), rows[carrying][:, free], free.sum()
    whole = sp.bmat([[sp.eye(len(random)), part], [part.T, -1e-12 * sp.eye(count)]], format="csc")
    change = spl.splu(whole).solve(np.concatenate([random, np.zeros(count)]))[: len(random)]
    seen = set()
    for index in np.flatnonzero(np.abs(B[carrying].T @ change) > 1e-6):
        for sign in (1, -1):
            multiplier = point.multiplier.copy()
            multiplier[active] += furthest(sign * B[:, [index]].toarray().ravel())
            if np.abs(multiplier).max() > _LARGER * (lower.multiplier_scale + np.abs(now).max()):
                continue  # unbounded multipliers: x lies on the border of {x : the lower level is feasible}
            other = point_at(lower, point.x, point.y, multiplier)
            key = tuple(side.tobytes() for side in classify(lower, other, BIACTIVE_MARGIN).each)
            if key not in seen and residual(lower, other) <= EXACT:
                seen.add(key)
                yield other


_LARGER = 10.0  # than the multipliers at hand: from here on they count as unbounded
_NEARBY = 1e-8  # how much the nearest of those multipliers is preferred
