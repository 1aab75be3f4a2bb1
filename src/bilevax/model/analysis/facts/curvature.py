"""Curvatures as sets of bits, and their arithmetic."""

from collections.abc import Sequence

import numpy as np

from bilevax.model.analysis.facts.fact import Fact
from bilevax.model.analysis.intervals import Interval

# Curvatures are sets of bits: affine is convex and concave, 0 is unknown.
CONVEX, CONCAVE, AFFINE = 1, 2, 3


def flip(curvature: int) -> int:
    """Return the curvature of the negative of a value."""
    return ((curvature & CONVEX) << 1) | ((curvature & CONCAVE) >> 1)


def meet(facts: Sequence[Fact], of: str = "curvature") -> int:
    """Return the curvature that all values have."""
    curvature = AFFINE
    for fact in facts:
        curvature &= getattr(fact, of)
    return curvature


def meet_of_logs(facts: Sequence[Fact]) -> int:
    """Return the curvature that the logarithms of all values have."""
    return meet(facts, "log_curvature")


def all_norms(facts: Sequence[Fact]) -> bool:
    """Return whether the square roots of all values are convex."""
    return all(fact.norm for fact in facts)


def scaled(curvature: int, factor: Interval) -> int:
    """Return the curvature of a value times a factor that does not depend on y."""
    if factor.least >= 0:
        return AFFINE if factor.most == 0 else curvature
    if factor.most <= 0:
        return flip(curvature)
    return AFFINE if curvature == AFFINE else 0


def compose(shape: int, slope: int, inner: int) -> int:
    """Return the curvature of a function of some shape and slope (1 rising, -1 falling, 0 neither) of a value."""
    curvature = 0
    for bit in (CONVEX, CONCAVE):
        if shape & bit and (inner == AFFINE or (slope > 0 and inner & bit) or (slope < 0 and flip(inner) & bit)):
            curvature |= bit
    return curvature


def log_interval(interval: Interval) -> Interval:
    """Return the interval of the logarithms of all entries together."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (np.log(np.maximum(side, 0.0)) for side in (interval.least, interval.most))
    return Interval(np.asarray(low), np.asarray(high))


def log_bits(fact: Fact) -> int:
    """Return the curvature of the logarithm of a value."""
    return (fact.curvature & CONCAVE) | fact.log_curvature


def squares_to_norm(fact: Fact) -> bool:
    """Return whether the square of a value has a convex square root."""
    rising = fact.curvature & CONVEX and fact.interval.least >= 0
    falling = fact.curvature & CONCAVE and fact.interval.most <= 0
    return bool(fact.curvature == AFFINE or rising or falling)
