"""Divisors that are never zero."""

from typing import Any

import numpy as np

SMALLEST_DIVISOR = 1e-300


def positive(value: Any) -> Any:
    """Return a nonnegative number, or array of NumPy or JAX, raised to at least 1e-300: one may divide by it.

    1e-300 is so small that no other number is changed. NaN stays NaN.
    """
    if isinstance(value, float):
        return max(value, SMALLEST_DIVISOR)
    namespace = value.__array_namespace__() if hasattr(value, "__array_namespace__") else np
    return namespace.maximum(value, SMALLEST_DIVISOR)
