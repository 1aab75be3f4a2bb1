"""Whether a minimiser is unique (strict convexity along active rows), and whether there is none (rays of descent)."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sparse

from bilevax._support.programs import linprog
from bilevax.convex.curvature import has_eigenvalues_above
from bilevax.convex.optimality import Local, Point, Rows, stacked
from bilevax.convex.settings import DENSE, SIMPLEX
from bilevax.convex.tolerances import CONVEX_TOLERANCES


def is_unique(rows: Rows, point: Point) -> bool:
    """Whether the Lagrangian is strictly convex along the strongly active rows, which every minimiser satisfies."""
    hessian, size = point.at.hessian, point.at.y.size
    if rows.balls:
        hessian = sparse.csc_matrix(hessian + sparse.diags_array(rows.ball_curvature(point.ball_multipliers, size)))
    largest = np.max(abs(hessian.data), initial=0.0)
    if largest > 0 and has_eigenvalues_above(hessian, CONVEX_TOLERANCES.unique_curvature):
        return True
    terms = point.at.objective.terms
    scale = point.scale if terms is None else np.maximum(point.scale, terms)
    sizes = rows.relative(abs(point.multipliers), scale)
    strong = rows.equality | (sizes > CONVEX_TOLERANCES.strong_multiplier)
    free = np.setdiff1d(np.arange(size), rows.only_column[strong])
    if free.size == 0 or free.size > DENSE.null_space:
        return free.size == 0
    held = sparse.csr_matrix(rows.matrix[strong & (rows.only_column < 0)])
    orthogonal, triangle = scipy.linalg.qr(held[:, free].toarray().T, pivoting=True)[:2]
    diagonal = abs(np.diag(triangle))
    kernel = orthogonal[:, np.sum(diagonal > CONVEX_TOLERANCES.unique_rank) :]
    if kernel.shape[1] == 0:
        return True
    reduced = kernel.T @ (sparse.csr_matrix(hessian)[free][:, free] @ kernel)
    smallest = np.linalg.eigvalsh(reduced)[0]
    return bool(largest > 0 and smallest > CONVEX_TOLERANCES.unique_curvature * largest)


def runs_away(rows: Rows, at: Local, way: np.ndarray) -> bool:
    """Whether the objective falls for ever along the way that the iteration has come, perhaps to a finite infimum.

    A convex function that still falls far out on a ray has fallen all along it.
    """
    length = float(np.max(abs(way)))
    if not length > 1.0:
        return False
    ray = np.where(abs(way) > CONVEX_TOLERANCES.unbounded_entry * length, way / length, 0.0)
    along = rows.matrix @ ray
    still = CONVEX_TOLERANCES.unbounded_row
    leaves = ((along > still) & np.isfinite(rows.upper)) | ((along < -still) & np.isfinite(rows.lower))
    leaves_ball = any(np.any(ray[ball.index]) for ball in rows.balls)
    falls_out = np.any((ray < 0) & np.isfinite(rows.domain.low)) or np.any((ray > 0) & np.isfinite(rows.domain.high))
    if np.any(leaves) or leaves_ball or falls_out or not at.gradient @ ray < 0:
        return False
    ends = (at.moved(distance * length * ray) for distance in CONVEX_TOLERANCES.unbounded_distances)
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
    flat = CONVEX_TOLERANCES.unbounded_curvature * steepest
    curved = at.hessian.multiply(abs(at.hessian) * (1 + np.max(abs(at.y))) > flat)
    matrix = stacked([rows.matrix[np.isfinite(rows.upper)], -rows.matrix[np.isfinite(rows.lower)], curved, -curved])
    answer = linprog(
        at.gradient / steepest,
        matrix,
        np.zeros(matrix.shape[0]),
        bounds=np.column_stack([-limit, limit]),
        method="highs",
        options={"primal_feasibility_tolerance": SIMPLEX.accuracy},
    )
    if answer.status != 0 or answer.fun > -CONVEX_TOLERANCES.unbounded_slope:
        return False
    # The linear program only knows the Hessian here. The values far out decide.
    # Entries that are only rounding would change them, so far out.
    ray = np.where(abs(answer.x) > CONVEX_TOLERANCES.unbounded_rounding, answer.x, 0.0)
    slope, lengths, fall = at.gradient @ ray, CONVEX_TOLERANCES.unbounded_lengths, CONVEX_TOLERANCES.unbounded_fall
    return bool(slope < 0 and all(at.moved(s * ray).value <= at.value + fall * s * slope for s in lengths))
