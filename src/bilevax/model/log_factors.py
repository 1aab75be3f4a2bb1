"""Least squares for the logarithms of unknown factors: each number is a product of up to three of them.

Most unknowns are one equation's own: no number has two of these for factors. Their part of the normal equations is
diagonal, so they are eliminated, and what is factorised is as large as the other unknowns, which are shared.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy.linalg import lapack

from bilevax._support import clock

MOST_UNKNOWNS = 1000  # those up to which a fit is done by a factorisation
_FEW_SHARED = 200  # shared unknowns up to which that is one of an array, however few the numbers are
_FEW = 0.1  # share of entries up to which normal equations are sparse
_REFINEMENTS = 3
# The pairs of three factors, and how much of a square each adds to one half of a symmetric matrix.
_PAIRS = np.array([[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]])
_SHARES = np.array([0.5, 0.5, 0.5, 1.0, 1.0, 1.0])
_ACCURACY = 1e-8  # of an iterative fit: its answer, rounded to powers of two, must not depend on it


class _AsArrays:
    """How often each unknown is a factor of each number; normal equations are added up pair by pair."""

    def __init__(self, columns: np.ndarray, count: int, shared: np.ndarray):
        self._count, self._own = count, np.ones(count, bool)
        self._own[shared] = False
        self._columns = np.where(columns < 0, count, columns).astype(int)  # one more unknown, for none
        first, second = self._columns[:, _PAIRS[0]], self._columns[:, _PAIRS[1]]
        self._pairs = (first * (count + 1) + second).ravel()

    def times(self, vector: np.ndarray) -> np.ndarray:
        """Return what the logarithms of the unknowns add up to in each number."""
        return np.append(vector, 0.0)[self._columns].sum(axis=1)

    def least_squares(
        self, strength: np.ndarray, target: np.ndarray, free: np.ndarray, start: np.ndarray
    ) -> np.ndarray:
        """Return the solution of least norm; numbers count by their strength, and only ``free`` unknowns are unknown.

        ``start`` is 0 or the solution with other strengths, from which an iteration begins.
        """
        width, squares = self._count + 1, strength**2
        half = np.bincount(self._pairs, np.outer(squares, _SHARES).ravel(), width**2).reshape(width, width)
        normal = half + half.T
        right = np.bincount(self._columns.ravel(), np.repeat(squares * target, 3), width)
        own = self._own[free]
        alone, others = free[own], free[~own]
        weight = _trace(normal.diagonal()[free])
        normal, coupling, diagonal = (
            normal[others[:, None], others],
            normal[others[:, None], alone],
            normal[alone, alone],
        )
        share = coupling / (diagonal + weight)
        factor = lapack.dpotrf(normal + weight * np.eye(len(others)) - share @ coupling.T, lower=True, clean=False)
        if factor[1]:
            raise np.linalg.LinAlgError("the fit of scales is not positive definite")
        of_others, of_own = np.zeros(len(others)), np.zeros(len(alone))
        for _ in range(_REFINEMENTS):
            left = right[others] - normal @ of_others - coupling @ of_own
            left_own = right[alone] - coupling.T @ of_others - diagonal * of_own
            step = lapack.dpotrs(factor[0], left - share @ left_own, lower=True)[0]
            of_others, of_own = of_others + step, of_own + left_own / (diagonal + weight) - share.T @ step
        answer = np.empty(len(free))
        answer[own], answer[~own] = of_own, of_others
        return answer


class _Sparse:
    """The same as a sparse matrix."""

    def __init__(self, columns: np.ndarray, count: int):
        there = columns >= 0
        ends = np.append(0, np.cumsum(np.add.reduce(there, axis=1)))
        self._matrix = sp.csr_matrix((np.ones(ends[-1]), columns[there], ends), (len(columns), count))

    def times(self, vector: np.ndarray) -> np.ndarray:
        return self._matrix @ vector

    def least_squares(
        self, strength: np.ndarray, target: np.ndarray, free: np.ndarray, start: np.ndarray
    ) -> np.ndarray:
        matrix = self._matrix if len(free) == self._matrix.shape[1] else self._matrix[:, free]
        if matrix.shape[1] <= MOST_UNKNOWNS:
            data = matrix.data * np.repeat(strength, np.diff(matrix.indptr))
            matrix = sp.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=False)
            return _solve_normal(matrix.T @ matrix, matrix.T @ (strength * target))

        def times(vector: np.ndarray) -> np.ndarray:
            clock.check()
            return strength * (matrix @ vector)

        watched = spl.LinearOperator(
            matrix.shape, times, rmatvec=lambda vector: matrix.T @ (strength * vector), dtype=float
        )
        return spl.lsmr(watched, strength * target, atol=_ACCURACY, btol=_ACCURACY, maxiter=200, x0=start)[0]


def factors_of(columns: np.ndarray, count: int, shared: np.ndarray) -> _AsArrays | _Sparse:
    """Return the factors of numbers, up to three unknowns each, -1 for none; no number has two that are not shared."""
    many = 9 * len(columns) > _FEW * count**2
    as_arrays = count <= MOST_UNKNOWNS and (many or len(shared) <= _FEW_SHARED)
    return _AsArrays(columns, count, shared) if as_arrays else _Sparse(columns, count)


def _trace(diagonal: np.ndarray) -> float:
    """Return a trace of weight that makes normal equations regular.

    From 0, steps without it lead to the solution of least norm.
    """
    return 1e-9 * max(1.0, diagonal.max(initial=0.0))


def _solve_normal(normal: sp.csr_matrix, right: np.ndarray) -> np.ndarray:
    """Return the solution of least norm of sparse normal equations."""
    shifted = sp.csc_matrix(normal + _trace(normal.diagonal()) * sp.eye(normal.shape[0], format="csr"))
    options = {"SymmetricMode": True}
    solve: Callable[[np.ndarray], Any] = spl.splu(
        shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options
    ).solve
    answer = np.zeros(len(right))
    for _ in range(_REFINEMENTS):
        answer += solve(right - normal @ answer)
    return answer
