"""The (x, y) that satisfy the rows, x in X and y in Y; the nearest x for which the lower level is feasible."""

import dataclasses

import numpy as np
import scipy.sparse as sp

from bilevax.model.compressed_rows import joint_matrix
from bilevax.model.flat import FlatProblem
from bilevax.model.sets import SetRows
from bilevax.solvers.default.programs.quadratic import solve_qp
from bilevax.solvers.default.programs.upper_set import UpperSet


def joint_rows(flat: FlatProblem) -> SetRows:
    """Return all rows and balls on the stacked vector (x, y)."""
    rows, x_rows, y_rows = flat.rows, flat.x_rows, flat.y_rows
    return SetRows(
        matrix=joint_matrix(rows.B, rows.A, x_rows.matrix, y_rows.matrix),
        lower=np.concatenate([rows.lower, x_rows.lower, y_rows.lower]),
        upper=np.concatenate([rows.upper, x_rows.upper, y_rows.upper]),
        balls=(*x_rows.balls, *(dataclasses.replace(ball, index=ball.index + flat.n_x) for ball in y_rows.balls)),
    )


def nearest_feasible(flat: FlatProblem, x: np.ndarray, inset: float = 0.0) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the nearest x in X for which some y in Y satisfies the rows: a projection in (x, y), rows being affine.

    With an ``inset``, y satisfies them with that much to spare, so that the lower level at x has an interior.
    """
    rows = joint_rows(flat)
    spare = np.where(rows.lower < rows.upper - 4 * inset, inset, 0.0)
    spare[len(flat.rows.lower) : len(flat.rows.lower) + len(flat.x_rows.lower)] = 0.0
    hessian = sp.diags(np.concatenate([np.ones(flat.n_x), np.full(flat.n_y, 1e-8)]))
    gradient = np.concatenate([-x, np.zeros(flat.n_y)])
    solved = solve_qp(hessian, gradient, rows.matrix, rows.lower + spare, rows.upper - spare, rows.balls)
    return None if solved is None else (solved[: flat.n_x], solved[flat.n_x :])


def settled(flat: FlatProblem, upper: UpperSet, x: np.ndarray) -> np.ndarray:
    """Return x moved to where the lower level is feasible; x itself where no such point was found."""
    nearest = nearest_feasible(flat, x)
    return x if nearest is None else upper.project(nearest[0])
