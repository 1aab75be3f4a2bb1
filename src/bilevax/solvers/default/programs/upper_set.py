"""X on flat vectors: projection, and its face at a point."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.model.sets import SetRows
from bilevax.solvers.default.programs.quadratic import solve_qp


class UpperSet:
    """X on flat vectors: projection, and the part of a direction that stays in the face of X at x."""

    def __init__(self, rows: SetRows):
        self.rows = rows
        singleton = np.diff(rows.matrix.indptr) == 1
        self.is_box = bool(singleton.all()) and not rows.balls and len(np.unique(rows.matrix.indices)) == len(singleton)
        if self.is_box:
            self.lower, self.upper = rows.intervals()

    def project(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest point of X."""
        if self.is_box:
            return np.minimum(np.maximum(x, self.lower), self.upper)
        image = self.rows.matrix @ x
        outside = [np.linalg.norm(x[ball.index] - ball.center) > ball.radius for ball in self.rows.balls]
        if np.all((image >= self.rows.lower) & (image <= self.rows.upper)) and not any(outside):
            return x
        rows = self.rows
        nearest = solve_qp(sp.eye(len(x), format="csr"), -x, rows.matrix, rows.lower, rows.upper, rows.balls)
        return x if nearest is None else nearest

    def held(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return which entries of x a bound keeps from following ``-gradient``; none where X is not a box."""
        if not self.is_box:
            return np.zeros(len(x), bool)
        at_upper, at_lower = self._touched(x, _near(x))
        return (at_upper & at_lower) | (at_upper & (gradient < 0)) | (at_lower & (gradient > 0))

    def face(self, x: np.ndarray, gradient: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return the projection of directions onto the face of X at x that ``-gradient`` does not leave."""
        if self.is_box:
            fixed = self.held(x, gradient)
            return lambda v: np.where(fixed, 0.0, v)
        near = _near(x)
        at_upper, at_lower = self._touched(x, near)
        # Where rows meet, the sign of the gradient alone does not tell which of them holds x: a short step does.
        short = 1e-4 * (1 + np.abs(x).max(initial=0.0)) / positive(np.abs(gradient).max(initial=0.0))
        end = self.project(x - short * gradient)
        still_upper, still_lower = self._touched(end, near)
        binding = (at_upper & still_upper) | (at_lower & still_lower)
        single = np.diff(self.rows.matrix.indptr) == 1
        fixed = np.zeros(len(x), bool)
        fixed[self.rows.matrix[binding & single].indices] = True
        normals = self.rows.matrix[binding & ~single].toarray()
        for ball in self.rows.balls:
            offset, there = (point[ball.index] - ball.center for point in (x, end))
            if min(np.linalg.norm(offset), np.linalg.norm(there)) >= ball.radius - near:
                row = np.zeros((1, len(x)))
                row[0, ball.index] = offset
                normals = np.vstack([normals, row])
        normals[:, fixed] = 0.0
        _, singular, right = np.linalg.svd(normals, full_matrices=False)
        basis = right[singular > 1e-10 * singular.max(initial=0.0)]

        def inside(v: np.ndarray) -> np.ndarray:
            free = np.where(fixed, 0.0, v)
            return free - basis.T @ (basis @ free)

        return inside

    def _touched(self, x: np.ndarray, near: float) -> tuple[np.ndarray, np.ndarray]:
        """Return which upper and which lower sides x lies on: those of all x in a box, of the rows else."""
        if self.is_box:
            return x >= self.upper - near, x <= self.lower + near
        image = self.rows.matrix @ x
        return image >= self.rows.upper - near, image <= self.rows.lower + near


def _near(x: np.ndarray) -> float:
    """Return how near to a side of X a point lies on it."""
    return 1e-9 * (1 + np.abs(x).max(initial=0.0))
