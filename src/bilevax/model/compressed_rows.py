"""Sparse matrices by their rows: put together, scaled and measured by a few calls of NumPy each.

SciPy's own functions convert and check at every step, which for the matrices of a small problem is most of their time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

# Matrices with up to this many entries, zeros included, are put together as arrays.
_FEW_ENTRIES = 20_000


def scaled(matrix: Any, left: np.ndarray, right: np.ndarray) -> Any:
    """Return ``diag(left) matrix diag(right)`` of a compressed sparse matrix, in its own format."""
    outer, inner = (left, right) if matrix.format == "csr" else (right, left)
    data = matrix.data * np.repeat(outer, np.diff(matrix.indptr)) * inner[matrix.indices]
    return type(matrix)((data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=True)


def entries_of(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows, columns and values of the entries of an array or a compressed sparse matrix."""
    if isinstance(matrix, np.ndarray):
        row, column = np.nonzero(matrix)
        return row, column, matrix[row, column]
    outer = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    row, column = (outer, matrix.indices) if matrix.format == "csr" else (matrix.indices, outer)
    return row, column, matrix.data


def by_columns(array: np.ndarray) -> sp.csc_matrix:
    """Return an array as a sparse matrix compressed by columns."""
    column, row, data = entries_of(array.T)
    ends = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=array.shape[1]))])
    return sp.csc_matrix((data, row.astype(np.int32), ends.astype(np.int32)), shape=array.shape)


def on_top(parts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    """Return compressed rows on top of each other: a few concatenations, where SciPy would convert each part twice."""
    ends = np.cumsum([0, *(part.nnz for part in parts)])
    starts = [part.indptr[:-1] + end for part, end in zip(parts, ends, strict=False)]
    shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    ends = np.concatenate([*starts, ends[-1:]]).astype(indices.dtype)  # of one type, which SciPy need not look for
    return sp.csr_matrix((data, indices, ends), shape=shape)


def row_squares(matrix: sp.csr_matrix) -> np.ndarray:
    """Return the squared length of each row."""
    of_row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return np.bincount(of_row, matrix.data**2, minlength=matrix.shape[0])


def row_largest(matrix: sp.csr_matrix, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the largest absolute entry of each row, the columns weighted; 0 where there is none."""
    sizes = np.abs(matrix.data) if weights is None else np.abs(matrix.data) * weights[matrix.indices]
    filled, largest = np.diff(matrix.indptr) > 0, np.zeros(matrix.shape[0])
    if filled.any():
        largest[filled] = np.maximum.reduceat(sizes, matrix.indptr[:-1][filled])
    return largest


def joint_matrix(B: sp.csr_matrix, A: sp.csr_matrix, of_x: sp.csr_matrix, of_y: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows ``[B, A]`` with rows of x alone and rows of y alone below, without zeros, entries in order."""
    (count, n_x), n_y = B.shape, A.shape[1]
    shape, of_sets = (count + of_x.shape[0] + of_y.shape[0], n_x + n_y), count + of_x.shape[0]
    if shape[0] * shape[1] <= _FEW_ENTRIES:  # one array is made faster than three sparse matrices
        array = np.zeros(shape)
        array[:count, :n_x], array[:count, n_x:] = B.toarray(), A.toarray()
        array[count:of_sets, :n_x], array[of_sets:, n_x:] = of_x.toarray(), of_y.toarray()
        return sp.csr_matrix(array)
    matrix = sp.csr_matrix(sp.block_array([[B, A], [of_x, None], [None, of_y]], format="csr"))
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix
