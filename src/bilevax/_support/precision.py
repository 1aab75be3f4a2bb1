"""`float64`: double precision inside a context, without any effect on the user's own code outside of it.

JAX remembers each NumPy array that a traced function closes over, in the precision of the moment, by the array's
identity alone and for as long as a compiled function holds it (``canonicalize_value`` in jaxlib 0.10). A matrix that
was traced under ``jax.enable_x64`` is then handed as float64 to programs compiled for float32, which fail
(``RuntimeProgramInputMismatch``), and one that the user's own code compiled in float32 before comes back rounded under
``enable_x64``, without a word. Neither happens if JAX remembers arrays by identity and precision, as it does here.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree


def float64() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX computes in float64, for this thread."""
    _mend_constants()
    return jax.enable_x64(True)


def call_host(function: Callable[..., np.ndarray], like: jax.ShapeDtypeStruct, *arguments: PyTree) -> Array:
    """Return ``function(*arguments)``, computed by NumPy on the host when the compiled program gets there.

    It may run in a thread of XLA's, where JAX is in the process's own precision and would round what passes through
    ``jax.pure_callback``. So only bytes pass.
    """
    leaves, structure = jax.tree.flatten(arguments)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    like_leaves = [(leaf.dtype, leaf.shape) for leaf in leaves]

    def on_bytes(*packed: np.ndarray) -> np.ndarray:
        pairs = zip(packed, like_leaves, strict=True)
        known = [np.asarray(part).view(dtype).reshape(shape) for part, (dtype, shape) in pairs]
        answer = np.ascontiguousarray(function(*jax.tree.unflatten(structure, known)), like.dtype)
        return answer.reshape(*like.shape, 1).view(np.uint8)

    size = (*like.shape, np.dtype(like.dtype).itemsize)
    packed = jax.pure_callback(
        on_bytes, jax.ShapeDtypeStruct(size, np.uint8), *map(_bytes, leaves), vmap_method="sequential"
    )
    return jax.lax.bitcast_convert_type(packed, like.dtype)


def _bytes(array: Array) -> Array:
    """Return the bytes of an array along one more axis."""
    if array.dtype.itemsize == 1:
        return array.astype(np.uint8)[..., None]
    return jax.lax.bitcast_convert_type(array, np.uint8)


@functools.cache
def _mend_constants() -> None:
    """Once a process, let JAX remember NumPy constants by identity *and* precision.

    The registry is JAX's own, though not public: where a later version has another, nothing is done, and
    ``tests/test_precision.py`` tells whether something still has to be.
    """
    try:
        from jax._src.dtypes import register_canonicalize_value_handler
        from jax._src.literals import TypedNdArray
        from jaxlib.weakref_lru_cache import weak_key_weak_value_cache as remember
    except ImportError:
        return

    def canonical(array: np.ndarray) -> Any:
        return TypedNdArray(np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype)))

    # Like JAX, one constant for each array, so that a matrix used twice is stored once.
    double, single = remember(canonical), remember(canonical)
    is_double = lambda: jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    for kind in (np.ndarray, np.memmap):
        register_canonicalize_value_handler(kind, lambda array: double(array) if is_double() else single(array))
