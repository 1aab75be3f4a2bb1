"""Parameters of solvers, checked in one place and stored so that new numbers compile nothing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bilevax._support import trees


class Rule(NamedTuple):
    """What a parameter has to be, in words and as a test of a finite number."""

    expected: str
    allows: Callable[[Any], Any]


POSITIVE = Rule("a number > 0", lambda number: number > 0)
NONNEGATIVE = Rule("a number >= 0", lambda number: number >= 0)
COUNT = Rule("a whole number >= 1", lambda number: number >= 1 and number == np.round(number))
FRACTION = Rule("a number > 0 and < 1", lambda number: 0 < number < 1)
SLOW_GROWTH = Rule("a number >= 0 and < 1/2", lambda number: 0 <= number < 0.5)


def assign(solver: Any, rule: Rule, **values: Any) -> None:
    """Set parameters as arrays on the host; tracers pass through.

    Raises
    ------
    ValueError
        For a value that the rule does not allow.
    """
    for name, value in values.items():
        wrong = ValueError(f"{type(solver).__name__}: expected {rule.expected} for {name}, got {value}.")
        try:
            number = trees.host_floats(value)
        except (TypeError, ValueError):
            raise wrong from None
        if number.ndim or (trees.is_concrete(number) and not (np.isfinite(number) and rule.allows(number))):
            raise wrong
        setattr(solver, name, number)
