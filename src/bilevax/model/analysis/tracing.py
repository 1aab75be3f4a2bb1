"""The one place where a user's function is traced for the analysis."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from bilevax._support.precision import float64


def trace(fn: Callable[..., Any], *sizes: int) -> ClosedJaxpr:
    """Return the jaxpr of a scalar function of flat float64 vectors of the given sizes."""
    with float64():
        return jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct((size,), np.float64) for size in sizes))
