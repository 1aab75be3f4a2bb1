"""The conditions of a piece of Phi on (x, y, multiplier), linearised: equations and inequalities, no complementarity.

Where every constraint is active or inactive, nothing is left to decide:

    (grad_y g + A' multiplier)_i  = 0 where no bound of y_i is active, >= 0 at an active lower, <= 0 at an upper bound;
    active rows: equations, multiplier >= 0;  inactive rows: inequalities, multiplier 0.
"""

import dataclasses
from typing import Protocol

import numpy as np
import scipy.sparse as sp

from bilevax.model.flat import FlatProblem
from bilevax.model.quadratic import LowerDerivatives
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.pieces.point import ACTIVE, INACTIVE, ExactPoint, Units
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import RESTORATION


class Setting(Protocol):
    """What the conditions are about: `SparsePieces`."""

    flat: FlatProblem
    upper: UpperSet
    rows: LowerRows

    def units(self) -> Units:
        """Return what multipliers and slacks are measured in."""
        ...


def point_at(setting: Setting, x: np.ndarray, y: np.ndarray, general: np.ndarray) -> tuple[ExactPoint, float]:
    """Return the point with the multipliers of its general rows, and how far the KKT conditions are from holding.

    The bounds' multipliers balance what is left of the gradient. The distance is relative to the units of the problem.
    """
    rows, flat, units = setting.rows, setting.flat, setting.units()
    gradient = flat.gradients("lower", x, y)[1]
    multiplier = np.concatenate([general, np.zeros(rows.count - rows.general)])
    reduced = gradient + rows.transposed @ multiplier
    multiplier[rows.bounds] = np.maximum(-rows.sign * reduced[rows.column], 0.0)
    dual = reduced + np.bincount(rows.column, rows.sign * multiplier[rows.bounds], minlength=len(y))
    point = ExactPoint(x, y, multiplier, -rows.values(x, y), flat.value("upper", x, y))
    slack, pressing = point.slack / units.slack, multiplier / units.multiplier
    off = np.where(rows.inequality, np.minimum(slack, pressing), slack)
    size = 1 + max(np.abs(x).max(initial=0.0) / units.slack, np.abs(pressing[: rows.general]).max(initial=0.0))
    return point, float(max(np.abs(dual).max(initial=0.0) / units.multiplier, np.abs(off).max(initial=0.0))) / size


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a piece, linearised: ``low <= matrix v <= high``.

    v = (dx, dy, general rows' multipliers in their unit), without the entries that do not move: those of y on an active
    bound, and the multipliers of inactive rows.
    """

    setting: Setting
    point: ExactPoint
    there: LowerDerivatives
    moving: np.ndarray
    used: np.ndarray  # which of the conditions say anything; the first are those on grad_y g
    matrix: sp.csr_matrix
    low: np.ndarray
    high: np.ndarray

    @property
    def start(self) -> np.ndarray:
        """The point itself."""
        flat, rows = self.setting.flat, self.setting.rows
        general = self.point.multiplier[: rows.general] / self.setting.units().multiplier
        return np.concatenate([np.zeros(flat.n_x + flat.n_y), general])[self.moving]

    def end(self, v: np.ndarray) -> ExactPoint:
        """Return where v leads, with what the conditions say of it."""
        rows, n_x, n_y = self.setting.rows, self.setting.flat.n_x, self.setting.flat.n_y
        whole = np.zeros(len(self.moving))
        whole[self.moving] = v
        dx, dy, general = whole[:n_x], whole[n_x : n_x + n_y], self.setting.units().multiplier * whole[n_x + n_y :]
        multiplier = np.concatenate([general, np.zeros(rows.count - rows.general)])
        reduced = self.there.gradient + rows.transposed @ multiplier + self.there.mixed @ dx + self.there.hessian @ dy
        multiplier[rows.bounds] = np.maximum(-rows.sign * reduced[rows.column], 0.0)
        slack = self.point.slack - rows.B @ dx - rows.A @ dy
        return ExactPoint(self.point.x + dx, self.point.y + dy, multiplier, slack, self.point.value)


def on_columns(rows: LowerRows, chosen: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which entries of y have a lower bound, and which an upper bound, among the ``chosen`` constraints."""
    at = chosen[rows.bounds]
    low, high = np.zeros(size, bool), np.zeros(size, bool)
    low[rows.column[at & (rows.sign < 0)]] = True
    high[rows.column[at & (rows.sign > 0)]] = True
    return low, high


def conditions(setting: Setting, point: ExactPoint, sides: np.ndarray, radius: float = np.inf) -> Conditions:
    """Return the conditions for steps from a point, x within a radius of it."""
    flat, rows, x, y = setting.flat, setting.rows, point.x, point.y
    n_x, n_y, count = flat.n_x, flat.n_y, rows.general
    there = flat.lower_derivatives(x, y)
    steps, slack, of_rows = setting.upper.rows.around(x), point.slack[:count], sides[:count]
    at_low, at_high = on_columns(rows, sides != INACTIVE, n_y)
    on_low, on_high = on_columns(rows, sides == ACTIVE, n_y)
    A, B = rows.A[:count], rows.B[:count]
    eye, none = sp.eye, lambda r, c: sp.csr_matrix((r, c))
    blocks = [
        # grad_y g + H dy + G dx + A' multiplier
        (
            sp.hstack([there.mixed, there.hessian, setting.units().multiplier * A.T]),
            np.where(at_high, -np.inf, -there.gradient),
            np.where(at_low, np.inf, -there.gradient),
        ),
        # B dx + A dy against the slack
        (
            sp.hstack([B, A, none(count, count)]),
            np.where(of_rows == ACTIVE, slack, -np.inf),
            np.where(of_rows == ACTIVE, slack, np.maximum(slack, 0.0)),
        ),
        (sp.hstack([none(n_y, n_x), eye(n_y), none(n_y, count)]), *_ways(setting, point, there, np.isfinite(radius))),
        (
            sp.hstack([none(count, n_x + n_y), eye(count)]),
            np.where(rows.inequality[:count], 0.0, -np.inf),
            np.full(count, np.inf),
        ),
        (sp.hstack([steps.matrix, none(len(steps.lower), n_y + count)]), steps.lower, steps.upper),
        (sp.hstack([eye(n_x), none(n_x, n_y + count)]), np.full(n_x, -radius), np.full(n_x, radius)),
    ]
    matrix = sp.vstack([block[0] for block in blocks], format="csc")
    low, high = (np.concatenate([block[side] for block in blocks]) for side in (1, 2))
    moving = np.concatenate([np.ones(n_x, bool), ~(on_low | on_high), of_rows != INACTIVE])
    matrix = sp.csr_matrix(matrix[:, moving])
    used = (np.isfinite(low) | np.isfinite(high)) & (np.diff(matrix.indptr) > 0)
    low = np.where(high - low <= 1e-15, high, low)
    return Conditions(setting, point, there, moving, used, matrix[used], low[used], high[used])


def _ways(
    setting: Setting, point: ExactPoint, there: LowerDerivatives, cautious: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far y may go: to its bounds; for a step only most of the way where grad_y g bends on it.

    A model that takes an entropy for straight would empty a share at once, from where no Newton's method returns.
    """
    low, high = setting.flat.y_rows.intervals()
    fixed = low == high  # equalities take care of these
    down = np.where(fixed, -np.inf, np.minimum(low - point.y, 0.0))
    up = np.where(fixed, np.inf, np.maximum(high - point.y, 0.0))
    if not cautious or setting.flat.lower_is_quadratic:
        return down, up
    here = there.hessian.diagonal()

    def part(way: np.ndarray) -> np.ndarray:
        target = point.y + np.where(np.isfinite(way), RESTORATION.most_of_the_way * way, 0.0)
        beyond = setting.flat.hessian("lower", "y", "y", point.x, target).diagonal()
        return np.where(
            (beyond > RESTORATION.bent * here) | (here > RESTORATION.bent * beyond),
            RESTORATION.most_of_the_way * way,
            way,
        )

    return part(down), part(up)
