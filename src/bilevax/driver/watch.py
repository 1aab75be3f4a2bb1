"""`Watch`, which looks at a run from outside: clock, step limit, callback, live line and history."""

import shutil
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from bilevax.certificate.status import Status
from bilevax.driver.arguments import Limits

_EVERY = 0.1  # seconds between two live lines
_GRACE = 0.6  # seconds after the end of the time limit that a certificate may take: its last step may be a long one,
_LEAST = 0.4  # and that it has in any case, where the search came late


class Progress(NamedTuple):
    """Where a run stands; what callbacks see, together with the point."""

    steps: int
    time: float
    x: PyTree
    y: PyTree
    residuals: dict[str, float]


class Watch:
    """What looks at a run from outside: the clock, the step limit, the callback, the live line and the history.

    Of a run that is ``steady``, one step costing what another does, the step limit tells how long it will take.
    """

    def __init__(
        self,
        began: float,
        limits: Limits,
        callback: Any = None,
        progress: bool | None = False,
        steady: bool = False,
    ):
        self.began, self.limits, self.callback = began, limits, callback
        self.show = sys.stderr.isatty() if progress is None else progress
        self.steady = steady
        self.records: list[dict[str, Any]] = []
        self.ended: Status | None = None
        self._shown = -np.inf

    @property
    def ends(self) -> float:
        """When the search has to end, in the seconds of ``time.monotonic``."""
        return np.inf if self.limits.time_limit is None else self.began + self.limits.time_limit

    @property
    def last_call(self) -> float:
        """When a certificate that begins now has to end: ``grace`` after the search should have, or soon after now."""
        return max(self.ends + self.grace, time.monotonic() + _LEAST)

    @property
    def grace(self) -> float:
        """Seconds for what comes after the search, so that a limit is kept within a second."""
        return _GRACE

    @property
    def attentive(self) -> bool:
        """Whether anything has to be looked at between steps."""
        return self.limits.time_limit is not None or self.callback is not None or self.show

    def record(self, steps: int, numbers: dict[str, Any]) -> float:
        """Record where the run stands; return the seconds that it has taken."""
        elapsed = time.monotonic() - self.began
        self.records.append({"step": steps, "time": elapsed, **numbers})
        return elapsed

    def look(self, steps: int, x: PyTree, y: PyTree, numbers: dict[str, Any]) -> bool:
        """Record where the run stands; return whether it has to stop, and remember why."""
        elapsed = self.record(steps, numbers)
        if self.show and elapsed - self._shown >= _EVERY:
            self._shown = elapsed
            print(
                f"\r\033[K{self._line()[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True
            )
        if self.callback is not None and self.callback(Progress(steps, elapsed, x, y, numbers)):
            self.ended = Status.CALLBACK
        elif self.limits.time_limit is not None and elapsed >= self.limits.time_limit:
            self.ended = Status.TIME_LIMIT
        elif steps >= self.limits.max_steps:
            self.ended = Status.MAX_STEPS
        return self.ended is not None

    def _line(self) -> str:
        """Return the live line: steps, time, how fast if steady, how much longer at most, the solver's own numbers."""
        first, last = self.records[0], self.records[-1]
        steps, elapsed = last["step"], last["time"]
        passed = elapsed - first["time"]
        rate = (steps - first["step"]) / passed if passed > 0 else 0.0
        left = [] if self.limits.time_limit is None else [self.limits.time_limit - elapsed]
        left += [(self.limits.max_steps - steps) / rate] if self.steady and rate > 0 else []
        value = "best" if "best" in last else "upper"  # of a search that goes up and down, the best there is so far
        first_of_all = [key for key in ("phase", value) if key in last]
        others = [key for key in last if key not in ("step", "time", "phase", "best", "upper")]
        return "  ".join(
            [
                f"step {steps}/{self.limits.max_steps}",
                f"{_duration(elapsed)}",
                *([f"{rate:.3g} steps/s"] if self.steady and rate > 0 else []),
                *([f"{_duration(max(min(left), 0.0))} left"] if left else []),
                *(f"{key} {_short(last[key])}" for key in first_of_all + others),
            ]
        )

    def close(self) -> None:
        """Remove the live line."""
        if self.show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    @property
    def history(self) -> dict[str, np.ndarray]:
        """The records as columns of equal length; NaN where a record has no such number."""
        keys = dict.fromkeys(key for record in self.records for key in record)
        return {key: np.array([record.get(key, np.nan) for record in self.records]) for key in keys}


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
