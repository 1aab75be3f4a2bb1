"""One multiplier a row, whatever the row's sides: what primal-dual methods do with it.

A row ``lower <= r <= upper`` with multiplier m enters the Lagrangian as ``m r - support(m)``, where ``support(m)`` is
the largest ``m s`` over s in [lower, upper]: ``m upper`` where m is positive, ``m lower`` where it is negative. For
rows with an upper side alone this is ``m (r - upper)`` with m >= 0; for equality rows m is free.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem

Rows = tuple[PyTree, ...]


def proximal_step(problem: BilevelProblem, rows: Rows, multipliers: Rows, step: Any, ascent: Rows) -> Rows:
    """Return the multipliers after ``multipliers + step ascent`` and the proximal map of ``step support``.

    With ``ascent = rows`` and an upper side alone this is ``max(multipliers + step (rows - upper), 0)``; by Moreau's
    rule it is ``w - step clip(w / step, lower, upper)`` for w the sum, written without cancellation.
    """
    lower, upper = problem.row_bounds(rows)

    def leaf(multiplier: Array, slope: Array, low: Array, high: Array) -> Array:
        moved = multiplier + step * slope
        return jnp.maximum(moved - step * high, 0.0) + jnp.minimum(moved - step * low, 0.0)

    return jax.tree.map(leaf, multipliers, ascent, lower, upper)


def clip_multipliers(problem: BilevelProblem, rows: Rows, multipliers: Rows, radius: Any) -> Rows:
    """Return the multipliers cut to [-radius, radius] and to the signs that the rows' sides allow."""
    lower, upper = problem.row_bounds(rows)

    def leaf(multiplier: Array, low: Array, high: Array) -> Array:
        return jnp.clip(
            multiplier, jnp.where(jnp.isfinite(low), -radius, 0.0), jnp.where(jnp.isfinite(high), radius, 0.0)
        )

    return jax.tree.map(leaf, multipliers, lower, upper)


class Residual(NamedTuple):
    """What should be zero, the size of what it is made of, and how much tighter than the tolerances it has to be."""

    value: Any
    size: Any
    factor: Any = 1.0


def projected_gradient(
    project: Callable[[PyTree], PyTree], point: PyTree, gradient: PyTree, factor: Any = 1.0
) -> Residual:
    """Return ``|point - P(point - gradient)|`` in the largest-entry norm."""
    moved = trees.subtract(point, project(trees.subtract(point, gradient)))
    return Residual(trees.max_abs(moved), trees.max_abs(gradient), factor)


def system_residuals(
    problem: BilevelProblem,
    x: PyTree,
    y: PyTree,
    multipliers: Rows,
    slope: PyTree,
    ascent: Rows | None = None,
    factor: Any = 1.0,
) -> tuple[Residual, Residual]:
    """Return the residuals of a point (y, m) in ``min over y in Y, max over m`` of a Lagrangian with these rows.

    They are

        |y - P_Y(y - slope)|   and   |ascent - clip(ascent + m, lower, upper)|      (largest-entry norm),

    where ``slope`` is its derivative in y, A'm included, and ``ascent`` that in m without the support, the rows where
    not given. The second is the rows' violation and complementarity in one.
    """
    rows, pull = problem.rows(x, y), problem.adjoint_y(x, y, multipliers)
    wrong = trees.subtract(
        proximal_step(problem, rows, multipliers, 1.0, rows if ascent is None else ascent), multipliers
    )
    size = trees.max_abs(pull) + trees.max_abs(trees.subtract(slope, pull))
    return (
        projected_gradient(problem.y_set.project, y, slope, factor)._replace(size=size),
        Residual(trees.max_abs(wrong), trees.max_abs(rows) + trees.max_abs(multipliers), factor),
    )


def all_hold(
    residuals: dict[str, Residual], rtol: Any, atol: Any
) -> tuple[Bool[Array, ""], dict[str, Float[Array, ""]]]:
    """Return whether ``value <= factor (atol + rtol (1 + size))`` for each, and the values by name."""
    held = [part.value <= part.factor * (atol + rtol * (1 + part.size)) for part in residuals.values()]
    return jnp.stack(held).all(), {name: part.value for name, part in residuals.items()}
