"""Shapes of functions of one number on an interval: (curvature, slope)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevax.model.analysis.facts.curvature import AFFINE, CONCAVE, CONVEX

Shape = Callable[[float, float, dict[str, Any]], tuple[int, int]]


def _fixed(curvature: int, slope: int) -> Shape:
    return lambda low, high, params: (curvature, slope)


def _by_side(left: int, right: int, slope: int) -> Shape:
    """The shape of a rising (falling) function that bends at zero."""
    return lambda low, high, params: (right if low >= 0 else left if high <= 0 else 0, slope)


def _even(low: float, high: float, params: Any) -> tuple[int, int]:
    return CONVEX, 1 if low >= 0 else -1 if high <= 0 else 0


def power_shape(p: float, low: float, high: float) -> tuple[int, int]:
    """Return the shape of u^p."""
    if p in (0, 1):
        return AFFINE, int(p)
    if p == int(p) and p > 0 and p % 2 == 0:
        return _even(low, high, None)
    if p == int(p) and high <= 0 and p > 0:
        return CONCAVE, 1
    if p == int(p) and low < 0:
        if high > 0:
            return 0, 1 if p > 0 else 0
        return (CONVEX, 1) if p % 2 == 0 else (CONCAVE, -1)  # p < 0 on the left of zero
    return (CONVEX if p * (p - 1) > 0 else CONCAVE), (1 if p > 0 else -1)


SHAPES: dict[str, Shape] = {
    "neg": _fixed(AFFINE, -1),
    "exp": _fixed(CONVEX, 1),
    "exp2": _fixed(CONVEX, 1),
    "expm1": _fixed(CONVEX, 1),
    "log": _fixed(CONCAVE, 1),
    "log1p": _fixed(CONCAVE, 1),
    "sqrt": _fixed(CONCAVE, 1),
    "rsqrt": _fixed(CONVEX, -1),
    "acosh": _fixed(CONCAVE, 1),
    "abs": _even,
    "square": _even,
    "cosh": _even,
    "integer_pow": lambda low, high, params: power_shape(params["y"], low, high),
    "logistic": _by_side(CONVEX, CONCAVE, 1),
    "tanh": _by_side(CONVEX, CONCAVE, 1),
    "erf": _by_side(CONVEX, CONCAVE, 1),
    "atan": _by_side(CONVEX, CONCAVE, 1),
    "asinh": _by_side(CONVEX, CONCAVE, 1),
    "cbrt": _by_side(CONVEX, CONCAVE, 1),
    "sinh": _by_side(CONCAVE, CONVEX, 1),
    "asin": _by_side(CONCAVE, CONVEX, 1),
    "atanh": _by_side(CONCAVE, CONVEX, 1),
    "erfc": _by_side(CONCAVE, CONVEX, -1),
    "lgamma": lambda low, high, params: (CONVEX if low >= 0 else 0, 0),
    "digamma": lambda low, high, params: (CONCAVE if low >= 0 else 0, 1 if low >= 0 else 0),
    "xlogx": lambda low, high, params: (CONVEX, 1 if low >= np.exp(-1) else 0),
}
