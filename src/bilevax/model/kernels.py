"""The compiled functions of a problem on flat vectors: f and g, their gradients, products with second derivatives.

They are compiled once for a problem's structure and shapes. All numbers are arguments, so another x, or new data of the
same shapes, compiles nothing.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax._support import clock, trees
from bilevax._support.compiling import foreseen
from bilevax._support.memory import Frozen
from bilevax._support.precision import float64
from bilevax.model.problem import BilevelProblem, Level, Variable

_BATCH = 64  # directions that are multiplied at once
_POINTS = 16  # points at which g is evaluated by one call


class Kernels(NamedTuple):
    """Compiled functions of ``(numbers, x, y, ...)``, where ``numbers`` are all arrays of the objectives and the data.

    Attributes
    ----------
    function
        f or g for given numbers, not compiled: for programs that are built around them.
    value, gradients
        f or g; its value with its gradients in x and in y.
    products
        A second derivative of f or g (rows for one variable, columns for the other) times each direction, one a row.
    lower
        The gradient of g in y, and its derivatives along directions of y, one a row, and along one of x.
    lower_at_each
        g, its gradient and its second derivative in y at the first few points, one a row of x and of y.
    upper_curvature, curvature
        The second derivative in (x, y) together, of f and of ``f + adjoint' grad_y g``, times each direction.
    """

    function: Callable[[Level, PyTree], Callable[[Any, Any], Any]]
    value: dict[Level, Callable]
    gradients: dict[Level, Callable]
    products: dict[tuple[Level, Variable, Variable], Callable]
    lower: Callable
    lower_at_each: Callable
    upper_curvature: Callable
    curvature: Callable


@functools.lru_cache(maxsize=256)
def compiled(structure: Frozen, x_like: Frozen, y_like: Frozen) -> Kernels:
    """Return the compiled functions of a problem's structure; its numbers are arguments, so they never recompile."""

    def function(level: Level, numbers: PyTree) -> Callable[[Any, Any], Any]:
        upper, lower, data = eqx.combine(numbers, structure.tree)
        bare = BilevelProblem(upper, lower, data=data)
        value = bare.upper_value if level == "upper" else bare.lower_value
        return lambda x, y: value(trees.unflatten(x, x_like.tree), trees.unflatten(y, y_like.tree))

    def value(level: Level) -> Callable:
        return _jit(lambda numbers, x, y: function(level, numbers)(x, y))

    def gradients(level: Level) -> Callable:
        return _jit(lambda numbers, x, y: jax.value_and_grad(function(level, numbers), argnums=(0, 1))(x, y))

    def products(level: Level, of: Variable, by: Variable) -> Callable:
        def apply(numbers: PyTree, x: Any, y: Any, directions: Any) -> Any:
            gradient = jax.grad(function(level, numbers), argnums=0 if of == "x" else 1)
            along = (lambda v: gradient(v, y)) if by == "x" else (lambda v: gradient(x, v))
            point = x if by == "x" else y
            return along_each(lambda direction: jax.jvp(along, (point,), (direction,))[1], directions)

        return _jit(apply)

    def lower(numbers: PyTree, x: Any, y: Any, along_y: Any, along_x: Any) -> Any:
        """The gradient of g in y, and its derivatives along directions of y, one a row, and along one of x."""
        gradient = jax.grad(function("lower", numbers), argnums=1)
        value, derivative = jax.linearize(lambda y: gradient(x, y), y)
        by_y = jax.vmap(derivative)(along_y)
        return value, by_y, jax.jvp(lambda x: gradient(x, y), (x,), (along_x,))[1]

    def lower_at_each(numbers: PyTree, points_x: Any, points_y: Any, count: Any) -> Any:
        value_and_gradient = jax.value_and_grad(function("lower", numbers), argnums=1)

        def at(k: Any, found: Any) -> Any:
            x, y = points_x[k], points_y[k]
            (value, gradient), derivative = jax.linearize(lambda y: value_and_gradient(x, y), y)
            hessian = along_each(lambda direction: derivative(direction)[1], jnp.eye(y.shape[0]))
            return tuple(all_.at[k].set(one) for all_, one in zip(found, (value, gradient, hessian), strict=True))

        many, size = points_y.shape
        nothing = jnp.zeros(many), jnp.zeros((many, size)), jnp.zeros((many, size, size))
        return jax.lax.fori_loop(0, count, at, nothing)  # one after the other: the memory of one

    def joint_products(objective: Callable, x: Any, y: Any, directions: Any) -> Any:
        gradient = lambda point: jnp.concatenate(
            jax.grad(objective, argnums=(0, 1))(point[: x.shape[0]], point[x.shape[0] :])
        )
        point = jnp.concatenate([x, y])
        return along_each(lambda direction: jax.jvp(gradient, (point,), (direction,))[1], directions)

    def upper_curvature(numbers: PyTree, x: Any, y: Any, directions: Any) -> Any:
        return joint_products(function("upper", numbers), x, y, directions)

    def curvature(numbers: PyTree, x: Any, y: Any, adjoint: Any, directions: Any) -> Any:
        def lagrangian(x: Any, y: Any) -> Any:
            along_y = lambda y: function("lower", numbers)(x, y)
            return function("upper", numbers)(x, y) + jax.jvp(along_y, (y,), (adjoint,))[1]

        return joint_products(lagrangian, x, y, directions)

    levels: tuple[Level, ...] = ("upper", "lower")
    variables: tuple[Variable, ...] = ("x", "y")
    return Kernels(
        function=function,
        value={level: value(level) for level in levels},
        gradients={level: gradients(level) for level in levels},
        products={(level, of, by): products(level, of, by) for level in levels for of in variables for by in variables},
        lower=_jit(lower),
        lower_at_each=_jit(lower_at_each),
        upper_curvature=_jit(upper_curvature),
        curvature=_jit(curvature),
    )


def _jit(function: Callable) -> Callable:
    """Return the compiled function, which does not compile past the deadline."""
    return foreseen(jax.jit(function))


def padded(kernel: Callable, *arguments: Any, directions: np.ndarray) -> np.ndarray:
    """Return a kernel's products with directions; few columns get as many directions always: one program for all."""
    count, columns = directions.shape
    missing = columns - count if columns <= _BATCH else 0
    if missing > 0:
        directions = np.vstack([directions, np.zeros((missing, columns))])
    return np.asarray(kernel(*arguments, directions))[:count]


def in_chunks(kernel: Callable, numbers: PyTree, *points: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return a kernel's values at points, one a row of each array; empty rows fill the last chunk: one program."""
    parts = []
    for first in range(0, len(points[0]), _POINTS):
        some = [rows[first : first + _POINTS] for rows in points]
        count = len(some[0])
        filled = (np.concatenate([rows, np.zeros((_POINTS - count, rows.shape[1]))]) for rows in some)
        parts.append([np.asarray(part)[:count] for part in kernel(numbers, *filled, count)])
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def along_each(product: Callable[[Any], Any], directions: Any) -> Any:
    """Apply a product to each direction, one a row, in batches: memory stays bounded where there are many."""
    return jax.lax.map(product, directions, batch_size=_BATCH)


def evaluation() -> contextlib.AbstractContextManager[Any]:
    """Return the context of an evaluation in float64, unless the time is up: whoever evaluates looks at the clock."""
    clock.check()
    return float64()
