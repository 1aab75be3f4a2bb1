"""Exact descent, tried from one point of the smooth descent after the other until its answers agree."""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.first_order.oracle import PairOracle
from bilevax.solvers.default.first_order.settings import FIRST_ORDER
from bilevax.solvers.default.phases import descend, land
from bilevax.solvers.default.pieces.dense import DensePieces
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import SmoothPoint, slope
from bilevax.solvers.default.smoothing.stages import smooth_descent
from bilevax.solvers.diary import Learning


class Answer(NamedTuple):
    """The best exact point, None where there is none, whether no descent is left there, and whether it is ``enough``.

    If it is not, less smoothing may lead to a better one.
    """

    point: ExactPoint | None
    converged: bool
    enough: bool


NOTHING_FOUND = Answer(None, False, False)


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
    """Exact descents, which take no sweeps, from the points that the smooth descent comes to."""

    State = FinishState

    def __init__(self, pieces: DensePieces, rtol: float):
        self.pieces, self.rtol = pieces, rtol
        self.best, self.converged, self.tried = None, False, None
        self.value, self.agreeing, self.first_slope = np.inf, 0, np.inf

    def descent(self, oracle: PairOracle, upper: UpperSet, point: SmoothPoint) -> Iterator[SmoothPoint]:
        """Yield points of a smooth descent, up to one at which exact descents agree."""
        steps = smooth_descent(oracle, upper, point)
        while not self._agreed(point):
            step = next(steps, None)
            if step is None:
                return
            yield step
            point = step

    def attempt(self, point: SmoothPoint, sweeps: int) -> Generator[Snapshot, None, None]:
        """Descend exactly from where the smooth descent is, and keep the best answer."""
        if self.tried is None:
            self.first_slope = slope(self.pieces.upper, point)
        self.tried, before, self.value = point.x, self.value, np.inf
        landed = land(self.pieces, point.x, point.y)
        if landed is None:
            return
        found, finished = yield from descend(self.pieces, landed, self.rtol, sweeps)
        self.value = found.value
        self.agreeing = self.agreeing + 1 if self._came_to(before) else 1
        if self.best is None or (finished, -found.value) > (self.converged, -self.best.value):
            self.best, self.converged = found, finished

    def sum_up(self, point: SmoothPoint, oracle: PairOracle) -> Generator[Snapshot, None, Answer]:
        """Return the answer at the end of a stage: enough if exact descents agree, or if it is as good as promised."""
        if self.tried is None or not np.array_equal(point.x, self.tried):
            yield from self.attempt(point, oracle.sweeps)
        if self.best is None:
            return NOTHING_FOUND
        settled = self.converged or (self.agreeing > 1 and self._came_to(self.best.value))
        enough = self._agreed(point) or (settled and self.best.value <= oracle.promise(point))
        return Answer(self.best, self.converged, enough)

    def _agreed(self, point: SmoothPoint) -> bool:
        """Return whether a longer smooth descent would hardly lead to another answer."""
        fallen = slope(self.pieces.upper, point) <= FIRST_ORDER.agreement_fall * self.first_slope
        return self.best is not None and self.agreeing >= FIRST_ORDER.agreement and fallen

    def _came_to(self, value: float) -> bool:
        return abs(self.value - value) <= FIRST_ORDER.agreement_accuracy * (1 + abs(value))
