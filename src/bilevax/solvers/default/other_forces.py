"""The same exact point with other forces, where rows depend on each other and their forces are not unique."""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax.solvers.default.interior import InteriorLower
from bilevax.solvers.default.joint_point import EXACT, NEAR, OPEN, UNDECIDED, JointPoint, classify, point_at, residual
from bilevax.solvers.default.quadratic_program import solve_sparse_qp


def other_forces(lower: InteriorLower, point: JointPoint) -> Iterator[JointPoint]:
    """Yield the point with other forces, where rows depend on each other: the largest and the least along each x.

    What presses on one row others may carry, and then it can open. Two links of a road, one after the other, are both
    full, and either of them holds the traffic back.
    """
    sides = classify(lower, point, NEAR)
    held, free = sides.rows != OPEN, (sides.below == OPEN) & (sides.above == OPEN) & ~lower.fixed
    rows, B, now = lower.A[held], lower.B[held], point.force[held]
    # Conditions on a change of the forces: what it does to grad_y g + A' force, and the forces' signs.
    matrix = sp.vstack([rows.T, sp.eye(len(now))], format="csr")
    pressed = np.where(lower.inequality[held], -now, -np.inf)
    low = np.where(sides.above != OPEN, -np.inf, np.where(free, 0.0, -np.maximum(point.reduced, 0.0)))
    high = np.where(sides.below != OPEN, np.inf, np.where(free, 0.0, np.maximum(-point.reduced, 0.0)))
    low, high = np.concatenate([low, pressed]), np.concatenate([high, np.full(len(now), np.inf)])
    used = np.concatenate([~lower.fixed, np.ones(len(now), bool)]) & (np.isfinite(low) | np.isfinite(high))
    weight = sp.eye(len(now), format="csc") * (_NEARBY / lower.pull)

    def furthest(along: np.ndarray) -> np.ndarray:
        solved = solve_sparse_qp(weight, -along, matrix[used], low[used], high[used])
        return np.zeros(len(now)) if solved is None else np.maximum(solved[0], pressed)

    # A random change that y does not feel, of the forces that can be there at all, tells along which x they differ.
    silent = sides.rows[held] == UNDECIDED
    carrying = ~silent | (furthest(silent.astype(float)) > NEAR * lower.pull)
    random, part, count = np.random.default_rng(0).standard_normal(carrying.sum()), rows[carrying][:, free], free.sum()
    whole = sp.bmat([[sp.eye(len(random)), part], [part.T, -1e-12 * sp.eye(count)]], format="csc")
    change = spl.splu(whole).solve(np.concatenate([random, np.zeros(count)]))[: len(random)]
    seen = set()
    for index in np.flatnonzero(np.abs(B[carrying].T @ change) > 1e-6):
        for sign in (1, -1):
            force = point.force.copy()
            force[held] += furthest(sign * B[:, [index]].toarray().ravel())
            if np.abs(force).max() > _LARGER * (lower.pull + np.abs(now).max()):
                continue  # without a bound: the border of what is feasible, which no force can move
            other = point_at(lower, point.x, point.y, force)
            key = tuple(side.tobytes() for side in classify(lower, other, NEAR).each)
            if key not in seen and residual(lower, other) <= EXACT:
                seen.add(key)
                yield other


_LARGER = 10.0
_NEARBY = 1e-8  # how much the nearest of those forces is preferred
