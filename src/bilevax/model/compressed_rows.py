"""Sparse matrices by their rows: put together, scaled and measured by a few calls of NumPy each.

SciPy's own functions convert and check at every step, which for the matrices of a small problem is most of their time.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax._support.full import as_array, is_full

# Matrices with up to this many entries, zeros included, are put together as arrays.
_FEW_ENTRIES = 20_000
# Entries that are looked at at a time, so that what is made of them is small beside a large matrix.
_ENTRIES_AT_A_TIME = 100_000


def compressed(array: np.ndarray) -> sp.csr_matrix:
    """Return an array as a sparse matrix; one without zeros a hundred times faster than SciPy would, and as a view."""
    rows, columns = array.shape
    if array.size == 0 or np.count_nonzero(array) < array.size:
        return sp.csr_matrix(array)
    ends = np.arange(0, array.size + 1, columns, dtype=np.int32)
    return sp.csr_matrix((array.ravel(), np.tile(np.arange(columns, dtype=np.int32), rows), ends), shape=array.shape)


def scaled(matrix: Any, left: np.ndarray, right: np.ndarray) -> Any:
    """Return ``diag(left) matrix diag(right)`` of a compressed sparse matrix, in its own format.

    Of sorted entries the places are shared: they are as large as the numbers, or nearly so. Where nothing changes, it
    is the matrix itself.
    """
    if matrix.has_sorted_indices and np.all(left == 1.0) and np.all(right == 1.0):
        return matrix
    outer, inner = (left, right) if matrix.format == "csr" else (right, left)
    data = np.empty(matrix.nnz)
    for lines, entries in some_at_a_time(matrix):
        np.multiply(matrix.data[entries], np.repeat(outer[lines], _lengths(matrix, lines)), out=data[entries])
        data[entries] *= inner[matrix.indices[entries]]
    copy = not matrix.has_sorted_indices
    return type(matrix)((data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=copy)


def some_at_a_time(matrix: Any) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of a compressed matrix (columns if it is compressed by them), with their entries, some at a time.

    What is made of some is small beside a large matrix.
    """
    ends = matrix.indptr
    if ends[-1] <= _ENTRIES_AT_A_TIME:
        if ends[-1]:
            yield slice(0, len(ends) - 1), slice(0, ends[-1])
        return
    starts = np.searchsorted(ends, np.arange(0, ends[-1], _ENTRIES_AT_A_TIME), side="right") - 1
    for first, last in itertools.pairwise([*np.unique(starts), len(ends) - 1]):
        yield slice(first, last), slice(ends[first], ends[last])


def _lengths(matrix: Any, lines: slice) -> np.ndarray:
    """Return how many entries each of some rows has, or each of some columns."""
    return np.diff(matrix.indptr[lines.start : lines.stop + 1])


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
    """Return compressed rows on top of each other: a few concatenations, where SciPy would convert each part twice.

    Where only one part has rows, it is that part itself.
    """
    if len(filled := [part for part in parts if part.shape[0]]) == 1:
        return filled[0]
    ends = np.cumsum([0, *(part.nnz for part in parts)])
    starts = [part.indptr[:-1] + end for part, end in zip(parts, ends, strict=False)]
    shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    ends = np.concatenate([*starts, ends[-1:]]).astype(indices.dtype)  # of one type, which SciPy need not look for
    return sp.csr_matrix((data, indices, ends), shape=shape)


def picked(matrix: sp.csr_matrix, index: np.ndarray, factor: np.ndarray) -> sp.csr_matrix:
    """Return some of the compressed rows, each times its factor."""
    count = np.diff(matrix.indptr)[index]
    ends = np.concatenate([[0], np.cumsum(count)])
    place = np.repeat(matrix.indptr[index] - ends[:-1], count) + np.arange(ends[-1])
    data, indices = matrix.data[place] * np.repeat(factor, count), matrix.indices[place]
    return sp.csr_matrix((data, indices, ends.astype(indices.dtype)), shape=(len(index), matrix.shape[1]))


def rows_where(matrix: sp.csr_matrix, wanted: np.ndarray) -> sp.csr_matrix:
    """Return those of the compressed rows that are wanted, in a fifth of the time that SciPy takes for few of them."""
    return matrix if wanted.all() else picked(matrix, np.flatnonzero(wanted), np.ones(np.count_nonzero(wanted)))


def put_together(blocks: Sequence[Sequence[Any]], heights: Sequence[int], widths: Sequence[int]) -> Any:
    """Return a matrix of blocks, as an array where it is small, else compressed by rows.

    A block is an array, a sparse matrix, a number for that multiple of the identity, or None for zeros.
    """
    if sum(heights) * sum(widths) > _FEW_ENTRIES:
        return sp.block_array(
            [
                [_sparse(block, (height, width)) for block, width in zip(row, widths, strict=True)]
                for row, height in zip(blocks, heights, strict=True)
            ],
            format="csr",
        )
    whole, bottom = np.zeros((sum(heights), sum(widths))), 0
    for row, height in zip(blocks, heights, strict=True):
        right = 0
        for block, width in zip(row, widths, strict=True):
            if block is not None and height and width:
                place = whole[bottom : bottom + height, right : right + width]
                if isinstance(block, float):
                    np.fill_diagonal(place, block)
                else:
                    place[...] = block.toarray() if sp.issparse(block) else block
            right += width
        bottom += height
    return whole


def _sparse(block: Any, shape: tuple[int, int]) -> Any:
    if block is None:
        return sp.csr_matrix(shape)
    return block * sp.eye(*shape, format="csr") if isinstance(block, float) else sp.csr_matrix(block)


def unit_rows_at(columns: np.ndarray, width: int) -> sp.csr_matrix:
    """Return rows of the identity: one for each of these columns."""
    return sp.csr_matrix((np.ones(len(columns)), columns, np.arange(len(columns) + 1)), shape=(len(columns), width))


def row_squares(matrix: sp.csr_matrix) -> np.ndarray:
    """Return the squared length of each row."""
    return _reduced(np.add, matrix, lambda entries: matrix.data[entries] ** 2)


def row_terms(matrix: sp.csr_matrix, vector: np.ndarray) -> np.ndarray:
    """Return the sum of the absolute terms of ``matrix @ vector`` in each row."""
    sizes, found = np.abs(vector), np.zeros(matrix.shape[0])
    for lines, entries in some_at_a_time(matrix):
        ends = matrix.indptr[lines.start : lines.stop + 1] - entries.start
        part = np.abs(matrix.data[entries]), matrix.indices[entries], ends
        found[lines] = sp.csr_matrix(part, shape=(len(ends) - 1, len(vector)), copy=False) @ sizes
    return found


def row_largest(matrix: sp.csr_matrix, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the largest absolute entry of each row, the columns weighted; 0 where there is none."""
    size = lambda entries: np.abs(matrix.data[entries])
    weighted = size if weights is None else lambda entries: size(entries) * weights[matrix.indices[entries]]
    return _reduced(np.maximum, matrix, weighted)


def _reduced(by: np.ufunc, matrix: sp.csr_matrix, numbers: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Return one number for each row, made of the ``numbers`` of its entries; 0 where there is none."""
    found = np.zeros(matrix.shape[0], numbers(slice(0, 0)).dtype)
    for lines, entries in some_at_a_time(matrix):
        filled = np.flatnonzero(_lengths(matrix, lines)) + lines.start
        found[filled] = by.reduceat(numbers(entries), matrix.indptr[filled] - entries.start)
    return found


def fingerprints(matrix: sp.csr_matrix, digits: int = 10) -> np.ndarray:
    """Return 64 bits a row, by which rows with other entries are told apart: sums of bits mixed from each entry.

    Entries are rounded to so many decimal digits.
    """

    def bits(entries: slice) -> np.ndarray:
        clock.check()
        values = matrix.data[entries].round(digits) + 0.0  # no negative zero
        return _mixed(_mixed(matrix.indices[entries].astype(np.uint64)) ^ values.view(np.uint64))

    return _reduced(np.add, matrix, bits)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Return numbers in which each bit depends on all bits of the argument (the finaliser of SplitMix64)."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def joint_matrix(B: sp.csr_matrix, A: sp.csr_matrix, of_x: sp.csr_matrix, of_y: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows ``[B, A]`` with rows of x alone and rows of y alone below, without zeros, entries in order.

    It shares nothing with them.
    """
    (count, n_x), n_y = B.shape, A.shape[1]
    shape, of_sets = (count + of_x.shape[0] + of_y.shape[0], n_x + n_y), count + of_x.shape[0]
    if shape[0] * shape[1] <= _FEW_ENTRIES:  # one array is made faster than three sparse matrices
        array = np.zeros(shape)
        array[:count, :n_x], array[:count, n_x:] = B.toarray(), A.toarray()
        array[count:of_sets, :n_x], array[of_sets:, n_x:] = of_x.toarray(), of_y.toarray()
        return sp.csr_matrix(array)
    ends = B.indptr + A.indptr
    after_rows, after_x = ends[-1], ends[-1] + of_x.nnz
    data, indices = np.empty(after_x + of_y.nnz), np.empty(after_x + of_y.nnz, np.int32)
    _write_beside(B, A, data, indices)
    data[after_rows:after_x], indices[after_rows:after_x] = of_x.data, of_x.indices
    data[after_x:], indices[after_x:] = of_y.data, of_y.indices + n_x
    ends = np.concatenate([ends, after_rows + of_x.indptr[1:], after_x + of_y.indptr[1:]]).astype(np.int32)
    matrix = sp.csr_matrix((data, indices, ends), shape=shape)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def beside(left: sp.csr_matrix, right: sp.csr_matrix) -> sp.csr_matrix:
    """Return compressed rows beside each other."""
    if is_full(left) and is_full(right):
        return compressed(np.hstack([as_array(left), as_array(right)]))
    ends = left.indptr + right.indptr
    data, indices = np.empty(ends[-1]), np.empty(ends[-1], np.int32)
    _write_beside(left, right, data, indices)
    return sp.csr_matrix((data, indices, ends), shape=(left.shape[0], left.shape[1] + right.shape[1]))


def _write_beside(left: sp.csr_matrix, right: sp.csr_matrix, data: np.ndarray, indices: np.ndarray) -> None:
    """Write the entries of compressed rows beside each other."""
    for part, shift, before in ((left, 0, right.indptr[:-1]), (right, left.shape[1], left.indptr[1:])):
        for lines, entries in some_at_a_time(part):
            place = np.arange(entries.start, entries.stop) + np.repeat(before[lines], _lengths(part, lines))
            data[place], indices[place] = part.data[entries], part.indices[entries] + shift


def multiply_rows(matrix: sp.csr_matrix, factor: np.ndarray) -> None:
    """Multiply each of the compressed rows by its factor, in place."""
    for lines, entries in some_at_a_time(matrix):
        matrix.data[entries] *= np.repeat(factor[lines], _lengths(matrix, lines))
