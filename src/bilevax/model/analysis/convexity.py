"""Convexity in y where composition rules do not prove it: a constant Hessian, or tests at points."""

import dataclasses
from typing import Any, Literal

import numpy as np
import qdldl
import scipy.sparse as sp
from scipy.linalg import lapack

from bilevax.model.analysis import jets
from bilevax.model.analysis.program import Program

Convexity = Literal["proven", "unknown", "refuted"]

#: Curvature below minus this, relative to the terms that were added up to find it, is no rounding.
_NEGATIVE = 1e-10

_MOST_VARIABLES_DENSE = 500
_FULL = 0.2  # share of entries from which on a matrix is better an array
_BUDGET = 4_000_000


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """A point and a direction in y along which a function curves down.

    ``curvature`` is the second derivative there, or the fall of the slope between two points; ``relative`` is the same
    relative to the terms that make it up.
    """

    x: np.ndarray
    y: np.ndarray
    direction: np.ndarray
    curvature: float
    relative: float


@dataclasses.dataclass(frozen=True)
class ConvexityTest:
    """A counterexample, or None, and how many curvatures were looked at; none if the function cannot be evaluated."""

    counterexample: Counterexample | None
    tested: int


def prove_by_hessian(hessian: Any) -> tuple[Convexity, float, np.ndarray | None]:
    """Return whether a constant Hessian proves convexity, its smallest eigenvalue in natural units, and a direction.

    Rows and columns are scaled to a diagonal of ones first, so units do not matter; the eigenvalue is of that matrix.

    Parameters
    ----------
    hessian
        Dense or scipy.sparse, symmetric.

    Returns
    -------
    convexity
        "refuted" with a direction of negative curvature; "unknown" only for large matrices near the border.
    eigenvalue
        Or a lower bound of it; NaN where unknown.
    direction
        None unless refuted.
    """
    sparse, size = sp.issparse(hessian), hessian.shape[0]
    full = size <= _MOST_VARIABLES_DENSE or not sparse or hessian.nnz > _FULL * size**2
    matrix = (hessian.toarray() if sparse else hessian) if full else sp.csc_matrix(hessian)
    diagonal = matrix.diagonal()
    largest = np.maximum(matrix.max(axis=1), -matrix.min(axis=1)) if full else abs(matrix).max(axis=1).todense()
    size = np.sqrt(np.asarray(largest, np.float64).ravel())
    scale = 1 / np.where(diagonal > 0, np.sqrt(np.abs(diagonal)), np.where(size > 0, size, 1.0))
    if full:
        scaled = scale[:, None] * matrix
        scaled *= scale
    else:
        scaled = sp.csc_matrix(sp.diags(scale) @ matrix @ sp.diags(scale))
    if len(scale) <= _MOST_VARIABLES_DENSE:
        values, vectors = np.linalg.eigh(scaled)
        if values[0] >= -_NEGATIVE * max(1.0, values[-1]):
            return "proven", float(values[0]), None
        return "refuted", float(values[0]), vectors[:, 0] * scale
    worst = int(np.argmin(scaled.diagonal()))
    if scaled.diagonal()[worst] < -_NEGATIVE:
        return "refuted", float(scaled.diagonal()[worst]), np.eye(1, len(scale), worst)[0] * scale[worst]
    if full:  # Cholesky's method finds a factor of a positive definite matrix only
        scaled.ravel()[:: len(scaled) + 1] += _NEGATIVE
        failed = lapack.dpotrf(scaled.T, clean=False, overwrite_a=True)[1]
        return ("unknown", np.nan, None) if failed else ("proven", -_NEGATIVE, None)
    try:
        _, pivots, _ = qdldl.Solver(
            sp.triu(scaled + _NEGATIVE * sp.eye(len(scale)), format="csc"), upper=True
        ).factors()
    except Exception:  # a pivot of zero
        return "unknown", np.nan, None
    return ("proven", -_NEGATIVE, None) if (np.asarray(pivots) > 0).all() else ("unknown", np.nan, None)


def hessian_at(program: Program, x: np.ndarray, y: np.ndarray, basis: np.ndarray | None = None):
    """Return the Hessian in y at a point, in a basis (its columns), and the size of the terms in each entry."""
    basis = np.eye(len(y)) if basis is None else basis
    count = basis.shape[1]
    single, _ = _curvatures(program, x, y, basis.T)
    scale = 1 / np.sqrt(np.where(single[1] > 0, single[1], 1.0))
    rows, columns = np.triu_indices(count, 1)
    pairs = basis.T[rows] * scale[rows, None] + basis.T[columns] * scale[columns, None]
    both, _ = _curvatures(program, x, y, pairs)
    hessian, sizes = np.diag(single[0]), np.diag(single[1])
    unit = scale**2 * single[0]
    mixed = 0.5 * (both[0] - unit[rows] - unit[columns]) / (scale[rows] * scale[columns])
    hessian[rows, columns] = hessian[columns, rows] = mixed
    sizes[rows, columns] = sizes[columns, rows] = 0.5 * both[1] / (scale[rows] * scale[columns])
    noise = np.abs(hessian) <= 1e-14 * sizes
    return np.where(noise, 0.0, hessian), sizes


def refute_convexity(
    program: Program,
    x: np.ndarray,
    points: np.ndarray,
    *,
    tangent: np.ndarray | None = None,
    segments: int = 64,
    stops: int = 9,
) -> ConvexityTest:
    """Look for negative curvature in y on segments between points, and in all directions at the points.

    Parameters
    ----------
    program
        The function.
    x
        Flat, fixed, or one row for each point.
    points
        Feasible y, one a row; the feasible set being convex, segments between them are feasible, too.
    tangent
        Directions that stay in the feasible set, as columns; all if None.
    segments, stops
        How many pairs of points, and places on each.

    Returns
    -------
    ConvexityTest
        With the most negative curvature, relative to its terms, that was found.
    """
    points = np.atleast_2d(np.asarray(points, np.float64))
    random = np.random.default_rng(0)
    segments = int(np.clip(_BUDGET // (stops * max(program.sizes(), 1)), 1, segments))
    fixed = np.ndim(x) == 1
    xs = np.broadcast_to(x, (len(points), np.shape(x)[-1]))
    starts, ends = random.integers(len(points), size=(2, segments))
    ends = ends if fixed else starts  # another x is another function
    worst: Counterexample | None = None
    tested = 0
    try:
        moving = np.any(points[starts] != points[ends], axis=1)
        if moving.any():
            worst, tested = _on_segments(
                program, xs[starts[moving]], points[starts[moving]], points[ends[moving]], stops
            )
        size = points.shape[1] if tangent is None else tangent.shape[1]
        for index in random.permutation(len(points))[: 16 if size <= 30 else 0]:
            found = _all_directions(program, xs[index], points[index], tangent)
            tested += size * (size + 1) // 2
            worst = min((found, worst), key=lambda c: 0.0 if c is None else c.relative)
    except jets.Unsupported:
        return ConvexityTest(None, 0)
    return ConvexityTest(worst, tested)


def _on_segments(program: Program, x: np.ndarray, start: np.ndarray, end: np.ndarray, stops: int):
    at = np.linspace(0.0, 1.0, stops)
    direction = end - start
    places = (start[:, None] + at[:, None] * direction[:, None]).reshape(-1, start.shape[1])
    along = np.repeat(direction, stops, axis=0)
    jet = _jets(program, np.repeat(x, stops, axis=0), places, along).reshape(5, -1, stops)
    with np.errstate(all="ignore"):
        bends = np.nan_to_num(jet[2] / jet[4])
        falls = np.nan_to_num((jet[1, :, 1:] - jet[1, :, :-1]) / np.maximum(jet[3, :, 1:], jet[3, :, :-1]))
    found = None
    for relative, values in ((bends, jet[2]), (falls, np.diff(jet[1], axis=1))):
        row, stop = np.unravel_index(np.argmin(relative), relative.shape)
        if relative[row, stop] < min(-_NEGATIVE, found.relative if found else 0.0):
            found = Counterexample(
                x[row],
                places.reshape(-1, stops, places.shape[1])[row, stop],
                direction[row],
                float(values[row, stop]),
                float(relative[row, stop]),
            )
    return found, bends.size


def _all_directions(program: Program, x: np.ndarray, y: np.ndarray, tangent: np.ndarray | None):
    hessian, sizes = hessian_at(program, x, y, tangent)
    if not np.isfinite(hessian).all():
        return None
    scale = 1 / np.sqrt(np.where(np.diag(sizes) > 0, np.diag(sizes), 1.0))
    values, vectors = np.linalg.eigh(scale[:, None] * hessian * scale)
    if values[0] >= -_NEGATIVE * max(1.0, values[-1]):
        return None
    direction = vectors[:, 0] * scale
    direction = direction if tangent is None else tangent @ direction
    (curvature, size), _ = _curvatures(program, x, y, direction[None])
    if not curvature[0] < -_NEGATIVE * size[0]:
        return None
    return Counterexample(x, y, direction, float(curvature[0]), float(curvature[0] / size[0]))


def _curvatures(program: Program, x: np.ndarray, y: np.ndarray, directions: np.ndarray):
    """Return second derivatives in y along directions with the sizes of their terms, and the values."""
    count = len(directions)
    jet = _jets(program, np.tile(x, (count, 1)), np.tile(y, (count, 1)), directions)
    return (jet[2], jet[4]), jet[0]


def _jets(program: Program, x: np.ndarray, y: np.ndarray, directions: np.ndarray) -> np.ndarray:
    chunk = max(_BUDGET // max(program.sizes(), 1), 1)
    parts = [np.zeros((5, 0))]
    for first in range(0, len(y), chunk):
        part = slice(first, first + chunk)
        fixed = jets.line_jet(x[part], np.zeros_like(x[part]))
        (result,) = program.evaluate(fixed, jets.line_jet(y[part], directions[part]), [program.result])
        result = np.broadcast_to(result, (len(result), len(y[part])))
        parts.append(np.concatenate([result, np.zeros((5 - len(result), result.shape[1]))]))
    return np.concatenate(parts, axis=1)
