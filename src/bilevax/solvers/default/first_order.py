"""The matrix-free oracle: Phi smoothed by a pair of perturbed lower levels, solved by accelerated primal-dual sweeps.

Two answers y+ and y-, with multipliers l+ and l-, minimise g +- delta f, where grad_y f is taken at their midpoint ym
and rows may give way by ``eps * l``. They are the saddle point of

    F(x) = f(x, ym) + [L(y+, l+) - L(y-, l-)] / (2 delta),
    L    = g + l' (B x + A y) - (support of the row bounds, tightened by +-delta kappa eps)(l) - eps |l|^2 / 2,

so that ``grad F = grad_x f + [grad_x g(y+) - grad_x g(y-) + B' (l+ - l-)] / (2 delta)`` without any linear solve. For
quadratic g and an active set that is the same for both, delta causes no error at all; at a kink it smooths.

The sweeps are in `first_order_sweeps`; here is when to sweep, with which smoothing and which steps.
"""

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax._support import clock
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import place
from bilevax.model.sets import Box, ConvexSet, Free, Product
from bilevax.solvers.default.first_order_sweeps import (
    LowerLevel,
    Memory,
    Setting,
    Solved,
    hessian_row_lengths,
    largest_curvature,
    project_both,
    row_lengths,
    row_norm,
    sweep_until_accurate,
)
from bilevax.solvers.default.smoothing import SmoothPoint
from bilevax.solvers.default.upper_set import UpperSet
from bilevax.solvers.diary import Learning

_MEMORY = 20  # sweeps that Anderson's memory holds
_MEMORY_LARGE = 10  # the same for large problems: reading it would cost more than a sweep
_LARGE = 20_000  # variables and rows from which a problem is large for that
_GROWTH = 3.0  # times the last known size of the hypergradient: more does not count as its size
_PROBES = 64  # random signs that measure lengths of rows where there are more variables than this
_MOST = 1500  # sweeps of one evaluation
_GLANCE = 50  # sweeps in one go even where they are slow


@dataclasses.dataclass(frozen=True)
class Pair:
    """How much is smoothed; ``spread`` is the relative distance between the two answers that delta aims at."""

    delta: float
    softness: float
    kappa: float
    spread: float


class PairState(NamedTuple):
    """What sweeps change on the way, besides the points they return: their count, Anderson's memory and step sizes."""

    sweeps: int
    memory: Memory
    ratio: Array
    gradient_scale: float
    known_size: float
    balance: float
    longest: np.ndarray
    shortened: bool
    tau: np.ndarray
    sigma: np.ndarray
    norm: float


class PairOracle(Learning):
    """The smoothed objective by sweeps, each started from the last answer."""

    State = PairState

    def __init__(self, flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray):
        self.flat, self.upper, self.x, self.sweeps = flat, upper, x, 0
        self._seconds_a_sweep = 1.0  # until measured
        self.lower = LowerLevel(place(flat.problem, np.float64), flat.x_like, flat.y_like)
        self.face = flat.x_rows.intervals()
        low, high = self.lower.bounds()
        self.bounds = np.asarray(low), np.asarray(high)
        self.inequality = self.bounds[0] < self.bounds[1]
        n, m = flat.n_y, len(self.inequality)
        self.n = n
        self.separable = _separable(flat.problem.y_set)
        random = np.random.default_rng(0)
        self.start = jnp.asarray(random.standard_normal(n))
        signs = np.eye(n) if n <= _PROBES else random.choice([-1.0, 1.0], (_PROBES, n)) / np.sqrt(_PROBES)
        self.probes = jnp.asarray(signs)
        lengths = np.asarray(row_lengths(self.lower, self.probes)) if m else np.zeros(0)
        self.scale = 1 / np.where(lengths > 1e-12 * lengths.max(initial=0.0), lengths, 1.0)
        pair = jnp.stack([jnp.asarray(y)] * 2)
        self.guess = np.asarray(project_both(self.lower, pair))[0]
        self.balance, self.shortened = np.inf, False
        self._measure(x, pair)
        self.curvature = 1 / self.longest.min()
        self.balance = self.longest.min()
        self._set_steps()
        self.soft_unit = self.norm**2 / self.scale**2
        self.rebalance_at = [20, 60, 150, 400]
        self.gradient_scale, self.known_size = 0.0, np.inf

    def _measure(self, x: np.ndarray, y: Array) -> None:
        """Find the longest steps that g's curvature allows at two points: one for each variable where Y allows it."""
        point = jnp.asarray(x)
        bends = (
            np.asarray(hessian_row_lengths(self.lower, point, y, self.probes)) if self.separable else np.ones(self.n)
        )
        shape = 1 / np.maximum(bends, 1e-8 * max(bends.max(), 1e-4))
        self.longest = shape / max(
            float(largest_curvature(self.lower, point, y, jnp.asarray(shape), self.start)), 1e-12
        )

    def _shorten(self, x: np.ndarray, y: Array) -> None:
        """Shorten the steps where g bends more at y, and all by a margin: it bends still more somewhere near."""
        before = self.longest
        self._measure(x, y)
        self.longest, self.shortened = 0.7 * np.minimum(before, self.longest), True
        self._set_steps()

    def _set_steps(self) -> None:
        """Set the steps of y and of the forces, y's no longer than the balance between both."""
        self.tau = np.minimum(self.longest, self.balance)
        tau = jnp.asarray(self.tau)
        self.norm = float(row_norm(self.lower, jnp.asarray(self.scale), tau, self.start)) if len(self.scale) else 1.0
        self.sigma = (self.scale / max(self.norm, 1e-300)) ** 2
        self.ratio = jnp.zeros(())
        self._forget()

    def _forget(self) -> None:
        n, m = self.n, len(self.inequality)
        size = _MEMORY if n + m <= _LARGE else _MEMORY_LARGE  # reading the memory would cost more than a sweep
        self.memory = Memory(
            jnp.zeros((size, 2 * (n + m))),
            jnp.zeros((size, 2 * (2 * n + m))),
            jnp.zeros((size, size)),
            jnp.zeros((), int),
            jnp.zeros((), int),
        )

    def begin(self) -> SmoothPoint | None:
        """Return the first point, delta chosen so that its two answers lie the wanted distance apart."""
        n, m = self.n, len(self.inequality)
        y, x = self.guess, self.x
        pull = float(np.linalg.norm(self.flat.gradients("upper", x, y)[1]))
        size = max(float(np.linalg.norm(y)), 0.1 * np.sqrt(n))
        delta = 1e-2 * self.curvature * size / max(pull, 1e-12)
        state = jnp.tile(jnp.concatenate([y, jnp.zeros(m + n)]), (2, 1))
        point = self._evaluate(x, Pair(delta, 1e-3, 0.0, 0.1), state)
        for _ in range(8):
            refitted = None if point is None else self.refit(point, widest=1e3)
            if refitted is None:
                break
            point = refitted
        return point

    def evaluate(
        self, x: np.ndarray, smoothing: Pair, warm: SmoothPoint, most: int | None = None
    ) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a near one."""
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
        n, m = self.n, len(self.inequality)
        force = np.asarray(point.state)[:, n : n + m][:, self.inequality]
        marginal = np.abs(force[0] - force[1]) / (2 * point.smoothing.delta)
        return 2 * float(np.quantile(marginal[marginal > 0], 0.75)) if (marginal > 0).any() else 0.0

    def tighten(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point at the same x with rows ten times stiffer and the two answers ten times closer."""
        before = point.smoothing
        if self.shortened:  # the steps fit a place that may be left behind
            self._measure(point.x, project_both(self.lower, point.state[:, : self.n]))
            self._set_steps()
            self.shortened = False
        spread = 0.1 * before.spread
        delta = before.delta * float(np.clip(spread / max(self._spread(point), 1e-12), 1e-2, 3.0))
        # All of the stage starts from here: worth more patience than a step.
        return self.evaluate(point.x, Pair(delta, 0.1 * before.softness, before.kappa, spread), point, 4 * _MOST)

    def advance(self, point: SmoothPoint, stiff: SmoothPoint) -> tuple[SmoothPoint, Pair]:
        """Go on from the tightened point: its sweeps are done."""
        return stiff, stiff.smoothing

    def refit(self, point: SmoothPoint, widest: float = 10.0) -> SmoothPoint | None:
        """Return the point with delta such that the two answers lie the stage's distance apart; None if they do."""
        smoothing, spread = point.smoothing, self._spread(point)
        if smoothing.spread / 5 <= spread <= 5 * smoothing.spread:
            return None
        factor = float(np.clip(smoothing.spread / max(spread, 1e-12), 1 / widest, min(widest, 100.0)))
        return self.evaluate(point.x, dataclasses.replace(smoothing, delta=factor * smoothing.delta), point)

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point with a tenth of the error."""
        refined = self._evaluate(point.x, point.smoothing, point.state, share=0.01)
        return point if refined is None else refined

    def promise(self, point: SmoothPoint) -> float:
        """Return what Phi near the point should not exceed, for all that its smoothing leaves open."""
        y = np.asarray(project_both(self.lower, point.state[:, : self.n]))
        value = lambda y: self.flat.value("upper", point.x, y)
        middle, bracket = value(point.y), value(y[1]) - value(y[0])
        bound = middle + abs(bracket) + 2 * abs(point.value - middle)
        return bound + 1e-3 * (1 + abs(bound))

    def _spread(self, point: SmoothPoint) -> float:
        """Return half the distance between the two answers relative to their size, or that of the forces if larger."""
        n, m = self.n, len(self.inequality)
        state = np.asarray(point.state)
        y, force = np.asarray(project_both(self.lower, point.state[:, :n])), state[:, n : n + m]
        apart = lambda v, least: np.linalg.norm(v[0] - v[1]) / max(np.linalg.norm(v[0] + v[1]), 2 * least)
        of_y = apart(y, 1e-3 * np.sqrt(n))
        return float(max(of_y, min(apart(force, 1e-6), 1.0)) if np.linalg.norm(force) > 1e-9 else of_y)

    def _evaluate(
        self, x: np.ndarray, smoothing: Pair, state: Any, share: float = 0.1, most: int | None = None
    ) -> SmoothPoint | None:
        softness = smoothing.softness * self.soft_unit
        low, high = self.bounds
        tighten = np.where(self.inequality, smoothing.delta * smoothing.kappa * softness, 0.0)
        tighten = np.minimum(tighten, np.where(self.inequality, 0.5 * (high - low), 0.0))
        floor, left, accurate, within = 1e-6 * max(1.0, self.gradient_scale), most or _MOST, False, share
        ceiling = max(_GROWTH * self.known_size, floor)
        while True:
            numbers = (x, smoothing.delta, softness, low, high, tighten, self.tau, self.sigma, *self.face)
            most_now = min([left] + [at - self.sweeps for at in self.rebalance_at if at > self.sweeps])
            # As arrays all numbers are traced: new ones compile nothing.
            solved = self._sweep(Setting(*map(jnp.asarray, numbers)), state, (within, floor, ceiling), most_now)
            done = int(solved.sweeps)
            self.sweeps += done
            left -= done
            gradient, state = np.asarray(solved.gradient), solved.state
            if not (np.isfinite(float(solved.value)) and np.isfinite(gradient).all()):
                self._forget()
                return None
            self.memory, self.ratio = solved.memory, solved.ratio
            if solved.steep and left > 0:
                self._shorten(x, solved.y)
                continue
            if self.sweeps in self.rebalance_at:
                self._rebalance(np.asarray(solved.y), np.asarray(solved.force))
            measure = float(np.linalg.norm(self.upper.project(x - gradient) - x))
            accurate = bool(solved.accurate) and float(solved.error) <= 1.001 * share * np.clip(measure, floor, ceiling)
            if accurate or left <= 0:
                break
            if solved.accurate:
                # X is no box: its projection is not in the compiled loop, so the tolerance is handed in.
                within = share * max(measure, floor) / max(float(np.linalg.norm(gradient)), floor)
                ceiling = np.inf
        self.gradient_scale = max(self.gradient_scale, measure) if self.sweeps < 400 else self.gradient_scale
        self.known_size = measure if accurate else self.known_size
        y, force = np.asarray(solved.y), np.asarray(solved.force)
        return SmoothPoint(
            x=x,
            y=0.5 * (y[0] + y[1]),
            multiplier=np.abs(force[:, self.inequality]).ravel(),
            value=float(solved.value),
            gradient=gradient,
            smoothing=smoothing,
            state=solved.state,
            error=float(solved.error),
            accurate=accurate,
        )

    def _sweep(self, setting: Setting, state: Any, goal: tuple[float, ...], most: int) -> Solved:
        """Sweep at most so often; looking at the clock on the way changes nothing."""
        done, paused = 0, None
        while True:
            limit, began = min(most, done + self._patience()), time.monotonic()
            numbers = map(jnp.asarray, (*goal, limit))
            solved = sweep_until_accurate(self.lower, setting, state, self.memory, self.ratio, *numbers, paused)
            before, done, paused = done, int(solved.sweeps), solved.loop
            self._seconds_a_sweep = (time.monotonic() - began) / max(done - before, 1)
            if done >= most or not solved.unfinished:
                return solved

    def _patience(self) -> int:
        """Return after how many sweeps to look at the clock: after all of them where nobody waits."""
        clock.check()
        return _MOST if clock.remaining() == np.inf else max(_GLANCE, int(0.3 / self._seconds_a_sweep))

    def _rebalance(self, y: np.ndarray, force: np.ndarray) -> None:
        """Balance the steps of y and of the forces by the sizes of both, as a primal-dual method wants it."""
        pressure = float(np.linalg.norm(force / self.scale)) * self.norm / np.sqrt(self.tau.max())
        balance = max(float(np.linalg.norm(y)), 1e-12) / pressure if pressure > 0 else self.longest.min()
        if abs(np.log(np.minimum(self.longest, balance) / self.tau)).max() > 0.7:
            self.balance = balance
            self._set_steps()


def _separable(y_set: ConvexSet) -> bool:
    """Return whether Y bounds each variable alone: then each may have a step size of its own."""
    parts = (
        jax.tree.leaves(y_set.sets, is_leaf=lambda v: isinstance(v, ConvexSet))
        if isinstance(y_set, Product)
        else [y_set]
    )
    return all(isinstance(part, Box | Free) for part in parts)
