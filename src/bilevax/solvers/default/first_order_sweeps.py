"""The compiled part of the first-order oracle: primal-dual sweeps on a pair of perturbed lower levels.

`first_order` says what the pair is and chooses smoothing and step sizes. Here one sweep is a three-operator splitting
step (PD3O) on both systems: a gradient, A and A' each. Anderson acceleration over the last sweeps, with the plain sweep
to fall back on, makes it a Krylov method once the active set has settled. Below are the numbers from which step sizes
are chosen: lengths of the rows of A and of g's Hessian, and the largest curvature, by power iteration.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem


class LowerLevel(eqx.Module):
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


class Setting(NamedTuple):
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


class Memory(NamedTuple):
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
    memory: Memory
    sweeps: Array
    has_previous: Array
    accelerated: Array
    ratio: Array
    error: Array
    good: Array
    steep: Array


class Solved(NamedTuple):
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
    memory: Memory
    loop: _Inner
    unfinished: Array


_SAFE = 2.0  # an extrapolation that makes the residual grow by more is taken back
_FEWEST = 4  # sweeps before an answer counts as accurate
_FADING = 0.97  # by which the largest ratio of error to residual seen so far is forgotten in a sweep
_SIGNAL = 3e-2  # residual against the difference of the two systems, at most
_BEND = 1.2  # times the curvature that the step sizes allow for, at most


def _both(function: Any, pair: Any) -> Array:
    return jnp.stack([function(pair[0]), function(pair[1])])


def _sweep(lower: LowerLevel, setting: Setting, fixed: Any, state: Array) -> _Swept:
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


def _tightened(setting: Setting, sign: Array) -> tuple[Array, Array]:
    return setting.lower + sign * setting.tighten, setting.upper - sign * setting.tighten


def _value(lower: LowerLevel, setting: Setting, fixed: Any, y: Array, force: Array) -> Array:
    low, high = _tightened(setting, jnp.array([[1.0], [-1.0]]))

    def lagrangian(k: int) -> Array:
        side = jnp.where(force[k] > 0, high[k], jnp.where(force[k] < 0, low[k], 0.0))
        gap = lower.rows(setting.x, fixed, y[k]) - side
        return lower.objective(setting.x, y[k]) + force[k] @ (gap - 0.5 * setting.softness * force[k])

    middle = lower.upper(setting.x, 0.5 * (y[0] + y[1]))
    return middle + (lagrangian(0) - lagrangian(1)) / (2 * setting.delta)


@eqx.filter_jit
def sweep_until_accurate(
    lower: LowerLevel,
    setting: Setting,
    state: Array,
    memory: Memory,
    ratio: Array,
    share: Array,
    floor: Array,
    ceiling: Array,
    limit: Array,
    paused: _Inner | None = None,
) -> Solved:
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
    return Solved(
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


def _extrapolate(memory: Memory, change: Array, image: Array, residual: Array, known: Array) -> tuple[Memory, Array]:
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
    return Memory(residuals, images, gram, head, count), weights @ images


@eqx.filter_jit
def project_both(lower: LowerLevel, pair: Array) -> Array:
    """Return two points projected onto Y."""
    return _both(lower.project, pair)


@eqx.filter_jit
def row_lengths(lower: LowerLevel, probes: Array) -> Array:
    """Return the length of each row of A; ``probes`` are unit vectors, or random signs for an estimate."""
    x = jnp.zeros(trees.size(lower.x_like))
    zero = lower.rows(x, lower.fixed(x), jnp.zeros(probes.shape[1]))
    squares = jax.lax.map(lambda v: (lower.rows(x, lower.fixed(x), v) - zero) ** 2, probes)
    return jnp.sqrt(jnp.sum(squares, axis=0))


@eqx.filter_jit
def row_norm(lower: LowerLevel, scale: Array, tau: Array, start: Array) -> Array:
    """Return the norm of ``diag(scale) A diag(tau)^(1/2)`` by power iteration."""
    x = jnp.zeros(trees.size(lower.x_like))
    zero = lower.rows(x, lower.fixed(x), jnp.zeros_like(start))
    root = jnp.sqrt(tau)
    apply = lambda v: root * lower.adjoint_y(scale**2 * (lower.rows(x, lower.fixed(x), root * v) - zero))
    return jnp.sqrt(_largest(apply, start, 1e-4, 60))


@eqx.filter_jit
def hessian_row_lengths(lower: LowerLevel, x: Array, y: Array, probes: Array) -> Array:
    """Return the length of each row of g's Hessian in y, the larger of two points; ``probes`` as for `row_lengths`."""
    gradient = jax.grad(lower.objective, argnums=1)
    product = lambda y, v: jax.jvp(lambda y: gradient(x, y), (y,), (v,))[1]
    lengths = lambda y: jnp.sqrt(jnp.sum(jax.lax.map(lambda v: product(y, v) ** 2, probes), axis=0))
    return jnp.maximum(lengths(y[0]), lengths(y[1]))


@eqx.filter_jit
def largest_curvature(lower: LowerLevel, x: Array, y: Array, tau: Array, start: Array) -> Array:
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
