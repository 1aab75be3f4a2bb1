"""The compiled part of the first-order oracle: primal-dual sweeps on a pair of perturbed lower levels.

`first_order` says what the pair is and chooses smoothing and step sizes. One sweep is a three-operator splitting step
(PD3O) on both lower levels, which takes a gradient and a product with A and with A' for each. Anderson acceleration
extrapolates from the last sweeps, and is taken back where it fails; once the active set has settled the sweeps are
affine, and it becomes a Krylov method.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from bilevax._support import trees
from bilevax._support.division import positive
from bilevax.solvers.default.first_order.lower import LowerLevel, both
from bilevax.solvers.default.first_order.settings import FIRST_ORDER


class Setting(NamedTuple):
    """The numbers of one smoothed problem: all traced, so that new ones compile nothing.

    Attributes
    ----------
    x
        The point.
    delta, softness
        The weight of f in the perturbed lower levels, and how far a multiplier of 1 moves its row's sides.
    lower, upper, tighten
        The rows' sides, and by how much they are tightened in one lower level and widened in the other.
    tau, sigma
        Step sizes of y and of the multipliers.
    face_lower, face_upper
        Bounds of X, infinite where it has others than bounds.
    """

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


class Goal(NamedTuple):
    """When sweeps end: the hypergradient's error is at most ``share`` of its size, or ``limit`` sweeps are done.

    Its size is the length of its projected step, which counts as at least ``floor`` and at most ``ceiling``: before
    convergence hypergradients may be huge.
    """

    share: Array
    floor: Array
    ceiling: Array
    limit: Array


class Memory(NamedTuple):
    """Anderson's memory: changes of the residual and of the swept point over the last accepted sweeps.

    ``gram`` holds the products of all changes of the residual, ``head`` is where the next pair is put, and ``stored``
    counts the latest pairs that are in use.
    """

    residuals: Array
    images: Array
    gram: Array
    head: Array
    stored: Array


def empty_memory(size: int, n: int, m: int) -> Memory:
    """Return a memory for ``size`` sweeps of n variables and m rows that holds nothing yet."""
    return Memory(
        jnp.zeros((size, 2 * (n + m))),
        jnp.zeros((size, 2 * (2 * n + m))),
        jnp.zeros((size, size)),
        jnp.zeros((), int),
        jnp.zeros((), int),
    )


class Start(NamedTuple):
    """From where sweeps begin: a state, Anderson's memory, and the largest ratio of error to residual so far."""

    state: Array
    memory: Memory
    ratio: Array


class _Swept(NamedTuple):
    """The image of a state under one sweep, and what was computed on the way: see `Solved`.

    ``slope`` is the gradient of g in y at both answers.
    """

    image: Array
    y: Array
    multipliers: Array
    slope: Array
    gradient: Array


class Loop(NamedTuple):
    """The loop of sweeps, which can be paused and resumed.

    Attributes
    ----------
    state, fallback
        The state to be swept next, and the last image of a plain sweep, to which a failed extrapolation returns.
    residual, norm, swept
        What the last sweep changed, its length, and the sweep itself.
    memory, ratio
        Anderson's memory, and the largest ratio of the hypergradient's error to the residual, slowly forgotten.
    sweeps
        Their number.
    has_previous, accelerated
        Whether the last sweep was accepted, and whether ``state`` is an extrapolation.
    error
        The estimated error of the hypergradient.
    good, blind
        Sweeps in a row with an accurate hypergradient, and with one that is not finite.
    steep
        Whether g bends more than the step sizes allow for.
    """

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
    blind: Array
    steep: Array


class Solved(NamedTuple):
    """The answer of the smoothed problem, and the loop as it stands.

    Attributes
    ----------
    state
        From where other sweeps may begin.
    y, multipliers
        Both answers and their multipliers, one a row.
    value, gradient, error
        The smoothed objective, its gradient and the estimated error of that.
    accurate
        Whether the error is as small as the goal asks for.
    loop, unfinished
        The loop, and whether it ended only because of the limit.
    """

    state: Array
    y: Array
    multipliers: Array
    value: Array
    gradient: Array
    error: Array
    accurate: Array
    loop: Loop
    unfinished: Array


def _sweep(lower: LowerLevel, setting: Setting, fixed: Any, state: Array) -> _Swept:
    """One primal-dual step on both lower levels; ``state`` is (q, multipliers, A' multipliers) side by side.

    y is the projection of q onto Y.
    """
    n, m = trees.size(lower.y_like), setting.lower.shape[0]
    q, multipliers, pull = state[:, :n], state[:, n : n + m], state[:, n + m :]
    y = both(lower.project, q)
    f_x, f_y = jax.grad(lower.upper, argnums=(0, 1))(setting.x, 0.5 * (y[0] + y[1]))
    g_x, g_y = (
        jnp.stack(part)
        for part in zip(*(jax.grad(lower.objective, argnums=(0, 1))(setting.x, side) for side in y), strict=True)
    )
    sign = jnp.array([[1.0], [-1.0]])
    ahead = y - setting.tau * (g_y + sign * setting.delta * f_y)
    rows = both(lambda v: lower.rows(setting.x, fixed, v), ahead + y - q - setting.tau * pull)
    wanted = multipliers / setting.sigma + rows
    low, high = _tightened(setting, sign)
    multipliers = (wanted - jnp.clip(wanted, low, high)) * (setting.sigma / (1 + setting.sigma * setting.softness))
    pull = both(lower.adjoint_y, multipliers)
    apart = lower.adjoint_x(multipliers[0] - multipliers[1])
    gradient = f_x + (g_x[0] - g_x[1] + apart) / (2 * setting.delta)
    image = jnp.concatenate([ahead - setting.tau * pull, multipliers, pull], axis=1)
    return _Swept(image, y, multipliers, g_y, gradient)


def _tightened(setting: Setting, sign: Array) -> tuple[Array, Array]:
    return setting.lower + sign * setting.tighten, setting.upper - sign * setting.tighten


def _value(lower: LowerLevel, setting: Setting, fixed: Any, y: Array, multipliers: Array) -> Array:
    """Return the smoothed objective, as `first_order` defines it."""
    low, high = _tightened(setting, jnp.array([[1.0], [-1.0]]))

    def lagrangian(k: int) -> Array:
        side = jnp.where(multipliers[k] > 0, high[k], jnp.where(multipliers[k] < 0, low[k], 0.0))
        gap = lower.rows(setting.x, fixed, y[k]) - side
        return lower.objective(setting.x, y[k]) + multipliers[k] @ (gap - 0.5 * setting.softness * multipliers[k])

    middle = lower.upper(setting.x, 0.5 * (y[0] + y[1]))
    return middle + (lagrangian(0) - lagrangian(1)) / (2 * setting.delta)


@eqx.filter_jit
def sweep_until_accurate(
    lower: LowerLevel, setting: Setting, start: Start, goal: Goal, paused: Loop | None = None
) -> Solved:
    """Sweep until the hypergradient is as accurate as the goal asks for, twice in a row.

    A loop that was ``paused`` at its limit goes on as if it had not been.
    """
    fixed = lower.fixed(setting.x)
    # The metric in which a sweep is nonexpansive.
    weight = jnp.concatenate([1 / jnp.sqrt(setting.tau), 1 / jnp.sqrt(setting.sigma)])

    def body(loop: Loop) -> Loop:
        return _advance(loop, _sweep(lower, setting, fixed, loop.state), weight, _wanted_error(setting, goal))

    proceed = lambda loop: _unfinished(loop) & (loop.sweeps < goal.limit)
    loop = jax.lax.while_loop(proceed, body, _first_loop(lower, setting, start) if paused is None else paused)
    swept = loop.swept
    return Solved(
        state=loop.fallback,
        y=swept.y,
        multipliers=swept.multipliers,
        value=_value(lower, setting, fixed, swept.y, swept.multipliers),
        gradient=swept.gradient,
        error=loop.error,
        accurate=(loop.good >= FIRST_ORDER.accurate_sweeps) & ~loop.steep,
        loop=loop,
        unfinished=_unfinished(loop),
    )


def _wanted_error(setting: Setting, goal: Goal) -> Callable[[Array], Array]:
    """Return the function that tells which error of a hypergradient is small enough."""

    def wanted(gradient: Array) -> Array:
        step = jnp.clip(setting.x - gradient, setting.face_lower, setting.face_upper) - setting.x
        return goal.share * jnp.clip(jnp.linalg.norm(step), goal.floor, goal.ceiling)

    return wanted


def _unfinished(loop: Loop) -> Array:
    done = (loop.good >= FIRST_ORDER.accurate_sweeps) & (loop.sweeps >= FIRST_ORDER.fewest_sweeps)
    finite = jnp.isfinite(loop.norm) | ~loop.has_previous  # after a rejected extrapolation the norm may be anything
    return ~done & finite & ~loop.steep & (loop.blind < FIRST_ORDER.blind_sweeps)


def _first_loop(lower: LowerLevel, setting: Setting, start: Start) -> Loop:
    n, m = trees.size(lower.y_like), setting.lower.shape[0]
    state, nothing = start.state, jnp.zeros(())
    return Loop(
        state=state,
        fallback=state,
        residual=jnp.zeros(2 * (n + m)),
        norm=nothing,
        swept=_Swept(state, state[:, :n], state[:, n : n + m], state[:, :n], jnp.zeros_like(setting.x)),
        memory=start.memory,
        sweeps=jnp.zeros((), int),
        has_previous=jnp.zeros((), bool),
        accelerated=jnp.zeros((), bool),
        ratio=start.ratio,
        error=nothing + jnp.inf,
        good=jnp.zeros((), int),
        blind=jnp.zeros((), int),
        steep=jnp.zeros((), bool),
    )


def _advance(loop: Loop, swept: _Swept, weight: Array, wanted_error: Callable[[Array], Array]) -> Loop:
    """Return the loop after a sweep: extrapolated, or taken back where the last extrapolation failed."""
    n = swept.y.shape[1]
    residual = (weight * (swept.image - loop.state)[:, : weight.size]).ravel()
    norm = jnp.linalg.norm(residual)
    rejected = loop.accelerated & ~(norm <= FIRST_ORDER.extrapolation_growth * loop.norm)
    known = loop.has_previous & ~rejected
    change = residual - loop.residual
    memory, step = _extrapolate(loop.memory, change, (swept.image - loop.fallback).ravel(), residual, known)
    memory = memory._replace(stored=jnp.where(rejected, loop.memory.stored // 2, memory.stored))
    state = jnp.where(rejected, loop.fallback, swept.image - step.reshape(swept.image.shape))
    moved = jnp.linalg.norm(swept.gradient - loop.swept.gradient)
    seen = jnp.where(known, moved / positive(jnp.linalg.norm(change)), 0.0)
    seen = jnp.where(loop.ratio > 0, jnp.minimum(seen, FIRST_ORDER.ratio_growth * loop.ratio), seen)
    ratio = jnp.where(known, jnp.maximum(FIRST_ORDER.ratio_decay * loop.ratio, seen), loop.ratio)
    error = jnp.where(known, jnp.maximum(ratio * norm, moved), jnp.inf)
    # The hypergradient comes from the difference of the two lower levels, which has to stand out of their residuals.
    apart = weight * jnp.concatenate([swept.y[0] - swept.y[1], swept.multipliers[0] - swept.multipliers[1]])
    half = residual.reshape(2, weight.size)
    clear = jnp.linalg.norm(half[0] - half[1]) <= FIRST_ORDER.largest_noise * jnp.linalg.norm(apart)
    good = jnp.where((error <= wanted_error(swept.gradient)) & clear, loop.good + 1, 0)
    # Where g bends more than the steps allow for, they are too long.
    travel = weight[:n] * (swept.y - loop.swept.y)
    bend = jnp.linalg.norm((swept.slope - loop.swept.slope) / weight[:n])
    far = jnp.linalg.norm(travel) > FIRST_ORDER.least_move * jnp.linalg.norm(weight[:n] * swept.y)
    steep = known & far & (bend > FIRST_ORDER.largest_bend * jnp.linalg.norm(travel))
    return Loop(
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
        blind=jnp.where(jnp.isfinite(swept.gradient).all(), 0, loop.blind + 1),
        steep=steep,
    )


def _extrapolate(memory: Memory, change: Array, image: Array, residual: Array, known: Array) -> tuple[Memory, Array]:
    """Store a pair of changes if they are ``known``, and return what to subtract from the image of the sweep."""
    head, size = memory.head, memory.residuals.shape[0]
    put = lambda rows, row: rows.at[head].set(jnp.where(known, row, rows[head]))
    residuals, images = put(memory.residuals, change), put(memory.images, image)
    latest = residuals @ residuals[head]
    gram = memory.gram.at[head].set(latest).at[:, head].set(latest)
    count = jnp.where(known, jnp.minimum(memory.stored + 1, size), memory.stored)
    head = jnp.where(known, (head + 1) % size, head)
    valid = (head - 1 - jnp.arange(size)) % size < count
    scale = jnp.where(valid, 1 / jnp.sqrt(positive(jnp.diag(gram))), 0.0)
    system = gram * scale[:, None] * scale[None, :] + jnp.diag(jnp.where(valid, FIRST_ORDER.gram_regularisation, 1.0))
    weights = scale * jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(system), scale * (residuals @ residual))
    weights = jnp.where(jnp.isfinite(weights).all(), weights, 0.0)
    return Memory(residuals, images, gram, head, count), weights @ images
