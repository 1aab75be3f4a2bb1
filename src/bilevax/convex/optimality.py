"""How far a point is from solving a smooth convex problem under linear rows and balls."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from bilevax.convex.problem import Ball, Constraints, Domain, Objective

SMALL = 150  # up to this many variables rows and systems are dense
_DENSE = 500  # up to this many variables eigenvalues are computed densely


class Local:
    """The objective at a point: each part is evaluated once, when it is first asked for."""

    def __init__(self, objective: Objective, y: np.ndarray):
        self.objective = objective
        self.y = y

    def moved(self, step: np.ndarray) -> Local:
        return Local(self.objective, self.y + step)

    @functools.cached_property
    def value(self) -> float:
        return float(self.objective.value(self.y))

    @functools.cached_property
    def gradient(self) -> np.ndarray:
        return self.objective.gradient(self.y)

    @functools.cached_property
    def scale(self) -> float:
        return 1 + float(np.max(abs(self.gradient)))

    @functools.cached_property
    def hessian(self) -> sparse.csc_matrix:
        """The Hessian; infinite curvature, as that of y^1.5 at 0, is a number that holds its variable in place."""
        hessian = self.objective.hessian(self.y)
        hessian = hessian if isinstance(hessian, sparse.csc_matrix) else sparse.csc_matrix(hessian)
        if np.any(hessian.data == np.inf):
            hessian = sparse.csc_matrix((np.minimum(hessian.data, _RIGID), hessian.indices, hessian.indptr))
        return hessian

    @functools.cached_property
    def finite(self) -> bool:
        if not (np.all(np.isfinite(self.y)) and np.isfinite(self.value)):
            return False
        return bool(np.all(np.isfinite(self.gradient)) and np.all(np.isfinite(self.hessian.data)))

    @functools.cached_property
    def convex(self) -> bool:
        """Whether the Hessian is positive semidefinite, up to rounding."""
        return eigenvalues_above(self.scaled_hessian, -1e-9)

    @functools.cached_property
    def scaled_hessian(self) -> Any:
        """The Hessian for variables in the units of their curvature."""
        return in_own_units(self.hessian)


def stacked(blocks: list) -> Any:
    """The blocks on top of each other: an array if the first is one, else sparse."""
    if not isinstance(blocks[0], np.ndarray):
        return sparse.vstack(blocks, format="csr")
    return np.vstack([block if isinstance(block, np.ndarray) else block.toarray() for block in blocks])


_RIGID = 1e200


@dataclass(frozen=True)
class Rows:
    """Rows and balls in the form the algorithms use.

    Attributes
    ----------
    matrix
        The rows that can bind, each of norm 1; an array up to `SMALL` variables, else a sparse matrix.
    kept, norms
        Which rows of the problem they are, and by what they were divided.
    domain
        Bounds that are none of the rows, since the objective itself keeps minimisers away from them.
    """

    matrix: Any
    lower: np.ndarray
    upper: np.ndarray
    balls: tuple[Ball, ...]
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    norms: np.ndarray = field(default_factory=lambda: np.zeros(0))
    domain: Domain = field(default_factory=Domain)

    @functools.cached_property
    def equality(self) -> np.ndarray:
        # A width at rounding level has no interior for the interior-point method: it is an equality.
        tiny = 1e-13 * (1 + np.minimum(abs(self.upper), abs(self.lower)))
        return abs(self.upper - self.lower) <= tiny

    @functools.cached_property
    def upward(self) -> np.ndarray:
        """Which rows of one entry have a positive one."""
        pattern = sparse.csr_matrix(self.matrix)
        upward = np.zeros(len(self.lower), bool)
        single = self.only_column >= 0
        upward[single] = pattern.data[pattern.indptr[:-1][single]] > 0
        return upward

    @functools.cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds that rows of one entry, which is 1 or -1, put on each variable."""
        low, high = np.full(self.matrix.shape[1], -np.inf), np.full(self.matrix.shape[1], np.inf)
        single = self.only_column >= 0
        column = self.only_column[single]
        np.maximum.at(low, column, np.where(self.upward, self.lower, -self.upper)[single])
        np.minimum.at(high, column, np.where(self.upward, self.upper, -self.lower)[single])
        return low, high

    def with_domain(self, below: np.ndarray, above: np.ndarray) -> Rows:
        """The rows without the lower and upper bounds of some variables, which belong to the domain instead."""
        (low, high), column, single = self.bounds, self.only_column, self.only_column >= 0
        open_below = single & np.where(self.upward, below[column], above[column])
        open_above = single & np.where(self.upward, above[column], below[column])
        lower, upper = np.where(open_below, -np.inf, self.lower), np.where(open_above, np.inf, self.upper)
        keep = np.flatnonzero(np.isfinite(lower) | np.isfinite(upper))
        low, high = np.where(below, low, -np.inf), np.where(above, high, np.inf)
        domain = Domain(low, high, self.kept[open_below], self.kept[open_above])
        return Rows(self.matrix[keep], lower[keep], upper[keep], self.balls, self.kept[keep], self.norms[keep], domain)

    def with_sides(self, lower: np.ndarray, upper: np.ndarray) -> Rows:
        """The same rows with other sides, given as the problem has them; what is known of the matrix stays known."""
        other = replace(self, lower=lower[self.kept] / self.norms, upper=upper[self.kept] / self.norms)
        vars(other).update({name: getattr(self, name) for name in ("upward", "transpose", "sizes", "only_column")})
        return other

    @functools.cached_property
    def transpose(self) -> Any:
        return self.matrix.T if isinstance(self.matrix, np.ndarray) else self.matrix.T.tocsr()

    @functools.cached_property
    def sizes(self) -> Any:
        """The transposed matrix without signs."""
        return abs(self.transpose)

    def relative(self, multipliers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Multipliers relative to the entries, of size `scale`, that their rows act on: to the smallest of them."""
        if isinstance(self.matrix, np.ndarray):
            return multipliers * np.max(abs(self.matrix) / scale, axis=1, initial=0.0)
        shares = abs(self.matrix.data) / scale[self.matrix.indices]
        starts = self.matrix.indptr[:-1]  # no row is empty
        return multipliers * np.maximum.reduceat(shares, starts) if starts.size else multipliers

    def ball_relative(self, ball_multipliers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The same of the balls' multipliers."""
        sizes = [np.max(scale[ball.index]) for ball in self.balls]
        return ball_multipliers * self.radii / np.array(sizes)

    @functools.cached_property
    def only_column(self) -> np.ndarray:
        """The column of the only entry of a row, -1 for rows with more entries."""
        pattern = sparse.csr_matrix(self.matrix)
        single = np.flatnonzero(np.diff(pattern.indptr) == 1)
        column = np.full(len(self.lower), -1)
        column[single] = pattern.indices[pattern.indptr[single]]
        return column

    @functools.cached_property
    def radii(self) -> np.ndarray:
        return np.array([ball.radius for ball in self.balls])

    def slack(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances to the lower and the upper side, negative when violated."""
        activity = self.matrix @ y
        return activity - self.lower, self.upper - activity

    def ball_gaps(self, y: np.ndarray) -> np.ndarray:
        return np.array([ball.radius - np.linalg.norm(y[ball.index] - ball.center) for ball in self.balls])

    def ball_normals(self, y: np.ndarray) -> Any:
        """One row (y - center)_index per ball, in the form of `matrix`."""
        if not self.balls:
            return self.matrix[:0]
        index = np.concatenate([ball.index for ball in self.balls])
        data = y[index] - np.concatenate([ball.center for ball in self.balls])
        ends = np.cumsum([0] + [len(ball.index) for ball in self.balls])
        normals = sparse.csr_matrix((data, index, ends), shape=(len(self.balls), y.size))
        return normals.toarray() if isinstance(self.matrix, np.ndarray) else normals

    def ball_curvature(self, ball_multipliers: np.ndarray, size: int) -> np.ndarray:
        """Diagonal of the Hessian of the balls' part of the Lagrangian."""
        curvature = np.zeros(size)
        for ball, multiplier in zip(self.balls, ball_multipliers, strict=True):
            np.add.at(curvature, ball.index, multiplier)
        return curvature

    def infeasibility(self, y: np.ndarray) -> float:
        below, above = self.slack(y)
        bound = np.where(below < above, self.lower, self.upper)
        rows = np.max(-np.minimum(below, above) / (1 + abs(bound)), initial=0.0)
        balls = np.max(-self.ball_gaps(y) / (1 + self.radii), initial=0.0)
        return float(max(rows, balls)) + 0.0  # no negative zero


def scaled_rows(constraints: Constraints, relaxation: float) -> tuple[Rows, float]:
    """Rows that can bind, of norm 1, relaxed; and the largest violation of rows of zeros."""
    matrix = sparse.csr_matrix(constraints.matrix)
    number, size = matrix.shape
    relaxed = np.where(np.arange(number) < constraints.relaxable, relaxation, 0.0)
    lower, upper = constraints.lower - relaxed, constraints.upper + relaxed
    norms = np.sqrt(np.bincount(np.repeat(np.arange(number), np.diff(matrix.indptr)), matrix.data**2, number))
    kept = np.flatnonzero((norms > 0) & (np.isfinite(lower) | np.isfinite(upper)))
    violation = np.max(np.maximum(lower, -upper)[norms == 0], initial=0.0)
    norms = norms[kept]
    if size <= SMALL:
        scaled = matrix.toarray()[kept] / norms[:, None]
    else:
        scaled = sparse.csr_matrix(sparse.diags_array(1 / norms) @ matrix[kept])
    return Rows(scaled, lower[kept] / norms, upper[kept] / norms, constraints.balls, kept, norms), float(violation)


@dataclass(frozen=True)
class Point:
    """A point, its multipliers for scaled rows, and how far it is from optimal.

    Attributes
    ----------
    scale
        What each entry of the Lagrangian's gradient is relative to: see `forces`.
    residuals
        Stationarity, infeasibility and complementarity, as documented in `bilevax.convex.ConvexSolution`.
    error
        The largest of the residuals and of ``min(multiplier, slack)``, both relative. The product of the two may be
        tiny where each is still far from zero, and y with them; the smaller of the two may not.
    """

    at: Local
    multipliers: np.ndarray
    ball_multipliers: np.ndarray
    scale: np.ndarray
    residuals: tuple[float, float, float]
    error: float

    @property
    def residual(self) -> float:
        return max(self.residuals)


def forces(at: Local, rows: Rows, multipliers: np.ndarray, ball_multipliers: np.ndarray) -> np.ndarray:
    """The size of what is added up in each entry of the gradient of the Lagrangian.

    That is the gradient itself, what rows and balls add to it, and what curvature makes of the size of y: where all of
    these vanish together, as at the minimum of y^6, it is Newton's step that counts. A large gradient elsewhere hides
    nothing, nor do multipliers that cancel each other.
    """
    size, y = abs(at.gradient), at.y
    terms = rows.sizes @ abs(multipliers) + np.maximum(at.hessian.diagonal(), 0.0) * (1 + abs(y))
    if rows.balls:
        terms = terms + abs(rows.ball_normals(y)).T @ ball_multipliers
    return np.maximum(size + np.minimum(terms, at.scale), _TINY)


def measure(at: Local, rows: Rows, multipliers: np.ndarray, ball_multipliers: np.ndarray) -> Point:
    """Recompute the residuals of the optimality conditions."""
    y, scale = at.y, forces(at, rows, multipliers, ball_multipliers)
    force = at.gradient + rows.transpose @ multipliers
    below, above = rows.slack(y)
    upward = multipliers > 0
    bound = np.where(upward, rows.upper, rows.lower)
    slack = np.where(upward, above, below) / (1 + abs(np.where(np.isfinite(bound), bound, 0.0)))
    slack = np.where(multipliers != 0, abs(slack), 0.0)
    push = rows.relative(abs(multipliers), scale)
    product, smaller = np.max(push * slack, initial=0.0), np.max(np.minimum(push, slack), initial=0.0)
    if rows.balls:
        force = force + rows.ball_normals(y).T @ ball_multipliers
        gaps = abs(rows.ball_gaps(y)) / (1 + rows.radii)
        push = rows.ball_relative(ball_multipliers, scale)
        product, smaller = max(product, np.max(push * gaps)), max(smaller, np.max(np.minimum(push, gaps)))
    if rows.domain.bounded:
        force = np.where(rows.domain.stopped(y, force), 0.0, force)
    residuals = (float(np.max(abs(force) / scale)), rows.infeasibility(y), float(product))
    return Point(at, multipliers, ball_multipliers, scale, residuals, float(max(*residuals, smaller)))


_TINY = 1e-300


def own_units(hessian: sparse.csc_matrix) -> np.ndarray:
    """The length of a step of each variable that counts as 1 by its own curvature; flat ones share a middle one.

    Curvatures may differ by many orders of magnitude, as those of the entropy of shares do.
    """
    curvature = hessian.diagonal()
    if np.min(curvature, initial=np.inf) > 1e-10:  # none is flat
        return 1 / np.sqrt(curvature)
    positive = curvature[curvature > 0]
    middle = float(np.median(positive)) if positive.size else 1.0
    return 1 / np.sqrt(np.where(curvature > 1e-10 * min(middle, 1.0), curvature, middle))


def in_own_units(hessian: sparse.csc_matrix) -> Any:
    """The Hessian for variables in the units of their curvature: its diagonal is 1 wherever it was positive.

    An array up to `SMALL` variables, else a sparse matrix.
    """
    unit = own_units(hessian)
    if unit.size <= SMALL:
        return as_array(hessian) * unit * unit[:, None]
    return sparse.csc_matrix(sparse.diags_array(unit) @ hessian @ sparse.diags_array(unit))


def as_array(matrix: sparse.csc_matrix) -> np.ndarray:
    """The matrix as an array: by way of its transpose, which SciPy need not sort by rows first."""
    return matrix.T.toarray().T


def nearly_full(matrix: Any) -> bool:
    """Whether a sparse matrix holds so many of its entries that dense algebra is the faster one."""
    return matrix.nnz > 0.1 * matrix.shape[0] * matrix.shape[1]


def eigenvalues_above(matrix: Any, bound: float) -> bool:
    """Whether all eigenvalues are at least `bound`; where that cannot be found out, whether `bound` is negative."""
    if isinstance(matrix, np.ndarray):
        if not matrix.any():
            return bound <= 0
        return scipy.linalg.lapack.dpotrf(matrix - bound * np.eye(len(matrix)))[1] == 0
    labels = np.zeros(matrix.shape[0], int)
    if labels.size > SMALL and not nearly_full(matrix):
        labels = scipy.sparse.csgraph.connected_components(matrix, directed=False)[1]
    sizes = np.bincount(labels)
    if np.any(matrix.diagonal() < bound) or not np.any(matrix.data):
        return bound <= 0 and not np.any(matrix.data)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    for index in (members[k] for k in np.flatnonzero(sizes > 1)):
        block = matrix[index][:, index] if len(members) > 1 else matrix
        # Lanczos would take long on a block that is full anyway.
        if index.size <= _DENSE or nearly_full(block):
            if scipy.linalg.lapack.dpotrf(block.toarray() - bound * np.eye(index.size))[1] != 0:
                return False
            continue
        diagonal = block.diagonal()
        if np.min(diagonal + abs(diagonal) - abs(block).sum(axis=1)) < bound:  # Gershgorin
            try:
                if scipy.sparse.linalg.eigsh(block, 1, which="SA", return_eigenvectors=False)[0] < bound:
                    return False
            except scipy.sparse.linalg.ArpackNoConvergence:
                return bound < 0
    return True
