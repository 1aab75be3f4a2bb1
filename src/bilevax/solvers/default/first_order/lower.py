"""The lower level inside compiled code, and the numbers from which step sizes are chosen.

These are the lengths of the rows of A and of g's Hessian, the norm of A and the largest curvature of g.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax._support.division import positive
from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.default.first_order.settings import FIRST_ORDER


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
        """Return ``B x`` of each coupling that has matrices; 0 for the others, which are functions of x and y."""
        tree = self.x_tree(x)
        return tuple(
            part.B.mv(trees.flatten(tree)) if isinstance(part, LinearCoupling) and part.B is not None else jnp.zeros(())
            for part in self.problem.coupling
        )

    def rows(self, x: Array, fixed: tuple[Array, ...], y: Array) -> Array:
        """Return ``B x + A y``, given ``B x`` as `fixed` returns it."""
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

    def adjoint_y(self, multipliers: Array) -> Array:
        zero = trees.zeros(self.x_like), trees.zeros(self.y_like)
        return trees.flatten(self.problem.adjoint_y(*zero, self.row_tree(multipliers)))

    def adjoint_x(self, multipliers: Array) -> Array:
        zero = trees.zeros(self.x_like), trees.zeros(self.y_like)
        return trees.flatten(self.problem.adjoint_x(*zero, self.row_tree(multipliers)))

    def bounds(self) -> tuple[Array, Array]:
        like = jax.eval_shape(lambda x, y: self.problem.rows(x, y), self.x_like, self.y_like)
        low, high = self.problem.row_bounds(trees.zeros(like))
        return trees.flatten(low), trees.flatten(high)


def both(function: Any, pair: Any) -> Array:
    """Return a function of each of two points."""
    return jnp.stack([function(pair[0]), function(pair[1])])


@eqx.filter_jit
def project_both(lower: LowerLevel, pair: Array) -> Array:
    """Return two points projected onto Y."""
    return both(lower.project, pair)


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
    return jnp.sqrt(_largest(apply, start, FIRST_ORDER.power_accuracy_rows, FIRST_ORDER.power_steps_rows))


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
    limits = FIRST_ORDER.power_accuracy_hessian, FIRST_ORDER.power_steps_hessian
    return jnp.maximum(*(_largest(lambda v, y=side: product(y, v), start, *limits) for side in y))


def _largest(apply: Any, start: Array, accuracy: float, most: int) -> Array:
    """Return the largest eigenvalue of a symmetric operator by power iteration, with a margin."""

    def body(carry: Any) -> Any:
        vector, value, _, step = carry
        image = apply(vector)
        length = jnp.linalg.norm(image)
        return image / positive(length), length, value, step + 1

    proceed = lambda carry: (carry[3] < most) & (jnp.abs(carry[1] - carry[2]) > accuracy * carry[1])
    first = (start / jnp.linalg.norm(start), jnp.ones(()), jnp.zeros(()), jnp.zeros((), int))
    return FIRST_ORDER.power_margin * jax.lax.while_loop(proceed, body, first)[1]
