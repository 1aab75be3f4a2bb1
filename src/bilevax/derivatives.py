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
        self._patterns: dict[tuple[Level, Variable, Variable], _Pattern] = {}

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
            return float(_value(self._placed, level, self.x_like, self.y_like, jnp.asarray(x), jnp.asarray(y)))

    def gradients(self, level: Level, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of f or g in x and in y."""
        with jax.enable_x64(True):
            pair = _gradients(self._placed, level, self.x_like, self.y_like, jnp.asarray(x), jnp.asarray(y))
            return np.asarray(pair[0]), np.asarray(pair[1])

    def hessian(self, level: Level, of: Variable, by: Variable, x: np.ndarray, y: np.ndarray) -> sp.csc_matrix:
        """Return the second derivative of f or g, rows for the variable ``of`` and columns for ``by``, as sparse."""
        size = {"x": self.n_x, "y": self.n_y}
        with jax.enable_x64(True):
            at = (self._placed, level, of, by, self.x_like, self.y_like, jnp.asarray(x), jnp.asarray(y))
            products = lambda block: np.asarray(_products(*at, jnp.asarray(block)))
            key = (level, of, by)
            if key not in self._patterns:
                self._patterns[key] = _Pattern((size[of], size[by]))
            return self._patterns[key].evaluate(products)


class _Pattern:
    """Sparsity of one second derivative: found by probing, then used to evaluate it with few products.

    Every evaluation is checked against a product with a random vector; where it fails (an entry that was zero where
    the pattern was found) the pattern is found anew and widened.
    """

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape
        self.structure: sp.csc_matrix | None = None
        self.random = np.random.default_rng(0)

    def evaluate(self, products: Callable[[np.ndarray], np.ndarray]) -> sp.csc_matrix:
        if self.shape[1] <= _DENSE_COLUMNS:
            return sp.csc_matrix(products(np.eye(self.shape[1])).T)
        if self.structure is None:
            self._guess_diagonal()
        probe = self.random.standard_normal((1, self.shape[1]))
        expected = products(probe)[0]
        for _ in range(2):
            matrix = self._compressed(products)
            if np.abs(matrix @ probe[0] - expected).max(initial=0.0) <= 1e-9 * (1 + np.abs(expected).max(initial=0.0)):
                return matrix
            self._widen(products)
        return matrix

    def _guess_diagonal(self) -> None:
        diagonal = sp.eye(*self.shape, format="csc") if self.shape[0] == self.shape[1] else sp.csc_matrix(self.shape)
        self._set(diagonal)

    def _widen(self, products: Callable[[np.ndarray], np.ndarray]) -> None:
        found = probe_columns(products, self.shape, compile=False)
        assert self.structure is not None
        self._set(sp.csc_matrix(abs(found) + self.structure))

    def _set(self, structure: sp.csc_matrix) -> None:
        structure.data[:] = 1.0
        self.structure = structure
        self.color = _color_columns(structure)
        self.seeds = np.zeros((int(self.color.max(initial=-1)) + 1, self.shape[1]))
        self.seeds[self.color, np.arange(self.shape[1])] = 1.0

    def _compressed(self, products: Callable[[np.ndarray], np.ndarray]) -> sp.csc_matrix:
        assert self.structure is not None
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


def _function(problem: BilevelProblem, level: Level, x_like: PyTree, y_like: PyTree) -> Callable[[Any, Any], Any]:
    value = problem.upper_value if level == "upper" else problem.lower_value
    return lambda x, y: value(_trees.unflatten(x, x_like), _trees.unflatten(y, y_like))


@eqx.filter_jit
def _value(problem: BilevelProblem, level: Level, x_like: PyTree, y_like: PyTree, x: Any, y: Any) -> Any:
    return _function(problem, level, x_like, y_like)(x, y)


@eqx.filter_jit
def _gradients(problem: BilevelProblem, level: Level, x_like: PyTree, y_like: PyTree, x: Any, y: Any) -> Any:
    return jax.grad(_function(problem, level, x_like, y_like), argnums=(0, 1))(x, y)


@eqx.filter_jit
def _products(
    problem: BilevelProblem,
    level: Level,
    of: Variable,
    by: Variable,
    x_like: PyTree,
    y_like: PyTree,
    x: Any,
    y: Any,
    directions: Any,
) -> Any:
    """Return the second derivative (of, by) times each direction, one a row."""
    gradient = jax.grad(_function(problem, level, x_like, y_like), argnums=0 if of == "x" else 1)
    along = (lambda v: gradient(v, y)) if by == "x" else (lambda v: gradient(x, v))
    point = x if by == "x" else y
    return jax.lax.map(lambda direction: jax.jvp(along, (point,), (direction,))[1], directions, batch_size=64)


def _float64_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), np.float64)
