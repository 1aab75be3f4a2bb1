"""`Points`: those that a global solver comes by, evaluated exactly, and the best of them."""

import time

import numpy as np

from bilevax._support.clock import in_time
from bilevax.model.flat import FlatProblem
from bilevax.proof.conditions import Conditions
from bilevax.proof.incumbents import Incumbent, best_incumbent, incumbent_at
from bilevax.proof.settings import PROOF


class Points:
    """The best point of a problem that is known.

    Parameters
    ----------
    flat, natural
        The problem, and the same in the units of the solver.
    given
        What the solver was given.
    known
        The best point so far, in the units of ``flat``.
    gap
        What is less than this better, relative, is of no interest.
    """

    def __init__(self, flat: FlatProblem, natural: FlatProblem, given: Conditions, known: Incumbent | None, gap: float):
        self._flat, self._natural, self._given, self._gap = flat, natural, given, gap
        self.best = known
        self._tried: list[np.ndarray] = []
        self._began, self._spent = time.monotonic(), 0.0

    @property
    def value(self) -> float:
        """The best value, in the user's units."""
        return np.inf if self.best is None else self.best.value / self._flat.scales.upper

    @property
    def cutoff(self) -> float:
        """What a solver need not look for, in its units: values that are hardly better than the best."""
        value = self.value * self._natural.scales.upper
        return value - 0.5 * self._gap * max(abs(value), PROOF.smallest_value) if np.isfinite(value) else np.inf

    def worth_a_look(self) -> bool:
        """Return whether looking at points has taken its share of the time."""
        return self._spent <= PROOF.looks_share * (1.0 + time.monotonic() - self._began)

    def try_out(self, x: np.ndarray, y: np.ndarray, forces: np.ndarray) -> None:
        """Evaluate a point of the solver's, unless one like it was; keep it if it is the best."""
        same = lambda other: np.abs(x - other).max() <= PROOF.same_point * (1 + np.abs(x).max())
        if any(map(same, self._tried)):
            return
        self._tried.append(x)
        began = time.monotonic()
        found = in_time(lambda: self._evaluated(x, y, forces))
        self._spent += time.monotonic() - began
        if found is not None and (self.best is None or found.value < self.best.value):
            self.best = found

    def _evaluated(self, x: np.ndarray, y: np.ndarray, forces: np.ndarray) -> Incumbent | None:
        flat = self._flat
        if flat.problem.curved or flat.y_rows.balls:
            return incumbent_at(flat, x * self._natural.scales.x / flat.scales.x)
        multipliers = np.zeros(flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0])
        np.add.at(multipliers, self._given.owner, self._given.sign * forces)
        return best_incumbent(flat, x, y, multipliers)
