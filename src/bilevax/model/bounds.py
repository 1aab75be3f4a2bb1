"""Bounds as a user writes them: one number or many, for each row or for each entry of a variable."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees


def one_per_leaf(bound: PyTree, like: PyTree) -> PyTree:
    """Return ``bound`` with the structure of ``like``; a single array serves every leaf."""
    structure = jax.tree.structure(like)
    if jax.tree.structure(bound) == structure:
        return bound
    leaves = jax.tree.leaves(bound)
    if len(leaves) != 1 or jax.tree.structure(bound) != jax.tree.structure(0):
        raise ValueError("structures differ")
    return jax.tree.unflatten(structure, leaves * structure.num_leaves)


def row_bound(bound: Any, count: int, name: str) -> np.ndarray:
    """Return a bound with one entry a row; raise ValueError, which begins with ``name``, for anything else."""
    try:
        array = trees.host_floats(bound)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a number or {count} numbers, got {type(bound).__name__}.") from error
    try:
        array = (np if isinstance(array, np.ndarray) else jnp).broadcast_to(array, (count,))
    except ValueError:
        raise ValueError(f"{name}: expected a number or {count} numbers, got shape {array.shape}.") from None
    if trees.is_concrete(array) and np.isnan(array).any():
        raise ValueError(f"{name}: expected numbers (or infinities), got NaN.")
    return array  # type: ignore[return-value]


def first_pair(low: Any, high: Any) -> str:
    """Return in words the first entry at which the bounds contradict each other."""
    low, high = np.broadcast_arrays(low, high)
    index = np.flatnonzero((low > high).ravel())[0]
    return f"lower {low.ravel()[index]:g} > upper {high.ravel()[index]:g} at entry {index}"
