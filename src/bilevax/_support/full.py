"""Sparse matrices that are full, as the arrays that they are."""

from typing import Any

import numpy as np


def as_array(matrix: Any) -> np.ndarray:
    """Return a matrix compressed by rows or columns as an array in that order, for reading.

    Of one without zeros it is a view of its numbers; of others SciPy makes it faster in that order than in another.
    """
    by_rows = matrix if matrix.format == "csr" else matrix.T
    if is_full(matrix):
        array = matrix.data.reshape(by_rows.shape)
        array.flags.writeable = False
    else:
        array = by_rows.toarray()
    return array if by_rows is matrix else array.T


def is_full(matrix: Any) -> bool:
    """Return whether a compressed matrix holds all its entries, in order."""
    return matrix.nnz == matrix.shape[0] * matrix.shape[1] and matrix.has_canonical_format
