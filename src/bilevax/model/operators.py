"""Linear maps between vectors, each kept in the form that is cheapest to apply.

A coupling holds two of them, A and B. Identities and diagonals stay diagonals, sparse matrices stay sparse, and every
form knows its adjoint: autodiff of a gather is a scatter, which is an order of magnitude slower on CPU than a
gather over the transposed rows.
"""

import abc
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from bilevax._support.trees import host_floats, is_concrete, is_spread, placement, zeros
from bilevax.model.compressed_rows import compressed

if TYPE_CHECKING:
    import lineax as lx

Respond = Callable[[tuple[Array, ...], PyTree], tuple[tuple[Array, ...], PyTree]]

# A dense matrix of more bytes than the first does not stay in a processor's cache from one product to the next. Rows of
# as many bytes as the second, which the cache of one core holds, are then taken there and back before the next ones.
_LARGE, _BLOCK = 3 * 2**23, 3 * 2**16


class LinearMap(eqx.Module):
    """A linear map with its adjoint."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @abc.abstractmethod
    def mv(self, vector: Float[Array, " columns"]) -> Float[Array, " rows"]:
        """Apply the map."""

    @abc.abstractmethod
    def rmv(self, vector: Float[Array, " rows"]) -> Float[Array, " columns"]:
        """Apply the adjoint."""

    def there_and_back(self, vectors: tuple[Array, ...], respond: Respond, rows: PyTree) -> tuple[Any, PyTree]:
        """Return the adjoint of each force with which the rows respond to the images of ``vectors``, and the new rows.

        ``respond(images, rows)`` returns the forces, one an image, and new rows: any arrays with an entry a row. It has
        to act row by row, so that a large matrix may be passed over once, not once for every image and every force.
        """
        forces, new = respond(tuple(self.mv(vector) for vector in vectors), rows)
        return tuple(self.rmv(force) for force in forces), new

    @abc.abstractmethod
    def to_scipy(self) -> sp.csr_matrix:
        """Return the map as a scipy.sparse matrix on the host."""


class Zero(LinearMap):
    """The map to zero: an absent B."""

    dimensions: tuple[int, int] = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        return self.dimensions

    def mv(self, vector):
        return jnp.zeros(self.shape[0], vector.dtype)

    def rmv(self, vector):
        return jnp.zeros(self.shape[1], vector.dtype)

    def to_scipy(self):
        return sp.csr_matrix(self.shape)


class Dense(LinearMap):
    """A matrix stored in full.

    A tall one is stored transposed, since products are fast over long vectors, unless it is passed over in blocks.
    """

    stored: Float[Array, "first second"]
    is_transposed: bool = eqx.field(static=True)

    def __init__(self, matrix: Any):
        rows, columns = matrix.shape
        self.is_transposed = rows > columns and not _is_large(matrix)
        self.stored = matrix.T.copy() if self.is_transposed else matrix

    @property
    def matrix(self) -> Float[Array, "rows columns"]:
        """The matrix as it was given."""
        return self.stored.T if self.is_transposed else self.stored

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape  # type: ignore[return-value]

    def mv(self, vector):
        return vector @ self.stored if self.is_transposed else self.stored @ vector

    def rmv(self, vector):
        return self.stored @ vector if self.is_transposed else vector @ self.stored

    def there_and_back(self, vectors, respond, rows):
        pass_over = self.in_blocks if _is_large(self.stored) else super().there_and_back
        return pass_over(vectors, respond, rows)

    def in_blocks(self, vectors: tuple[Array, ...], respond: Respond, rows: PyTree) -> tuple[Any, PyTree]:
        """Return `there_and_back`, block of rows after block of rows."""
        count, columns = self.shape
        block = max(1, _BLOCK // (columns * self.stored.dtype.itemsize))

        def advance(start: Any, size: int, pulls: tuple[Array, ...], new: PyTree) -> tuple[tuple[Array, ...], PyTree]:
            take = lambda whole: jax.lax.dynamic_slice_in_dim(whole, start, size)
            put = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0)
            matrix = take(self.stored)
            forces, changed = respond(tuple(matrix @ vector for vector in vectors), jax.tree.map(take, rows))
            pulls = tuple(pull + force @ matrix for pull, force in zip(pulls, forces, strict=True))
            return pulls, jax.tree.map(put, new, changed)

        images = tuple(jax.ShapeDtypeStruct((count,), vector.dtype) for vector in vectors)
        forces, new = jax.eval_shape(respond, images, rows)
        state = tuple(jnp.zeros(columns, force.dtype) for force in forces), zeros(new)
        state = jax.lax.fori_loop(0, count // block, lambda i, state: advance(i * block, block, *state), state)
        return advance(count - count % block, count % block, *state) if count % block else state

    def to_scipy(self):
        return compressed(np.asarray(self.matrix, np.float64))


def _is_large(matrix: Any) -> bool:
    return matrix.size * matrix.dtype.itemsize > _LARGE and jax.default_backend() == "cpu"  # GPUs do without blocks


class SpreadRows(LinearMap):
    """A dense matrix whose rows are spread over the devices along an axis of a mesh."""

    whole: Dense
    mesh: Mesh = eqx.field(static=True)
    axis: Any = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        return self.whole.shape

    def mv(self, vector):
        return self.whole.mv(vector)

    def rmv(self, vector):
        return self.whole.rmv(vector)

    def there_and_back(self, vectors, respond, rows):
        in_blocks = _is_large(self.whole.stored)  # as a whole, since the cores of a processor share its cache

        def on_each(part: Dense, vectors: tuple[Array, ...], rows: PyTree) -> tuple[tuple[Array, ...], PyTree]:
            pulls, new = (part.in_blocks if in_blocks else part.there_and_back)(vectors, respond, rows)
            return tuple(jax.lax.psum(jnp.stack(pulls), self.axis)), new  # all that has to travel, at once

        by_row, everywhere = PartitionSpec(self.axis), PartitionSpec()
        stored = PartitionSpec(None, self.axis) if self.whole.is_transposed else by_row
        specs = {"in_specs": (stored, everywhere, by_row), "out_specs": (everywhere, by_row), "check_vma": False}
        return jax.shard_map(on_each, mesh=self.mesh, **specs)(self.whole, vectors, rows)

    def to_scipy(self):
        return self.whole.to_scipy()


class Diagonal(LinearMap):
    """A square diagonal matrix, the identity included."""

    diagonal: Float[Array, " rows"]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.diagonal.shape[0], self.diagonal.shape[0])

    def mv(self, vector):
        return self.diagonal * vector

    rmv = mv

    def to_scipy(self):
        return sp.diags(np.asarray(self.diagonal, np.float64), format="csr")


class _Rows(eqx.Module):
    """A sparse matrix as padded rows, grouped by length so that one long row does not pad all the others."""

    columns: tuple[Int[Array, "rows width"], ...]
    values: tuple[Float[Array, "rows width"], ...]
    position: Int[Array, " rows"]

    def __init__(self, matrix: sp.csr_matrix):
        lengths = np.diff(matrix.indptr)
        widths = np.where(lengths > 0, 2 ** np.ceil(np.log2(np.maximum(lengths, 1))), 0).astype(int)
        columns, values, order = [], [], []
        for width in np.unique(widths):
            group = np.flatnonzero(widths == width)
            order.append(group)
            within = np.arange(width)[None, :]
            valid = within < lengths[group][:, None]
            source = np.where(valid, matrix.indptr[group][:, None] + within, 0)
            take = lambda array, valid=valid, source=source: (
                np.where(valid, array[source], 0) if array.size else np.zeros(valid.shape, array.dtype)
            )
            columns.append(take(matrix.indices.astype(np.int32)))
            values.append(take(matrix.data))
        self.columns, self.values = tuple(columns), tuple(values)
        order = np.concatenate(order) if order else np.zeros(0, int)
        self.position = np.argsort(order).astype(np.int32)  # type: ignore[assignment]

    def __call__(self, vector):
        parts = [
            jnp.sum(values * vector[columns], axis=1) if columns.shape[1] else jnp.zeros(columns.shape[0], vector.dtype)
            for columns, values in zip(self.columns, self.values, strict=True)
        ]
        if not parts:
            return jnp.zeros(0, vector.dtype)
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)[self.position]


class Sparse(LinearMap):
    """A sparse matrix with its transpose, both applied by gathers."""

    forward: _Rows
    backward: _Rows
    dimensions: tuple[int, int] = eqx.field(static=True)

    def __init__(self, matrix: sp.csr_matrix):
        self.forward, self.backward = _Rows(matrix), _Rows(matrix.T.tocsr())
        self.dimensions = matrix.shape

    @property
    def shape(self) -> tuple[int, int]:
        return self.dimensions

    def mv(self, vector):
        return self.forward(vector)

    def rmv(self, vector):
        return self.backward(vector)

    def to_scipy(self):
        order = np.argsort(np.asarray(self.forward.position))
        rows, columns, values, start = [], [], [], 0
        for block_columns, block_values in zip(self.forward.columns, self.forward.values, strict=True):
            count, width = block_columns.shape
            rows.append(np.repeat(order[start : start + count], width))
            columns.append(np.asarray(block_columns).ravel())
            values.append(np.asarray(block_values, np.float64).ravel())
            start += count
        if not rows:
            return sp.csr_matrix(self.shape)
        triplets = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        matrix = sp.csr_matrix(triplets, shape=self.shape)
        matrix.eliminate_zeros()
        return matrix


class Lineax(LinearMap):
    """Any lineax operator between flat vectors; only its action is used."""

    operator: "lx.AbstractLinearOperator"

    @property
    def shape(self) -> tuple[int, int]:
        return (self.operator.out_size(), self.operator.in_size())

    def mv(self, vector):
        return self.operator.mv(vector)

    def rmv(self, vector):
        return self.operator.transpose().mv(vector)

    def to_scipy(self):
        return probe_columns(self.mv, self.shape).tocsr()


def probe_columns(
    apply: Any, shape: tuple[int, int], *, compile: bool = True, batch_entries: int = 2**20
) -> sp.csc_matrix:
    """Return the sparse matrix of a linear function by applying it to unit vectors, a bounded batch at a time.

    ``apply`` maps one vector, and is compiled and batched here; with ``compile=False`` it maps a batch already.
    """
    rows, columns = shape
    turns = max(1, math.ceil(columns * max(rows, columns) / batch_entries))
    batch = max(1, math.ceil(columns / turns))
    apply_batch = jax.jit(jax.vmap(apply)) if compile else apply
    blocks = []
    for start in range(0, columns, batch):
        # The last batch is shifted back, not shortened: one shape, one compilation.
        first = min(start, columns - batch)
        units = np.zeros((batch, columns))
        units[np.arange(batch), np.arange(first, first + batch)] = 1.0
        block = np.asarray(apply_batch(units), np.float64)[start - first :]
        blocks.append(compressed(block))
    if not blocks or rows == 0:
        return sp.csc_matrix(shape)
    return (blocks[0] if len(blocks) == 1 else sp.vstack(blocks, format="csr")).T


def as_linear_map(matrix: Any, name: str) -> LinearMap:
    """Return the cheapest `LinearMap` for anything a user may write for a matrix.

    Raises
    ------
    ValueError
        If it is no matrix, or holds entries that are not finite numbers.
    """
    if isinstance(matrix, LinearMap):
        return matrix
    # Who has not loaded lineax, or JAX's sparse matrices, has none to give: no reason to load them here.
    if "lineax" in sys.modules and isinstance(matrix, sys.modules["lineax"].AbstractLinearOperator):
        return _from_lineax(matrix, name)
    sparse = sys.modules.get("jax.experimental.sparse")
    if sparse is not None and isinstance(matrix, sparse.JAXSparse):
        matrix = _from_jax(matrix, name)
    if sp.issparse(matrix):
        return _from_scipy(matrix, name)
    return _from_array(matrix, name)


def _from_jax(matrix: Any, name: str) -> sp.coo_matrix:
    from jax.experimental import sparse as jax_sparse

    matrix = matrix.to_bcoo() if isinstance(matrix, jax_sparse.BCSR) else matrix
    if not isinstance(matrix, jax_sparse.BCOO) or matrix.n_dense or matrix.n_batch or matrix.ndim != 2:
        raise ValueError(f"{name}: expected a two-dimensional BCOO or BCSR matrix, got {type(matrix).__name__}.")
    index = np.asarray(matrix.indices)
    # JAX marks padding by indices out of bounds.
    valid = (index < np.asarray(matrix.shape)).all(axis=1)
    triplets = (np.asarray(matrix.data, np.float64)[valid], (index[valid, 0], index[valid, 1]))
    return sp.coo_matrix(triplets, shape=matrix.shape)


def _from_lineax(operator: "lx.AbstractLinearOperator", name: str) -> LinearMap:
    import lineax as lx

    if isinstance(operator, lx.TaggedLinearOperator):
        return _from_lineax(operator.operator, name)
    if isinstance(operator, lx.IdentityLinearOperator):
        return _from_scipy(sp.eye(operator.out_size(), operator.in_size()), name)
    if isinstance(operator, lx.DiagonalLinearOperator):
        diagonal = host_floats(lx.diagonal(operator))
        _check_finite(diagonal, name)
        return Diagonal(diagonal)
    if isinstance(operator, lx.MatrixLinearOperator):
        return as_linear_map(operator.matrix, name)
    return Lineax(operator)


def _from_scipy(matrix: Any, name: str) -> LinearMap:
    if np.iscomplexobj(matrix):
        raise ValueError(f"{name}: expected a matrix of real numbers, got dtype {matrix.dtype}.")
    matrix = sp.csr_matrix(matrix, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    _check_finite(matrix.data, name)
    if matrix.shape[0] == matrix.shape[1] and (matrix - sp.diags(matrix.diagonal())).count_nonzero() == 0:
        return Diagonal(matrix.diagonal())
    return Sparse(matrix)


def _from_array(matrix: Any, name: str) -> LinearMap:
    try:
        array = host_floats(matrix)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a matrix of real numbers, got {type(matrix).__name__}.") from error
    if array.ndim == 0:
        array = array.reshape(1, 1)
    if array.ndim != 2:
        raise ValueError(
            f"{name}: expected a matrix (or a scalar, for one variable), got an array of shape {array.shape}."
        )
    _check_finite(array, name)
    array = array.copy() if array is matrix else array  # the user's own array may be used for something else later
    # One row and one variable: a product of vectors, which batches far better than a 1 x 1 matrix.
    dense = _spread_rows if is_spread(array) else Dense
    return Diagonal(array[0]) if array.shape == (1, 1) else dense(array)


def _spread_rows(array: Array) -> LinearMap:
    """Return a matrix that is spread over devices: by its rows, or in another way of which XLA has to make the best."""
    mesh, spec = placement(array)
    by_row, by_column = (*spec, None, None)[:2]
    return SpreadRows(Dense(array), mesh, by_row) if by_row is not None and by_column is None else Dense(array)


def _check_finite(numbers: Any, name: str) -> None:
    if is_concrete(numbers) and not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite entries, got NaN or infinity.")
