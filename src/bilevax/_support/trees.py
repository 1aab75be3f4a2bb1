"""Arithmetic on pytrees of arrays, and their conversion to vectors and text."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

_SHORT = 2**12  # entries of an array that is copied sooner than looked at by itself


def add_scaled(a: PyTree, scale: Any, b: PyTree) -> PyTree:
    """Return ``a + scale * b``, leaf by leaf."""
    return jax.tree.map(lambda p, q: p + scale * q, a, b)


def subtract(a: PyTree, b: PyTree) -> PyTree:
    """Return ``a - b``, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """Return the inner product over all leaves."""
    # The start is a plain number: an array would turn float32 into the default precision.
    return jnp.asarray(sum(jax.tree.leaves(jax.tree.map(lambda p, q: jnp.sum(p * q), a, b)), start=0.0))


def max_abs(a: PyTree) -> Float[Array, ""]:
    """Return the largest absolute entry over all leaves: 0 for an empty tree, infinity where one is NaN."""
    # Short ones side by side, since every reduction costs microseconds on CPU, however short it is. Long ones where
    # they are: they may be spread over devices.
    leaves = jax.tree.leaves(a)
    parts = [flatten([leaf for leaf in leaves if leaf.size <= _SHORT])]
    parts += [leaf for leaf in leaves if leaf.size > _SHORT]
    # XLA's largest entry of an array on several processors passes over NaN (jaxlib 0.10).
    sizes = [jnp.where(jnp.isnan(part), jnp.inf, jnp.abs(part)) for part in parts]
    largest = [jnp.max(each, initial=0.0) for each in sizes if each.size]
    return functools.reduce(jnp.maximum, largest) if largest else jnp.zeros(())


def all_finite(a: PyTree) -> Any:
    """Return whether every entry of every leaf is finite."""
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in [*jax.tree.leaves(a), jnp.zeros(())]]).all()


def size(a: PyTree) -> int:
    """Return the number of entries over all leaves; leaves may be arrays or shapes."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(a))


def flatten(a: PyTree) -> Float[Array, " n"]:
    """Return all leaves in one vector; a single vector passes through untouched."""
    leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(a)]
    if not leaves:
        return jnp.zeros(0)
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)


def unflatten(vector: Any, like: PyTree) -> PyTree:
    """Return ``vector`` in the structure and shapes of ``like``: the inverse of `flatten`."""
    leaves, structure = jax.tree.flatten(like)
    out, start = [], 0
    for leaf in leaves:
        count = int(np.prod(leaf.shape))
        out.append(vector[start : start + count].reshape(leaf.shape))
        start += count
    return jax.tree.unflatten(structure, out)


def flatten_host(a: PyTree) -> np.ndarray:
    """Return `flatten` in float64 NumPy, without touching the device."""
    leaves = [np.asarray(leaf, dtype=np.float64).ravel() for leaf in jax.tree.leaves(a)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def shapes(a: PyTree) -> PyTree:
    """Return the tree's shapes and dtypes without its values."""
    dtype = lambda leaf: leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), dtype(leaf)), a)


def zeros(like: PyTree) -> PyTree:
    """Return zeros of the shapes and dtypes of ``like``, whose leaves may be shapes."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def describe(a: PyTree) -> str:
    """Return the shapes of a tree as text for an error message."""
    leaves, structure = jax.tree.flatten(a)
    found = [tuple(leaf.shape) if hasattr(leaf, "shape") else np.shape(leaf) for leaf in leaves]
    if structure == jax.tree.structure(0):
        return f"an array of shape {found[0]}"
    return f"a tree of shapes {jax.tree.unflatten(structure, [str(shape) for shape in found])}"


def host_floats(value: Any) -> Any:
    """Return an array in float64 on the host, so that no digit is lost where JAX runs in float32.

    Tracers pass through, since a problem may be built inside ``jit`` or ``vmap``, and so do arrays that are spread
    over several devices: who spread them has his reasons.

    Raises
    ------
    TypeError, ValueError
        For what is not made of real numbers; NumPy would read None as NaN, and drop an imaginary part.
    """
    if is_spread(value):
        return spread(value)
    if isinstance(value, Tracer):
        return value
    if value is None or np.iscomplexobj(value):
        raise TypeError(f"expected real numbers, got {type(value).__name__}")
    return np.asarray(value, dtype=np.float64)


def map_arrays(function: Any, tree: Any) -> Any:
    """Apply a function to the leaves, a list of numbers (of lists of numbers ...) being one array as in SciPy."""
    return jax.tree.map(function, tree, is_leaf=_is_list_of_numbers)


def _is_list_of_numbers(value: Any) -> bool:
    number = lambda entry: isinstance(entry, int | float | np.generic | jax.Array) and np.ndim(entry) == 0
    return isinstance(value, list) and all(
        _is_list_of_numbers(entry) or (is_concrete(entry) and number(entry)) for entry in value
    )


def is_concrete(value: Any) -> bool:
    """Return whether a value's numbers are known here, unlike those of a tracer or of an array of several processes."""
    return not isinstance(value, Tracer) and getattr(value, "is_fully_addressable", True)


def is_spread(value: Any) -> bool:
    """Return whether a value is an array that was put on a mesh of devices."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and isinstance(value.sharding, NamedSharding)


def spread(value: jax.Array) -> jax.Array:
    """Return an array that is spread over devices as one whose products the compiler spreads, not the user.

    On a mesh of ``jax.make_mesh`` JAX would ask whoever writes a product how it is to be spread. No number moves.
    """
    mesh, spec = placement(value)
    return jax.device_put(value, NamedSharding(Mesh(mesh.devices, mesh.axis_names), spec))


def placement(value: jax.Array) -> tuple[Mesh, PartitionSpec]:
    """Return on which mesh an array is spread, and how."""
    sharding = value.sharding
    assert isinstance(sharding, NamedSharding)
    return sharding.mesh, sharding.spec  # type: ignore[return-value]


def everywhere(tree: PyTree, like: PyTree) -> PyTree:
    """Return a tree that is whole on each of the devices over which arrays of ``like`` are spread, if any are."""
    meshes = [placement(leaf)[0] for leaf in jax.tree.leaves(like) if is_spread(leaf)]
    return jax.device_put(tree, NamedSharding(meshes[0], PartitionSpec())) if meshes else tree


_FEW = 20  # numbers that are shown one by one
_DUST = 1e-12  # of the largest number: what is below is zero to the eye


def without_dust(numbers: np.ndarray) -> np.ndarray:
    """Return numbers to show: those that are next to nothing beside the largest are zero."""
    size = np.abs(numbers)
    return np.where(size < _DUST * size.max(initial=0.0, where=np.isfinite(size)), 0.0, numbers)


def summarise(value: PyTree) -> str:
    """Return a short text for a point: its numbers when few, its shape when many."""
    flat = without_dust(flatten_host(value))
    if flat.size <= _FEW:
        return np.array2string(flat, precision=8, separator=", ", max_line_width=1000)
    return f"{describe(value)}, entries in [{flat.min():.4g}, {flat.max():.4g}]"
