"""A jet as an array: its components and batch in front of a value's own axes."""

import numpy as np


class Unsupported(Exception):
    """An operation that is not known here; its name is the argument."""


def line_jet(points: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the jets, of shape (5, batch, size), of lines through points along directions."""
    zero = np.zeros_like(points)
    return np.stack([points, directions, zero, np.abs(directions), zero])


def lift(a: np.ndarray, varies: bool, components: int) -> np.ndarray:
    """Return an operand with all its components; those of what does not change along the line are zero."""
    a = a if varies else a[None, None]
    if len(a) == components:
        return a
    return np.concatenate([a, np.zeros((components - 1, *a.shape[1:]))])


def value_of(a: np.ndarray, varies: bool) -> np.ndarray:
    """Return the values of an operand alone, with the axes in front."""
    return a[:1] if varies else a[None, None]


def axes_in_front(a: np.ndarray, shape: tuple[int, ...]) -> int:
    """Return how many axes an array has in front of those of its shape."""
    return a.ndim - len(shape)
