"""Compile `kernels.c` on the spot and call it on NumPy arrays."""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import bilevax as bx

_FLAGS = ["-O3", "-march=native", "-ffast-math", "-funroll-loops", "-shared", "-fPIC"]
_STEP_NAMES = ("delta", "rho1", "rho2", "eta_x", "eta_y", "eta_z", "eta_u", "eta_v")


class Steps(ctypes.Structure):
    """The solver's parameters as the kernels take them."""

    _fields_ = [(name, ctypes.c_double) for name in _STEP_NAMES]

    @classmethod
    def of(cls, solver: bx.SFLCB) -> "Steps":
        return cls(*(float(getattr(solver, name)) for name in _STEP_NAMES))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """Return the address of a contiguous float64 or int32 array, which the caller keeps alive."""
    if not array.flags.c_contiguous or array.dtype not in (np.float64, np.int32):
        raise ValueError(f"expected a contiguous float64 or int32 array, got {array.dtype}, {array.flags}")
    return ctypes.c_void_p(array.ctypes.data)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a cache line, so that no vector load straddles two."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled kernels."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels.so"
        subprocess.run(["cc", *_FLAGS, str(Path(__file__).with_suffix(".c")), "-o", str(target), "-lm"], check=True)
        return ctypes.CDLL(str(target))
