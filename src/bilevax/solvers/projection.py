"""The projection onto ``{p in a simple set : lower <= rows(p) <= upper}`` by an accelerated dual method.

The dual of ``min |p - point|^2 / 2`` over that set has one variable a row, and needs only the rows, their adjoint and
the set's own projection, so that every kind of operator and set will do:

    p(m) = P(point - rows' m),    m <- proximal step of size 1/L at m with ascent rows(p(m)),    L >= |rows|^2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.multipliers import Rows, proximal_step

_TOLERANCE = 1e-10
_MAX_SWEEPS = 20_000
_POWER_SWEEPS = 50


class RowSet(NamedTuple):
    """The set, as functions of p.

    ``rows`` is affine; ``adjoint`` is that of its linear part, and ``project`` the projection without the rows.
    """

    problem: BilevelProblem
    rows: Callable[[PyTree], Rows]
    adjoint: Callable[[Rows], PyTree]
    project: Callable[[PyTree], PyTree]


class _Sweep(NamedTuple):
    point: PyTree
    multipliers: Rows
    previous: Rows
    momentum: Any
    done: Any
    count: Any


def squared_norm(row_set: RowSet, like: PyTree) -> Float[Array, ""]:
    """Return an upper bound of |rows|^2: power iteration, which approaches it from below, with a tenth to spare."""
    offset = row_set.rows(jax.tree.map(jnp.zeros_like, like))
    leaves, structure = jax.tree.flatten(offset)
    keys = jax.random.split(jax.random.key(0), max(len(leaves), 1))
    draws = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=False)]

    def sweep(_: Any, carry: tuple[Rows, Any]) -> tuple[Rows, Any]:
        vector, _ = carry
        image = trees.subtract(row_set.rows(row_set.adjoint(vector)), offset)
        size = jnp.sqrt(trees.dot(image, image))
        return jax.tree.map(lambda leaf: leaf / jnp.where(size > 0, size, 1.0), image), size

    start = jax.tree.unflatten(structure, draws)
    size = jnp.sqrt(trees.dot(start, start))
    start = jax.tree.map(lambda leaf: leaf / size, start)
    norm = jax.lax.fori_loop(0, _POWER_SWEEPS, sweep, (start, size))[1]
    return jnp.where(norm > 0, 1.1 * norm, 1.0)  # rows that are zero, or absent, need no step


def project_onto(row_set: RowSet, point: PyTree, multipliers: Rows, norm: Any) -> tuple[PyTree, Rows]:
    """Return the projection and its multipliers, starting from ``multipliers``.

    It stops when p = P(point - rows' m), exactly, has

        |rows(p) - clip(rows(p) + L m, lower, upper)| <= 1e-10 (1 + |rows(p)|)      (largest entry; L = ``norm``),

    which bounds the rows' violation and complementarity, or after 20,000 sweeps: the set may be empty. Where 1e-10 is
    beyond the precision (float32, or huge L m), a hundred roundings of |rows(p)| and ten of |L m| have to do.
    """
    dtype = jnp.result_type(norm)
    rounding = float(jnp.finfo(dtype).eps)
    tolerance = max(_TOLERANCE, 100 * rounding)

    def sweep(state: _Sweep) -> _Sweep:
        # FISTA, restarted whenever the momentum points uphill: linear convergence without knowing the condition.
        momentum = (1 + jnp.sqrt(1 + 4 * state.momentum**2)) / 2
        weight = (state.momentum - 1) / momentum
        ahead = jax.tree.map(lambda new, old: new + weight * (new - old), state.multipliers, state.previous)
        nearest = row_set.project(trees.subtract(point, row_set.adjoint(ahead)))
        rows = row_set.rows(nearest)
        moved = proximal_step(row_set.problem, rows, ahead, 1 / norm, rows)
        step = trees.subtract(moved, ahead)
        allowed = tolerance * (1 + trees.max_abs(rows)) + 10 * rounding * norm * trees.max_abs(ahead)
        uphill = trees.dot(step, trees.subtract(moved, state.multipliers)) < 0
        return _Sweep(
            point=nearest,
            multipliers=moved,
            previous=jax.tree.map(lambda new, old: jnp.where(uphill, new, old), moved, state.multipliers),
            momentum=jnp.where(uphill, jnp.ones_like(momentum), momentum),
            done=jnp.logical_not(norm * trees.max_abs(step) > allowed),  # NaN ends it, too
            count=state.count + 1,
        )

    one = jnp.ones((), dtype)
    first = _Sweep(point, multipliers, multipliers, one, jnp.zeros((), bool), 0)
    last = jax.lax.while_loop(lambda state: ~state.done & (state.count < _MAX_SWEEPS), sweep, first)
    return last.point, last.multipliers
