"""The least or the largest f over the minimisers of a quadratic g: a polyhedron, the face.

Rows that hold on all of it are equations, and f matters only along it: the product of a price and a quantity is not
convex, but it is linear where the price is the same on the whole face. So f is minimised over the face's coordinates.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp

from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, Objective, Outcome
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.flat import FlatProblem


def extreme(flat: FlatProblem, x: np.ndarray, face: Constraints, y: np.ndarray, sign: float) -> np.ndarray | None:
    """Return the minimiser of ``sign * f`` over a face that y lies on; None where none is found."""
    objective = Objective(
        lambda y: sign * flat.value("upper", x, y),
        lambda y: sign * flat.gradients("upper", x, y)[1],
        lambda y: sign * flat.hessian("upper", "y", "y", x, y),
    )
    along = _directions(face) if flat.n_y <= EXACT_SETTINGS.dense_response else None
    if along is None:
        return _minimised(objective, face, y)
    if along.shape[1] == 0:
        return y
    inside = Objective(
        lambda t: objective.value(y + along @ t),
        lambda t: along.T @ objective.gradient(y + along @ t),
        lambda t: sp.csc_matrix(along.T @ (objective.hessian(y + along @ t) @ along)),
    )
    image, moved = face.matrix @ y, face.matrix @ along
    rounding = EXACT_TOLERANCES.spread_direction * np.sqrt(face.matrix.multiply(face.matrix).sum(axis=1))
    moved[np.abs(moved) <= np.reshape(rounding, (-1, 1))] = 0.0
    kept = (face.lower < face.upper) & moved.any(axis=1)  # the others hold on all of the face, or do not matter
    rows = dataclasses.replace(
        face,
        matrix=sp.csr_matrix(moved[kept]),
        lower=np.minimum(face.lower - image, 0.0)[kept],
        upper=np.maximum(face.upper - image, 0.0)[kept],
    )
    found = _minimised(inside, rows, np.zeros(along.shape[1]))
    return None if found is None else y + along @ found


def _minimised(objective: Objective, rows: Constraints, start: np.ndarray) -> np.ndarray | None:
    answer = minimise(objective, rows, start)
    accurate = answer.outcome is Outcome.INACCURATE and answer.residual <= EXACT_TOLERANCES.lower
    return answer.y if answer.outcome is Outcome.OPTIMAL or accurate else None


def _directions(face: Constraints) -> np.ndarray | None:
    """Return an orthonormal basis of the face's directions; None where it has a ball, which has no rows."""
    if face.balls:
        return None
    equations = face.matrix[face.lower == face.upper].toarray()
    equations = equations / np.maximum(np.linalg.norm(equations, axis=1, keepdims=True), np.finfo(float).tiny)
    _, sizes, vectors = np.linalg.svd(equations)
    return vectors[np.count_nonzero(sizes > EXACT_TOLERANCES.spread_direction) :].T
