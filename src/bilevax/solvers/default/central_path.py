"""The direct oracle: Phi smoothed by the lower level's central path.

With a barrier mu and a softness eps the rows have ``multiplier * slack = mu`` and may be violated by
``eps * multiplier``: an answer y(x) exists for every x, is unique and smooth, and its gradient costs one more solve
with the factor at hand. The smoothed objective is

    f(x, y(x)) + kappa * eps * sum(multiplier),

whose second term is the price of leaving the set of x for which the lower level is feasible.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bilevax.solvers.default.cholesky import factorise, lifted, solve_factored
from bilevax.solvers.default.complementarity import centre
from bilevax.solvers.default.lower import CAUTIOUS, Expansion, LowerModel, LowerPoint
from bilevax.solvers.default.smoothing import SmoothPoint
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class Barrier:
    """How much is smoothed: the barrier mu, the softness eps of the rows, and the penalty kappa on violated rows."""

    barrier: float
    softness: float
    kappa: float


class _State(NamedTuple):
    """Slacks of the inequality rows, and the derivative of the smoothed objective in each row's right-hand side."""

    slack: np.ndarray
    sensitivity: np.ndarray


class CentralState(NamedTuple):
    """The size of the multipliers met so far."""

    multiplier_scale: float


class CentralPath(Learning):
    """The smoothed objective around an exact lower-level point."""

    State = CentralState

    def __init__(self, model: LowerModel, start: LowerPoint):
        self.model, self.start, self.inequality = model, start, model.rows.inequality
        there = model.flat.lower_derivatives(start.x, start.y)
        pull = np.abs(model.gradient(start.y, there)).max(initial=0.0)
        # The first smoothing is large against the rows' own slacks and multipliers.
        self.multiplier_scale = max(start.multiplier[self.inequality].max(), 1e-3 * pull, 1e-6)

    def begin(self) -> SmoothPoint | None:
        """Return the smoothed point at the start, at no price yet."""
        lower = self.start
        slack = np.median(np.abs(lower.value[self.inequality])) + 1e-3
        softness = 1e-3 * float(np.diag(lower.expansion.compliance)[self.inequality].mean())
        return self._evaluate(lower.x, Barrier(10 * self.multiplier_scale * slack, softness, kappa=0.0), None, lower.y)

    def evaluate(self, x: np.ndarray, smoothing: Barrier, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a near one."""
        return self._evaluate(x, smoothing, warm, warm.y)

    def price(self, point: SmoothPoint) -> float:
        """Return a price for leaving the feasible set: above the rows' typical marginal value."""
        return 2 * float(np.quantile(np.abs(point.state.sensitivity[self.inequality]), 0.75))

    def tighten(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point at the same x with ten times less smoothing."""
        before = point.smoothing
        tighter = dataclasses.replace(before, barrier=0.1 * before.barrier, softness=0.1 * before.softness)
        return self._evaluate(point.x, tighter, None, point.y)

    def advance(self, point: SmoothPoint, stiff: SmoothPoint) -> tuple[SmoothPoint, Barrier]:
        """Return where the next stage starts, and its smoothing."""
        # Where hardly any row was active at x0, the multipliers met on the way are the better scale.
        grown = float(np.clip(np.quantile(point.multiplier[self.inequality], 0.9) / self.multiplier_scale, 1.0, 10.0))
        self.multiplier_scale *= grown
        return point, dataclasses.replace(stiff.smoothing, barrier=grown * stiff.smoothing.barrier)

    def refit(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return None: a stage's smoothing stays as it is."""
        return None

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point itself: it is exact."""
        return point

    def _evaluate(
        self, x: np.ndarray, smoothing: Barrier, warm: SmoothPoint | None, y: np.ndarray
    ) -> SmoothPoint | None:
        model, rows, derivatives = self.model, self.model.rows, self.model.flat.lower_derivatives
        start = None if warm is None else (warm.multiplier, warm.state.slack)
        multiplier = np.zeros(rows.count) if warm is None else warm.multiplier
        y = model.domain.enter(y)
        here = derivatives(x, y, proven=False)  # the answer is: at its end
        for _ in range(_MAX_NEWTON):
            try:
                expansion = model.expand(here, y, multiplier)
            except (FloatingPointError, np.linalg.LinAlgError):
                return None
            gradient = model.gradient(y, here)
            if not np.isfinite(gradient).all():
                return None
            free_step = -expansion.solve(gradient)
            free = rows.values(x, y) + expansion.rows @ free_step
            path = lambda start, matrix=expansion.compliance, free=free: centre(
                matrix, free, rows.equalities, smoothing.barrier, smoothing.softness, start
            )
            centred = (np.zeros(0), np.zeros(0))
            if rows.count:
                central = path(start)
                if central is None and start is not None:
                    central = path(None)
                if central is None:
                    return None
                centred = central
            multiplier, slack = centred
            step = free_step - expansion.inverse_rows @ multiplier
            for length in 0.5 ** np.arange(_MAX_HALVINGS):
                target = model.domain.bent(y, length * step, CAUTIOUS)
                there = derivatives(x, target)
                residual = model.gradient(target, there) + rows.normals(target).T @ multiplier
                if np.isfinite(residual).all():
                    break
            else:
                return None
            # Affine rows are as predicted; balls are so in the end only.
            off = rows.values(x, target) - smoothing.softness * multiplier + slack if rows.balls else np.zeros(0)
            small = 1e-9 * (1 + np.abs(gradient).max(initial=0.0) + np.abs(multiplier).max(initial=0.0))
            exact = length == 1.0 and not model.domain.leaves(y, step)
            if exact and np.abs(residual).max(initial=0.0) <= small and np.abs(off).max(initial=0.0) <= 1e-8:
                return self._finish(x, target, model.expand(there, target, multiplier), multiplier, slack, smoothing)
            y, start, here = target, centred, there
        return None

    def _finish(
        self,
        x: np.ndarray,
        y: np.ndarray,
        expansion: Expansion,
        multiplier: np.ndarray,
        slack: np.ndarray,
        smoothing: Barrier,
    ) -> SmoothPoint | None:
        rows = self.model.rows
        value, f_x, f_y = self.model.flat.value_and_gradients("upper", x, y)
        if not (np.isfinite(f_x).all() and np.isfinite(f_y).all()):
            return None
        adjoint = expansion.solve(f_y)
        price = smoothing.kappa * smoothing.softness * rows.inequality
        gradient = f_x - expansion.mixed.T @ adjoint
        sensitivity = np.zeros(0)
        if rows.count:
            ratio = np.where(rows.inequality, slack / np.where(rows.inequality, multiplier, 1.0), 0.0)
            system = lifted(expansion.compliance, smoothing.softness + ratio + 1e-14)
            sensitivity = solve_factored(factorise(system), price - expansion.rows @ adjoint)
            gradient = gradient + expansion.slope.T @ sensitivity
        value += float(price @ multiplier)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        return SmoothPoint(x, y, multiplier, value, gradient, smoothing, _State(slack, sensitivity))


_MAX_NEWTON = 40
_MAX_HALVINGS = 20
