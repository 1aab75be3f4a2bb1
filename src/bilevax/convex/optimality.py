"""How far a point is from solving a smooth convex problem under linear rows and balls."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sparse

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.convex.curvature import has_eigenvalues_above
from bilevax.convex.full_systems import FullSystems
from bilevax.convex.problem import Ball, Constraints, Domain, Objective
from bilevax.convex.saddle_point import LastFactor
from bilevax.convex.settings import CURVATURE, DENSE
from bilevax.convex.tolerances import CONVEX_TOLERANCES

_ROWS_AT_A_TIME = 4000  # so that what is made of them is small beside all of them


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
        """The Hessian; a large number stands for infinite curvature, as that of y^1.5 at 0."""
        hessian = self.objective.hessian(self.y)
        hessian = hessian if isinstance(hessian, sparse.csc_matrix) else sparse.csc_matrix(hessian)
        if np.any(hessian.data == np.inf):
            hessian = sparse.csc_matrix((np.minimum(hessian.data, CURVATURE.rigid), hessian.indices, hessian.indptr))
        return hessian

    @functools.cached_property
    def finite(self) -> bool:
        if not (np.all(np.isfinite(self.y)) and np.isfinite(self.value)):
            return False
        return bool(np.all(np.isfinite(self.gradient)) and np.all(np.isfinite(self.hessian.data)))

    @functools.cached_property
    def convex(self) -> bool:
        """Whether the Hessian is positive semidefinite, up to rounding."""
        # Whether it is definite, which is asked next, mostly tells; it is remembered.
        definite = has_eigenvalues_above(self.hessian, CONVEX_TOLERANCES.unique_curvature)
        return definite or has_eigenvalues_above(self.hessian, -CONVEX_TOLERANCES.negative_curvature)


def with_entries(matrix: sparse.csr_matrix, data: np.ndarray) -> sparse.csr_matrix:
    """The matrix with other entries in the same places, which are not copied."""
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=False)


def stacked(blocks: list) -> Any:
    """The blocks on top of each other: an array if the first is one, else sparse."""
    if not isinstance(blocks[0], np.ndarray):
        return sparse.vstack(blocks, format="csr")
    return np.vstack([block if isinstance(block, np.ndarray) else block.toarray() for block in blocks])


@dataclass(frozen=True)
class Rows:
    """Rows and balls in the form the algorithms use.

    Attributes
    ----------
    matrix
        The rows that can be active, each of norm 1; an array for few variables, else a sparse matrix.
    lower, upper
        Their sides, divided like the rows.
    balls
        The balls, as in `Constraints`.
    kept, norms
        Which rows of the problem they are, and by what they were divided.
    domain
        Bounds that are borders of the objective's domain. They are not among the rows, since the objective itself
        keeps minimisers away from them.
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
        """Which rows are equalities: an interior-point method needs more than rounding between two sides."""
        width = CONVEX_TOLERANCES.equality_width * (1 + np.minimum(abs(self.upper), abs(self.lower)))
        return abs(self.upper - self.lower) <= width

    @property
    def only_equalities(self) -> bool:
        """Whether nothing but equalities keeps y from the minimum."""
        return bool(np.all(self.equality)) and not (self.balls or self.domain.bounded)

    @functools.cached_property
    def upward(self) -> np.ndarray:
        """Which rows of one entry have a positive one."""
        single = self.only_column >= 0
        if isinstance(self.matrix, np.ndarray):
            return single & (self.matrix.sum(axis=1) > 0)
        upward = np.zeros(len(self.lower), bool)
        upward[single] = self.matrix.data[self.matrix.indptr[:-1][single]] > 0
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
        known = ("upward", "product", "transpose", "sizes", "only_column", "full_systems", "last_factor")
        vars(other).update({name: getattr(self, name) for name in known})
        return other

    @functools.cached_property
    def product(self) -> Any:
        """The matrix in the form in which it multiplies fastest: the entries of rows without zeros are an array."""
        matrix = self.matrix
        if isinstance(matrix, np.ndarray) or matrix.nnz < matrix.shape[0] * matrix.shape[1]:
            return matrix
        return matrix.data.reshape(matrix.shape) if matrix.has_sorted_indices else matrix

    @functools.cached_property
    def transpose(self) -> Any:
        return self.product.T

    @functools.cached_property
    def sizes(self) -> Any:
        """The absolute values of the transposed matrix; None for a large array, which is not held twice."""
        if isinstance(self.product, np.ndarray):
            return abs(self.transpose) if len(self.product) <= _ROWS_AT_A_TIME else None
        return with_entries(self.matrix, abs(self.matrix.data)).T

    def _sizes_at_a_time(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The absolute values of an array, some rows at a time."""
        for first in range(0, len(self.product), _ROWS_AT_A_TIME):
            part = slice(first, first + _ROWS_AT_A_TIME)
            yield part, abs(self.product[part])

    def terms(self, multipliers: np.ndarray) -> np.ndarray:
        """The sizes of what multipliers, given by their own, add to each entry of the gradient."""
        if self.sizes is not None:
            return self.sizes @ multipliers
        return np.sum([multipliers[part] @ sizes for part, sizes in self._sizes_at_a_time()], axis=0)

    @functools.cached_property
    def full_systems(self) -> FullSystems:
        """Newton systems with a full Hessian."""
        return FullSystems(self.product)

    @functools.cached_property
    def last_factor(self) -> LastFactor:
        """The factor of the last Newton system, if that was large and sparse."""
        return LastFactor()

    def relative(self, multipliers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Multipliers relative to the gradient that they balance: times the largest ``|matrix_ik| / scale_k``."""
        if isinstance(self.product, np.ndarray):
            parts = [(slice(None), self.sizes.T)] if self.sizes is not None else self._sizes_at_a_time()
            return multipliers * np.concatenate([np.max(sizes / scale, axis=1, initial=0.0) for _, sizes in parts])
        shares = scale[self.matrix.indices]
        np.abs(np.divide(self.matrix.data, shares, out=shares), out=shares)
        starts = self.matrix.indptr[:-1]  # no row is empty
        return multipliers * np.maximum.reduceat(shares, starts) if starts.size else multipliers

    def ball_relative(self, ball_multipliers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The balls' multipliers, likewise relative to the gradient that they balance."""
        sizes = [np.max(scale[ball.index]) for ball in self.balls]
        return ball_multipliers * self.radii / np.array(sizes)

    @functools.cached_property
    def only_column(self) -> np.ndarray:
        """The column of the only entry of a row, -1 for rows with more entries."""
        if isinstance(self.matrix, np.ndarray):
            there = self.matrix != 0
            return np.where(there.sum(axis=1) == 1, there.argmax(axis=1), -1)
        single = np.flatnonzero(np.diff(self.matrix.indptr) == 1)
        column = np.full(len(self.lower), -1)
        column[single] = self.matrix.indices[self.matrix.indptr[single]]
        return column

    @functools.cached_property
    def radii(self) -> np.ndarray:
        return np.array([ball.radius for ball in self.balls])

    def slack(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances to the lower and the upper side, negative when violated."""
        activity = self.product @ y
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
    """The rows that can be active, of norm 1, relaxed; and the largest violation of rows of zeros."""
    clock.check()
    matrix = sparse.csr_matrix(constraints.matrix)
    number, size = matrix.shape
    relaxed = np.where(np.arange(number) < constraints.relaxable, relaxation, 0.0)
    lower, upper = constraints.lower - relaxed, constraints.upper + relaxed
    norms = _norms(matrix)
    kept = np.flatnonzero((norms > 0) & (np.isfinite(lower) | np.isfinite(upper)))
    violation = np.max(np.maximum(lower, -upper)[norms == 0], initial=0.0)
    norms = norms[kept]
    if size <= DENSE.systems:
        scaled = matrix.toarray()
        scaled = scaled if kept.size == number else scaled[kept]
        scaled /= norms[:, None]
    else:
        matrix = matrix if kept.size == number else matrix[kept]
        scaled = with_entries(matrix, matrix.data / np.repeat(norms, np.diff(matrix.indptr)))
    return Rows(scaled, lower[kept] / norms, upper[kept] / norms, constraints.balls, kept, norms), float(violation)


def _norms(matrix: sparse.csr_matrix) -> np.ndarray:
    """The length of each row; what is made of some rows at a time is small beside all of them."""
    ends, norms = matrix.indptr, np.zeros(matrix.shape[0])
    for first in range(0, len(norms), _ROWS_AT_A_TIME):
        own = slice(first, min(first + _ROWS_AT_A_TIME, len(norms)))
        count, data = np.diff(ends[own.start : own.stop + 1]), matrix.data[ends[own.start] : ends[own.stop]]
        norms[own] = np.bincount(np.repeat(np.arange(len(count)), count), data**2, len(count))
    return np.sqrt(norms)


@dataclass(frozen=True)
class Point:
    """A point, its multipliers for scaled rows, and how far it is from optimal.

    Attributes
    ----------
    scale
        What each entry of the Lagrangian's gradient is relative to: see `term_sizes`.
    residuals
        Stationarity, infeasibility and complementarity, as documented in `bilevax.convex.ConvexSolution`.
    error
        The largest of the residuals and of ``min(multiplier, slack)`` of each row, both relative. It is stricter than
        complementarity alone: the product of multiplier and slack may be tiny while neither is near zero.
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


def term_sizes(at: Local, rows: Rows, multipliers: np.ndarray, ball_multipliers: np.ndarray) -> np.ndarray:
    """The size of the terms in each entry of the Lagrangian's gradient, to which its residual is relative.

    The terms are the objective's gradient, the multipliers times the rows and balls, and curvature times the size of y.
    The last counts where the others vanish together, as at the minimum of y^6: the residual is Newton's step then. Each
    entry has its own size, so that a large gradient elsewhere hides nothing; multipliers and curvature count at most as
    much as the largest gradient, so that huge multipliers that cancel each other hide nothing either. Of a gradient
    whose own terms cancel, what is left may be rounding: a little of their size counts, too.
    """
    size, y = abs(at.gradient), at.y
    if at.objective.terms is not None:
        size = size + CONVEX_TOLERANCES.cancelled * at.objective.terms
    terms = rows.terms(abs(multipliers)) + np.maximum(at.hessian.diagonal(), 0.0) * (1 + abs(y))
    if rows.balls:
        terms = terms + abs(rows.ball_normals(y)).T @ ball_multipliers
    return positive(size + np.minimum(terms, at.scale))


def measure(at: Local, rows: Rows, multipliers: np.ndarray, ball_multipliers: np.ndarray) -> Point:
    """Recompute the residuals of the optimality conditions."""
    y, scale = at.y, term_sizes(at, rows, multipliers, ball_multipliers)
    gradient = at.gradient + rows.transpose @ multipliers  # of the Lagrangian
    below, above = rows.slack(y)
    upward = multipliers > 0
    bound = np.where(upward, rows.upper, rows.lower)
    slack = np.where(upward, above, below) / (1 + abs(np.where(np.isfinite(bound), bound, 0.0)))
    slack = np.where(multipliers != 0, abs(slack), 0.0)
    size = rows.relative(abs(multipliers), scale)
    product, smaller = np.max(size * slack, initial=0.0), np.max(np.minimum(size, slack), initial=0.0)
    if rows.balls:
        gradient = gradient + rows.ball_normals(y).T @ ball_multipliers
        gaps = abs(rows.ball_gaps(y)) / (1 + rows.radii)
        size = rows.ball_relative(ball_multipliers, scale)
        product, smaller = max(product, np.max(size * gaps)), max(smaller, np.max(np.minimum(size, gaps)))
    if rows.domain.bounded:
        gradient = np.where(rows.domain.stopped(y, gradient), 0.0, gradient)
    residuals = (float(np.max(abs(gradient) / scale)), rows.infeasibility(y), float(product))
    return Point(at, multipliers, ball_multipliers, scale, residuals, float(max(*residuals, smaller)))
