"""Where descent on Phi by its gradient is tried first, and which linear algebra computes it."""

import numpy as np

from bilevax._support import trees
from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.hypergradient.compiled import CompiledPhi
from bilevax.solvers.default.hypergradient.phi import Phi
from bilevax.solvers.default.hypergradient.sparse import SparsePhi
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.settings import HYPERGRADIENT, SIZES


def phi_of(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> Phi | None:
    """Return Phi with its gradient; None where the other phases are the better way."""
    constraints = trees.size(flat.row_shapes) + flat.y_rows.matrix.shape[0]
    many = flat.n_x >= HYPERGRADIENT.fewest
    # Of an entropy one gradient of Phi takes many factorisations: with few x, second derivatives are the quicker way.
    large = flat.n_y + constraints >= HYPERGRADIENT.large and flat.lower_is_quadratic
    if flat.y_rows.balls or not (many or large):
        return None
    if many and flat.n_y + 2 * constraints <= HYPERGRADIENT.most_compiled:
        if all(quadratic is not None for quadratic in flat.quadratics.values()):
            return None  # the other phases compile nothing, and are done before this program would be compiled
        return CompiledPhi(flat, stack_rows(flat, *flat.y_rows.intervals(), sparse=True))
    if _is_sparse_and_strictly_convex(flat, x, y):
        return SparsePhi(flat, stack_rows(flat, *flat.y_rows.intervals(), sparse=True))
    return None


def _is_sparse_and_strictly_convex(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether matrices have few entries and g is curved along every entry of y, as seen from a point."""
    rows, size = flat.rows.A, flat.n_y + flat.rows.A.shape[0]
    if rows.nnz > SIZES.entries * size or (
        flat.n_y > SIZES.largest_dense and not flat.has_diagonal_hessian("lower", x, y)
    ):
        return False
    hessian = flat.hessian("lower", "y", "y", x, y)
    return hessian.nnz + rows.nnz <= SIZES.entries * size and bool(np.all(hessian.diagonal() > 0.0))
