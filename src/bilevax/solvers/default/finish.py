"""Exact descent tried from one point of the smooth descent after the other, until its answers agree."""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.first_order.settings import FIRST_ORDER
from bilevax.solvers.default.phases import descend, land
from bilevax.solvers.default.pieces.dense import DensePieces
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.quasi_newton import SmoothPoint, slope
from bilevax.solvers.diary import Learning


class FinishState(NamedTuple):
    """What came of the exact descents so far.

    Attributes
    ----------
    best, converged
        The best of their answers, and whether no descent is left there.
    tried
        The x from which the last one began.
    value, agreeing
        Phi at its answer, and how many in a row have come to that value.
    first_slope
        The projected gradient of the smoothed objective where the first one began.
    """

    best: ExactPoint | None
    converged: bool
    tried: np.ndarray | None
    value: float
    agreeing: int
    first_slope: float


class Finish(Learning):
    """Exact descents, which cost no sweeps, from the points that the smooth descent comes to."""

    State = FinishState

    def __init__(self, pieces: DensePieces, rtol: float):
        self.pieces, self.rtol = pieces, rtol
        self.best, self.converged, self.tried = None, False, None
        self.value, self.agreeing, self.first_slope = np.inf, 0, np.inf

    def attempt(self, point: SmoothPoint, sweeps: int) -> Generator[Snapshot, None, None]:
        """Descend exactly from the smoothed answer at a new x, and keep the best answer."""
        if self.tried is not None and np.array_equal(point.x, self.tried):
            return
        if self.tried is None:
            self.first_slope = slope(self.pieces.upper, point)
        self.tried, before, self.value = point.x, self.value, np.inf
        landed = land(self.pieces, point.x, point.y)
        if landed is None:
            return
        found, finished = yield from descend(self.pieces, landed, self.rtol, sweeps)
        self.value = found.value
        self.agreeing = self.agreeing + 1 if self._near(before) else 1
        if self.best is None or (finished, -found.value) > (self.converged, -self.best.value):
            self.best, self.converged = found, finished

    def agreed(self, point: SmoothPoint) -> bool:
        """Return whether so many descents came to one answer that a longer smooth descent would hardly change it."""
        fallen = slope(self.pieces.upper, point) <= FIRST_ORDER.agreement_fall * self.first_slope
        return self.best is not None and self.agreeing >= FIRST_ORDER.agreement and fallen

    def kept(self, promise: float) -> bool:
        """Return whether the answer at the end of a stage holds what the smoothed objective promises."""
        if self.best is None or self.best.value > promise:
            return False
        return self.converged or (self.agreeing > 1 and self._near(self.best.value))

    def _near(self, value: float) -> bool:
        """Return whether the last descent came to that value."""
        return abs(self.value - value) <= FIRST_ORDER.agreement_accuracy * (1 + abs(value))
