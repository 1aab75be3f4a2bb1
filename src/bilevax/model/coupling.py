"""The rows that couple both levels: ``lower <= B x + A y <= upper``."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.hints import of_tracing
from bilevax.model.bounds import first_pair, one_per_leaf, row_bound
from bilevax.model.operators import LinearMap, Zero, as_linear_map, probe_columns

Respond = Callable[..., tuple[tuple[PyTree, ...], tuple[PyTree, ...]]]


class Coupling(eqx.Module):
    """Rows that are functions of (x, y), with the two adjoints: affine ones, unless the class says otherwise."""

    affine: ClassVar[bool] = True

    @abc.abstractmethod
    def value(self, x: PyTree, y: PyTree, data: PyTree) -> PyTree:
        """Return the rows' values at (x, y)."""

    def shapes(self, x: PyTree, y: PyTree, data: PyTree) -> PyTree:
        """Return the shapes of the rows' values. The point (x, y) only gives shapes."""
        return jax.eval_shape(self.value, x, y, data)

    @abc.abstractmethod
    def adjoint_x(self, x: PyTree, y: PyTree, data: PyTree, multipliers: PyTree) -> PyTree:
        """Return B' multipliers. The point (x, y) only gives shapes."""

    @abc.abstractmethod
    def adjoint_y(self, x: PyTree, y: PyTree, data: PyTree, multipliers: PyTree) -> PyTree:
        """Return A' multipliers. The point (x, y) only gives shapes."""

    def there_and_back(
        self, x: PyTree, points: tuple[PyTree, ...], data: PyTree, respond: Respond, rows: PyTree
    ) -> tuple[tuple[PyTree, ...], PyTree]:
        """Return A' of each force with which the rows respond to the points y, and the new rows.

        ``respond(values, rows, lower, upper)`` returns the forces, one a point, and new rows: a tuple of trees of the
        structure of the values. It has to act row by row.
        """
        values = tuple(self.value(x, y, data) for y in points)
        forces, new = respond(values, rows, *self.bounds(values[0]))
        return tuple(self.adjoint_y(x, y, data, force) for y, force in zip(points, forces, strict=True)), new

    @abc.abstractmethod
    def bounds(self, rows: PyTree) -> tuple[PyTree, PyTree]:
        """Return (lower, upper) spread to the structure and shapes of ``rows``."""

    @abc.abstractmethod
    def matrices(self, x: PyTree, y: PyTree, data: PyTree) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]:
        """Return (B, A, offset) on the host, acting on the flattened variables."""

    @abc.abstractmethod
    def check(self, x: PyTree, y: PyTree, data: PyTree, name: str) -> None:
        """Raise a `ValueError` if the rows do not fit the variables or are not affine."""

    def y_like(self) -> PyTree | None:
        """Return the shape of y where the rows themselves tell it, else None."""
        return None


class LinearCoupling(Coupling):
    """Rows ``lower <= B x + A y <= upper`` given by matrices.

    Parameters
    ----------
    A, B
        Matrices over the flattened y and x: dense, scipy.sparse (never turned dense), JAX sparse, lineax operators, or
        a scalar for one row and one variable. ``B=None`` means that the rows do not involve x.
    lower, upper
        A number or one number a row; infinite where the side is absent, equal for an equality row.

    Notes
    -----
    Multipliers follow one sign rule: ``grad_y g + A' multipliers (+ normals of Y) = 0``, so a multiplier is positive
    only where the upper side is active, negative only where the lower side is, and free on an equality row.
    """

    A: LinearMap
    B: LinearMap | None
    lower: np.ndarray
    upper: np.ndarray
    scalar: bool = eqx.field(static=True)

    def __init__(self, A: Any, B: Any = None, lower: Any = -np.inf, upper: Any = np.inf):
        self.A = as_linear_map(A, "LinearCoupling: A")
        self.B = None if B is None else as_linear_map(B, "LinearCoupling: B")
        count = self.A.shape[0]
        self.lower = row_bound(lower, count, "LinearCoupling: lower")
        self.upper = row_bound(upper, count, "LinearCoupling: upper")
        self.scalar = not hasattr(A, "mv") and np.ndim(A) == 0

    def __check_init__(self):
        if self.B is not None and self.B.shape[0] != self.A.shape[0]:
            raise ValueError(
                f"LinearCoupling: expected A and B with the same number of rows, "
                f"got A of shape {self.A.shape} and B of shape {self.B.shape}."
            )
        if trees.is_concrete(self.lower) and trees.is_concrete(self.upper):
            if np.any(self.lower > self.upper):
                raise ValueError(f"LinearCoupling: expected lower <= upper, got {first_pair(self.lower, self.upper)}.")
            if np.any(np.isposinf(self.lower)) or np.any(np.isneginf(self.upper)):
                raise ValueError("LinearCoupling: no value satisfies lower = +inf or upper = -inf.")

    def value(self, x: PyTree, y: PyTree, data: PyTree) -> PyTree:
        image = self.A.mv(trees.flatten(y))
        return image if self.B is None else image + self.B.mv(trees.flatten(x))

    def shapes(self, x: PyTree, y: PyTree, data: PyTree) -> PyTree:
        return jax.ShapeDtypeStruct((self.A.shape[0],), np.float64)

    def adjoint_x(self, x: PyTree, y: PyTree, data: PyTree, multipliers: PyTree) -> PyTree:
        operator = Zero((self.A.shape[0], trees.size(x))) if self.B is None else self.B
        return trees.unflatten(operator.rmv(multipliers), x)

    def adjoint_y(self, x: PyTree, y: PyTree, data: PyTree, multipliers: PyTree) -> PyTree:
        return trees.unflatten(self.A.rmv(multipliers), y)

    def there_and_back(
        self, x: PyTree, points: tuple[PyTree, ...], data: PyTree, respond: Respond, rows: PyTree
    ) -> tuple[tuple[PyTree, ...], PyTree]:
        shift = None if self.B is None else self.B.mv(trees.flatten(x))

        def at(images: tuple[Any, ...], old: PyTree) -> Any:
            shift, rows, *bounds = old
            return respond(images if shift is None else tuple(image + shift for image in images), rows, *bounds)

        vectors, old = tuple(map(trees.flatten, points)), (shift, rows, self.lower, self.upper)
        pulls, new = self.A.there_and_back(vectors, at, old)
        return tuple(trees.unflatten(pull, y) for pull, y in zip(pulls, points, strict=True)), new

    def bounds(self, rows: PyTree) -> tuple[PyTree, PyTree]:
        return self.lower, self.upper

    def matrices(self, x: PyTree, y: PyTree, data: PyTree) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]:
        count = self.A.shape[0]
        matrix_b = sp.csr_matrix((count, trees.size(x))) if self.B is None else self.B.to_scipy()
        return matrix_b, self.A.to_scipy(), np.zeros(count)

    def check(self, x: PyTree, y: PyTree, data: PyTree, name: str) -> None:
        for letter, operator, variable, like in (("A", self.A, "y", y), ("B", self.B, "x", x)):
            if operator is not None and operator.shape[1] != trees.size(like):
                raise ValueError(
                    f"{name}: {letter} has {operator.shape[1]} columns, but {variable}, {trees.describe(like)}, "
                    f"has {trees.size(like)} entries."
                )

    def y_like(self) -> PyTree | None:
        return jax.ShapeDtypeStruct(() if self.scalar else (self.A.shape[1],), np.float64)


class FunctionCoupling(Coupling):
    """Rows ``lower <= fn(x, y) <= upper`` given by a JAX function; the adjoints come from JAX."""

    fn: Callable[..., PyTree]
    lower: PyTree
    upper: PyTree

    def __init__(self, fn: Callable[..., PyTree], lower: PyTree = -np.inf, upper: PyTree = np.inf):
        self.fn = fn
        try:
            self.lower = trees.map_arrays(trees.host_floats, lower)
            self.upper = trees.map_arrays(trees.host_floats, upper)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self._name}: expected numbers (or infinities) as bounds: {error}.") from error

    def __check_init__(self):
        if not callable(self.fn):
            raise ValueError(f"{self._name}: expected a function of (x, y), got {type(self.fn).__name__}.")
        for side, bound, wrong in (("lower", self.lower, np.inf), ("upper", self.upper, -np.inf)):
            for leaf in filter(trees.is_concrete, jax.tree.leaves(bound)):
                if np.isnan(leaf).any():
                    raise ValueError(f"{self._name}: expected numbers (or infinities) for {side}, got NaN.")
                if np.any(leaf == wrong):
                    raise ValueError(f"{self._name}: no value satisfies {side} = {wrong}.")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def value(self, x: PyTree, y: PyTree, data: PyTree) -> PyTree:
        return self.fn(x, y) if data is None else self.fn(x, y, data)

    def adjoint_x(self, x: PyTree, y: PyTree, data: PyTree, multipliers: PyTree) -> PyTree:
        return jax.vjp(lambda x: self.value(x, y, data), x)[1](multipliers)[0]

    def adjoint_y(self, x: PyTree, y: PyTree, data: PyTree, multipliers: PyTree) -> PyTree:
        return jax.vjp(lambda y: self.value(x, y, data), y)[1](multipliers)[0]

    def bounds(self, rows: PyTree) -> tuple[PyTree, PyTree]:
        spread = lambda bound: jax.tree.map(
            lambda row, side: jnp.broadcast_to(jnp.asarray(side, row.dtype), row.shape),
            rows,
            one_per_leaf(bound, rows),
        )
        return spread(self.lower), spread(self.upper)

    def check(self, x: PyTree, y: PyTree, data: PyTree, name: str) -> None:
        try:
            rows = jax.eval_shape(self.value, x, y, data)
        except Exception as error:
            if (advice := of_tracing(error)) is not None:
                raise ValueError(f"{name}: {advice}.") from error
            raise ValueError(
                f"{name}: the function failed on x = {trees.describe(x)} and y = {trees.describe(y)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        for leaf in jax.tree.leaves(rows):
            if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(f"{name}: expected rows of real numbers, got {leaf}.")
        for side, bound in (("lower", self.lower), ("upper", self.upper)):
            try:
                jax.tree.map(lambda r, b: np.broadcast_to(np.empty(b.shape), r.shape), rows, one_per_leaf(bound, rows))
            except ValueError:
                raise ValueError(
                    f"{name}: {side} is {trees.describe(bound)}, which does not broadcast to the rows, "
                    f"{trees.describe(rows)}."
                ) from None
        if all(map(trees.is_concrete, jax.tree.leaves((self.lower, self.upper)))):
            low, high = (
                trees.flatten_host(
                    jax.tree.map(lambda r, b: np.broadcast_to(b, r.shape), rows, one_per_leaf(bound, rows))
                )
                for bound in (self.lower, self.upper)
            )
            if np.any(low > high):
                raise ValueError(f"{name}: expected lower <= upper, got {first_pair(low, high)}.")


class AffineCoupling(FunctionCoupling):
    """Rows ``lower <= fn(x, y) <= upper`` given by any affine JAX function.

    Parameters
    ----------
    fn
        ``fn(x, y)``, or ``fn(x, y, data)`` when the problem has data; returns an array or a pytree of arrays. Only
        the forward map is written: the adjoints come from JAX.
    lower, upper
        A number, or a pytree with the structure of what ``fn`` returns whose arrays broadcast to it.
    """

    def __init__(self, fn: Callable[..., PyTree], lower: PyTree = -np.inf, upper: PyTree = np.inf):
        super().__init__(fn, lower, upper)

    def matrices(self, x: PyTree, y: PyTree, data: PyTree) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]:
        zero_x, zero_y = trees.zeros(x), trees.zeros(y)
        offset = self.value(zero_x, zero_y, data)
        count = trees.size(offset)

        def matrix(like: PyTree, forward: Callable, adjoint: Callable) -> sp.csr_matrix:
            size = trees.size(like)
            # Probe from the narrow side: as few products as the matrix allows.
            if size <= count:
                apply = lambda v: trees.flatten(trees.subtract(forward(trees.unflatten(v, like)), offset))
                return probe_columns(apply, (count, size)).tocsr()
            apply = lambda u: trees.flatten(adjoint(zero_x, zero_y, data, trees.unflatten(u, offset)))
            return probe_columns(apply, (size, count)).T

        return (
            matrix(zero_x, lambda v: self.value(v, zero_y, data), self.adjoint_x),
            matrix(zero_y, lambda v: self.value(zero_x, v, data), self.adjoint_y),
            trees.flatten_host(offset),
        )

    def check(self, x: PyTree, y: PyTree, data: PyTree, name: str) -> None:
        super().check(x, y, data, name)
        self._check_affine(x, y, data, name)

    @np.errstate(all="ignore")  # a function that is not affine may well return NaN at zero
    def _check_affine(self, x: PyTree, y: PyTree, data: PyTree, name: str) -> None:
        """Compare the function with its linearisation at zero on random points, and name the row that differs."""
        zero = (trees.zeros(x), trees.zeros(y))
        apply = lambda point: self.value(point[0], point[1], data)
        offset, linear = jax.linearize(apply, zero)
        random = np.random.default_rng(0)
        for scale in (1.0, 30.0, 1e4):
            draw = lambda leaf, scale=scale: jax.device_put(
                (scale * random.standard_normal(leaf.shape)).astype(leaf.dtype)
            )
            point = jax.tree.map(draw, zero)
            actual, tangent = apply(point), linear(point)
            if not all(map(trees.is_concrete, jax.tree.leaves((actual, tangent)))):
                return  # traced data: the numbers come later
            actual, tangent, constants = jax.device_get((actual, tangent, offset))
            paths = jax.tree_util.tree_flatten_with_path(actual)[0]
            for (path, value), part, constant in zip(
                paths, jax.tree.leaves(tangent), jax.tree.leaves(constants), strict=True
            ):
                predicted = part + constant
                allowed = 1e-4 if value.dtype == np.float32 else 1e-9
                wrong = ~(np.abs(value - predicted) <= allowed * (np.abs(value) + abs(scale) * 10 + np.abs(constant)))
                if wrong.any():
                    where = np.argwhere(np.atleast_1d(wrong))[0]
                    at = f"row {tuple(map(int, where))}" + (f" of {jax.tree_util.keystr(path)}" if path else "")
                    raise ValueError(
                        f"{name}: expected a function that is affine in x and y, but at {at} it returns "
                        f"{np.atleast_1d(value)[tuple(where)]:.6g} where its linearisation gives "
                        f"{np.atleast_1d(predicted)[tuple(where)]:.6g}."
                    )


class ConvexCoupling(FunctionCoupling):
    """Rows ``fn(x, y) <= upper``, every entry smooth in (x, y) and, on the lower level, convex in y.

    Parameters
    ----------
    fn
        ``fn(x, y)``, or ``fn(x, y, data)`` when the problem has data; returns an array or a pytree of arrays. Rows that
        are affine in y with a matrix that depends on x are among them. Among the ``upper_rows`` of a problem any
        smooth function will do, one of x alone included.
    upper
        A number, or a pytree with the structure of what ``fn`` returns whose arrays broadcast to it.
    """

    affine: ClassVar[bool] = False

    def __init__(self, fn: Callable[..., PyTree], upper: PyTree = 0.0):
        super().__init__(fn, upper=upper)

    def matrices(self, x: PyTree, y: PyTree, data: PyTree) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]:
        raise NotImplementedError("convex rows have matrices only at a point: see `bilevax.model.tangent`")


class RowForm(NamedTuple):
    """How rows were given: one coupling alone, several in a sequence, or several by name, sorted."""

    alone: bool = False
    names: tuple[str, ...] | None = None

    def restore(self, parts: tuple[PyTree, ...]) -> PyTree:
        """Return what there is one of for each coupling as the couplings were given."""
        if self.names is not None:
            return dict(zip(self.names, parts, strict=True))
        return parts[0] if self.alone else parts

    def parts(self, restored: PyTree) -> tuple[PyTree, ...]:
        """Return one entry a coupling: undoes `restore`."""
        if self.names is not None:
            return tuple(restored[name] for name in self.names)
        return (restored,) if self.alone else tuple(restored)

    def label(self, name: str, index: int) -> str:
        """Return what to call a coupling in a message; ``name`` is that of the argument."""
        if self.names is not None:
            return f"{name}[{self.names[index]!r}]"
        return name if self.alone else f"{name}[{index}]"


def as_couplings(coupling: Any, name: str = "coupling") -> tuple[tuple[Coupling, ...], RowForm]:
    """Return the couplings as a tuple, and the form in which they were given."""
    if coupling is None:
        return (), RowForm()
    if isinstance(coupling, Coupling):
        return (coupling,), RowForm(alone=True)
    if isinstance(coupling, list | tuple) and all(isinstance(part, Coupling) for part in coupling):
        return tuple(coupling), RowForm()
    if isinstance(coupling, dict) and all(
        isinstance(key, str) and isinstance(part, Coupling) for key, part in coupling.items()
    ):
        names = tuple(sorted(coupling))  # the order of a pytree's leaves
        return tuple(coupling[key] for key in names), RowForm(names=names)
    raise ValueError(
        f"{name}: expected a LinearCoupling, an AffineCoupling, a ConvexCoupling, or a sequence or dictionary of them, "
        f"got {type(coupling).__name__}."
    )
