"""Phi with its exact gradient as an objective for `quasi_newton`, whatever linear algebra computes it."""

import abc
from typing import Any, NamedTuple

import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.quasi_newton import SmoothPoint


class Lower(NamedTuple):
    """A lower-level answer, or a guess of it: y, the multipliers, and which constraints are active."""

    y: Any
    multiplier: Any
    active: Any


class Answer(NamedTuple):
    """What else is known of a lower-level answer: which constraints are active, and their slacks."""

    active: np.ndarray
    slack: np.ndarray


class Phi(abc.ABC):
    """Phi of one problem; the ``state`` of its points is an `Answer`."""

    def __init__(self, flat: FlatProblem, rows: LowerRows):
        self.flat, self.rows = flat, rows

    def begin(self, x: np.ndarray, y: np.ndarray) -> SmoothPoint | None:
        """Return the point at x, y being the only guess."""
        return self._evaluate(x, Lower(y, np.zeros(self.rows.count), ~self.rows.inequality))

    def evaluate(self, x: np.ndarray, smoothing: None, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the point at x, started from a near one; None where the lower level is not solved."""
        return self._evaluate(x, Lower(warm.y, warm.multiplier, warm.state.active))

    def refit(self, point: SmoothPoint) -> None:
        """Return None: there is no smoothing."""
        return

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point itself: it is exact."""
        return point

    @abc.abstractmethod
    def _evaluate(self, x: np.ndarray, guess: Lower) -> SmoothPoint | None:
        """Return the point at x, started from a guess of the lower level's answer; None where it is not solved."""
