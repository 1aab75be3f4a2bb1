"""The smoothed objective of a quadratic problem, in the space of x and the multipliers.

There f is one quadratic and the constraints' values are affine (see `row_space`), so a central point and the gradient
of the smoothed objective need no products but those with the Hessian of f there, and factors of the compliance.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from bilevax._support import clock
from bilevax.solvers.default.lower.central import CentralLower, CentralPoint
from bilevax.solvers.default.lower.path_in_rows import central_in_rows
from bilevax.solvers.default.lower.row_space import RowSpace
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.programs.cholesky import solve_factored
from bilevax.solvers.default.quasi_newton import SmoothPoint
from bilevax.solvers.default.settings import ALGEBRA
from bilevax.solvers.default.smoothing.central_path import Barrier, CentralPath, SmoothState


class RowPathState(NamedTuple):
    """What `CentralPath` learns, and the quasi-Newton pairs of the last stage."""

    radius: float
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...]


class RowPath(CentralPath):
    """The smoothed objective around an exact point; what fails here is left to `CentralPath`."""

    State = RowPathState

    def __init__(self, lower: CentralLower, start: CentralPoint, first: Barrier, space: RowSpace, around: ExactPoint):
        super().__init__(lower, start, first)
        self.pairs: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
        self._space, self._around = space, around
        self._gradient = space.gradient(*lower.flat.gradients("upper", around.x, around.y))
        self._free = -around.slack + space.compliance @ around.multiplier  # the constraints' values without multipliers
        self._rounding = ALGEBRA.rounding * float(space.compliance.diagonal().max())
        # The same memory for all factors, and of what the last one is.
        self._system, self._given = np.empty(space.compliance.shape, order="F"), np.zeros(0)

    def evaluate(self, x: np.ndarray, smoothing: Barrier, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a near one, which may be the point itself."""
        if x is warm.x and smoothing == warm.smoothing:
            return warm
        return super().evaluate(x, smoothing, warm)

    def _evaluate(self, x: np.ndarray, smoothing: Barrier, warm: CentralPoint) -> SmoothPoint | None:
        lower, space, around = self.lower, self._space, self._around
        rows, soft, equal = lower.rows, smoothing.softness * lower.soft, lower.rows.equalities
        free = self._free + space.slope @ (x - around.x)
        start = warm.multiplier, warm.slack
        try:
            found = central_in_rows(space.compliance, free, self._solver, equal, soft, smoothing.barrier, start)
            if found is None or np.any((free - space.compliance @ found[0])[rows.bounds] >= 0):
                return super()._evaluate(x, smoothing, warm)
            multiplier, slack = found
            give = soft.copy()
            give[equal:] += slack[equal:] / multiplier[equal:]
            solve = self._solver(give)
        except FloatingPointError:
            return super()._evaluate(x, smoothing, warm)
        step = np.concatenate([x - around.x, multiplier - around.multiplier])
        bent = space.hessian @ step
        slope = self._gradient + bent
        price = smoothing.kappa * smoothing.softness * (rows.inequality * lower.soft)
        sensitivity = -solve(slope[space.n_x :] + price)
        gradient = slope[: space.n_x] - space.slope.T @ sensitivity
        value = around.value + float((self._gradient + 0.5 * bent) @ step + price @ multiplier)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        y = around.y + space.answer @ step
        central = CentralPoint(x, y, multiplier, slack, smoothing.barrier, smoothing.softness, 0.0)
        positive = multiplier * rows.inequality
        return SmoothPoint(x, y, positive, value, gradient, smoothing, SmoothState(central, None, sensitivity))

    def _solver(self, give: np.ndarray) -> functools.partial:
        """Return what solves with the compliance and what the constraints give; until it is asked for another."""
        system = self._system
        if np.array_equal(give, self._given):  # the first step from the point that was central last
            return functools.partial(solve_factored, system)
        clock.check()
        self._given = np.zeros(0)
        np.copyto(system, self._space.compliance.T)
        system.T.ravel()[:: len(system) + 1] += give + self._rounding
        factor, failed = lapack.dpotrf(system, clean=0, overwrite_a=True)
        if failed:
            raise FloatingPointError("the compliance is not positive definite")
        assert factor is system
        self._given = give
        return functools.partial(solve_factored, system)
