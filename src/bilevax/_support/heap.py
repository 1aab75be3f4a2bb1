"""Memory that was freed but not given back to the system.

glibc keeps arrays of up to 32 MB for later. After a phase of a large problem these are hundreds of megabytes, to which
the next phase, with arrays of other sizes, would add its own.
"""

import ctypes
import functools
import sys
from collections.abc import Callable

_LARGE = 20_000  # numbers in an array from which on giving back is worth a millisecond


def give_back(size: int) -> None:
    """Give free memory back to the system, after work on arrays of about this many numbers; elsewhere do nothing."""
    if size >= _LARGE and (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Return glibc's function for it, None where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
