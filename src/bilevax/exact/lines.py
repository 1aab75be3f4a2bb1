"""Directions along which g does not change at all: where there are some, its minimisers exist and may be unbounded.

A convex function that is constant on one line is constant in its direction from everywhere. So these directions are a
subspace, whatever the point, and g has minimisers if it has some across it. Biases of a softmax are an example: adding
the same number to all of them changes nothing.
"""

import numpy as np

from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import Level


def lines_of_g(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return orthonormal directions, in columns, along which g is constant; none where that cannot be seen.

    What the Hessians at some points leave uncurved is only a candidate: values far out, both ways, decide.
    """
    spread = (1 + np.abs(y)) * np.random.default_rng(0).standard_normal((EXACT_SETTINGS.line_points, flat.n_y))
    hessians = (flat.hessian("lower", "y", "y", x, point).toarray() for point in (y, *(y + spread)))
    usable = [each / max(np.abs(each).max(), 1e-300) for each in hessians if np.isfinite(each).all()]
    curvatures, directions = np.linalg.eigh(np.sum(usable, axis=0) if usable else np.eye(flat.n_y))
    uncurved = directions[:, curvatures <= EXACT_TOLERANCES.line_curvature * max(curvatures[-1], 0.0)]
    return uncurved if constant_along(flat, "lower", x, y, uncurved) else uncurved[:, :0]


def constant_along(flat: FlatProblem, level: Level, x: np.ndarray, y: np.ndarray, lines: np.ndarray) -> bool:
    """Return whether an objective has the same value far out on the lines through y, both ways."""
    here, far = flat.value(level, x, y), 1 + np.abs(y).max(initial=0.0)
    ends = (
        flat.value(level, x, y + way * distance * far * line)
        for line in lines.T
        for distance in EXACT_SETTINGS.line_distances
        for way in (1.0, -1.0)
    )
    with np.errstate(all="ignore"):
        return all(abs(end - here) <= EXACT_TOLERANCES.line_change * (1 + abs(here)) for end in ends)
