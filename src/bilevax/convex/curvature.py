"""Second derivatives: in the units of each variable, as arrays where that is faster, and how they curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from bilevax._support.memory import remembered
from bilevax.convex.settings import CURVATURE, DENSE


def own_units(hessian: sparse.csc_matrix) -> np.ndarray:
    """The natural step length of each variable: 1 / sqrt(curvature), with the median curvature where it is flat.

    Curvatures may differ by many orders of magnitude, as those of the entropy of shares do.
    """
    curvature = hessian.diagonal()
    if np.min(curvature, initial=np.inf) > CURVATURE.flat:  # none is flat
        return 1 / np.sqrt(curvature)
    curved = curvature[curvature > CURVATURE.rounding * np.max(curvature, initial=0.0)]
    middle = float(np.median(curved)) if curved.size else 1.0
    return 1 / np.sqrt(np.where(curvature > CURVATURE.flat * min(middle, 1.0), curvature, middle))


def in_own_units(hessian: sparse.csc_matrix) -> Any:
    """The Hessian for variables in the units of their curvature: its diagonal is 1 wherever it was positive.

    An array for few variables, else a sparse matrix.
    """
    unit = own_units(hessian)
    if unit.size <= DENSE.systems:
        return as_array(hessian) * unit * unit[:, None]
    return sparse.csc_matrix(sparse.diags_array(unit) @ hessian @ sparse.diags_array(unit))


def as_array(matrix: sparse.csc_matrix) -> np.ndarray:
    """The matrix as an array: by way of its transpose, which SciPy need not sort by rows first."""
    return matrix.T.toarray().T


def nearly_full(matrix: Any) -> bool:
    """Whether a sparse matrix holds so many of its entries that dense algebra is the faster one."""
    return matrix.nnz > DENSE.full * matrix.shape[0] * matrix.shape[1]


@remembered
def has_eigenvalues_above(hessian: sparse.csc_matrix, bound: float) -> bool:
    """Whether a Hessian, for variables in the units of their curvature, has no smaller eigenvalues than `bound`.

    That of a quadratic is asked at many points, and is the same matrix at all of them.
    """
    return eigenvalues_above(in_own_units(hessian), bound)


def eigenvalues_above(matrix: Any, bound: float) -> bool:
    """Whether all eigenvalues are at least `bound`; where that cannot be found out, whether `bound` is negative."""
    if isinstance(matrix, np.ndarray):
        if not matrix.any():
            return bound <= 0
        return scipy.linalg.lapack.dpotrf(matrix - bound * np.eye(len(matrix)))[1] == 0
    labels = np.zeros(matrix.shape[0], int)
    if labels.size > DENSE.systems and not nearly_full(matrix):
        labels = scipy.sparse.csgraph.connected_components(matrix, directed=False)[1]
    sizes = np.bincount(labels)
    if np.any(matrix.diagonal() < bound) or not np.any(matrix.data):
        return bound <= 0 and not np.any(matrix.data)
    order, ends = np.argsort(labels, kind="stable"), np.cumsum(sizes)
    for index in (order[ends[k] - sizes[k] : ends[k]] for k in np.flatnonzero(sizes > 1)):
        block = matrix[index][:, index] if len(sizes) > 1 else matrix
        # Lanczos would take long on a block that is full anyway.
        if index.size <= DENSE.eigenvalues or nearly_full(block):
            if scipy.linalg.lapack.dpotrf(block.toarray() - bound * np.eye(index.size))[1] != 0:
                return False
            continue
        diagonal = block.diagonal()
        if np.min(diagonal + abs(diagonal) - abs(block).sum(axis=1)) < bound:  # Gershgorin
            try:
                if scipy.sparse.linalg.eigsh(block, 1, which="SA", return_eigenvectors=False)[0] < bound:
                    return False
            except scipy.sparse.linalg.ArpackNoConvergence:
                return bound < 0
    return True
