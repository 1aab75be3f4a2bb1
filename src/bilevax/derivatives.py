"""A problem on flat vectors, for exact solvers on the host: rows as sparse matrices, derivatives as needed.

The functions are compiled once for a problem's structure, with all numbers as arguments, so the next x, or new data of
the same shape, compiles nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax import _trees
from bilevax.operators import probe_columns
from bilevax.problem import BilevelProblem, place
from bilevax.sets import SetRows

Level = Literal["upper", "lower"]
Variable = Literal["x", "y"]

# Below this many columns a Hessian is probed in full; above, its sparsity is detected first.
_DENSE_COLUMNS = 400


class Rows(NamedTuple):
    """The coupling on flat vectors: ``lower <= B x + A y + offset <= upper``, bounds already without the offset."""

    B: sp.csr_matrix
    A: sp.csr_matrix
    lower: np.ndarray
    upper: np.ndarray


class FlatProblem:
    """The functions, rows and sets of a problem on flat float64 vectors."""

    def __init__(self, problem: BilevelProblem, x_like: PyTree, y_like: PyTree):
        self.problem = problem
        self.x_like = jax.tree.map(_float64_shape, x_like)
        self.y_like = jax.tree.map(_float64_shape, y_like)
        self.n_x, self.n_y = _trees.size(self.x_like), _trees.size(self.y_like)
        with jax.enable_x64(True):
            self._placed = place(problem, np.float64)
        # Without rows and sets: problems that differ only there share their compiled derivatives.
        objectives = (self._placed.upper, self._placed.lower, self._placed.data)
        self._numbers, structure = eqx.partition(objectives, eqx.is_array)
        self._kernels = _kernels(_Frozen(structure), _Frozen(self.x_like), _Frozen(self.y_like))
        self._patterns: dict[tuple[Level, Variable, Variable], _Pattern] = {}
        self._lagrangian_pattern: _Pattern | None = None

    @functools.cached_property
    def rows(self) -> Rows:
        """All couplings stacked, in the order in which they were given."""
        with jax.enable_x64(True):
            x, y = _trees.zeros(self.x_like), _trees.zeros(self.y_like)
            parts = [part.matrices(x, y, self._placed.data) for part in self._placed.coupling]
            values = jax.eval_shape(lambda x, y: self._placed.rows(x, y), x, y)
            bounds = self._placed.row_bounds(_trees.zeros(values))
            lower, upper = (_trees.flatten_host(side) for side in bounds)
        if not parts:
            return Rows(sp.csr_matrix((0, self.n_x)), sp.csr_matrix((0, self.n_y)), lower, upper)
        offset = np.concatenate([part[2] for part in parts])
        stack = lambda index: sp.vstack([part[index] for part in parts], format="csr")
        return Rows(stack(0), stack(1), lower - offset, upper - offset)

    @functools.cached_property
    def x_rows(self) -> SetRows:
        """The set X as rows."""
        return self.problem.x_set.rows(self.x_like)

    @functools.cached_property
    def y_rows(self) -> SetRows:
        """The set Y as rows."""
        return self.problem.y_set.rows(self.y_like)

    def split_rows(self, flat: np.ndarray) -> tuple[PyTree, ...]:
        """Return flat row values (multipliers) in the structure of the couplings."""
        with jax.enable_x64(True):
            like = jax.eval_shape(lambda x, y: self._placed.rows(x, y), self.x_like, self.y_like)
        return _trees.unflatten(flat, like)

    def x_tree(self, flat: np.ndarray) -> PyTree:
        """Return a flat x in the user's structure."""
        return _trees.unflatten(flat, self.x_like)

    def y_tree(self, flat: np.ndarray) -> PyTree:
        """Return a flat y in the user's structure."""
        return _trees.unflatten(flat, self.y_like)

    def value(self, level: Level, x: np.ndarray, y: np.ndarray) -> float:
        """Return f or g at (x, y)."""
        with jax.enable_x64(True):
            return float(self._kernels.value[level](self._numbers, x, y))

    def gradients(self, level: Level, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of f or g in x and in y."""
        with jax.enable_x64(True):
            along_x, along_y = self._kernels.gradients[level](self._numbers, x, y)
            return np.asarray(along_x), np.asarray(along_y)

    def hessian(self, level: Level, of: Variable, by: Variable, x: np.ndarray, y: np.ndarray) -> sp.csc_matrix:
        """Return the second derivative of f or g, rows for the variable ``of`` and columns for ``by``, as sparse."""
        size = {"x": self.n_x, "y": self.n_y}
        key = (level, of, by)
        if key not in self._patterns:
            self._patterns[key] = _Pattern((size[of], size[by]))

        def products(directions: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(self._kernels.products[key](self._numbers, x, y, directions))

        return self._patterns[key].evaluate(products)

    def has_diagonal_hessian(self, level: Level, x: np.ndarray, y: np.ndarray) -> bool:
        """Return whether f or g is separable in y, by three products: cheap at any size."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, self.n_y))
        with jax.enable_x64(True):
            images = self._kernels.products[level, "y", "y"](self._numbers, x, y, np.vstack([np.ones(self.n_y), signs]))
        images = np.asarray(images)
        return bool(np.abs(images[1:] - signs * images[0]).max(initial=0.0) <= 1e-10 * (1 + np.abs(images).max()))

    def curvature(self, x: np.ndarray, y: np.ndarray, adjoint: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the second derivative in (x, y) of ``f + adjoint' grad_y g`` times each direction, one a row."""
        with jax.enable_x64(True):
            return np.asarray(self._kernels.curvature(self._numbers, x, y, adjoint, directions))

    def lagrangian_hessian(self, x: np.ndarray, y: np.ndarray, adjoint: np.ndarray) -> sp.csc_matrix:
        """Return the second derivative in (x, y) of ``f + adjoint' grad_y g`` as one sparse matrix."""
        if self._lagrangian_pattern is None:
            self._lagrangian_pattern = _Pattern((self.n_x + self.n_y, self.n_x + self.n_y))
        return self._lagrangian_pattern.evaluate(lambda directions: self.curvature(x, y, adjoint, directions))


class _Pattern:
    """Sparsity of one second derivative: found by probing, then used to evaluate it with few products.

    Every evaluation is checked against a product with a random vector; where it fails (an entry that was zero where
    the pattern was found) the pattern is found anew and widened.
    """

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape
        self.dense = shape[1] <= _DENSE_COLUMNS
        self.last: sp.csc_matrix | None = None
        self.random = np.random.default_rng(0)
        # The first guess, right for separable functions: a diagonal, or nothing.
        self._set(sp.eye(*shape, format="csc") if shape[0] == shape[1] else sp.csc_matrix(shape))

    def evaluate(self, products: Callable[[np.ndarray], np.ndarray]) -> sp.csc_matrix:
        probe = self.random.standard_normal((1, self.shape[1]))
        expected = products(probe)[0]

        def right(matrix: sp.csc_matrix) -> bool:
            error = np.abs(matrix @ probe[0] - expected).max(initial=0.0)
            return bool(error <= 1e-11 * (1 + np.abs(expected).max(initial=0.0)))

        # Quadratic functions: the last matrix still holds, and one product proves it.
        if self.last is not None and right(self.last):
            return self.last
        matrix = None if self.dense else self._compressed(products)
        if matrix is None or not right(matrix):
            matrix = sp.csc_matrix(probe_columns(products, self.shape, compile=False))
            self.dense = self.dense or matrix.nnz > 0.05 * self.shape[0] * self.shape[1]
            if not self.dense:
                self._set(sp.csc_matrix(abs(matrix) + self.structure))
        self.last = matrix
        return matrix

    def _set(self, structure: sp.csc_matrix) -> None:
        structure.data[:] = 1.0
        self.structure = structure
        self.color = _color_columns(structure)
        self.seeds = np.zeros((int(self.color.max(initial=-1)) + 1, self.shape[1]))
        self.seeds[self.color, np.arange(self.shape[1])] = 1.0

    def _compressed(self, products: Callable[[np.ndarray], np.ndarray]) -> sp.csc_matrix:
        coordinates = self.structure.tocoo()
        images = products(self.seeds) if len(self.seeds) else np.zeros((0, self.shape[0]))
        values = images[self.color[coordinates.col], coordinates.row]
        return sp.csc_matrix((values, (coordinates.row, coordinates.col)), shape=self.shape)


def _color_columns(structure: sp.csc_matrix) -> np.ndarray:
    """Return a color for each column such that columns of one color share no row (greedy)."""
    conflicts = sp.csr_matrix(structure.T @ structure)
    color = np.full(structure.shape[1], -1)
    for column in range(structure.shape[1]):
        taken = set(color[conflicts.indices[conflicts.indptr[column] : conflicts.indptr[column + 1]]])
        color[column] = next(c for c in range(len(taken) + 1) if c not in taken)
    return color


class _Kernels(NamedTuple):
    value: dict[Level, Callable]
    gradients: dict[Level, Callable]
    products: dict[tuple[Level, Variable, Variable], Callable]
    curvature: Callable


class _Frozen:
    """A pytree of hashable leaves as one hashable key."""

    def __init__(self, tree: PyTree):
        self.tree = tree
        self.key = (jax.tree.structure(tree), tuple(jax.tree.leaves(tree)))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.key == other.key


@functools.lru_cache(maxsize=256)
def _kernels(structure: _Frozen, x_like: _Frozen, y_like: _Frozen) -> _Kernels:
    """Return the compiled functions of a problem's structure; its numbers are arguments, so they never recompile."""

    def function(level: Level, numbers: PyTree) -> Callable[[Any, Any], Any]:
        upper, lower, data = eqx.combine(numbers, structure.tree)
        bare = BilevelProblem(upper, lower, data=data)
        value = bare.upper_value if level == "upper" else bare.lower_value
        return lambda x, y: value(_trees.unflatten(x, x_like.tree), _trees.unflatten(y, y_like.tree))

    def value(level: Level) -> Callable:
        return jax.jit(lambda numbers, x, y: function(level, numbers)(x, y))

    def gradients(level: Level) -> Callable:
        return jax.jit(lambda numbers, x, y: jax.grad(function(level, numbers), argnums=(0, 1))(x, y))

    def products(level: Level, of: Variable, by: Variable) -> Callable:
        def apply(numbers: PyTree, x: Any, y: Any, directions: Any) -> Any:
            gradient = jax.grad(function(level, numbers), argnums=0 if of == "x" else 1)
            along = (lambda v: gradient(v, y)) if by == "x" else (lambda v: gradient(x, v))
            point = x if by == "x" else y
            return _map(lambda direction: jax.jvp(along, (point,), (direction,))[1], directions)

        return jax.jit(apply)

    def curvature(numbers: PyTree, x: Any, y: Any, adjoint: Any, directions: Any) -> Any:
        def lagrangian(x: Any, y: Any) -> Any:
            along_y = lambda y: function("lower", numbers)(x, y)
            return function("upper", numbers)(x, y) + jax.jvp(along_y, (y,), (adjoint,))[1]

        gradient = lambda point: jnp.concatenate(
            jax.grad(lagrangian, argnums=(0, 1))(point[: x.shape[0]], point[x.shape[0] :])
        )
        point = jnp.concatenate([x, y])
        return _map(lambda direction: jax.jvp(gradient, (point,), (direction,))[1], directions)

    levels: tuple[Level, ...] = ("upper", "lower")
    variables: tuple[Variable, ...] = ("x", "y")
    return _Kernels(
        value={level: value(level) for level in levels},
        gradients={level: gradients(level) for level in levels},
        products={(level, of, by): products(level, of, by) for level in levels for of in variables for by in variables},
        curvature=jax.jit(curvature),
    )


def _map(product: Callable[[Any], Any], directions: Any) -> Any:
    """Apply to each direction, in batches: memory stays bounded where there are many."""
    return jax.lax.map(product, directions, batch_size=64)


def _float64_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), np.float64)
