"""Other multipliers of the same (x, y), where active constraints are dependent and the multipliers not unique."""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax.solvers.default.pieces.conditions import Setting, on_columns, point_at
from bilevax.solvers.default.pieces.point import BIACTIVE, INACTIVE, ExactPoint, classify
from bilevax.solvers.default.programs.quadratic import solve_sparse_qp
from bilevax.solvers.default.settings import EXACT, RESTORATION


def other_multipliers(setting: Setting, point: ExactPoint, margin: float = EXACT.biactive) -> Iterator[ExactPoint]:
    """Yield the point with other multipliers: those with the largest and the least ``multiplier' B`` along each x.

    With other multipliers other rows are strongly active, and those that no longer are may become inactive. Two links
    of a road, one after the other, are both full: either of them can carry the price of the traffic. Multipliers and
    slacks within the ``margin``, in their units, are zero.
    """
    rows, units = setting.rows, setting.units()
    sides = classify(point, units, rows.inequality, margin)
    active = np.flatnonzero(sides[: rows.general] != INACTIVE)
    at_low, at_high = on_columns(rows, sides != INACTIVE, len(point.y))
    free = ~(at_low | at_high)
    A, B, now = rows.A[active], rows.B[active], point.multiplier[active]
    balanced = np.zeros(len(point.y))  # what bounds hold of grad_y g + A' multiplier
    np.add.at(balanced, rows.column, -rows.sign * point.multiplier[rows.bounds])
    # Conditions on a change of the multipliers: the signs of grad_y g + A' multiplier, and of the multipliers.
    matrix = sp.vstack([A.T, sp.eye(len(now))], format="csr")
    least = np.where(rows.inequality[active], -now, -np.inf)
    low = np.where(at_high, -np.inf, np.where(free, 0.0, -np.maximum(balanced, 0.0)))
    high = np.where(at_low, np.inf, np.where(free, 0.0, np.maximum(-balanced, 0.0)))
    low, high = np.concatenate([low, least]), np.concatenate([high, np.full(len(now), np.inf)])
    used = np.isfinite(low) | np.isfinite(high)
    weight = sp.eye(len(now), format="csc") * (RESTORATION.nearby / units.multiplier)

    def furthest(along: np.ndarray) -> np.ndarray:
        solved = solve_sparse_qp(weight, -along, matrix[used], low[used], high[used])
        return np.zeros(len(now)) if solved is None else np.maximum(solved[0], least)

    # A random change of the multipliers in the null space of A' tells along which x they differ.
    silent = sides[active] == BIACTIVE
    carrying = ~silent | (furthest(silent.astype(float)) > margin * units.multiplier)
    random, part, count = np.random.default_rng(0).standard_normal(carrying.sum()), A[carrying][:, free], free.sum()
    whole = sp.bmat([[sp.eye(len(random)), part], [part.T, -1e-12 * sp.eye(count)]], format="csc")
    change = spl.splu(whole).solve(np.concatenate([random, np.zeros(count)]))[: len(random)]
    seen = set()
    for index in np.flatnonzero(np.abs(B[carrying].T @ change) > 1e-6):
        for sign in (1, -1):
            multiplier = point.multiplier[: rows.general].copy()
            multiplier[active] += furthest(sign * B[:, [index]].toarray().ravel())
            if np.abs(multiplier).max() > RESTORATION.unbounded * (units.multiplier + np.abs(now).max()):
                continue  # unbounded multipliers: x lies on the border of {x : the lower level is feasible}
            other, miss = point_at(setting, point.x, point.y, multiplier)
            key = classify(other, units, rows.inequality, margin).tobytes()
            if key not in seen and miss <= RESTORATION.exact:
                seen.add(key)
                yield other
