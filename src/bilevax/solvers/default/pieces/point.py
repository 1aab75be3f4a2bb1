"""Exact points, and the pieces of Phi they lie on.

A point is exact if y and the multipliers satisfy the lower level's KKT conditions at x; then its f is Phi(x). Every
constraint of the lower level is *active*, *inactive*, or *biactive* where both its multiplier and its slack vanish: x
lies on a kink. On one piece of Phi each is active or inactive, and the conditions have no complementarity left.
"""

import dataclasses

import numpy as np

from bilevax.solvers.default.settings import EXACT

INACTIVE, BIACTIVE, ACTIVE = -1, 0, 1  # the sides of a constraint


@dataclasses.dataclass(frozen=True)
class ExactPoint:
    """x with its lower level; constraints in the order of `LowerRows`.

    ``adjoint`` weighs the conditions on grad_y g in the Lagrangian of the step that led here, where that is known.
    """

    x: np.ndarray
    y: np.ndarray
    multiplier: np.ndarray
    slack: np.ndarray
    value: float
    adjoint: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Units:
    """What multipliers and slacks are measured in when they are compared with zero and with each other."""

    multiplier: float
    slack: float


def classify(point: ExactPoint, units: Units, inequality: np.ndarray, margin: float) -> np.ndarray:
    """Return the side of each constraint: the larger of multiplier and slack decides, unless both are in the margin."""
    multiplier, slack = point.multiplier / units.multiplier, point.slack / units.slack
    sides = np.where(multiplier > slack, ACTIVE, INACTIVE).astype(np.int8)
    sides[np.maximum(multiplier, slack) <= margin] = BIACTIVE
    sides[~inequality] = ACTIVE
    return sides


def torn(end: ExactPoint, units: Units, sides: np.ndarray) -> np.ndarray:
    """Return how far biactive constraints have both multiplier and slack at the end of a step; 0 for all others."""
    part = np.minimum(end.multiplier / units.multiplier, end.slack / units.slack)
    return np.where((sides == BIACTIVE) & (part > EXACT.torn), part, 0.0)
