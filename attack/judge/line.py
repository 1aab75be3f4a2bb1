"""The least value of Phi over one number x, by a grid, and by a search around the best points of it."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

_POINTS = 4001
_VALLEYS = 30  # points of the grid, lower than their neighbours, around which is searched
_HALVINGS = 70


def root(slope: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return where increasing functions change their sign, entry by entry; the nearer end where they do not."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = slope(middle) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def least_on_line(phi: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """Return the least value of a continuous function, given by its values at many points at once."""
    grid = np.linspace(low, high, _POINTS)
    values = phi(grid)
    padded = np.concatenate([[np.inf], values, [np.inf]])
    valleys = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    valleys = valleys[np.argsort(values[valleys])][:_VALLEYS]
    best = values.min()
    for k in valleys:
        ends = grid[max(k - 1, 0)], grid[min(k + 1, _POINTS - 1)]
        value = lambda x: float(phi(np.array([x]))[0])
        found = minimize_scalar(value, bounds=ends, method="bounded", options={"xatol": 1e-11})
        best = min(best, found.fun)
    return float(best)
