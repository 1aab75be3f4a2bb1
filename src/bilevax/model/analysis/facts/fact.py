"""`Fact`: what is known of one value of a program."""

import dataclasses
from typing import Protocol

from bilevax.model.analysis.intervals import Interval
from bilevax.model.analysis.program import Program

#: Terms k u^p log(u)^q of one value u, as {(p, q): bounds of k}.
Terms = dict[tuple[float, int], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Fact:
    """What is known of a value.

    Attributes
    ----------
    interval
        Bounds of its entries.
    constant
        Whether it does not depend on y.
    defined
        Whether it is a number wherever x and y are within their bounds.
    curvature, log_curvature
        Of it, and of its logarithm where it is known to be positive.
    norm
        Whether it is nonnegative and its square root is convex in y, as of a sum of squares.
    degrees
        As a polynomial in y of degree two at most: for the terms of degree 0, 1, 2 whether they are absent (0), have
        constant coefficients (1), or such that depend on x (2). None if it is no such polynomial.
    degree
        As a polynomial in x and y together; None if it is none.
    terms
        The value as k u^p log(u)^q summed, u another value, of the same shape, or itself.
    """

    interval: Interval
    constant: bool = False
    curvature: int = 0
    log_curvature: int = 0
    norm: bool = False
    degrees: tuple[int, int, int] | None = None
    degree: int | None = None
    terms: tuple[int, Terms] | None = None
    defined: bool = True


class Known(Protocol):
    """The facts of a program's slots as far as they are known, by ``known[slot]``."""

    program: Program

    def __getitem__(self, slot: int) -> Fact: ...
