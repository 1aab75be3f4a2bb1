"""Newton systems with a full Hessian that stays the same: those of a quadratic, whatever rows are active."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse

from bilevax._support import clock
from bilevax.convex.curvature import FullHessian, full_hessian
from bilevax.convex.settings import RANK


class FullSystems:
    """Systems of one set of rows, of length 1, and a Hessian that is full and stays the same: it is factorised once.

    With ``H = L L'`` and ``W = L^-1 A'`` what is left of a system is one with ``W'W``, of the size of the held rows.
    """

    def __init__(self, matrix: Any):
        self._rows = matrix
        self._hessian: FullHessian | None = None

    def solve(
        self, hessian: sparse.csc_matrix, held: np.ndarray, right_y: np.ndarray, right_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what `solve_saddle_point` does; None where that is the better way, or this one is not accurate.

        The right sides are vectors, or matrices with a column for each system.
        """
        known = full_hessian(hessian)
        if known is None or held.size > len(right_y):
            return None
        if known is not self._hessian:
            self._begin(known)
        factor, failed = scipy.linalg.lapack.dpotrf(self._reduce(known, held), lower=True)
        half, rows = self._half[:, held], self._rows[held]
        if failed or np.min(np.diag(factor), initial=1.0) < RANK.pivot:
            return None
        answer = np.zeros_like(right_y), np.zeros_like(right_rows)
        left, off = (right_y, right_rows), np.inf
        for _ in range(2):  # the second time for what rounding has left of the right side
            free = known.half(left[0])
            change = (
                scipy.linalg.lapack.dpotrs(factor, half.T @ free - left[1], lower=True)[0] if held.size else left[1]
            )
            answer = answer[0] + known.whole(free - half @ change), answer[1] + change
            left = right_y - known.array @ answer[0] - rows.T @ answer[1], right_rows - rows @ answer[0]
            off = max(_share(rest, right) for rest, right in zip(left, (right_y, right_rows), strict=True))
            if off <= RANK.finest:
                break
        return answer if off <= RANK.remainder else None

    def _begin(self, hessian: FullHessian) -> None:
        count, size = self._rows.shape
        self._hessian = hessian
        self._half, self._known = np.zeros((size, count), order="F"), np.zeros(count, bool)
        self._gram = np.zeros((count, count)) if count <= 2 * size else None

    def _reduce(self, hessian: FullHessian, held: np.ndarray) -> np.ndarray:
        """Find the columns of W that are needed; return W'W, of which as much is kept as is not larger than W."""
        new = held[~self._known[held]]
        if new.size:
            rows = self._rows[new]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            with clock.work(len(self._half) * rows.size):
                self._half[:, new] = hessian.half(rows.T)
            self._known[new] = True
        if self._gram is None:
            return self._half[:, held].T @ self._half[:, held]
        if new.size:
            known, fresh = np.flatnonzero(self._known), self._half[:, new]
            with clock.work(2 * len(self._half) * known.size * new.size):
                # A matrix times its own transpose is half the work.
                products = (fresh if np.array_equal(known, new) else self._half[:, known]).T @ fresh
            self._gram[np.ix_(known, new)], self._gram[np.ix_(new, known)] = products, products.T
        return self._gram[np.ix_(held, held)]


def _share(rest: np.ndarray, right: np.ndarray) -> float:
    """How much is left of right sides, relative to 1 + their largest entry."""
    return float(
        np.max(np.max(abs(rest), axis=0, initial=0.0) / (1 + np.max(abs(right), axis=0, initial=0.0)), initial=0.0)
    )
