"""The matrix-free oracle: Phi smoothed by a pair of perturbed lower levels, solved by accelerated primal-dual sweeps.

Two answers y+ and y-, with multipliers l+ and l-, minimise g +- delta f, where grad_y f is taken at their midpoint ym
and rows may give way by ``eps * l``. They are the saddle point of

    F(x) = f(x, ym) + [L(y+, l+) - L(y-, l-)] / (2 delta),
    L    = g + l' (B x + A y) - (support of the row bounds, tightened by +-delta kappa eps)(l) - eps |l|^2 / 2,

so that ``grad F = grad_x f + [grad_x g(y+) - grad_x g(y-) + B' (l+ - l-)] / (2 delta)`` without any linear solve. For
quadratic g and an active set that is the same for both, delta causes no error at all; at a kink it smooths.

One sweep is a three-operator splitting step (PD3O) on both systems: a gradient, A and A' each. Anderson acceleration
over the last sweeps, with the plain sweep to fall back on, makes it a Krylov method once the active set has settled.
"""

import dataclasses
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax._support import clock, trees
from bilevax.model.coupling import LinearCoupling
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, place
from bilevax.model.sets import Box, ConvexSet, Free, Product
from bilevax.solvers.default.quadratic_program import UpperSet
from bilevax.solvers.default.smoothing import SmoothPoint
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class Pair:
    """How much is smoothed; ``spread`` is the relative distance between the two answers that delta aims at."""

    delta: float
    softness: float
    kappa: float
    spread: float


class _Lower(eqx.Module):
    """The problem on flat vectors, inside compiled code."""

    problem: BilevelProblem
    x_like: PyTree
    y_like: PyTree

    def objective(self, x: Array, y: Array) -> Array:
        return self.problem.lower_value(self.x_tree(x), self.y_tree(y))

    def upper(self, x: Array, y: Array) -> Array:
        return self.problem.upper_value(self.x_tree(x), self.y_tree(y))

    def project(self, y: Array) -> Array:
        return trees.flatten(self.problem.y_set.project(self.y_tree(y)))

    def x_tree(self, x: Array) -> PyTree:
        return trees.unflatten(x, self.x_like)

    def y_tree(self, y: Array) -> PyTree:
        return trees.unflatten(y, self.y_like)

    def fixed(self, x: Array) -> tuple[Array, ...]:
        """Return what x adds to the rows of each coupling that has a matrix; the others take x as it is."""
        tree = self.x_tree(x)
        return tuple(
            part.B.mv(trees.flatten(tree)) if isinstance(part, LinearCoupling) and part.B is not None else jnp.zeros(())
            for part in self.problem.coupling
        )

    def rows(self, x: Array, fixed: tuple[Array, ...], y: Array) -> Array:
        """Return ``B x + A y``, with ``B x`` not applied anew."""
        parts = [
            part.A.mv(y) + offset
            if isinstance(part, LinearCoupling)
            else trees.flatten(part.value(self.x_tree(x), self.y_tree(y), self.problem.data))
            for part, offset in zip(self.problem.coupling, fixed, strict=True)
        ]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def row_tree(self, rows: Array) -> PyTree:
        like = jax.eval_shape(lambda x, y: self.problem.rows(x, y), self.x_like, self.y_like)
        return trees.unflatten(rows, like)

    def adjoint_y(self, forces: Array) -> Array:
        zero = trees.zeros(self.x_like), trees.zeros(self.y_like)
        return trees.flatten(self.problem.adjoint_y(*zero, self.row_tree(forces)))

    def adjoint_x(self, forces: Array) -> Array:
        zero = trees.zeros(self.x_like), trees.zeros(self.y_like)
        return trees.flatten(self.problem.adjoint_x(*zero, self.row_tree(forces)))

    def bounds(self) -> tuple[Array, Array]:
        like = jax.eval_shape(lambda x, y: self.problem.rows(x, y), self.x_like, self.y_like)
        low, high = self.problem.row_bounds(trees.zeros(like))
        return trees.flatten(low), trees.flatten(high)


class _Setting(NamedTuple):
    """The numbers of one smoothed problem: all traced, so that new ones compile nothing."""

    x: Array
    delta: Array
    softness: Array
    lower: Array
    upper: Array
    tighten: Array
    tau: Array
    sigma: Array
    face_lower: Array
    face_upper: Array


class _Memory(NamedTuple):
    """Anderson's memory: changes of the residual and of the swept point over the last accepted sweeps."""

    residuals: Array
    images: Array
    gram: Array
    head: Array
    stored: Array


class _Swept(NamedTuple):
    """What a sweep makes of a state, and what it sees on the way: both gradients of g in y, the hypergradient."""

    image: Array
    y: Array
    force: Array
    slope: Array
    gradient: Array


class _Inner(NamedTuple):
    """The loop: the state, the last plain sweep, and what the stopping test remembers."""

    state: Array
    fallback: Array
    residual: Array
    norm: Array
    swept: _Swept
    memory: _Memory
    sweeps: Array
    has_previous: Array
    accelerated: Array
    ratio: Array
    error: Array
    good: Array
    steep: Array


class _Solved(NamedTuple):
    """The smoothed problem's answer, and the loop as it stands: where ``unfinished``, to be gone on with."""

    state: Array
    y: Array
    force: Array
    value: Array
    gradient: Array
    error: Array
    sweeps: Array
    accurate: Array
    steep: Array
    ratio: Array
    memory: _Memory
    loop: _Inner
    unfinished: Array


_MEMORY = 20
_MEMORY_LARGE = 10
_LARGE = 20_000
_SAFE = 2.0
_FEWEST = 4
_FADING = 0.97
_SIGNAL = 3e-2
_BEND = 1.2


def _both(function: Any, pair: Any) -> Array:
    return jnp.stack([function(pair[0]), function(pair[1])])


def _sweep(lower: _Lower, setting: _Setting, fixed: Any, state: Array) -> _Swept:
    """One primal-dual step on both systems; ``state`` is (q, forces, A' forces) side by side."""
    n, m = trees.size(lower.y_like), setting.lower.shape[0]
    q, force, pull = state[:, :n], state[:, n : n + m], state[:, n + m :]
    y = _both(lower.project, q)
    f_x, f_y = jax.grad(lower.upper, argnums=(0, 1))(setting.x, 0.5 * (y[0] + y[1]))
    g_x, g_y = (
        jnp.stack(part)
        for part in zip(*(jax.grad(lower.objective, argnums=(0, 1))(setting.x, side) for side in y), strict=True)
    )
    sign = jnp.array([[1.0], [-1.0]])
    ahead = y - setting.tau * (g_y + sign * setting.delta * f_y)
    rows = _both(lambda v: lower.rows(setting.x, fixed, v), ahead + y - q - setting.tau * pull)
    wanted = force / setting.sigma + rows
    low, high = _tightened(setting, sign)
    force = (wanted - jnp.clip(wanted, low, high)) * (setting.sigma / (1 + setting.sigma * setting.softness))
    pull = _both(lower.adjoint_y, force)
    gradient = f_x + (g_x[0] - g_x[1] + lower.adjoint_x(force[0] - force[1])) / (2 * setting.delta)
    return _Swept(jnp.concatenate([ahead - setting.tau * pull, force, pull], axis=1), y, force, g_y, gradient)


def _tightened(setting: _Setting, sign: Array) -> tuple[Array, Array]:
    return setting.lower + sign * setting.tighten, setting.upper - sign * setting.tighten


def _value(lower: _Lower, setting: _Setting, fixed: Any, y: Array, force: Array) -> Array:
    low, high = _tightened(setting, jnp.array([[1.0], [-1.0]]))

    def lagrangian(k: int) -> Array:
        side = jnp.where(force[k] > 0, high[k], jnp.where(force[k] < 0, low[k], 0.0))
        gap = lower.rows(setting.x, fixed, y[k]) - side
        return lower.objective(setting.x, y[k]) + force[k] @ (gap - 0.5 * setting.softness * force[k])

    middle = lower.upper(setting.x, 0.5 * (y[0] + y[1]))
    return middle + (lagrangian(0) - lagrangian(1)) / (2 * setting.delta)


@eqx.filter_jit
def _solve(
    lower: _Lower,
    setting: _Setting,
    state: Array,
    memory: _Memory,
    ratio: Array,
    share: Array,
    floor: Array,
    ceiling: Array,
    limit: Array,
    paused: _Inner | None = None,
) -> _Solved:
    """Sweep until the hypergradient's error is below ``share`` of its projection's size, twice in a row.

    The size counts from ``floor`` to ``ceiling``: on the way hypergradients may be huge, and far from converged. A loop
    that was ``paused`` at its ``limit`` goes on as if it had not been.
    """
    n, m = trees.size(lower.y_like), setting.lower.shape[0]
    fixed = lower.fixed(setting.x)
    # The metric in which a sweep is nonexpansive.
    weight = jnp.concatenate([1 / jnp.sqrt(setting.tau), 1 / jnp.sqrt(setting.sigma)])

    def goal(gradient: Array) -> Array:
        step = jnp.clip(setting.x - gradient, setting.face_lower, setting.face_upper) - setting.x
        return share * jnp.clip(jnp.linalg.norm(step), floor, ceiling)

    def body(loop: _Inner) -> _Inner:
        swept = _sweep(lower, setting, fixed, loop.state)
        residual = (weight * (swept.image - loop.state)[:, : n + m]).ravel()
        norm = jnp.linalg.norm(residual)
        rejected = loop.accelerated & ~(norm <= _SAFE * loop.norm)
        known = loop.has_previous & ~rejected
        change = residual - loop.residual
        memory, step = _extrapolate(loop.memory, change, (swept.image - loop.fallback).ravel(), residual, known)
        memory = memory._replace(stored=jnp.where(rejected, loop.memory.stored // 2, memory.stored))
        state = jnp.where(rejected, loop.fallback, swept.image - step.reshape(swept.image.shape))
        moved = jnp.linalg.norm(swept.gradient - loop.swept.gradient)
        seen = jnp.where(known, moved / jnp.maximum(jnp.linalg.norm(change), 1e-300), 0.0)
        seen = jnp.where(loop.ratio > 0, jnp.minimum(seen, 1e3 * loop.ratio), seen)
        ratio = jnp.where(known, jnp.maximum(_FADING * loop.ratio, seen), loop.ratio)
        error = jnp.where(known, jnp.maximum(ratio * norm, moved), jnp.inf)
        # The difference of the two systems carries the hypergradient: it has to stand out of their residuals.
        both = weight * jnp.concatenate([swept.y[0] - swept.y[1], swept.force[0] - swept.force[1]])
        half = residual.reshape(2, n + m)
        signal = jnp.linalg.norm(half[0] - half[1]) <= _SIGNAL * jnp.linalg.norm(both)
        good = jnp.where((error <= goal(swept.gradient)) & signal, loop.good + 1, 0)
        # Where g bends more than the steps allow for, they are too long.
        travel = weight[:n] * (swept.y - loop.swept.y)
        bend = jnp.linalg.norm((swept.slope - loop.swept.slope) / weight[:n])
        far = jnp.linalg.norm(travel) > 1e-8 * jnp.linalg.norm(weight[:n] * swept.y)
        steep = known & far & (bend > _BEND * jnp.linalg.norm(travel))
        return _Inner(
            state=state,
            fallback=jnp.where(rejected, loop.fallback, swept.image),
            residual=residual,
            norm=norm,
            swept=swept,
            memory=memory,
            sweeps=loop.sweeps + 1,
            has_previous=~rejected,
            accelerated=(memory.stored > 0) & ~rejected,
            ratio=ratio,
            error=error,
            good=good,
            steep=steep,
        )

    def unfinished(loop: _Inner) -> Array:
        done = (loop.good >= 2) & (loop.sweeps >= _FEWEST)
        sane = jnp.isfinite(loop.norm) | ~loop.has_previous  # a rejected extrapolation may be anything
        return ~done & sane & ~loop.steep

    nothing = jnp.zeros(())
    first = _Inner(
        state=state,
        fallback=state,
        residual=jnp.zeros(2 * (n + m)),
        norm=nothing,
        swept=_Swept(state, state[:, :n], state[:, n : n + m], state[:, :n], jnp.zeros_like(setting.x)),
        memory=memory,
        sweeps=jnp.zeros((), int),
        has_previous=jnp.zeros((), bool),
        accelerated=jnp.zeros((), bool),
        ratio=ratio,
        error=nothing + jnp.inf,
        good=jnp.zeros((), int),
        steep=jnp.zeros((), bool),
    )
    proceed = lambda loop: unfinished(loop) & (loop.sweeps < limit)
    loop = jax.lax.while_loop(proceed, body, first if paused is None else paused)
    swept = loop.swept
    return _Solved(
        state=loop.fallback,
        y=swept.y,
        force=swept.force,
        value=_value(lower, setting, fixed, swept.y, swept.force),
        gradient=swept.gradient,
        error=loop.error,
        sweeps=loop.sweeps,
        accurate=(loop.good >= 2) & ~loop.steep,
        steep=loop.steep,
        ratio=loop.ratio,
        memory=loop.memory,
        loop=loop,
        unfinished=unfinished(loop),
    )


def _extrapolate(memory: _Memory, change: Array, image: Array, residual: Array, known: Array) -> tuple[_Memory, Array]:
    """Store a pair of changes if it is ``known``, and return what to subtract from the plain sweep."""
    head, size = memory.head, memory.residuals.shape[0]
    put = lambda rows, row: rows.at[head].set(jnp.where(known, row, rows[head]))
    residuals, images = put(memory.residuals, change), put(memory.images, image)
    latest = residuals @ residuals[head]
    gram = memory.gram.at[head].set(latest).at[:, head].set(latest)
    count = jnp.where(known, jnp.minimum(memory.stored + 1, size), memory.stored)
    head = jnp.where(known, (head + 1) % size, head)
    valid = (head - 1 - jnp.arange(size)) % size < count
    scale = jnp.where(valid, 1 / jnp.sqrt(jnp.maximum(jnp.diag(gram), 1e-300)), 0.0)
    system = gram * scale[:, None] * scale[None, :] + jnp.diag(jnp.where(valid, 1e-10, 1.0))
    weights = scale * jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(system), scale * (residuals @ residual))
    weights = jnp.where(jnp.isfinite(weights).all(), weights, 0.0)
    return _Memory(residuals, images, gram, head, count), weights @ images


@eqx.filter_jit
def _project_both(lower: _Lower, pair: Array) -> Array:
    """Return two points projected onto Y."""
    return _both(lower.project, pair)


@eqx.filter_jit
def _row_lengths(lower: _Lower, probes: Array) -> Array:
    """Return the length of each row of A; ``probes`` are unit vectors, or random signs for an estimate."""
    x = jnp.zeros(trees.size(lower.x_like))
    zero = lower.rows(x, lower.fixed(x), jnp.zeros(probes.shape[1]))
    squares = jax.lax.map(lambda v: (lower.rows(x, lower.fixed(x), v) - zero) ** 2, probes)
    return jnp.sqrt(jnp.sum(squares, axis=0))


@eqx.filter_jit
def _row_norm(lower: _Lower, scale: Array, tau: Array, start: Array) -> Array:
    """Return the norm of ``diag(scale) A diag(tau)^(1/2)`` by power iteration."""
    x = jnp.zeros(trees.size(lower.x_like))
    zero = lower.rows(x, lower.fixed(x), jnp.zeros_like(start))
    root = jnp.sqrt(tau)
    apply = lambda v: root * lower.adjoint_y(scale**2 * (lower.rows(x, lower.fixed(x), root * v) - zero))
    return jnp.sqrt(_largest(apply, start, 1e-4, 60))


@eqx.filter_jit
def _bends(lower: _Lower, x: Array, y: Array, probes: Array) -> Array:
    """Return the length of each row of g's Hessian in y, the larger of two points; ``probes`` as for `_row_lengths`."""
    gradient = jax.grad(lower.objective, argnums=1)
    product = lambda y, v: jax.jvp(lambda y: gradient(x, y), (y,), (v,))[1]
    lengths = lambda y: jnp.sqrt(jnp.sum(jax.lax.map(lambda v: product(y, v) ** 2, probes), axis=0))
    return jnp.maximum(lengths(y[0]), lengths(y[1]))


@eqx.filter_jit
def _curvature(lower: _Lower, x: Array, y: Array, tau: Array, start: Array) -> Array:
    """Return the largest curvature of g in y, in the metric of tau and over two points, by power iteration."""
    gradient, root = jax.grad(lower.objective, argnums=1), jnp.sqrt(tau)
    product = lambda y, v: root * jax.jvp(lambda y: gradient(x, y), (y,), (root * v,))[1]
    return jnp.maximum(*(_largest(lambda v, y=side: product(y, v), start, 1e-3, 30) for side in y))


def _largest(apply: Any, start: Array, accuracy: float, most: int) -> Array:
    def body(carry: Any) -> Any:
        vector, value, _, step = carry
        image = apply(vector)
        length = jnp.linalg.norm(image)
        return image / jnp.maximum(length, 1e-300), length, value, step + 1

    proceed = lambda carry: (carry[3] < most) & (jnp.abs(carry[1] - carry[2]) > accuracy * carry[1])
    first = (start / jnp.linalg.norm(start), jnp.ones(()), jnp.zeros(()), jnp.zeros((), int))
    return 1.02 * jax.lax.while_loop(proceed, body, first)[1]


class PairState(NamedTuple):
    """What sweeps change on the way, besides the points they return: their count, Anderson's memory and step sizes."""

    sweeps: int
    memory: _Memory
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
        self.lower = _Lower(place(flat.problem, np.float64), flat.x_like, flat.y_like)
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
        lengths = np.asarray(_row_lengths(self.lower, self.probes)) if m else np.zeros(0)
        self.scale = 1 / np.where(lengths > 1e-12 * lengths.max(initial=0.0), lengths, 1.0)
        pair = jnp.stack([jnp.asarray(y)] * 2)
        self.guess = np.asarray(_project_both(self.lower, pair))[0]
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
        bends = np.asarray(_bends(self.lower, point, y, self.probes)) if self.separable else np.ones(self.n)
        shape = 1 / np.maximum(bends, 1e-8 * max(bends.max(), 1e-4))
        self.longest = shape / max(float(_curvature(self.lower, point, y, jnp.asarray(shape), self.start)), 1e-12)

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
        self.norm = float(_row_norm(self.lower, jnp.asarray(self.scale), tau, self.start)) if len(self.scale) else 1.0
        self.sigma = (self.scale / max(self.norm, 1e-300)) ** 2
        self.ratio = jnp.zeros(())
        self._forget()

    def _forget(self) -> None:
        n, m = self.n, len(self.inequality)
        size = _MEMORY if n + m <= _LARGE else _MEMORY_LARGE  # reading the memory would cost more than a sweep
        self.memory = _Memory(
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
            self._measure(point.x, _project_both(self.lower, point.state[:, : self.n]))
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
        y = np.asarray(_project_both(self.lower, point.state[:, : self.n]))
        value = lambda y: self.flat.value("upper", point.x, y)
        middle, bracket = value(point.y), value(y[1]) - value(y[0])
        bound = middle + abs(bracket) + 2 * abs(point.value - middle)
        return bound + 1e-3 * (1 + abs(bound))

    def _spread(self, point: SmoothPoint) -> float:
        """Return half the distance between the two answers relative to their size, or that of the forces if larger."""
        n, m = self.n, len(self.inequality)
        state = np.asarray(point.state)
        y, force = np.asarray(_project_both(self.lower, point.state[:, :n])), state[:, n : n + m]
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
            solved = self._sweep(_Setting(*map(jnp.asarray, numbers)), state, (within, floor, ceiling), most_now)
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

    def _sweep(self, setting: _Setting, state: Any, goal: tuple[float, ...], most: int) -> _Solved:
        """Sweep at most so often; looking at the clock on the way changes nothing."""
        done, paused = 0, None
        while True:
            limit, began = min(most, done + self._patience()), time.monotonic()
            numbers = map(jnp.asarray, (*goal, limit))
            solved = _solve(self.lower, setting, state, self.memory, self.ratio, *numbers, paused)
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


_GROWTH = 3.0
_PROBES = 64
_MOST = 1500
_GLANCE = 50  # sweeps in one go even where they are slow
