"""A deadline that work at any depth can look at, so that one long step does not outlast the user's time limit.

Every evaluation of a problem (`derivatives`) and every linear or conic program (`programs`) checks it, and so do loops
without either.
"""

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")

_LONG = 1e8  # operations from which on the time that they take tells the speed
_FASTEST = 1e11  # operations a second
_speed = [1e10]  # operations a second, learned from the last long work

_ends: contextvars.ContextVar[float] = contextvars.ContextVar("ends", default=float("inf"))


class OutOfTime(Exception):
    """Raised by `check` once the deadline has passed; whoever set it catches it."""


def deadline(at: float) -> contextlib.AbstractContextManager[None]:
    """Set the deadline, in the seconds of ``time.monotonic``, for what runs inside; an earlier one around it stays."""
    return _ending(min(at, _ends.get()))


def unlimited() -> contextlib.AbstractContextManager[None]:
    """Lift the deadline for what runs inside, for use where nothing could catch `OutOfTime`."""
    return _ending(float("inf"))


@contextlib.contextmanager
def _ending(at: float) -> Iterator[None]:
    token = _ends.set(at)
    try:
        yield
    finally:
        _ends.reset(token)


def remaining() -> float:
    """Return the seconds left, infinity where there is no deadline."""
    return _ends.get() - time.monotonic()


def check(needed: float = 0.0) -> None:
    """Raise `OutOfTime` if fewer seconds are left than the next step needs.

    A step that cannot be interrupted had better not begin without them. The time then counts as over for what else runs
    before this deadline: whoever asks whether everything was done in time is told the truth.
    """
    if remaining() <= needed:
        if _ends.get() < float("inf"):
            _ends.set(min(_ends.get(), time.monotonic()))
        raise OutOfTime


class work:
    """Work of so many floating point operations that cannot be interrupted, such as one call of LAPACK.

    It begins only if it will end in time, being as fast as such work was before.
    """

    def __init__(self, operations: float):
        self._operations = operations

    def __enter__(self) -> None:
        check(self._operations / _speed[0])
        self._began = time.monotonic()

    def __exit__(self, *failure: object) -> None:
        if self._operations >= _LONG:
            # A hiccup of the machine counts, but not for all; a factorisation that fails at once is not fast.
            seen = self._operations / max(time.monotonic() - self._began, self._operations / _FASTEST)
            _speed[0] = (_speed[0] * seen) ** 0.5


def in_time(work: Callable[[], Result]) -> Result | None:
    """Return the result of some work; None if the deadline passes first."""
    try:
        return work()
    except OutOfTime:
        return None
