"""Where a sequence of steps is going: Anderson's extrapolation from its last steps."""

import numpy as np


class Extrapolation:
    """The last points of a sequence, and the steps that a method took from them.

    A method whose model has wrong second derivatives gets nearer by the same share with every step. Near its limit the
    step is an affine function of the point; the combination of the last points at which that function is least tells
    where steps would vanish.

    Parameters
    ----------
    memory
        How many of the last points are looked at.
    """

    def __init__(self, memory: int):
        self._memory = memory
        self._points: list[np.ndarray] = []
        self._steps: list[np.ndarray] = []

    def forget(self) -> None:
        """Begin anew: the next steps have nothing to do with the last ones."""
        self._points, self._steps = [], []

    def after(self, point: np.ndarray, step: np.ndarray) -> np.ndarray | None:
        """Remember a step, and return where it and those before lead; None where nothing can be said."""
        self._points = [*self._points, point][-self._memory :]
        self._steps = [*self._steps, step][-self._memory :]
        if len(self._steps) < 2:
            return None
        moved, changed = np.diff(self._points, axis=0).T, np.diff(self._steps, axis=0).T
        weights = np.linalg.lstsq(changed, step, rcond=1e-10)[0]
        found = point + step - (moved + changed) @ weights
        return found if np.isfinite(found).all() else None
