"""The domain of g, as far as bounds of y are its borders.

Where g has a logarithm, a root or an inverse, its gradient is infinite on the border. Minimisers never lie there, so
such a bound is no row; but steps must end before it, and starts lie inside.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bilevax.model.flat import FlatProblem


@dataclasses.dataclass(frozen=True)
class Domain:
    """Open bounds of y, infinite where there are none, and a point well inside them where g is finite."""

    low: np.ndarray
    high: np.ndarray
    centre: np.ndarray

    @property
    def bounded(self) -> bool:
        """Whether there are any borders."""
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def enter(self, y: np.ndarray) -> np.ndarray:
        """Return y with the entries that are not inside taken from the centre."""
        return np.where((y > self.low) & (y < self.high), y, self.centre)

    def leaves(self, y: np.ndarray, step: np.ndarray) -> bool:
        """Return whether a step goes more than half the way to a border."""
        return bool(np.any((step < 0) & (-step > 0.5 * (y - self.low)) | (step > 0) & (step > 0.5 * (self.high - y))))

    def bent(self, y: np.ndarray, step: np.ndarray, most: float = np.inf) -> np.ndarray:
        """Return the end of a step along which distances to borders that it would more than halve shrink exponentially.

        For an entropy that is where Newton's method wants to go. They shrink by a factor exp(``most``) at most.
        """
        slack = np.where(step < 0, y - self.low, self.high - y)
        shrunk = np.flatnonzero(np.abs(step) > 0.5 * slack)
        left = np.maximum(slack[shrunk] * np.exp(-np.minimum(np.abs(step[shrunk]) / slack[shrunk], most)), _LEAST)
        end = y + step
        end[shrunk] = np.where(step[shrunk] < 0, self.low[shrunk] + left, self.high[shrunk] - left)
        return end

    def kept_from(self, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the Lagrangian's gradient without the entries whose y is as close to its border as numbers go."""
        stopped = ((y - self.low <= _LEAST) & (gradient > 0)) | ((self.high - y <= _LEAST) & (gradient < 0))
        return np.where(stopped, 0.0, gradient)


_LEAST = 1e-100  # the least distance from a border


def no_domain(size: int) -> Domain:
    """Return a domain without borders."""
    return Domain(np.full(size, -np.inf), np.full(size, np.inf), np.zeros(size))


def find_domain(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> Domain:
    """Return the domain of g at x, as seen from y or, if g is not finite there, from where it is."""
    low, high = flat.y_rows.intervals()
    centre = _where_finite(flat, x, y)
    if flat.lower_is_quadratic:  # its gradient is finite everywhere
        return dataclasses.replace(no_domain(flat.n_y), centre=centre)
    slope = lambda point: flat.gradients("lower", x, point)[1]
    sides = [(low, 1.0), (high, -1.0)]
    found = []
    for bound, sign in sides:
        candidates = np.isfinite(bound) & (low < high)
        infinite = _infinite(slope, centre, bound, sign, candidates)
        index = np.flatnonzero(infinite)
        if index.size and not flat.has_diagonal_hessian("lower", x, centre):
            # Together they may leave a domain that none of them leaves alone: log(a + b).
            alone = [np.isin(np.arange(len(bound)), i) for i in index[:_MANY]]
            kept = [i for i, one in zip(index, alone, strict=False) if _infinite(slope, centre, bound, sign, one)[i]]
            infinite = np.isin(np.arange(len(bound)), [*kept, *index[_MANY:]])
        found.append(np.where(infinite, bound, -sign * np.inf))
    return Domain(found[0], found[1], centre)


_MANY = 100  # bounds up to which each is looked at alone


def _infinite(slope, centre: np.ndarray, bound: np.ndarray, sign: float, candidates: np.ndarray) -> np.ndarray:
    """Return at which bounds the slope is infinite: over each next hundredth of the way it falls by as much again.

    Some functions are guarded, like 0 log 0 = 0: then the slope at the bound itself is out of line.
    """
    if not candidates.any():
        return candidates
    way = np.where(candidates, centre - bound, 0.0)
    at = lambda part: sign * slope(np.where(candidates, bound, centre) + part * way)
    outer, middle, inner, there = at(1e-6), at(1e-8), at(1e-10), at(0.0)
    falls = middle - inner > np.maximum(0.5 * (outer - middle), 1e-10 * np.abs(middle))
    return candidates & falls & ~(np.isfinite(there) & (there <= inner))


def _where_finite(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a point near y, well inside its bounds, where g is finite; y itself where none is found."""
    inside, random = flat.y_rows.well_inside, np.random.default_rng(0)
    finite = lambda point: np.isfinite(flat.gradients("lower", x, point)[1]).all()

    def points() -> Iterator[np.ndarray]:
        ones = np.ones(len(y))
        yield from (inside(y), y, inside(0 * ones), inside(ones), inside(-ones))
        yield from (inside(size * random.standard_normal(len(y))) for size in (1.0, 0.1, 10.0) for _ in range(20))

    return next(filter(finite, points()), y)
