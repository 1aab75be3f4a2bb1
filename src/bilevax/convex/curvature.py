"""Second derivatives: in the units of each variable, as arrays where that is faster, and how they curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from bilevax._support import clock
from bilevax._support.full import as_array
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


def nearly_full(matrix: Any) -> bool:
    """Whether a sparse matrix holds so many of its entries that dense algebra is the faster one."""
    return matrix.nnz > DENSE.full * matrix.shape[0] * matrix.shape[1]


class FullHessian:
    """A full, positive definite Hessian as an array, and its factor ``L L'`` for variables in their own units.

    No eigenvalue in these units is smaller than ``least``.
    """

    def __init__(self, array: np.ndarray, unit: np.ndarray, factor: np.ndarray, least: float):
        self.array, self.unit, self._factor, self.least = array, unit, factor, least

    def half(self, right: np.ndarray) -> np.ndarray:
        """Apply L^-1, with right sides in the problem's units."""
        return self._lower((right.T * self.unit).T)

    def whole(self, half: np.ndarray) -> np.ndarray:
        """Apply L'^-1; the result is in the problem's units."""
        return (self._lower(half, transposed=True).T * self.unit).T

    def _lower(self, right: np.ndarray, transposed: bool = False) -> np.ndarray:
        if right.size == len(right):  # a single right side: by LAPACK for several it takes three times as long
            single = scipy.linalg.blas.dtrsv(self._factor, right.ravel(), lower=1, trans=int(transposed))
            return single.reshape(right.shape)
        # What `half` passes on is its own: it is overwritten.
        return scipy.linalg.blas.dtrsm(
            1.0, self._factor, right, lower=1, trans_a=int(transposed), overwrite_b=not transposed
        )


@remembered
def full_hessian(hessian: sparse.csc_matrix) -> FullHessian | None:
    """The Hessian as an array with its factor; None where it is small, sparse, or not positive definite."""
    if not (hessian.shape[0] > DENSE.systems and nearly_full(hessian)):
        return None
    unit, array = own_units(hessian), as_array(hessian)
    scaled = array * unit
    scaled *= unit[:, None]
    norm = scipy.linalg.lapack.dlange("1", scaled)
    with clock.work(len(scaled) ** 3 / 3):
        factor, failed = scipy.linalg.lapack.dpotrf(scaled, lower=True, clean=False, overwrite_a=True)
    if failed:
        return None
    # The reciprocal condition is an estimate, hardly ever ten times too large.
    least = 0.1 * norm * scipy.linalg.lapack.dpocon(factor, norm, uplo="L")[0]
    return FullHessian(array, unit, factor, float(least))


def curved_separably(hessian: sparse.csc_matrix) -> bool:
    """Whether each variable has a curvature of its own and nothing else: the entries of the diagonal, all positive."""
    size = hessian.shape[0]
    alone = hessian.nnz == size and np.array_equal(hessian.indices, np.arange(size))
    return bool(alone and np.all(np.diff(hessian.indptr) == 1) and np.min(hessian.data, initial=np.inf) > 0)


@remembered
def has_eigenvalues_above(hessian: sparse.csc_matrix, bound: float) -> bool:
    """Whether a Hessian, for variables in the units of their curvature, has no smaller eigenvalues than `bound`.

    That of a quadratic is asked at many points, and is the same matrix at all of them.
    """
    if (known := full_hessian(hessian)) is not None and known.least > 100 * max(bound, 0.0):
        return True
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
