"""The linear system of a Newton step with active rows held as equalities: H d + A'u = r, A d = c."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
import scipy.sparse.linalg

from bilevax._support import clock
from bilevax._support.full import as_array
from bilevax.convex.curvature import nearly_full, own_units
from bilevax.convex.settings import DENSE, RANK


def symmetric_factor(matrix: sparse.csc_matrix) -> scipy.sparse.linalg.SuperLU:
    """The factors of a symmetric matrix, about as sparse as those of a definite one.

    Their order is one for the pattern of the matrix, not of its square as it would be for others, and pivots are on the
    diagonal wherever that is large enough.
    """
    options = {"SymmetricMode": True}
    return scipy.sparse.linalg.splu(matrix, "MMD_AT_PLUS_A", RANK.diagonal_pivot, options=options)


class LastFactor:
    """The factor of the last large sparse matrix: that of a quadratic is often the same again, at another point."""

    def __init__(self):
        self._matrix = sparse.csc_matrix((0, 0))
        self._factor: scipy.sparse.linalg.SuperLU | None = None

    def solver(self, matrix: sparse.csc_matrix) -> Callable[[np.ndarray], np.ndarray]:
        """The solver of systems with a symmetric matrix."""
        same = matrix.shape == self._matrix.shape and all(
            np.array_equal(getattr(matrix, part), getattr(self._matrix, part)) for part in ("indptr", "indices", "data")
        )
        factor = self._factor if same else None
        if factor is None:
            self._factor = None  # two factors at a time would be one too many
            self._matrix, self._factor = matrix, factor = matrix, symmetric_factor(matrix)
        return factor.solve


def solve_saddle_point(
    hessian: sparse.csc_matrix,
    matrix: Any,
    column: np.ndarray,
    right_y: np.ndarray,
    right_rows: np.ndarray,
    last: LastFactor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (d, u) with H d + A'u = right_y and A d = right_rows, in the sense of least squares.

    `column` holds the column of the only entry of a row of A, or -1; rows of one entry eliminate their variable.
    `last` remembers the factor of a sparse system.
    """
    size, dense = right_y.size, isinstance(matrix, np.ndarray)
    second = as_array(hessian) if dense else hessian
    fixed, single = np.unique(column, return_index=True)
    fixed, single = fixed[fixed >= 0], single[fixed >= 0]
    pivot = matrix[single, fixed] if dense else matrix.data[matrix.indptr[single]]
    free, others = np.ones(size, bool), np.ones(right_rows.size, bool)
    free[fixed], others[single] = False, False
    free, others = np.flatnonzero(free), np.flatnonzero(others)
    move, multipliers = np.zeros(size), np.zeros(right_rows.size)
    move[fixed] = right_rows[single] / pivot
    right = np.concatenate([(right_y - second @ move)[free], (right_rows - matrix @ move)[others]])
    # Variables in the units of their curvature and rows of length 1 keep the cut-off of least squares meaningful.
    unit = own_units(hessian)[free]
    block: Any = second[free][:, free] if dense else part(second, free, free)
    border: Any = matrix[others][:, free] * unit if dense else part(matrix, others, free)
    if not dense:
        border.data *= unit[border.indices]
    length = np.linalg.norm(border, axis=1) if dense else _row_norms(border)
    length = np.where(length > 0, length, 1.0)
    right[: free.size] *= unit
    right[free.size :] /= length
    if not right.size:
        answer = right
    elif dense or right.size <= DENSE.systems or nearly_full(block):
        border = (border if dense else border.toarray()) / length[:, None]
        saddle = np.zeros((right.size, right.size))
        saddle[: free.size, : free.size] = (block if dense else block.toarray()) * np.outer(unit, unit)
        saddle[free.size :, : free.size] = border
        saddle[: free.size, free.size :] = border.T
        answer = _dense_solution(saddle, right)
    else:
        border.data *= np.repeat(1 / length, np.diff(border.indptr))
        block.data *= unit[block.indices]
        block.data *= np.repeat(unit, np.diff(block.indptr))
        answer = _sparse_solution(block, border, right, last or LastFactor())
    move[free], multipliers[others] = unit * answer[: free.size], answer[free.size :] / length
    multipliers[single] = (right_y - second @ move - matrix.T @ multipliers)[fixed] / pivot
    return move, multipliers


def part(matrix: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Some rows and columns, in order, of a sparse matrix: a copy, several times faster than SciPy's by indices."""
    by_columns = matrix.format == "csc"
    major, minor = (columns, rows) if by_columns else (rows, columns)
    count, others = np.diff(matrix.indptr), matrix.shape[0 if by_columns else 1]
    begin, count = matrix.indptr[major], count[major]
    ends = np.cumsum(count)
    entries = np.repeat(begin - ends + count, count) + np.arange(ends[-1] if ends.size else 0)
    place = np.full(others, -1, matrix.indices.dtype)
    place[minor] = np.arange(minor.size)
    index = place[matrix.indices[entries]]
    kept = index >= 0
    total = np.append(0, np.cumsum(kept))
    indptr = total[np.append(0, ends)].astype(matrix.indptr.dtype)
    parts = matrix.data[entries[kept]], index[kept], indptr
    return type(matrix)(parts, shape=(rows.size, columns.size))


def _row_norms(matrix: sparse.csr_matrix) -> np.ndarray:
    return np.sqrt(np.bincount(_outer(matrix), matrix.data**2, matrix.shape[0]))


def _outer(matrix: Any) -> np.ndarray:
    """The row of each entry of a matrix compressed by rows, the column of one compressed by columns."""
    return np.repeat(np.arange(matrix.indptr.size - 1, dtype=matrix.indices.dtype), np.diff(matrix.indptr))


def _dense_solution(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    with clock.work(2 * len(matrix) ** 3 / 3):
        factors, pivots, _ = scipy.linalg.lapack.dgetrf(matrix)
    if scipy.linalg.lapack.dgecon(factors, np.max(np.sum(abs(matrix), axis=0)))[0] > RANK.singular_system:
        return scipy.linalg.lapack.dgetrs(factors, pivots, right)[0]
    # Singular: QR with pivoting gives the solution of least norm, as singular values would at a higher cost.
    with clock.work(DENSE.pivoting * len(matrix) ** 3):
        return scipy.linalg.lstsq(matrix, right, cond=RANK.cutoff, lapack_driver="gelsy", check_finite=False)[0]


def _sparse_solution(
    block: sparse.csc_matrix, border: sparse.csr_matrix, right: np.ndarray, last: LastFactor
) -> np.ndarray:
    """Solve [block border'; border 0] z = right, which may be singular but has a solution."""
    size = block.shape[0]
    across, solve = border.T, _regularised_solver(block, border, last)

    def times(vector: np.ndarray) -> np.ndarray:
        return np.concatenate([block @ vector[:size] + across @ vector[size:], border @ vector[:size]])

    answer, error = np.zeros_like(right), right
    # Refinement against the system without the regularisation removes its effect on the range.
    for _ in range(RANK.max_refinements):
        trial = answer + solve(error)
        trial_error = right - times(trial)
        if not np.max(abs(trial_error)) < np.max(abs(error)):
            break
        answer, error = trial, trial_error
    return answer


def _regularised_solver(
    block: sparse.csc_matrix, border: sparse.csr_matrix, last: LastFactor
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the solver of the system with a small multiple of the identity added to its block, taken from its zero."""
    weight, size, count = RANK.regularisation, block.shape[0], border.shape[0]
    column = _outer(block)
    if count <= DENSE.schur and np.array_equal(block.indices, column):
        # With a diagonal block, as of an entropy, the rows alone are left to be factorised. Rounding may leave them
        # indefinite: where they depend on each other, and the block is nearly zero.
        inverse = 1 / (block.diagonal() + weight)
        schur = (border @ sparse.diags_array(inverse) @ border.T).toarray() + weight * np.eye(count)
        with contextlib.suppress(np.linalg.LinAlgError):
            factor = scipy.linalg.cho_factor(schur, check_finite=False)
            return functools.partial(_solve_by_rows, inverse, border, factor)
    row, regular, diagonal = _outer(border), np.repeat([weight, -weight], [size, count]), np.arange(size + count)
    data = np.concatenate([block.data, border.data, border.data, regular])
    first = np.concatenate([block.indices, size + row, border.indices, diagonal])
    second = np.concatenate([column, border.indices, size + row, diagonal])
    return last.solver(sparse.csc_matrix((data, (first, second)), shape=(size + count, size + count)))


def _solve_by_rows(inverse: np.ndarray, border: sparse.csr_matrix, factor: Any, error: np.ndarray) -> np.ndarray:
    """Solve with a diagonal block, given its inverse and the factor of ``border block^-1 border'``."""
    size = inverse.size
    side = border @ (inverse * error[:size]) - error[size:]
    multipliers = scipy.linalg.cho_solve(factor, side, check_finite=False)
    return np.concatenate([inverse * (error[:size] - border.T @ multipliers), multipliers])
