"""Derivatives of f and g at (x, y*(x)), and the gradient of Phi on one piece, by the implicit function theorem."""

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.convex.curvature import full_hessian, own_units
from bilevax.convex.full_systems import FullSystems
from bilevax.convex.problem import ConvexSolution
from bilevax.convex.saddle_point import symmetric_factor
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.exact.upper_rows import UpperSides, upper_rows_at
from bilevax.model.compressed_rows import on_top, picked, row_squares, scaled
from bilevax.model.flat import FlatProblem


@dataclasses.dataclass(frozen=True)
class PointDerivatives:
    """Derivatives at (x, y*), and the cone of outward normals of X.

    Attributes
    ----------
    f_x, f_y
        The gradients of f.
    hessian, mixed
        The second derivatives of the lower Lagrangian: in y, and in y and x.
    normals
        The normals of the sides of X that are active at x, one a row.
    normal_free
        Which of them belong to equalities: their multipliers may have any sign.
    normal_slack
        How far x is from those sides.
    upper
        The sides of upper rows that are active.
    """

    f_x: np.ndarray
    f_y: np.ndarray
    hessian: sp.csc_matrix
    mixed: sp.csc_matrix
    normals: sp.csr_matrix
    normal_free: np.ndarray
    normal_slack: np.ndarray
    upper: UpperSides


def derivatives(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> PointDerivatives:
    """Return the derivatives at (x, y*), a ball's curvature included, and the normals of X there."""
    f_x, f_y = flat.gradients("upper", x, lower.y)
    hessian = flat.hessian("lower", "y", "y", x, lower.y)
    for ball, multiplier in zip(flat.y_rows.balls, lower.ball_multipliers, strict=True):
        curvature = np.zeros(flat.n_y)
        curvature[ball.index] = multiplier
        hessian = hessian + sp.diags(curvature)
    hessian = hessian if isinstance(hessian, sp.csc_matrix) else sp.csc_matrix(hessian)  # its factor is remembered
    mixed, normals = flat.hessian("lower", "y", "x", x, lower.y), normals_of_x(flat, x, EXACT_TOLERANCES.x_margin)
    upper = upper_rows_at(flat, x, lower.y).active(EXACT_TOLERANCES.x_margin)
    return PointDerivatives(f_x, f_y, hessian, mixed, *normals, upper)


def normals_of_x(flat: FlatProblem, x: np.ndarray, margin: float) -> tuple[sp.csr_matrix, np.ndarray, np.ndarray]:
    """Return the normals of the sides of X within a margin of x, which are of equalities, and the slack of each."""
    rows = flat.x_rows
    norms = positive(np.sqrt(row_squares(rows.matrix)))
    unit = scaled(rows.matrix, 1 / norms, np.ones(len(x)))
    image, near = unit @ x, margin * (1 + abs(unit) @ np.abs(x))
    above, below = rows.upper / norms - image, image - rows.lower / norms
    at_upper, at_lower = above <= near, below <= near
    both = at_upper & at_lower
    sides = [np.flatnonzero(side) for side in (both, at_upper & ~both, at_lower & ~both)]
    sign = np.repeat([1.0, 1.0, -1.0], [len(side) for side in sides])
    parts = [picked(unit, np.concatenate(sides), sign)]
    slack = [np.zeros(len(sides[0])), above[sides[1]], below[sides[2]]]
    for ball in rows.balls:
        offset = x[ball.index] - ball.center
        gap = ball.radius - np.linalg.norm(offset)
        if gap <= margin * (1 + ball.radius):
            normal = np.zeros(len(x))
            normal[ball.index] = offset / np.linalg.norm(offset)
            parts.append(sp.csr_matrix(normal))
            slack.append(np.array([gap]))
    normals = on_top(parts)
    return normals, np.arange(normals.shape[0]) < len(sides[0]), np.maximum(np.concatenate(slack), 0.0)


def piece_gradient(point: PointDerivatives, a: sp.csr_matrix, b: sp.csr_matrix) -> np.ndarray | None:
    """Return the gradient of the piece of Phi on which the rows (a, b) stay active; None where y does not follow x."""
    return _along_piece(point, a, b, point.f_x, point.f_y)


def upper_gradients(point: PointDerivatives, a: sp.csr_matrix, b: sp.csr_matrix) -> sp.csr_matrix | None:
    """Return the gradients in x of the active upper rows, one a row, while y follows x on the piece of the rows (a, b).

    None where y does not follow x.
    """
    if not point.upper.count:
        return sp.csr_matrix((0, len(point.f_x)))
    slopes = _along_piece(point, a, b, point.upper.x.toarray().T, point.upper.y.toarray().T)
    return None if slopes is None else sp.csr_matrix(slopes.T)


def _along_piece(
    point: PointDerivatives, a: sp.csr_matrix, b: sp.csr_matrix, of_x: np.ndarray, of_y: np.ndarray
) -> np.ndarray | None:
    """Return the gradients in x of functions with these gradients in x and y, one a column, while y follows x."""
    solution = solve_kkt(point.hessian, a, np.concatenate([-of_y, np.zeros((a.shape[0], *of_y.shape[1:]))]))
    if solution is None:
        return None
    w, xi = np.split(solution, [a.shape[1]])
    return of_x + point.mixed.T @ w + b.T @ xi


def solve_kkt(hessian: sp.csc_matrix, a: sp.csr_matrix, right: np.ndarray) -> np.ndarray | None:
    """Solve [H a'; a 0] s = right to rounding, or return None if the system is not consistent.

    It is solved with variables in the units of their curvatures, which near a border of g's domain differ by many
    orders of magnitude.
    """
    clock.check()
    count, size = a.shape
    if (found := _solve_full(hessian, a, right)) is not None:
        return found
    dense = size + count <= EXACT_SETTINGS.dense_kkt or hessian.nnz > EXACT_SETTINGS.dense_share * size**2
    system, units = (_full_system if dense else _sparse_system)(hessian, a, own_units(hessian))
    right = (right.T * units).T
    solution = _solve_dense(system, right) if dense else _solve_sparse(system, right, size)
    residual = np.abs(system @ solution - right).max(initial=0.0)
    consistent = residual <= EXACT_TOLERANCES.kkt_residual * (1 + np.abs(right).max(initial=0.0))
    return (solution.T * units).T if consistent else None


def _solve_full(hessian: sp.csc_matrix, a: sp.csr_matrix, right: np.ndarray) -> np.ndarray | None:
    """Solve by the factor of a full Hessian, which all pieces share; None where that is not as good as an LU."""
    count, size = a.shape
    known = full_hessian(hessian)
    if known is None or count > size:
        return None
    rows = a.toarray()
    lengths = positive(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
    rows /= lengths[:, None]
    of_y, of_rows = right[:size], (right[size:].T / lengths).T
    found = FullSystems(rows).solve(hessian, np.arange(count), of_y, of_rows)
    if found is None:
        return None
    left = of_y - known.array @ found[0] - rows.T @ found[1], of_rows - rows @ found[0]
    allowed = EXACT_TOLERANCES.kkt_rounding * (1 + np.abs(right).max(initial=0.0))
    exact = max(np.abs(part).max(initial=0.0) for part in left) <= allowed
    return np.concatenate([found[0], (found[1].T / lengths).T]) if exact else None


def _full_system(hessian: sp.csc_matrix, a: sp.csr_matrix, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the system as an array in the units of its variables, rows of length 1, and all units."""
    (count, size), rows = a.shape, a.toarray()
    length = np.sqrt(np.sum((rows * unit) ** 2, axis=1))
    units = np.concatenate([unit, 1 / np.where(length > 0, length, 1.0)])
    system = np.zeros((size + count, size + count))
    system[:size, :size], system[size:, :size], system[:size, size:] = hessian.toarray(), rows, rows.T
    system *= units
    system *= units[:, None]
    return system, units


def _sparse_system(hessian: sp.csc_matrix, a: sp.csr_matrix, unit: np.ndarray) -> tuple[sp.csc_matrix, np.ndarray]:
    """Return the same as a sparse matrix."""
    a = scaled(sp.csr_matrix(a), np.ones(a.shape[0]), unit)
    length = np.sqrt(row_squares(a))
    of_rows = 1 / np.where(length > 0, length, 1.0)
    a, hessian = scaled(a, of_rows, np.ones(len(unit))), scaled(sp.csc_matrix(hessian), unit, unit)
    system = sp.csc_matrix(sp.bmat([[hessian, a.T], [a, None]])) if a.shape[0] else hessian
    return system, np.concatenate([unit, of_rows])


def _solve_sparse(system: sp.csc_matrix, right: np.ndarray, size: int) -> np.ndarray:
    """Solve by a factorisation with quasi-definite regularisation, taken out again by refinement."""
    scale = EXACT_SETTINGS.kkt_regularisation * max(1.0, abs(system).max())  # entries of rows are at most 1
    shift = sp.diags(np.where(np.arange(system.shape[0]) < size, scale, -scale))
    factor = symmetric_factor(sp.csc_matrix(system + shift))
    # Residuals in extended precision, until corrections no longer shrink: where rows are nearly dependent, what
    # rounding leaves of a residual would be a large error.
    solution, step, exact = np.zeros_like(right), factor.solve(right), system.astype(np.longdouble)
    for _ in range(EXACT_SETTINGS.max_refinements):
        solution, last = solution + step, np.abs(step).max(initial=0.0)
        step = factor.solve((right - exact @ solution).astype(float))
        if not np.abs(step).max(initial=0.0) < 0.5 * last:
            break
    return solution


def _solve_dense(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve by LU and one step of refinement, a singular system by least squares: any of its solutions will do."""
    factors, pivots, singular = lapack.dgetrf(system)
    if singular or lapack.dgecon(factors, np.abs(system).sum(axis=0).max())[0] < np.finfo(float).eps:
        return np.linalg.lstsq(system, right, rcond=EXACT_SETTINGS.kkt_cutoff)[0]
    solution = lapack.dgetrs(factors, pivots, right)[0]
    return solution + lapack.dgetrs(factors, pivots, right - system @ solution)[0]
