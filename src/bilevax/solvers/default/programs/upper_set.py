"""X on flat vectors: projection, and the normals of its face at a point."""

import numpy as np
import scipy.sparse as sp

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
            return np.clip(x, self.lower, self.upper)
        image = self.rows.matrix @ x
        outside = [np.linalg.norm(x[ball.index] - ball.center) > ball.radius for ball in self.rows.balls]
        if np.all((image >= self.rows.lower) & (image <= self.rows.upper)) and not any(outside):
            return x
        rows = self.rows
        nearest = solve_qp(sp.eye(len(x), format="csr"), -x, rows.matrix, rows.lower, rows.upper, rows.balls)
        return x if nearest is None else nearest

    def normals(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return an orthonormal basis of the active rows that ``-gradient`` would violate: normals of the face."""
        near = 1e-9 * (1 + np.abs(x).max(initial=0.0))
        image = self.rows.matrix @ x
        at_upper, at_lower = image >= self.rows.upper - near, image <= self.rows.lower + near
        pushes = self.rows.matrix @ -gradient
        binding = (at_upper & at_lower) | (at_upper & (pushes > 0)) | (at_lower & (pushes < 0))
        normals = self.rows.matrix[binding].toarray() if binding.any() else np.zeros((0, len(x)))
        for ball in self.rows.balls:
            offset = x[ball.index] - ball.center
            if np.linalg.norm(offset) >= ball.radius - near and offset @ -gradient[ball.index] > 0:
                row = np.zeros((1, len(x)))
                row[0, ball.index] = offset
                normals = np.vstack([normals, row])
        if len(normals) == 0:
            return normals
        _, singular, right = np.linalg.svd(normals, full_matrices=False)
        return right[singular > 1e-10 * singular.max()]
