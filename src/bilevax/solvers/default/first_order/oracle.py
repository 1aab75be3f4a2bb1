"""The matrix-free oracle: Phi smoothed by a pair of perturbed lower levels, solved by accelerated primal-dual sweeps.

Two answers y+ and y-, with multipliers l+ and l-, minimise g +- delta f, where grad_y f is taken at their midpoint ym
and the sides of rows give way by ``eps * l``. They are the saddle point of

    F(x) = f(x, ym) + [L(y+, l+) - L(y-, l-)] / (2 delta),
    L    = g + l' (B x + A y) - (support of the row bounds, tightened by +-delta kappa eps)(l) - eps |l|^2 / 2,

so that ``grad F = grad_x f + [grad_x g(y+) - grad_x g(y-) + B' (l+ - l-)] / (2 delta)`` takes no linear solve. For a
quadratic g and rows that are active for both or for neither, delta causes no error at all; at a kink it smooths.

The sweeps are in `first_order_sweeps`; here it is decided when to sweep, with which smoothing and which step sizes.
"""

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import place
from bilevax.model.sets import Box, ConvexSet, Free, Product
from bilevax.solvers.default.first_order.lower import (
    LowerLevel,
    hessian_row_lengths,
    largest_curvature,
    project_both,
    row_lengths,
    row_norm,
)
from bilevax.solvers.default.first_order.settings import FIRST_ORDER
from bilevax.solvers.default.first_order.sweeps import (
    Goal,
    Memory,
    Setting,
    Solved,
    Start,
    empty_memory,
    sweep_until_accurate,
)
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import SmoothPoint
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class Pair:
    """How much is smoothed.

    Attributes
    ----------
    delta
        The weight of f in the perturbed lower levels.
    softness
        By how much the sides of rows give way, in units in which 1 is as soft as g.
    kappa
        The price of infeasibility.
    spread
        The relative distance between the two answers that delta is chosen for.
    """

    delta: float
    softness: float
    kappa: float
    spread: float


class Steps(NamedTuple):
    """The step sizes of sweeps, and what they come from.

    Attributes
    ----------
    longest
        The longest steps of y that g's curvature allows, one for each variable where Y allows it.
    balance
        The limit of y's steps that balances them against those of the multipliers.
    tau, sigma
        The step sizes of y and of the multipliers.
    norm
        The norm of A, its rows scaled to length 1 and its columns by the square roots of tau.
    """

    longest: np.ndarray
    balance: float
    tau: np.ndarray
    sigma: np.ndarray
    norm: float


class PairState(NamedTuple):
    """What the oracle has learned, besides the points it returned.

    Attributes
    ----------
    sweeps
        How many sweeps were done.
    memory, ratio
        Anderson's memory, and the largest ratio of the hypergradient's error to the residual of a sweep.
    gradient_scale, known_size
        The largest size of the hypergradient at the beginning, and its size where it was last known accurately.
    steps, shortened
        The step sizes, and whether they were shortened since the stage began.
    """

    sweeps: int
    memory: Memory
    ratio: Array
    gradient_scale: float
    known_size: float
    steps: Steps
    shortened: bool


class PairOracle(Learning):
    """The smoothed objective by sweeps, each evaluation started from the answer of another."""

    State = PairState

    def __init__(self, flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray):
        self.flat, self.upper, self.x, self.sweeps = flat, upper, x, 0
        self._seconds_a_sweep = 1.0  # until measured
        self.lower = LowerLevel(place(flat.problem, np.float64), flat.x_like, flat.y_like)
        self.face = flat.x_rows.intervals()
        low, high = self.lower.bounds()
        self.bounds = np.asarray(low), np.asarray(high)
        self.inequality = self.bounds[0] < self.bounds[1]
        self.n, self.m = flat.n_y, len(self.inequality)
        self.separable = _separable(flat.problem.y_set)
        random, count = np.random.default_rng(0), FIRST_ORDER.probes
        self.start = jnp.asarray(random.standard_normal(self.n))
        signs = np.eye(self.n) if self.n <= count else random.choice([-1.0, 1.0], (count, self.n)) / np.sqrt(count)
        self.probes = jnp.asarray(signs)
        lengths = np.asarray(row_lengths(self.lower, self.probes)) if self.m else np.zeros(0)
        self.scale = 1 / np.where(lengths > FIRST_ORDER.zero_row * lengths.max(initial=0.0), lengths, 1.0)
        pair = jnp.stack([jnp.asarray(y)] * 2)
        self.guess = np.asarray(project_both(self.lower, pair))[0]
        longest = self._longest_steps(x, pair)
        self.curvature = 1 / longest.min()
        self.shortened = False
        self._use(self._steps(longest, longest.min()))
        self.soft_unit = self.steps.norm**2 / self.scale**2
        self.gradient_scale, self.known_size = 0.0, np.inf

    def _longest_steps(self, x: np.ndarray, y: Array) -> np.ndarray:
        """Return the longest steps of y that g's curvature at two points allows."""
        point = jnp.asarray(x)
        bends = (
            np.asarray(hessian_row_lengths(self.lower, point, y, self.probes)) if self.separable else np.ones(self.n)
        )
        shape = 1 / np.maximum(bends, FIRST_ORDER.flat_row * max(bends.max(), FIRST_ORDER.flat_hessian))
        curvature = float(largest_curvature(self.lower, point, y, jnp.asarray(shape), self.start))
        return shape / max(curvature, FIRST_ORDER.least_curvature)

    def _steps(self, longest: np.ndarray, balance: float) -> Steps:
        """Return the step sizes for given limits of those of y."""
        tau = np.minimum(longest, balance)
        norm = float(row_norm(self.lower, jnp.asarray(self.scale), jnp.asarray(tau), self.start)) if self.m else 1.0
        return Steps(longest, balance, tau, (self.scale / positive(norm)) ** 2, norm)

    def _use(self, steps: Steps) -> None:
        """Sweep with other step sizes from now on: what was learned with the old ones does not apply."""
        self.steps, self.ratio = steps, jnp.zeros(())
        self._forget()

    def _forget(self) -> None:
        size = FIRST_ORDER.memory if self.n + self.m <= FIRST_ORDER.large else FIRST_ORDER.memory_large
        self.memory = empty_memory(size, self.n, self.m)

    def begin(self) -> SmoothPoint | None:
        """Return the first point, delta chosen so that its two answers lie the wanted distance apart."""
        y, x = self.guess, self.x
        pull = float(np.linalg.norm(self.flat.gradients("upper", x, y)[1]))
        size = max(float(np.linalg.norm(y)), FIRST_ORDER.least_size * np.sqrt(self.n))
        delta = FIRST_ORDER.first_move * self.curvature * size / max(pull, FIRST_ORDER.least_divisor)
        state = jnp.tile(jnp.concatenate([y, jnp.zeros(self.m + self.n)]), (2, 1))
        smoothing = Pair(delta, FIRST_ORDER.first_softness, 0.0, FIRST_ORDER.first_spread)
        point = self._evaluate(x, smoothing, state)
        for _ in range(FIRST_ORDER.first_refits):
            refitted = None if point is None else self.refit(point, FIRST_ORDER.refit_change_first)
            if refitted is None:
                break
            point = refitted
        return point

    def evaluate(
        self, x: np.ndarray, smoothing: Pair, warm: SmoothPoint, most: int | None = None
    ) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a near one; after ``most`` sweeps it may be inaccurate."""
        before = warm.smoothing
        if x is warm.x and smoothing == before:
            return warm
        state = warm.state
        if (smoothing.delta, smoothing.softness) != (before.delta, before.softness):
            middle, half = state.mean(axis=0), 0.5 * (state[0] - state[1]) * (smoothing.delta / before.delta)
            state = jnp.stack([middle + half, middle - half])
            self._forget()
        return self._evaluate(x, smoothing, state, most=most)

    def price(self, point: SmoothPoint) -> float:
        """Return a price for leaving the feasible set: above the rows' typical marginal value."""
        multipliers = np.asarray(self._multipliers(point))[:, self.inequality]
        marginal = np.abs(multipliers[0] - multipliers[1]) / (2 * point.smoothing.delta)
        if not (marginal > 0).any():
            return 0.0
        return FIRST_ORDER.price_factor * float(np.quantile(marginal[marginal > 0], FIRST_ORDER.price_quantile))

    def tighten(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point at the same x with rows ten times stiffer and the two answers ten times closer."""
        before = point.smoothing
        if self.shortened:  # for the curvature at a point that may lie far behind by now
            self._use(self._steps(self._longest_steps(point.x, self._answers(point)), self.steps.balance))
            self.shortened = False
        spread = FIRST_ORDER.stage_factor * before.spread
        change = spread / max(self._spread(point), FIRST_ORDER.least_divisor)
        delta = before.delta * float(np.clip(change, *FIRST_ORDER.stage_change))
        smoothing = Pair(delta, FIRST_ORDER.stage_factor * before.softness, before.kappa, spread)
        # All of the next stage starts from this point, so that it may take more sweeps than others.
        return self.evaluate(point.x, smoothing, point, FIRST_ORDER.stage_patience * FIRST_ORDER.max_sweeps)

    def advance(self, point: SmoothPoint, stiff: SmoothPoint) -> tuple[SmoothPoint, Pair]:
        """Return the tightened point as the start of the next stage."""
        return stiff, stiff.smoothing

    def refit(self, point: SmoothPoint, widest: float = FIRST_ORDER.refit_change) -> SmoothPoint | None:
        """Return the point with delta such that the two answers lie the stage's distance apart; None if they do.

        delta is changed by a factor ``widest`` at most.
        """
        smoothing, spread = point.smoothing, self._spread(point)
        if smoothing.spread / FIRST_ORDER.refit_factor <= spread <= FIRST_ORDER.refit_factor * smoothing.spread:
            return None
        change = smoothing.spread / max(spread, FIRST_ORDER.least_divisor)
        factor = float(np.clip(change, 1 / widest, min(widest, FIRST_ORDER.refit_growth)))
        return self.evaluate(point.x, dataclasses.replace(smoothing, delta=factor * smoothing.delta), point)

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point with a tenth of the error."""
        refined = self._evaluate(point.x, point.smoothing, point.state, share=FIRST_ORDER.refined_share)
        return point if refined is None else refined

    def promise(self, point: SmoothPoint) -> float:
        """Return what Phi near the point should not exceed, given how much its smoothing leaves open."""
        y = np.asarray(self._answers(point))
        value = lambda y: self.flat.value("upper", point.x, y)
        middle, bracket = value(point.y), value(y[1]) - value(y[0])
        bound = middle + abs(bracket) + 2 * abs(point.value - middle)
        return bound + FIRST_ORDER.promise_margin * (1 + abs(bound))

    def _answers(self, point: SmoothPoint) -> Array:
        """Return y+ and y-."""
        return project_both(self.lower, point.state[:, : self.n])

    def _multipliers(self, point: SmoothPoint) -> Array:
        """Return l+ and l-."""
        return point.state[:, self.n : self.n + self.m]

    def _spread(self, point: SmoothPoint) -> float:
        """Return the distance of both answers from their midpoint, relative; or that of the multipliers, if larger."""
        y, multipliers = np.asarray(self._answers(point)), np.asarray(self._multipliers(point))
        apart = lambda v, least: np.linalg.norm(v[0] - v[1]) / max(np.linalg.norm(v[0] + v[1]), 2 * least)
        of_y = apart(y, FIRST_ORDER.spread_least_y * np.sqrt(self.n))
        if np.linalg.norm(multipliers) <= FIRST_ORDER.spread_no_multipliers:
            return float(of_y)
        return float(max(of_y, min(apart(multipliers, FIRST_ORDER.spread_least_multipliers), 1.0)))

    def _evaluate(
        self,
        x: np.ndarray,
        smoothing: Pair,
        state: Any,
        share: float = FIRST_ORDER.error_share,
        most: int | None = None,
    ) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a state: accurate to ``share``, or after ``most`` sweeps."""
        floor = FIRST_ORDER.least_gradient * max(1.0, self.gradient_scale)
        ceiling = max(FIRST_ORDER.gradient_growth * self.known_size, floor)
        left, accurate, within = most or FIRST_ORDER.max_sweeps, False, share
        while True:
            until = min([left] + [at - self.sweeps for at in FIRST_ORDER.rebalance_at if at > self.sweeps])
            solved = self._sweep(self._setting(x, smoothing), state, (within, floor, ceiling), until)
            done = int(solved.loop.sweeps)
            self.sweeps += done
            left -= done
            gradient, state = np.asarray(solved.gradient), solved.state
            if not (np.isfinite(float(solved.value)) and np.isfinite(gradient).all()):
                self._forget()
                return None
            self.memory, self.ratio = solved.loop.memory, solved.loop.ratio
            if solved.loop.steep and left > 0:
                self._shorten(x, solved.y)
                continue
            if self.sweeps in FIRST_ORDER.rebalance_at:
                self._rebalance(np.asarray(solved.y), np.asarray(solved.multipliers))
            size = float(np.linalg.norm(self.upper.project(x - gradient) - x))
            wanted = FIRST_ORDER.error_rounding * share * np.clip(size, floor, ceiling)
            accurate = bool(solved.accurate) and float(solved.error) <= wanted
            if accurate or left <= 0:
                break
            if solved.accurate:
                # The compiled loop projects onto the bounds of X alone. Where X has other rows it is told the share of
                # the gradient's own size that makes the same error.
                within = share * max(size, floor) / max(float(np.linalg.norm(gradient)), floor)
                ceiling = np.inf
        if self.sweeps < FIRST_ORDER.gradient_scale_sweeps:
            self.gradient_scale = max(self.gradient_scale, size)
        self.known_size = size if accurate else self.known_size
        y, multipliers = np.asarray(solved.y), np.asarray(solved.multipliers)
        return SmoothPoint(
            x=x,
            y=0.5 * (y[0] + y[1]),
            multiplier=np.abs(multipliers[:, self.inequality]).ravel(),
            value=float(solved.value),
            gradient=gradient,
            smoothing=smoothing,
            state=solved.state,
            error=float(solved.error),
            accurate=accurate,
        )

    def _setting(self, x: np.ndarray, smoothing: Pair) -> Setting:
        """Return the numbers of the smoothed problem; as arrays they are traced, so that new ones compile nothing."""
        softness, (low, high) = smoothing.softness * self.soft_unit, self.bounds
        tighten = np.where(self.inequality, smoothing.delta * smoothing.kappa * softness, 0.0)
        tighten = np.minimum(tighten, np.where(self.inequality, 0.5 * (high - low), 0.0))
        numbers = (x, smoothing.delta, softness, low, high, tighten, self.steps.tau, self.steps.sigma, *self.face)
        return Setting(*map(jnp.asarray, numbers))

    def _sweep(self, setting: Setting, state: Any, accuracy: tuple[float, float, float], most: int) -> Solved:
        """Sweep until accurate, at most so often, with a look at the clock now and then, which changes no result."""
        start, done, paused = Start(state, self.memory, self.ratio), 0, None
        while True:
            limit, began = min(most, done + self._patience()), time.monotonic()
            goal = Goal(*map(jnp.asarray, (*accuracy, limit)))
            solved = sweep_until_accurate(self.lower, setting, start, goal, paused)
            before, done, paused = done, int(solved.loop.sweeps), solved.loop
            self._seconds_a_sweep = (time.monotonic() - began) / max(done - before, 1)
            if done >= most or not solved.unfinished:
                return solved

    def _patience(self) -> int:
        """Return after how many sweeps to look at the clock: after all of them if there is no time limit."""
        clock.check()
        if clock.remaining() == np.inf:
            return FIRST_ORDER.max_sweeps
        return max(FIRST_ORDER.look_sweeps, int(FIRST_ORDER.look_seconds / self._seconds_a_sweep))

    def _shorten(self, x: np.ndarray, y: Array) -> None:
        """Shorten the steps where g bends more at y, and all of them by a margin, as it may bend still more nearby."""
        longest = FIRST_ORDER.shortening * np.minimum(self.steps.longest, self._longest_steps(x, y))
        self._use(self._steps(longest, self.steps.balance))
        self.shortened = True

    def _rebalance(self, y: np.ndarray, multipliers: np.ndarray) -> None:
        """Balance the steps of y and of the multipliers by the sizes of both, as a primal-dual method needs it."""
        steps = self.steps
        size = float(np.linalg.norm(multipliers / self.scale)) * steps.norm / np.sqrt(steps.tau.max())
        least = FIRST_ORDER.least_divisor
        balance = max(float(np.linalg.norm(y)), least) / size if size > 0 else steps.longest.min()
        change = abs(np.log(np.minimum(steps.longest, balance) / steps.tau)).max()
        if change > FIRST_ORDER.rebalance_change:
            self._use(self._steps(steps.longest, balance))


def _separable(y_set: ConvexSet) -> bool:
    """Return whether Y bounds each variable alone: then each may have a step size of its own."""
    parts = (
        jax.tree.leaves(y_set.sets, is_leaf=lambda v: isinstance(v, ConvexSet))
        if isinstance(y_set, Product)
        else [y_set]
    )
    return all(isinstance(part, Box | Free) for part in parts)
