"""Whether there is a minimiser, and only one: strict convexity along the active rows, rays along which all falls."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sparse

from bilevax.convex.optimality import Local, Point, Rows, eigenvalues_above, in_own_units, stacked
from bilevax.convex.programs import linprog

_DENSE = 500  # up to this many free variables uniqueness is decided on a null space


def is_unique(rows: Rows, point: Point) -> bool:
    """Whether the Lagrangian is strictly convex along the strongly active rows, which every minimiser satisfies."""
    hessian, scaled, size = point.at.hessian, point.at.scaled_hessian, point.at.y.size
    if rows.balls:
        hessian = sparse.csc_matrix(hessian + sparse.diags_array(rows.ball_curvature(point.ball_multipliers, size)))
        scaled = in_own_units(hessian)
    largest = np.max(abs(hessian.data), initial=0.0)
    if largest > 0 and eigenvalues_above(scaled, 1e-9):
        return True
    strong = rows.equality | (rows.relative(abs(point.multipliers), point.scale) > 1e-8)
    free = np.setdiff1d(np.arange(size), rows.only_column[strong])
    if free.size == 0 or free.size > _DENSE:
        return free.size == 0
    held = sparse.csr_matrix(rows.matrix[strong & (rows.only_column < 0)])
    orthogonal, triangle = scipy.linalg.qr(held[:, free].toarray().T, pivoting=True)[:2]
    diagonal = abs(np.diag(triangle))
    kernel = orthogonal[:, np.sum(diagonal > 1e-10) :]
    if kernel.shape[1] == 0:
        return True
    reduced = kernel.T @ (sparse.csr_matrix(hessian)[free][:, free] @ kernel)
    return bool(largest > 0 and np.linalg.eigvalsh(reduced)[0] > 1e-9 * largest)


def runs_away(rows: Rows, at: Local, way: np.ndarray) -> bool:
    """Whether the objective falls for ever along the way that the iteration has come, perhaps to a finite infimum.

    Of a convex function it suffices that it still falls far out.
    """
    length = float(np.max(abs(way)))
    if not length > 1.0:
        return False
    ray = np.where(abs(way) > 1e-3 * length, way / length, 0.0)
    along = rows.matrix @ ray
    leaves = ((along > 1e-9) & np.isfinite(rows.upper)) | ((along < -1e-9) & np.isfinite(rows.lower))
    leaves_ball = any(np.any(ray[ball.index]) for ball in rows.balls)
    falls_out = np.any((ray < 0) & np.isfinite(rows.domain.low)) or np.any((ray > 0) & np.isfinite(rows.domain.high))
    if np.any(leaves) or leaves_ball or falls_out or not at.gradient @ ray < 0:
        return False
    ends = (at.moved(distance * length * ray) for distance in 10.0 ** np.arange(7))
    return all(np.isfinite(end.value) and end.value <= at.value and end.gradient @ ray <= 0 for end in ends)


def descends_forever(rows: Rows, at: Local) -> bool:
    """Whether the objective falls without end along a ray of the feasible set: a linear program finds the ray."""
    steepest = np.max(abs(at.gradient))
    if steepest == 0.0:
        return False
    limit = np.ones(at.y.size)
    for ball in rows.balls:
        limit[ball.index] = 0.0
    # Curvature that has died out on the way here no longer stops a ray.
    curved = at.hessian.multiply(abs(at.hessian) * (1 + np.max(abs(at.y))) > 1e-9 * steepest)
    matrix = stacked([rows.matrix[np.isfinite(rows.upper)], -rows.matrix[np.isfinite(rows.lower)], curved, -curved])
    answer = linprog(
        at.gradient / steepest,
        matrix,
        np.zeros(matrix.shape[0]),
        bounds=np.column_stack([-limit, limit]),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if answer.status != 0 or answer.fun > -1e-8:
        return False
    # The linear program only knows the Hessian here. The values far out decide.
    ray = np.where(abs(answer.x) > 1e-9, answer.x, 0.0)  # rounding dust would bend the values far out
    slope, lengths = at.gradient @ ray, 10.0 ** np.arange(14)
    return bool(slope < 0 and all(at.moved(s * ray).value <= at.value + 0.5 * s * slope for s in lengths))
