"""A deadline that work at any depth can look at, so that one long step does not outlast the user's time limit."""

import contextlib
import contextvars
import time
from collections.abc import Iterator

_ends: contextvars.ContextVar[float] = contextvars.ContextVar("ends", default=float("inf"))


class OutOfTime(Exception):
    """Raised by `check` once the deadline has passed; whoever set it catches it."""


@contextlib.contextmanager
def deadline(at: float) -> Iterator[None]:
    """Set the deadline, in the seconds of ``time.monotonic``, for what runs inside."""
    token = _ends.set(at)
    try:
        yield
    finally:
        _ends.reset(token)


def remaining() -> float:
    """Return the seconds left, infinity where there is no deadline."""
    return _ends.get() - time.monotonic()


def check() -> None:
    """Raise `OutOfTime` if the deadline has passed."""
    if remaining() <= 0:
        raise OutOfTime
