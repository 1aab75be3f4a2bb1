"""Bringing a point back to its piece of Phi by Newton's method on the piece's conditions.

x moves too: where the feasible set of the lower level is a single point, y alone cannot satisfy the rows.
"""

import numpy as np
import scipy.sparse as sp

from bilevax.solvers.default.pieces.conditions import Setting, conditions, on_columns, point_at
from bilevax.solvers.default.pieces.point import ACTIVE, INACTIVE, ExactPoint
from bilevax.solvers.default.programs.quadratic import least_step, nearest_on_rows, solve_sparse_qp
from bilevax.solvers.default.settings import RESTORATION


def restore(setting: Setting, guess: ExactPoint, sides: np.ndarray) -> ExactPoint | None:
    """Return the nearest point of the piece with these sides; None where it has none near."""
    point, miss = _on_sides(setting, guess.x, guess.y, guess.multiplier, sides)
    best, before = None, [np.inf, np.inf]
    for _ in range(RESTORATION.steps):
        if miss > 0.5 * before[-2]:
            break  # near a solution Newton's method is fast
        best = point if miss <= RESTORATION.exact else None
        nearer = None if miss <= RESTORATION.finest else _nearer(setting, point, sides, miss)
        if nearer is None:
            break
        before.append(miss)
        point, miss = nearer
    return None if best is None else _on_rows(setting, best, sides)


def _nearer(setting: Setting, point: ExactPoint, sides: np.ndarray, miss: float) -> tuple[ExactPoint, float] | None:
    """Return the point after a step of Newton's method, and its miss.

    If that halves the miss, all kinks at hand are kept; otherwise it may leave those it has to, unless the point is
    exact already.
    """
    flat, units, piece = setting.flat, setting.units(), conditions(setting, point, sides)
    # Steep entries of y move in the units of their curvature: Newton's method must not overshoot a tiny share.
    steep = piece.there.hessian.diagonal() * units.slack / units.multiplier
    weights = np.concatenate([np.full(flat.n_x, 1e8), 1e4 * (1 + steep**2), np.full(setting.rows.general, 1e-2)])
    weights, start = weights[piece.moving], piece.start
    arrive = lambda end: _on_sides(setting, setting.upper.project(end.x), end.y, end.multiplier, sides)
    if not setting.upper.rows.balls:
        near = nearest_on_rows(weights, piece.matrix, piece.low, piece.high, start)
        if near is not None and (arrived := arrive(piece.end(near)))[1] <= 0.5 * miss:
            return arrived
    if miss <= RESTORATION.exact:
        return None
    far = solve_sparse_qp(sp.diags(weights, format="csc"), -weights * start, piece.matrix, piece.low, piece.high)
    return None if far is None else arrive(piece.end(far[0]))


def _on_sides(
    setting: Setting, x: np.ndarray, y: np.ndarray, multiplier: np.ndarray, sides: np.ndarray
) -> tuple[ExactPoint, float]:
    """Return the point, and its miss, with y on its active bounds and a multiplier of 0 on inactive rows."""
    rows, (low, high) = setting.rows, setting.flat.y_rows.intervals()
    on_low, on_high = on_columns(rows, sides == ACTIVE, len(y))
    y = np.where(on_low, low, np.where(on_high, high, np.clip(y, low, high)))
    general, inequality = multiplier[: rows.general], rows.inequality[: rows.general]
    positive = np.where(sides[: rows.general] == INACTIVE, 0.0, np.maximum(general, 0.0))
    return point_at(setting, x, y, np.where(inequality, positive, general))


def _on_rows(setting: Setting, point: ExactPoint, sides: np.ndarray) -> ExactPoint:
    """Return the point with its active rows satisfied to the last digit, if it stays within all bounds.

    Where only one y is feasible, a lower level that misses by rounding has none.
    """
    rows, (low, high) = setting.rows, setting.flat.y_rows.intervals()
    active = np.flatnonzero(sides[: rows.general] == ACTIVE)
    on_low, on_high = on_columns(rows, sides == ACTIVE, len(point.y))
    free = ~(on_low | on_high)
    if not active.size:
        return point
    matrix = sp.hstack([rows.B[active], rows.A[active][:, free]], format="csr")
    x, y = point.x.copy(), point.y.copy()
    for _ in range(2):
        step = least_step(matrix, -rows.values(x, y)[active])
        if step is None:
            return point
        x, y[free] = x + step[: len(x)], y[free] + step[len(x) :]
    inside = np.all((y >= low) & (y <= high)) and np.array_equal(setting.upper.project(x), x)
    return point_at(setting, x, y, point.multiplier[: rows.general])[0] if inside else point
