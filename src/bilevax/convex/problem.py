"""A smooth convex problem under linear rows and balls as data, and what is known of its solution."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sparse

from bilevax.convex.settings import DOMAIN


@dataclass(frozen=True)
class Objective:
    """A twice differentiable convex function, as callables of a point.

    Attributes
    ----------
    value, gradient
        The function and its gradient. They may return nan or inf outside the function's domain.
    hessian
        The full symmetric Hessian as a sparse matrix.
    terms
        The size of the terms that the gradient's linear part was added up from, where that is known: what is left of
        them where they cancel is rounding.
    """

    value: Callable[[np.ndarray], float]
    gradient: Callable[[np.ndarray], np.ndarray]
    hessian: Callable[[np.ndarray], sparse.csc_matrix]
    terms: np.ndarray | None = None


@dataclass(frozen=True)
class Ball:
    """The constraint ``|y[index] - center| <= radius``."""

    index: np.ndarray
    center: np.ndarray
    radius: float


@dataclass(frozen=True)
class Constraints:
    """The rows ``lower <= matrix @ y <= upper`` and some balls.

    Attributes
    ----------
    matrix, lower, upper
        The rows; a side may be infinite, and ``lower == upper`` is an equality.
    balls
        Constraints ``|y[index] - center| <= radius``.
    relaxable
        How many leading rows the smallest uniform relaxation may relax; the other rows and the balls are hard.
    """

    matrix: sparse.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    balls: tuple[Ball, ...] = ()
    relaxable: int = 0

    def __post_init__(self):
        rows, columns = self.matrix.shape
        if columns == 0:
            raise ValueError("the matrix has no columns: there is nothing to minimise over")
        if self.lower.shape != (rows,) or self.upper.shape != (rows,):
            raise ValueError(f"expected {rows} bounds, got lower {self.lower.shape} and upper {self.upper.shape}")
        if not 0 <= self.relaxable <= rows:
            raise ValueError(f"relaxable must lie between 0 and {rows}, got {self.relaxable}")
        if not np.all(np.isfinite(self.matrix.data)):
            raise ValueError("the matrix of the rows has entries that are not finite")
        if not (np.all(self.lower < np.inf) and np.all(self.upper > -np.inf)):
            raise ValueError("expected lower < inf and upper > -inf; at least one bound is nan or on the wrong side")
        for ball in self.balls:
            if not (ball.radius > 0 and np.shape(ball.center) == np.shape(ball.index)):
                raise ValueError(f"a ball needs a radius > 0 and one center per index, got radius {ball.radius}")


@dataclass(frozen=True)
class Domain:
    """Bounds of single variables at which the objective's gradient is infinite: no minimiser lies on them.

    `low` and `high` are infinite for variables without such a bound. `rows_below` and `rows_above` are the rows of the
    problem whose lower and upper sides these bounds are.
    """

    low: np.ndarray = field(default_factory=lambda: np.array(-np.inf))
    high: np.ndarray = field(default_factory=lambda: np.array(np.inf))
    rows_below: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    rows_above: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    @functools.cached_property
    def bounded(self) -> bool:
        return bool(np.any(np.isfinite(self.low)) or np.any(np.isfinite(self.high)))

    def leaves(self, y: np.ndarray, step: np.ndarray) -> bool:
        """Whether a step goes more than half the way to a border."""
        return bool(np.any(abs(step) > DOMAIN.bent_share * np.where(step < 0, y - self.low, self.high - y)))

    def bent(self, y: np.ndarray, step: np.ndarray, most: float = np.inf) -> np.ndarray:
        """The end of a step that is bent where it goes more than half the way to a border.

        The distance to the border then shrinks exponentially, as Newton's step means for a logarithm: by a factor
        exp(`most`) at most, and never to 0.
        """
        distance = np.where(step < 0, y - self.low, self.high - y)
        shrunk = np.flatnonzero(abs(step) > DOMAIN.bent_share * distance)
        shrinking = np.exp(-np.minimum(abs(step[shrunk]) / distance[shrunk], most))
        left = np.maximum(distance[shrunk] * shrinking, DOMAIN.least_distance)
        end = y + step
        end[shrunk] = np.where(step[shrunk] < 0, self.low[shrunk] + left, self.high[shrunk] - left)
        return end

    def stopped(self, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Which variables lie as close to a border as is allowed, while descent would take them still closer."""
        least = DOMAIN.least_distance
        return ((y - self.low <= least) & (gradient > 0)) | ((self.high - y <= least) & (gradient < 0))

    def around(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The longest steps of each variable downward and upward: most of the way to a border."""
        return DOMAIN.longest_share * (self.low - y), DOMAIN.longest_share * (self.high - y)

    def inside(self, y: np.ndarray, fallback: np.ndarray) -> np.ndarray:
        """The point, with entries that are not inside the domain taken from a fallback that is."""
        return np.where((y > self.low) & (y < self.high), y, fallback)


class Outcome(enum.Enum):
    """How a minimisation ended."""

    OPTIMAL = "the optimality conditions hold within the tolerance"
    INFEASIBLE = "no point satisfies the constraints; `relaxation` says by how much they miss each other"
    UNBOUNDED = "the objective decreases for ever along a ray of feasible points: it has no minimiser"
    NOT_CONVEX = "the Hessian has a negative eigenvalue at a feasible point"
    INACCURATE = "the optimality conditions could not be met within the tolerance; see the residuals"


@dataclass(frozen=True)
class ConvexSolution:
    """A minimiser with its multipliers and the residuals of the optimality conditions.

    The conditions are ``gradient + matrix.T @ multipliers + sum_k ball_multipliers[k] (y - center)_index = 0``. A
    multiplier is positive only when the upper side of its row is active, negative only when the lower side is, and
    free on equality rows; ball multipliers are nonnegative.

    Attributes
    ----------
    y, multipliers, ball_multipliers
        The point and the multipliers of the rows and of the balls.
    outcome
        What the point is.
    relaxation
        Smallest t >= 0 such that the hard constraints and ``lower - t <= matrix @ y <= upper + t`` on the
        relaxable rows have a common point: 0 when the constraints are feasible, inf when the hard ones are not.
        A positive value with `Outcome.OPTIMAL` is rounding; residuals then refer to the rows relaxed by it.
    stationarity
        Smallest s with ``|gradient + matrix.T @ multipliers + ball terms|_k <= s scale_k`` for every entry k, where
        ``scale_k = |gradient_k| + min(sum_i |matrix_ik multipliers_i| + hessian_kk (1 + |y_k|), 1 + max |gradient|)``
        is the size of what is added up there.
    infeasibility
        Smallest s with ``violation_i <= s (|row_i| + |bound_i|)`` for every row that is not zero and
        ``violation <= s (1 + radius)`` for every ball. Scaling a row does not change it.
    complementarity
        Smallest s with ``size_i slack_i <= s (1 + |bound_i|)`` for every row i of length 1, where ``size_i`` is the
        largest ``|matrix_ik multiplier_i| / scale_k`` and the slack that of the side the multiplier's sign belongs to;
        inf for a multiplier whose sign belongs to an infinite side.
    sharp
        Whether it is clear which rows are active: of multiplier and slack one is zero up to rounding.
    unique
        True when the minimiser is known to be unique; False when it may not be.
    iterations
        Number of quadratic programs solved.
    domain
        Which sides of rows are borders of the objective's domain: its gradient there is infinite, so no minimiser lies
        on them, however close.
    """

    y: np.ndarray
    multipliers: np.ndarray
    ball_multipliers: np.ndarray
    outcome: Outcome
    relaxation: float = 0.0
    stationarity: float = np.inf
    infeasibility: float = np.inf
    complementarity: float = np.inf
    sharp: bool = False
    unique: bool = False
    iterations: int = 0
    domain: Domain = field(default_factory=Domain)

    @property
    def residual(self) -> float:
        """The largest of the three residuals."""
        return max(self.stationarity, self.infeasibility, self.complementarity)
