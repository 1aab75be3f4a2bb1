"""One BLAS thread for matrices that are factorised within a second.

On a busy machine threads that wait for each other lose more than they can gain: two cores at a load of six took forty
times as long on two threads as on one for a Cholesky factorisation of 1000 rows, three times for one of 4000 rows.
On an idle machine more threads may pay from fewer rows on; that was not measured.
"""

import functools
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController

_MOST_ROWS_ON_ONE_THREAD = 3000


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def blas_threads(size: int) -> AbstractContextManager[Any]:
    """Return a context in which linear algebra on matrices of about ``size`` rows uses one thread if they are small."""
    return _controller().limit(limits=1 if size <= _MOST_ROWS_ON_ONE_THREAD else None, user_api="blas")
