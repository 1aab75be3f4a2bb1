"""The least or the largest f over the minimisers of a quadratic g: a polyhedron, the face.

Rows that hold on all of it are equations, and f matters only along it: the product of a price and a quantity is not
convex, but it is linear where the price is the same on the whole face. So f is minimised over the face's coordinates.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp

from bilevax._support.programs import linprog
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
    if face.balls or flat.n_y > EXACT_SETTINGS.dense_response:
        return _minimised(objective, face, y)
    found = _along(objective, face, y)
    # Rows without a multiplier may hold on all of the face, too: then f may be convex along it after all.
    return _along(objective, narrowed, y) if found is None and (narrowed := _narrowed(face)) is not None else found


def _along(objective: Objective, face: Constraints, y: np.ndarray) -> np.ndarray | None:
    """Return the minimiser over a face, in coordinates of its equations' null space."""
    along = _directions(face)
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


def _narrowed(face: Constraints) -> Constraints | None:
    """Return a face with all rows that hold on all of it as equations; None where there are no more of them.

    One linear program gives every side of a row as much slack as it can have, up to 1, all of them at once.
    """
    equal, size = face.lower == face.upper, face.matrix.shape[1]
    above, below = ~equal & np.isfinite(face.upper), ~equal & np.isfinite(face.lower)
    sides = sp.vstack([face.matrix[above], -face.matrix[below]], format="csr")
    count = sides.shape[0]
    answer = linprog(
        np.concatenate([np.zeros(size), -np.ones(count)]),
        A_ub=sp.hstack([sides, sp.eye(count)], format="csr"),
        b_ub=np.concatenate([face.upper[above], -face.lower[below]]),
        A_eq=sp.hstack([face.matrix[equal], sp.csr_matrix((int(equal.sum()), count))], format="csr"),
        b_eq=face.upper[equal],
        bounds=[(None, None)] * size + [(0.0, 1.0)] * count,
    )
    if answer.status != 0:
        return None
    tight = answer.x[size:] <= EXACT_TOLERANCES.spread_margin
    if not tight.any():
        return None
    lower, upper = face.lower.copy(), face.upper.copy()
    at_upper, at_lower = np.flatnonzero(above)[tight[: above.sum()]], np.flatnonzero(below)[tight[above.sum() :]]
    lower[at_upper], upper[at_lower] = upper[at_upper], lower[at_lower]
    return dataclasses.replace(face, lower=lower, upper=upper)


def _minimised(objective: Objective, rows: Constraints, start: np.ndarray) -> np.ndarray | None:
    answer = minimise(objective, rows, start)
    accurate = answer.outcome is Outcome.INACCURATE and answer.residual <= EXACT_TOLERANCES.lower
    return answer.y if answer.outcome is Outcome.OPTIMAL or accurate else None


def _directions(face: Constraints) -> np.ndarray:
    """Return an orthonormal basis of what the equations of a face leave free."""
    equations = face.matrix[face.lower == face.upper].toarray()
    equations = equations / np.maximum(np.linalg.norm(equations, axis=1, keepdims=True), np.finfo(float).tiny)
    _, sizes, vectors = np.linalg.svd(equations)
    return vectors[np.count_nonzero(sizes > EXACT_TOLERANCES.spread_direction) :].T
