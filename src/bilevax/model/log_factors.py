"""Least squares for the logarithms of unknown factors: each number is a product of up to three of them.

Most unknowns are one equation's own: no number has two of these for factors. Their part of the normal equations is
diagonal, so they are eliminated, and what is factorised is as large as the other unknowns, which are shared.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy.linalg import lapack

from bilevax._support import clock

#: The unknowns that are factors of some numbers: an array for each factor, or one unknown for all of the numbers.
Factors = Sequence[np.ndarray | int]

MOST_UNKNOWNS = 1000  # those up to which a fit is done by a factorisation
_FEW_SHARED = 200  # shared unknowns up to which that is one of an array, however few the numbers are
_FEW = 0.1  # share of entries up to which normal equations are sparse
_REFINEMENTS = 3
_CHUNK = 2**17  # numbers that an iteration looks at together
_MOST_ITERATIONS = 200
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
    """The same for many unknowns: up to so many by sparse normal equations, and beyond by an iteration.

    In a large problem, what is as long as the numbers is most of what is held at all. So there is no matrix of ones
    here, numbers stay in the parts in which they came, and the iteration looks at them in chunks.
    """

    def __init__(self, parts: Sequence[Factors], lengths: Sequence[int], count: int):
        self._count, self._parts, self._ends = count, parts, np.cumsum([0, *lengths])

    def times(self, vector: np.ndarray) -> np.ndarray:
        total = np.empty(self._ends[-1])
        for chunk, unknowns in self._chunks():
            total[chunk] = _added(vector, unknowns)
        return total

    def _chunks(self) -> Iterator[tuple[slice, Factors]]:
        """Yield numbers that stand together, with their unknowns; each time with a look at the clock."""
        for part, start, end in zip(self._parts, self._ends, self._ends[1:], strict=False):
            for first in range(start, end, _CHUNK):
                clock.check()
                last = min(first + _CHUNK, end)
                # NumPy looks up indices of its own type several times faster.
                own = [u if isinstance(u, int) else u[first - start : last - start].astype(np.intp) for u in part]
                yield slice(first, last), own

    def least_squares(
        self, strength: np.ndarray, target: np.ndarray, free: np.ndarray, start: np.ndarray
    ) -> np.ndarray:
        if len(free) <= MOST_UNKNOWNS:
            matrix = self._matrix(strength, free)
            return _solve_normal(matrix.T @ matrix, matrix.T @ (strength * target))
        answer = np.zeros(self._count)
        answer[free] = start
        slope, misfit, size = np.zeros(self._count), 0.0, 0.0
        for chunk, unknowns in self._chunks():
            squares = strength[chunk] ** 2
            left = target[chunk] - _added(answer, unknowns)
            misfit, size = misfit + float(squares @ left**2), size + float(squares @ target[chunk] ** 2)
            _add_to(slope, unknowns, squares * left)
        held = np.ones(self._count, bool)
        held[free] = False
        slope[held] = 0.0
        return self._conjugate_gradients(strength, answer, slope, held, misfit, size)[free]

    def _conjugate_gradients(
        self,
        strength: np.ndarray,
        answer: np.ndarray,
        slope: np.ndarray,
        held: np.ndarray,
        misfit: float,
        size: float,
    ) -> np.ndarray:
        """Return the least squares nearest to ``answer``, which it overwrites.

        ``slope`` is the right side of the normal equations there, ``misfit`` and ``size`` the squares of what is left
        of the numbers, and of the numbers. Unknowns that are ``held`` stay.
        """
        direction, square, norm = slope.copy(), float(slope @ slope), 0.0
        for _ in range(_MOST_ITERATIONS):
            image = np.zeros(self._count)
            for chunk, unknowns in self._chunks():
                _add_to(image, unknowns, strength[chunk] ** 2 * _added(direction, unknowns))
            image[held] = 0.0
            curvature = float(direction @ image)
            if not curvature > 0:
                break
            length = square / curvature
            answer += length * direction
            slope -= length * image
            misfit = max(misfit - length * square, 0.0)
            norm += curvature / float(direction @ direction)  # of the matrix, squared, as LSMR estimates it
            before, square = square, float(slope @ slope)
            left, whole = np.sqrt(misfit), np.sqrt(size) + np.sqrt(norm) * np.linalg.norm(answer)
            if square <= _ACCURACY**2 * norm * misfit or left <= _ACCURACY * whole:
                break
            direction *= square / before
            direction += slope
        return answer

    def _matrix(self, strength: np.ndarray, free: np.ndarray) -> sp.csr_matrix:
        """Return the numbers' strengths by the free unknowns that are their factors."""
        columns = _as_columns(self._parts, np.diff(self._ends))
        there = columns >= 0
        ends = np.append(0, np.cumsum(np.add.reduce(there, axis=1)))
        data = np.repeat(strength, np.diff(ends))
        matrix = sp.csr_matrix((data, columns[there], ends), (len(columns), self._count))
        return matrix if len(free) == self._count else matrix[:, free]


def _added(vector: np.ndarray, unknowns: Factors) -> Any:
    """Return the sums of the entries of a vector that stand for the factors of numbers."""
    total = vector[unknowns[0]]
    for part in unknowns[1:]:
        total += vector[part]
    return total


def _add_to(vector: np.ndarray, unknowns: Factors, change: np.ndarray) -> None:
    """Add what belongs to numbers to the entries that stand for their factors."""
    for part in unknowns:
        if isinstance(part, int):
            vector[part] += change.sum()
        else:
            np.add.at(vector, part, change)


def _as_columns(parts: Sequence[Factors], lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the unknowns of all numbers as one array, three columns, -1 for none."""
    columns, ends = np.full((sum(lengths), 3), -1, np.int32), np.cumsum([0, *lengths])
    for part, start, end in zip(parts, ends, ends[1:], strict=False):
        for place, unknowns in enumerate(part):
            columns[start:end, place] = unknowns
    return columns


def factors_of(parts: Sequence[Factors], lengths: Sequence[int], count: int, shared: np.ndarray) -> _AsArrays | _Sparse:
    """Return the factors of numbers, given in parts of some ``lengths``: up to three unknowns for each number.

    No number has two that are not ``shared``.
    """
    many = 9 * sum(lengths) > _FEW * count**2
    as_arrays = count <= MOST_UNKNOWNS and (many or len(shared) <= _FEW_SHARED)
    return _AsArrays(_as_columns(parts, lengths), count, shared) if as_arrays else _Sparse(parts, lengths, count)


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
