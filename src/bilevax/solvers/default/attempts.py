"""Exact descents from one point of a smooth descent after the other, and whether their answers agree."""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.first_order.settings import FIRST_ORDER
from bilevax.solvers.default.phases import land, snapshot
from bilevax.solvers.default.pieces.dense import DensePieces
from bilevax.solvers.default.pieces.descent import exact_descent
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.quasi_newton import SmoothPoint, slope


class Attempt(NamedTuple):
    """Where an exact descent led, None if it could not begin, whether no descent is left there, and in how many steps.

    ``slope`` is the projected gradient of the smoothed objective where it began.
    """

    answer: ExactPoint | None
    finished: bool
    steps: int
    slope: float


class Attempts:
    """Exact descents so far, and what they tell."""

    def __init__(self, pieces: DensePieces, rtol: float):
        self.pieces, self.rtol = pieces, rtol
        self.made: list[Attempt] = []

    def descend(self, point: SmoothPoint, sweeps: int) -> Generator[Snapshot, None, Attempt]:
        """Descend exactly from where a smooth descent is, until an answer is reached or one from before is near."""
        start, steepness = land(self.pieces, point.x, point.y), slope(self.pieces.upper, point)
        if start is None:
            return Attempt(None, False, 0, steepness)
        found = Attempt(start, False, 0, steepness)
        for answer, finished, seen in exact_descent(self.pieces, start, self.rtol):
            found = Attempt(answer, finished, found.steps + 1, steepness)
            yield snapshot(answer, "exact descent", sweeps)._replace(slope=seen)
            known = next((earlier for earlier in self.made if _joins(answer, earlier)), None)
            if known is not None:
                return known._replace(steps=found.steps, slope=steepness)
        return found

    def affordable(self, points: int) -> bool:
        """Return whether exact descents have taken no more work than the smooth one, which has made so many points."""
        return sum(attempt.steps for attempt in self.made) <= FIRST_ORDER.exact_steps * points

    @property
    def best(self) -> tuple[ExactPoint, bool] | None:
        """The best answer, and whether no descent is left there: if that can be said of any, it is one of those."""
        found = [(attempt.answer, attempt.finished) for attempt in self.made if attempt.answer is not None]
        return min(found, key=lambda answer: (not answer[1], answer[0].value), default=None)

    @property
    def agree(self) -> bool:
        """Whether a longer smooth descent would hardly lead to another answer."""
        last = self.made[-FIRST_ORDER.agreement :]
        fallen = last[-1].slope <= FIRST_ORDER.agreement_fall * self.made[0].slope
        same = all(_same(attempt.answer, last[0].answer) for attempt in last)
        return fallen and same and len(last) == FIRST_ORDER.agreement

    def settled(self, promise: float) -> bool:
        """Return whether the best answer is as good as promised, and no descent is left there as far as can be told."""
        if self.best is None or self.best[0].value > promise:
            return False
        again = len(self.made) > 1 and all(_same(attempt.answer, self.best[0]) for attempt in self.made[-2:])
        return self.best[1] or again


def _same(one: ExactPoint | None, other: ExactPoint | None) -> bool:
    """Return whether two answers have the same value."""
    if one is None or other is None:
        return False
    return abs(one.value - other.value) <= FIRST_ORDER.agreement_accuracy * (1 + abs(other.value))


def _joins(point: ExactPoint, earlier: Attempt) -> bool:
    """Return whether a descent has come so near to the answer of an earlier one that it would end there."""
    if earlier.answer is None or not earlier.finished or point.value < earlier.answer.value:
        return False
    x = earlier.answer.x
    return float(np.linalg.norm(point.x - x)) <= FIRST_ORDER.joining * (1 + float(np.linalg.norm(x)))
