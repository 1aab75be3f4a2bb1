"""Networks from arrays: links and pairs whose ends are names of nodes."""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np


class Nodes:
    """The nodes of a network by their names.

    Parameters
    ----------
    names
        In their order; when absent, ``used`` in its own.
    used
        The names that the links use.
    """

    def __init__(self, names: Iterable[Hashable] | None, used: set[Hashable]):
        self.names = tuple(_in_order(used) if names is None else names)
        self._position = {name: index for index, name in enumerate(self.names)}
        if len(self._position) != len(self.names):
            raise ValueError("nodes: expected different names, got one of them twice.")

    def find(self, ends: Iterable[Hashable], name: str) -> np.ndarray:
        """Return the positions of nodes; raise ValueError, which begins with ``name``, where there is no such node."""
        unknown = [end for end in ends if end not in self._position]
        if unknown:
            raise ValueError(f"{name}: expected names of nodes, got {unknown[0]!r}, which is none.")
        return np.array([self._position[end] for end in ends], int)


def plain_names(ends: Iterable[Any]) -> list[Hashable]:
    """Return names as Python objects: numpy's integers would be printed with their type."""
    return [end.item() if isinstance(end, np.generic) else end for end in ends]


def _in_order(names: set[Hashable]) -> list[Any]:
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:  # names of different kinds have no order of their own
        return sorted(names, key=repr)


def spread(numbers: Any, count: int, name: str) -> np.ndarray:
    """Return one number for each of ``count``; raise ValueError, which begins with ``name``, for anything else."""
    try:
        return np.broadcast_to(np.asarray(numbers, np.float64), (count,)).copy()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a number or {count} numbers, got shape {np.shape(numbers)}.") from error
