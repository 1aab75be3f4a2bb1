"""The lower level on its central path, by Newton's method on its KKT conditions.

Constraints have a slack and a multiplier, general rows a softness as well:

    grad_y g + A' multiplier = 0,    A y + B x - c + slack = softness * multiplier,    multiplier * slack = barrier.

With ``softness > 0`` it has an answer for every x, feasible or not, unique and smooth in x; both numbers near zero make
it the exact lower level. A step takes one factorisation of the KKT matrix, by dense or by sparse linear algebra, and
the factor at the answer gives its derivatives.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from bilevax._support import clock
from bilevax.model.flat import FlatProblem
from bilevax.model.quadratic import LowerDerivatives
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.settings import CENTRAL
from bilevax.solvers.diary import Learning


class Factor(Protocol):
    """A factorised KKT matrix ``K = [H, A'; A, -give]``."""

    @property
    def mixed(self) -> Any:
        """The derivative of grad_y g in x."""
        ...

    def solve(self, along_y: np.ndarray, along_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Solve with K."""
        ...

    def response(self, B: Any) -> np.ndarray:
        """Return the derivatives in x of y and of the general rows' multipliers, one row for each x."""
        ...


class KktPoint(NamedTuple):
    """Where K is taken: the derivatives of g there, y, the multipliers, and K's lower right block ``-give``."""

    there: LowerDerivatives
    y: np.ndarray
    multiplier: np.ndarray
    give: np.ndarray


class Algebra(Protocol):
    """The linear algebra of a lower level: `DenseAlgebra` or `SparseAlgebra`."""

    shifts: Any  # how much K's diagonal may be shifted, one after the other until Newton's method works

    def gradient(self, there: LowerDerivatives, y: np.ndarray) -> np.ndarray:
        """Return the gradient of g in y, with whatever makes it strictly convex."""
        ...

    def factorise(self, at: KktPoint, unit: float, shift: float) -> Factor:
        """Return a factor of K; `FloatingPointError` where it has none."""
        ...

    def nearer(self, point: "CentralPoint", soft: np.ndarray) -> "CentralPoint":
        """Return a start that is nearer to the central point at the same x with the same barrier, or is it already."""
        ...


@dataclasses.dataclass(frozen=True)
class CentralPoint:
    """A point on the central path; constraints in the order of `LowerRows`."""

    x: np.ndarray
    y: np.ndarray
    multiplier: np.ndarray
    slack: np.ndarray
    barrier: float
    softness: float
    shift: float = 0.0


class CentralState(NamedTuple):
    """The typical multiplier."""

    multiplier_scale: float


class CentralLower(Learning):
    """Central points of one lower level at many x, each started from a near one."""

    State = CentralState

    def __init__(self, flat: FlatProblem, rows: LowerRows, algebra: Algebra):
        self.flat, self.rows, self.algebra = flat, rows, algebra
        low, high = flat.y_rows.intervals()
        width = np.where(np.isfinite(high - low) & (low < high), high - low, 1.0)
        self.slack_scale = max(float(np.median(width)), 1e-3)  # the typical slack
        self.multiplier_scale = 1.0
        self.soft = np.ones(rows.count)  # which constraints may be soft: all but the bounds
        self.soft[rows.bounds] = 0.0

    def start(self, x: np.ndarray, y: np.ndarray) -> CentralPoint:
        """Return a first point: well inside the bounds, all multipliers alike."""
        rows, y = self.rows, self.flat.y_rows.well_inside(y)
        there = self.flat.lower_derivatives(x, y)
        gradient = np.abs(there.gradient)
        # Near the minimiser of g the gradient says nothing of the multipliers to come; its change over a slack does.
        bend = self.slack_scale * float(np.median(there.hessian.diagonal()))
        self.multiplier_scale = max(float(np.median(gradient)), 1e-3 * float(gradient.max(initial=0.0)), bend, 1e-6)
        return CentralPoint(
            x=x,
            y=y,
            multiplier=np.where(rows.inequality, self.multiplier_scale, 0.0),
            slack=np.where(rows.inequality, np.maximum(-rows.values(x, y), self.slack_scale), 0.0),
            barrier=self.multiplier_scale * self.slack_scale,
            softness=self.slack_scale / self.multiplier_scale,
        )

    def moved(self, point: CentralPoint, x: np.ndarray, step: np.ndarray) -> CentralPoint:
        """Return the point after a step of y and the general rows' multipliers, kept inside its bounds.

        The rest follows from the barrier.
        """
        rows, bounds = self.rows, self.rows.bounds
        along, pushed = step[: self.flat.n_y], step[self.flat.n_y :]
        way = -CENTRAL.predicted_reach * rows.values(point.x, point.y)[bounds]
        low, high = np.full(len(along), -np.inf), np.full(len(along), np.inf)
        below, above = rows.sign < 0, rows.sign > 0
        low[rows.column[below]], high[rows.column[above]] = -way[below], way[above]
        y, multiplier = point.y + np.clip(along, low, high), point.multiplier.copy()
        general, inequality = multiplier[: rows.general], rows.inequality[: rows.general]
        general += np.where(inequality, np.maximum(pushed, -CENTRAL.predicted_reach * general), pushed)
        slack = np.where(rows.inequality, point.barrier / np.where(rows.inequality, multiplier, 1.0), 0.0)
        slack[bounds] = -rows.values(x, y)[bounds]
        multiplier[bounds] = point.barrier / slack[bounds]
        return dataclasses.replace(point, x=x, y=y, multiplier=multiplier, slack=slack)

    def solve(self, x: np.ndarray, barrier: float, softness: float, warm: CentralPoint) -> CentralPoint | None:
        """Return the central point at x, started from a near one; None where Newton's method fails."""
        for shift in self.algebra.shifts:
            try:
                point = self._newton(x, barrier, softness, warm, shift)
            except FloatingPointError:
                continue
            if point is not None:
                return point
        return None

    def factor(self, point: CentralPoint) -> Factor:
        """Return the factor of the KKT matrix at a central point."""
        quadratic = self.flat.lower_quadratic
        there = self.flat.lower_derivatives(point.x, point.y) if quadratic is None else quadratic.at_origin
        return self._factorise(there, point)

    def _factorise(self, there: LowerDerivatives, point: CentralPoint) -> Factor:
        equal, give = self.rows.equalities, point.softness * self.soft
        give[equal:] += point.slack[equal:] / point.multiplier[equal:]
        unit = self.multiplier_scale / self.slack_scale
        return self.algebra.factorise(KktPoint(there, point.y, point.multiplier, give), unit, point.shift)

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")  # a failure shows in its numbers, and returns None
    def _newton(
        self, x: np.ndarray, barrier: float, softness: float, warm: CentralPoint, shift: float
    ) -> CentralPoint | None:
        rows, bounds, soft, equal = self.rows, self.rows.bounds, softness * self.soft, self.rows.equalities
        warm = self.algebra.nearer(dataclasses.replace(warm, x=x, barrier=barrier, softness=softness), soft)
        y, multiplier, slack, length = warm.y, warm.multiplier, warm.slack.copy(), 1.0
        tolerance = 1 + largest(rows.B @ x - rows.c)
        there = self.flat.lower_derivatives(x, y, proven=False)  # the answer's are: in `factor`
        for _ in range(CENTRAL.newton_steps):
            clock.check()
            values = rows.values(x, y)
            slack[bounds] = -values[bounds]
            gradient = self.algebra.gradient(there, y)
            dual, primal = gradient + rows.pull(y, multiplier), values - soft * multiplier + slack
            products = (multiplier * slack)[equal:]
            size, left = 1 + largest(gradient), largest(dual)
            if not (np.isfinite(size) and np.isfinite(left)):
                return None
            point = CentralPoint(x, y, multiplier, slack, barrier, softness, shift)
            # A slack that is a difference of large numbers is known to rounding only.
            rounding = 1e-15 * tolerance * largest(multiplier)
            if (
                left <= CENTRAL.dual * size + rounding
                and largest(primal) <= CENTRAL.primal * tolerance
                and largest(products - barrier) <= CENTRAL.products * barrier + 1e-16 * size + rounding
            ):
                return point
            aim = aim_of(products, barrier, length)
            positive = multiplier.copy()
            positive[:equal] = 1.0
            away = aim / positive - slack
            away[:equal] = 0.0
            factor = self._factorise(there, point)
            step, pushed = factor.solve(-dual, -primal - away)
            if not np.isfinite(step).all():
                return None
            step_slack = (aim - slack * (multiplier + pushed)) / positive
            step_slack[:equal] = 0.0
            length = min(reach(slack[equal:], step_slack[equal:]), reach(multiplier[equal:], pushed[equal:]))
            for _ in range(CENTRAL.halvings):
                there = self.flat.lower_derivatives(x, y + length * step)
                if np.isfinite(there.gradient).all():
                    break
                length *= 0.5
            y, multiplier, slack = y + length * step, multiplier + length * pushed, slack + length * step_slack
        return None


def aim_of(products: np.ndarray, barrier: float, length: float) -> float:
    """Return what a step after one of that length makes of the products of multipliers and slacks, if it can."""
    # After a short step the point is too close to the boundary: centre before going on.
    centred = CENTRAL.centring if length > CENTRAL.short else 1.0
    return max(barrier, centred * float(np.add.reduce(products)) / len(products)) if len(products) else barrier


def largest(vector: np.ndarray) -> float:
    """Return the largest absolute entry; 0 where there is none."""
    return float(np.maximum.reduce(np.abs(vector), initial=0.0))


def reach(value: np.ndarray, step: np.ndarray) -> float:
    """Return the share of a step, at most 1, that keeps positive entries clear of zero."""
    shrinking = float(np.fmax.reduce(-step / value, initial=0.0))  # NaN is 0 / 0: what is zero and stays so
    return CENTRAL.reach / shrinking if shrinking > CENTRAL.reach else 1.0
