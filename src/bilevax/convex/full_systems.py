"""Newton systems with a full Hessian that stays the same: those of a quadratic, whatever rows are active."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse

from bilevax.convex.curvature import as_array, nearly_full, own_units
from bilevax.convex.settings import DENSE, RANK


class FullSystems:
    """Systems of one set of rows and a Hessian that is full and stays the same: it is factorised once.

    With ``H = L L'`` and ``W = L^-1 A'`` what is left of a system is one with ``W'W``, of the size of the held rows.
    """

    def __init__(self, matrix: Any):
        self._rows = matrix
        self._seen: sparse.csc_matrix | None = None
        self._hessian: np.ndarray | None = None

    def solve(
        self, hessian: sparse.csc_matrix, held: np.ndarray, right_y: np.ndarray, right_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what `solve_saddle_point` does; None where that is the better way, or this one is not accurate."""
        if not self._prepared(hessian) or held.size > right_y.size:
            return None
        factor, failed = scipy.linalg.lapack.dpotrf(self._reduce(held), lower=True)
        half, rows = self._half[:, held], self._rows[held]
        if failed or np.min(np.diag(factor), initial=1.0) < RANK.pivot:
            return None
        answer = np.zeros_like(right_y), np.zeros_like(right_rows)
        left = right_y, right_rows
        for _ in range(2):  # the second time for what rounding has left of the right side
            free = self._lower(self._unit * left[0])
            change = (
                scipy.linalg.lapack.dpotrs(factor, half.T @ free - left[1], lower=True)[0] if held.size else left[1]
            )
            move = self._unit * self._lower(free - half @ change, transposed=True)
            answer = answer[0] + move, answer[1] + change
            left = right_y - self._hessian @ answer[0] - rows.T @ answer[1], right_rows - rows @ answer[0]
        exact = all(
            np.max(abs(rest), initial=0.0) <= RANK.remainder * (1 + np.max(abs(right), initial=0.0))
            for rest, right in zip(left, (right_y, right_rows), strict=True)
        )
        return answer if exact else None

    def _prepared(self, hessian: sparse.csc_matrix) -> bool:
        """Whether the Hessian is factorised: if it is full and positive definite."""
        if self._seen is not hessian:
            self._seen, self._hessian = hessian, None
            if hessian.shape[0] > DENSE.systems and nearly_full(hessian):
                count, size = self._rows.shape
                self._unit = own_units(hessian)
                array = as_array(hessian)
                scaled = array * self._unit
                scaled *= self._unit[:, None]
                self._factor, failed = scipy.linalg.lapack.dpotrf(scaled, lower=True, overwrite_a=True)
                self._hessian = None if failed else array
                self._half, self._known = np.zeros((size, count), order="F"), np.zeros(count, bool)
                self._gram = np.zeros((count, count)) if count <= 2 * size else None
        return self._hessian is not None

    def _reduce(self, held: np.ndarray) -> np.ndarray:
        """Find the columns of W that are needed; return W'W, of which as much is kept as is not larger than W."""
        new = held[~self._known[held]]
        if new.size:
            rows = self._rows[new]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            self._half[:, new] = self._lower(self._unit[:, None] * rows.T)
            self._known[new] = True
        if self._gram is None:
            return self._half[:, held].T @ self._half[:, held]
        if new.size:
            known = np.flatnonzero(self._known)
            products = self._half[:, known].T @ self._half[:, new]
            self._gram[np.ix_(known, new)], self._gram[np.ix_(new, known)] = products, products.T
        return self._gram[np.ix_(held, held)]

    def _lower(self, right: np.ndarray, transposed: bool = False) -> np.ndarray:
        return scipy.linalg.solve_triangular(
            self._factor, right, trans=1 if transposed else 0, lower=True, check_finite=False
        )
