"""What the leader has to do for a given y to be the follower's answer, if he can: the tolls that lead to a flow.

The lower level's optimality conditions at a fixed y are linear in x and the multipliers where the gradient of g in y
is affine in x; elsewhere they are linearised. What comes out is a guess, to be evaluated exactly.
"""

import numpy as np
import scipy.sparse as sp

from bilevax._support.programs import linprog
from bilevax.model.flat import FlatProblem
from bilevax.proof.building import follower_rows
from bilevax.proof.program import one_sided
from bilevax.proof.settings import PROOF


def inducing_x(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Return an x for which y solves the lower level as nearly as can be, rows active as at (x, y); None if none is."""
    rows, slopes = follower_rows(flat), flat.lower_derivatives(x, y)
    owner, sign, equalities = one_sided(rows)
    image = rows.of_x @ x + rows.of_y @ y
    bound = np.where(sign > 0, rows.upper[owner], rows.lower[owner])
    active = np.abs(image[owner] - bound) <= PROOF.active * (1 + np.abs(bound))
    active[:equalities] = True
    pull = sp.csr_matrix((rows.of_y[owner[active]] * sign[active, None]).T)
    signed = np.where(np.flatnonzero(active) < equalities, -np.inf, 0.0)
    n_x, n_y, residual = flat.n_x, flat.n_y, sp.eye_array(flat.n_y)
    fixed, free = owner[active], np.setdiff1d(np.arange(len(image)), owner[active])
    left = bound[active] - (rows.of_y @ y)[fixed]
    equal = sp.block_array([[slopes.mixed, pull, residual, -residual], [rows.of_x[fixed], None, None, None]])
    sides = _within(rows.of_x[free], (rows.lower - rows.of_y @ y)[free], (rows.upper - rows.of_y @ y)[free])
    of_x = _within(flat.x_rows.matrix.toarray(), flat.x_rows.lower, flat.x_rows.upper)
    within = np.vstack([sides[0], of_x[0]])
    zeros = np.zeros((len(within), pull.shape[1] + 2 * n_y))
    answer = linprog(
        np.concatenate([np.zeros(n_x + pull.shape[1]), np.ones(2 * n_y)]),
        A_ub=np.hstack([within, zeros]),
        b_ub=np.concatenate([sides[1], of_x[1]]),
        A_eq=equal,
        b_eq=np.concatenate([slopes.mixed @ x - slopes.gradient, left]),
        bounds=[(None, None)] * n_x + [(low, None) for low in signed] + [(0.0, None)] * (2 * n_y),
    )
    return answer.x[:n_x] if answer.status == 0 else None


def _within(matrix: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the finite sides of rows as ``matrix x <= right``."""
    above, below = np.isfinite(upper), np.isfinite(lower)
    return np.vstack([matrix[above], -matrix[below]]), np.concatenate([upper[above], -lower[below]])
