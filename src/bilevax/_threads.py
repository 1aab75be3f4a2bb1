"""One BLAS thread for small matrices: they gain nothing from more, and lose everything on a busy machine."""

import functools
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController

_SMALL = 1500


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def blas_threads(size: int) -> AbstractContextManager[Any]:
    """Return a context in which linear algebra on matrices of about ``size`` rows uses as many threads as pay off."""
    return _controller().limit(limits=1 if size <= _SMALL else None, user_api="blas")
