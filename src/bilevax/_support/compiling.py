"""Compiling cannot be interrupted: it does not begin where less time is left than it took the last time."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bilevax._support import clock

_last_seconds = [0.0]  # that a function of ordinary size took to compile, in this process and under its present load


def foreseen(function: Callable[..., Any], size: float = 1.0) -> Callable[..., Any]:
    """Return a compiled function that raises `clock.OutOfTime` instead of compiling past the deadline.

    It compiles for each new set of shapes of its arguments after the first, a pytree whose shapes stay the same.
    ``size`` is how many times as long that takes as for an objective's gradient.
    """
    known = set()

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        shapes = tuple(map(np.shape, jax.tree.leaves(arguments[1:])))
        if shapes in known:
            return function(*arguments)
        clock.check(size * _last_seconds[0])
        began = time.monotonic()
        result = function(*arguments)  # compiled at once, though computed later
        _last_seconds[0] = (time.monotonic() - began) / size
        known.add(shapes)
        return result

    return call
