"""The answers of exact descents from one point of a smooth descent after the other, and whether they agree."""

import numpy as np

from bilevax.solvers.default.first_order.settings import FIRST_ORDER
from bilevax.solvers.default.pieces.point import ExactPoint


class Answers:
    """What exact descents have come to: the best of it, and how often the same.

    Attributes
    ----------
    best, converged
        The best answer, None if there is none, and whether no descent is left there.
    """

    def __init__(self):
        self.best: ExactPoint | None = None
        self.converged = False
        self._last, self._alike = np.inf, 0  # the value of the last one, and how many in a row have come to it
        self._first_slope, self._fallen = None, False

    @property
    def value(self) -> float:
        """Phi at the best answer."""
        return np.inf if self.best is None else self.best.value

    @property
    def agree(self) -> bool:
        """Whether a longer smooth descent would hardly lead to another answer."""
        return self._alike >= FIRST_ORDER.agreement and self._fallen

    @property
    def settled(self) -> bool:
        """Whether no descent is left at the best answer, as far as can be told."""
        return self.converged or (self._alike > 1 and self._near(self.value))

    def add(self, answer: tuple[ExactPoint, bool] | None, slope: float) -> None:
        """Add where a descent led, and whether it found no descent left; None where it could not begin.

        ``slope`` is the projected gradient of the smoothed objective where it began.
        """
        self._first_slope = slope if self._first_slope is None else self._first_slope
        self._fallen = slope <= FIRST_ORDER.agreement_fall * self._first_slope
        if answer is None:
            self._alike = 0
            return
        point, finished = answer
        self._alike = self._alike + 1 if self._alike and self._near(point.value) else 1
        self._last = point.value
        if self.best is None or (finished, -point.value) > (self.converged, -self.best.value):
            self.best, self.converged = point, finished

    def _near(self, value: float) -> bool:
        return abs(self._last - value) <= FIRST_ORDER.agreement_accuracy * (1 + abs(value))
