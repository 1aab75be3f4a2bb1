"""One BLAS thread for matrices that it factorises within a second: they gain little from more.

On a busy machine threads that wait for each other lose everything: with six processes on two cores a Cholesky
factorisation of 1000 rows took forty times as long on two threads as on one, one of 4000 rows three times as long.
"""

import functools
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController

_SMALL = 3000


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def blas_threads(size: int) -> AbstractContextManager[Any]:
    """Return a context in which linear algebra on matrices of about ``size`` rows uses as many threads as pay off."""
    return _controller().limit(limits=1 if size <= _SMALL else None, user_api="blas")
