"""Systems in which most variables stand in one row each: eliminated, few variables are left.

    [H, C'; C, -give] (v, q) = (along, of_rows)

*Local* variables have a diagonal part of H and stand in at most one row besides bounds of their own; the others are the
*core*. That is the form of problems with one x a row and few y: with n rows and d core variables a system costs n d^2
instead of (n + d)^3. ``give`` tells by how much a row gives way to its q: 0 for an equation, infinity for a row that
is left out. Eliminating a local variable adds to what its row gives, so that nothing cancels however stiff a row is.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from bilevax._support import clock
from bilevax._support.division import positive

_SMALLEST = 300  # variables from which on elimination is worth looking for
_MOST_CORE = 1500  # variables that may be left
_ROWS_AT_A_TIME = 4000  # so that what is made of them is small beside all of them
_ENTRIES_AT_A_TIME = 500_000  # likewise
_FULL = 0.2  # share of the core's entries from which on arrays are the better form for it
_RIGID = 1e-100  # what a bound that is an equation gives
_MOST_STIFF = 1e11  # of a row without local variables: refinement takes out what that leaves
_FLOOR = 1e-11  # of the core's curvature, so that it is never singular


@dataclasses.dataclass(frozen=True)
class Split:
    """A program's matrices, split into core and local variables.

    ``rows`` are those with a core variable or more than one variable, ``A`` and ``B`` their parts; ``own`` are bounds
    ``bound * v[bounded]`` of single local variables, counted among them.
    """

    core: np.ndarray
    local: np.ndarray
    curvature: np.ndarray
    hessian: np.ndarray
    rows: np.ndarray
    A: np.ndarray
    B: sp.csr_matrix
    own: np.ndarray
    bounded: np.ndarray
    bound: np.ndarray

    def factorise(self, give: np.ndarray) -> "Factor":
        """Return what solves with ``[H, C'; C, -give]``."""
        clock.check()
        floor = _FLOOR * positive(float(np.abs(self.hessian).max(initial=0.0)))
        of_own = np.maximum(give[self.own], _RIGID)
        stiff = self.curvature + np.bincount(self.bounded, self.bound**2 / of_own, len(self.local))
        weight = 1 / np.maximum(give[self.rows] + self.B.power(2) @ (1 / stiff), 1 / _MOST_STIFF)
        schur, root = self.hessian.copy(), np.sqrt(weight)
        for part in _parts(len(self.A)):
            rows = self.A[part] * root[part, None]
            schur += rows.T @ rows
        schur.ravel()[:: len(schur) + 1] += floor
        return Factor(self, give, of_own, stiff, weight, scipy.linalg.cho_factor(schur, check_finite=False))


class Factor(NamedTuple):
    """A factorised system of a `Split`."""

    split: Split
    give: np.ndarray
    of_own: np.ndarray
    stiff: np.ndarray
    weight: np.ndarray
    factor: tuple[np.ndarray, bool]

    def solve(self, along: np.ndarray, of_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (v, q) with ``H v + C' q = along`` and ``C v - give q = of_rows``."""
        split, v, q = self.split, np.zeros(len(along)), np.zeros(len(of_rows))
        pushed = along[split.local] + np.bincount(
            split.bounded, split.bound * of_rows[split.own] / self.of_own, len(split.local)
        )
        free = split.B @ (pushed / self.stiff) - of_rows[split.rows]
        core = scipy.linalg.cho_solve(
            self.factor, along[split.core] - split.A.T @ (self.weight * free), check_finite=False
        )
        q[split.rows] = self.weight * (free + split.A @ core)
        v[split.core], v[split.local] = core, (pushed - split.B.T @ q[split.rows]) / self.stiff
        local = v[split.local][split.bounded]
        # What is left of the gradient tells the multiplier where the bound itself is stiffer than rounding.
        left = (along[split.local] - split.B.T @ q[split.rows] - split.curvature * v[split.local])[split.bounded]
        rigid = self.of_own <= _RIGID
        q[split.own] = np.where(rigid, left / split.bound, (split.bound * local - of_rows[split.own]) / self.of_own)
        return v, q


def _parts(rows: int) -> list[slice]:
    """Return all rows, some at a time."""
    return [slice(first, first + _ROWS_AT_A_TIME) for first in range(0, rows, _ROWS_AT_A_TIME)]


def eliminates(hessian: Any, matrix: Any) -> bool:
    """Return whether a program is one in which elimination pays."""
    return _local(hessian, matrix) is not None


def _local(hessian: Any, matrix: Any) -> np.ndarray | None:
    """Return the mask of the variables that can be eliminated; None where that would not pay."""
    size = matrix.shape[1]
    if not (sp.issparse(matrix) and sp.issparse(hessian)) or size < _SMALLEST:
        return None
    matrix, hessian = sp.csr_matrix(matrix), hessian if hessian.format in ("csr", "csc") else sp.csr_matrix(hessian)
    entries, diagonal = np.diff(matrix.indptr), hessian.diagonal()  # of what is symmetric, rows are like columns
    alone = matrix.indices[matrix.indptr[:-1][entries == 1]]
    shared = _how_often(matrix.indices, size) - np.bincount(alone, minlength=size)
    local = (np.diff(hessian.indptr) <= 1) & (diagonal > 0) & (shared <= 1)
    core = size - int(local.sum())
    filled = shared[~local].sum() >= _FULL * core * np.count_nonzero(entries > 1)
    pays = filled and core <= min(_MOST_CORE, 0.5 * size)
    return local if pays else None


def _how_often(columns: np.ndarray, size: int) -> np.ndarray:
    """Return how often each column is named; NumPy makes a larger copy of what it counts."""
    found, some = np.zeros(size, int), max(size, _ENTRIES_AT_A_TIME)
    for first in range(0, len(columns), some):
        found += np.bincount(columns[first : first + some], minlength=size)
    return found


def _last_columns(matrix: sp.csr_matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
    """Return the first rows at some columns as a view; None unless these are the last entries of rows of one length."""
    length, count = matrix.indptr[1], len(columns)
    if length < count or not np.array_equal(matrix.indptr[: len(rows) + 1], length * np.arange(len(rows) + 1)):
        return None
    if not np.array_equal(rows, np.arange(len(rows))):
        return None
    in_rows = lambda entries: entries[: length * len(rows)].reshape(-1, length)[:, length - count :]
    there = in_rows(matrix.indices)
    return in_rows(matrix.data) if all((there[part] == columns).all() for part in _parts(len(rows))) else None


def split(hessian: Any, matrix: Any) -> Split | None:
    """Return the core and the local variables of a program; None where elimination would not pay."""
    if (is_local := _local(hessian, matrix)) is None:
        return None
    matrix, hessian = sp.csr_matrix(matrix), sp.csr_matrix(hessian)
    core, local, entries = np.flatnonzero(~is_local), np.flatnonzero(is_local), np.diff(matrix.indptr)
    place = np.zeros(len(is_local), int)
    place[core], place[local] = np.arange(len(core)), np.arange(len(local))
    single = np.zeros(len(entries), bool)
    single[entries == 1] = is_local[matrix.indices[matrix.indptr[:-1][entries == 1]]]
    rows, own = np.flatnonzero(~single), np.flatnonzero(single)
    A, of_local, at = _last_columns(matrix, rows, core), [], matrix.indptr[own]
    is_view, A = A is not None, np.empty((len(rows), len(core))) if A is None else A
    for part in _parts(len(rows)):
        picked = matrix[rows[part]]
        if not is_view:
            A[part] = picked[:, core].toarray()
        of_local.append(picked[:, local])
    return Split(
        core=core,
        local=local,
        curvature=hessian.diagonal()[local],
        hessian=hessian[core][:, core].toarray(),
        rows=rows,
        A=A,
        B=sp.vstack([matrix[:0][:, local], *of_local], format="csr"),
        own=own,
        bounded=place[matrix.indices[at]],
        bound=matrix.data[at],
    )
