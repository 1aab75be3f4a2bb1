"""The lower level's KKT systems by sparse factorisations.

The matrix is quasi-definite, so that it has an LDL' factorisation in any order of elimination:

    K = [H + D   A' ]
        [A      -T  ],

where A are the general rows, T the compliance they have of their own, and D the stiffness that bounds give to y.
"""

import dataclasses
import hashlib
import time
from typing import NamedTuple

import numpy as np
import qdldl
import scipy.sparse as sp

from bilevax._support import clock
from bilevax._support.heap import give_back
from bilevax.model.flat import FlatProblem
from bilevax.model.quadratic import LowerDerivatives
from bilevax.solvers.default.lower.central import CentralPoint, KktPoint
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.settings import ALGEBRA
from bilevax.solvers.diary import Learning


class SparseState(NamedTuple):
    """Nothing: what a factorisation reuses follows from its matrix."""


class SparseAlgebra(Learning):
    """Factors of K. The order of elimination is found once for a sparsity of H."""

    State = SparseState
    shifts = ALGEBRA.shifts

    def __init__(self, flat: FlatProblem, rows: LowerRows):
        self.flat, self.rows = flat, rows
        self.A = rows.A[: rows.general]
        self.transposed = sp.csr_matrix(self.A.T)
        self._layout: Layout | None = None
        self._seconds = 0.0  # that the last factorisation took
        self._made = 0

    def gradient(self, there: LowerDerivatives, y: np.ndarray) -> np.ndarray:
        """Return the gradient of g in y."""
        return there.gradient

    def nearer(self, point: CentralPoint, soft: np.ndarray) -> CentralPoint:
        """Return the point itself: a step of Newton's method costs little beside its factorisation."""
        return point

    def factorise(self, at: KktPoint, unit: float, shift: float) -> "SparseFactor":
        """Return a factor of K; `FloatingPointError` where it has none.

        ``unit`` is the typical stiffness. The factor is good until the next one is made: they share their memory.
        """
        rows, hessian, give = self.rows, at.there.hessian, at.give
        stiffness = np.bincount(rows.column, 1 / give[rows.bounds], minlength=self.flat.n_y) + ALGEBRA.trace * unit
        if self._layout is None or not self._layout.fits(hessian):
            self._layout = Layout(hessian, self.A)
        # A little more than K on its diagonal keeps the factor well-conditioned where K is nearly singular.
        diagonal = np.concatenate([stiffness + shift * unit, -give[: rows.general] - shift / unit])
        clock.check(self._seconds)
        began = time.monotonic()
        solver = self._layout.factorise(hessian, diagonal)
        self._seconds = time.monotonic() - began
        self._made += 1
        return SparseFactor(self, solver, self._made, at.there, stiffness, give)

    def is_last(self, number: int) -> bool:
        """Return whether the factor of that number is still in memory."""
        return number == self._made


@dataclasses.dataclass(frozen=True)
class SparseFactor:
    """Solves with K; bounds are eliminated on the way."""

    algebra: SparseAlgebra
    solver: qdldl.Solver
    number: int
    there: LowerDerivatives
    stiffness: np.ndarray
    give: np.ndarray

    @property
    def mixed(self) -> sp.csc_matrix:
        """The derivative of grad_y g in x."""
        return self.there.mixed

    def solve(self, along_y: np.ndarray, along_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the solution, refined while that helps: one part for y and one for the constraints."""
        rows = self.algebra.rows
        beyond, give = along_rows[rows.bounds], self.give[rows.bounds]
        pushed = along_y + np.bincount(rows.column, rows.sign * beyond / give, minlength=len(along_y))
        y, multiplier = self._solve(np.concatenate([pushed, along_rows[: rows.general]]))
        return y, np.concatenate([multiplier, (rows.sign * y[rows.column] - beyond) / give])

    def response(self, B: sp.csr_matrix) -> np.ndarray:
        """Return the derivatives in x of y and of the general rows' multipliers, one row for each x."""
        self._check()
        right = sp.vstack([-self.mixed, -B[: self.algebra.rows.general]], format="csc")
        size, count = right.shape
        answers, side = np.empty((count, size)), np.zeros(size)
        for index in range(count):
            entries = slice(right.indptr[index], right.indptr[index + 1])
            side[right.indices[entries]] = right.data[entries]
            answers[index] = self.solver.solve(side)
            side[right.indices[entries]] = 0.0
        # One product tells whether refinement is needed: a random mixture of the answers against that of the sides.
        weights = np.random.default_rng(0).choice([-1.0, 1.0], count)
        mixture = right @ weights
        if not np.abs(self._times(weights @ answers) - mixture).max() <= ALGEBRA.poor * np.abs(mixture).max():
            for index, column in enumerate(right.T.toarray()):
                answers[index] = np.concatenate(self._solve(column))
        return answers

    def _solve(self, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._check()
        solution = self.solver.solve(right)
        residual, fine = right - self._times(solution), ALGEBRA.fine * np.abs(right).max(initial=0.0)
        for _ in range(ALGEBRA.refinements):
            if np.abs(residual).max(initial=0.0) <= fine:
                break
            better = solution + self.solver.solve(residual)
            left = right - self._times(better)
            if not np.abs(left).max(initial=0.0) < 0.7 * np.abs(residual).max(initial=0.0):
                break
            solution, residual = better, left
        return solution[: len(self.stiffness)], solution[len(self.stiffness) :]

    def _times(self, vector: np.ndarray) -> np.ndarray:
        """Return K times a vector."""
        algebra, size = self.algebra, len(self.stiffness)
        y, multiplier = vector[:size], vector[size:]
        upper = self.there.hessian @ y + self.stiffness * y + algebra.transposed @ multiplier
        return np.concatenate([upper, algebra.A @ y - self.give[: len(multiplier)] * multiplier])

    def _check(self) -> None:
        if not self.algebra.is_last(self.number):
            raise RuntimeError("this factor was overwritten by a later one")


class Layout:
    """Where the entries of H, A and the diagonal lie in the upper half of K, found once for a sparsity of H.

    The order in which they are eliminated is found once, too: with the first factor.
    """

    def __init__(self, hessian: sp.csc_matrix, A: sp.csr_matrix):
        self._solver: qdldl.Solver | None = None
        self._factorised = b""  # the digest of the numbers that were factorised last
        n_y, size = A.shape[1], sum(A.shape)
        self.indptr, self.indices, self.A = hessian.indptr, hessian.indices, A
        self.upper = hessian.indices <= np.repeat(np.arange(n_y, dtype=np.int32), np.diff(hessian.indptr))
        (row, column), diagonal = self._of_hessian(), np.arange(size, dtype=np.int32)
        first = len(row)
        row = np.concatenate([row, diagonal, A.indices], dtype=np.int32)
        column = np.concatenate([column, diagonal, n_y + self._rows_of_entries()], dtype=np.int32)
        # Two entries share a place only on the diagonal, where H lies on what K has beside it.
        other = np.flatnonzero(row != column)
        alone = np.concatenate([other[other < first], np.arange(first, first + size), other[other >= first]])
        entries = alone.astype(np.int32), (row[alone], column[alone])
        self.matrix = sp.coo_matrix(entries, (size, size)).tocsc()  # which entry stands where
        self.matrix.sort_indices()
        self.where = np.empty(len(row), np.int32)
        self.where[self.matrix.data] = np.arange(self.matrix.nnz)
        on_diagonal = np.flatnonzero(row[:first] == column[:first])
        self.where[on_diagonal] = self.where[first + row[on_diagonal]]
        self.matrix.data = np.zeros(self.matrix.nnz)
        give_back(size)

    def _of_hessian(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the upper half of H."""
        column = np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int32), np.diff(self.indptr))
        return self.indices[self.upper], column[self.upper]

    def _rows_of_entries(self) -> np.ndarray:
        """Return the row of each entry of A."""
        return np.repeat(np.arange(self.A.shape[0], dtype=np.int32), np.diff(self.A.indptr))

    def fits(self, hessian: sp.csc_matrix) -> bool:
        """Return whether H still has that sparsity."""
        return np.array_equal(self.indptr, hessian.indptr) and np.array_equal(self.indices, hessian.indices)

    def factorise(self, hessian: sp.csc_matrix, diagonal: np.ndarray, kept: np.ndarray | None = None) -> qdldl.Solver:
        """Return a factor of K, good until the next one is made; `FloatingPointError` where it has none.

        ``diagonal`` is what K has beside H, and all that is left of what is not ``kept``.
        """
        half, before = self._upper_half(hessian, diagonal, kept), self._factorised
        self._factorised = hashlib.blake2b(half.data).digest()  # a copy of the numbers would be as large as they are
        if self._solver is not None and before == self._factorised:  # a quadratic with the same active rows
            return self._solver
        try:
            if self._solver is None:
                self._solver = qdldl.Solver(half, upper=True)
                give_back(half.shape[0])
            else:
                self._solver.update(half, upper=True)
        except RuntimeError as error:
            self._solver = None  # half overwritten
            raise FloatingPointError(str(error)) from error
        return self._solver

    def _upper_half(self, hessian: sp.csc_matrix, diagonal: np.ndarray, kept: np.ndarray | None) -> sp.csc_matrix:
        of_hessian, of_rows = hessian.data[self.upper], self.A.data
        first, last = len(of_hessian), len(of_hessian) + len(diagonal)
        if kept is not None:
            row, column = self._of_hessian()
            of_hessian = of_hessian * (kept[row] & kept[column])
            of_rows = of_rows * (kept[self.A.indices] & np.repeat(kept[self.A.shape[1] :], np.diff(self.A.indptr)))
        data = self.matrix.data
        data[:] = 0.0
        data[self.where[first:last]] = diagonal
        data[self.where[last:]] = of_rows
        data[self.where[:first]] += of_hessian  # no two of these share a place
        return self.matrix
