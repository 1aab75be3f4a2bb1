"""What is found out once about an object, and remembered as long as it lives."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jaxtyping import PyTree

Found = TypeVar("Found")

_OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_FOUND: dict[int, dict[Any, Any]] = {}


class Frozen:
    """A pytree of hashable leaves as one hashable key."""

    def __init__(self, tree: PyTree):
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self.key = structure, tuple(leaves)
        self._hash = hash(self.key)  # it is asked for at every look-up

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Frozen) and self.key == other.key)


def remembered(find: Callable[..., Found]) -> Callable[..., Found]:
    """Return a function of an object that never changes, and of hashable arguments, which finds out only once."""

    @functools.wraps(find)
    def recall(owner: Any, *arguments: Any) -> Found:
        if _OWNERS.get(id(owner)) is not owner:
            _OWNERS[id(owner)], _FOUND[id(owner)] = owner, {}
            weakref.finalize(owner, _FOUND.pop, id(owner), None)
        found, key = _FOUND[id(owner)], (find, *arguments)
        if key not in found:
            found[key] = find(owner, *arguments)
        return found[key]

    return recall
