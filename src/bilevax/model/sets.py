"""Simple convex sets for x and y: each knows its projection, and its description as rows for exact solvers."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.clock import unlimited
from bilevax._support.precision import call_host
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Ball as BallConstraint
from bilevax.convex.problem import Constraints, Objective, Outcome
from bilevax.model.bounds import first_pair, one_per_leaf, row_bound
from bilevax.model.operators import LinearMap, Lineax, as_linear_map
from bilevax.model.set_rows import SetRows


class ConvexSet(eqx.Module):
    """A closed convex set with a cheap projection."""

    @abc.abstractmethod
    def project(self, value: PyTree) -> PyTree:
        """Return the nearest point of the set, in the structure of ``value``."""

    @abc.abstractmethod
    def rows(self, like: PyTree) -> SetRows:
        """Describe the set by rows and balls on the flattened variable."""

    @abc.abstractmethod
    def check(self, like: PyTree, name: str) -> None:
        """Raise a `ValueError` if the set does not fit a variable shaped like ``like``."""

    def like(self) -> PyTree | None:
        """Return the shapes of the variable where the set itself tells them, else None."""
        return None


def _no_rows(size: int) -> SetRows:
    return SetRows(sp.csr_matrix((0, size)), np.zeros(0), np.zeros(0))


class Free(ConvexSet):
    """The whole space."""

    def project(self, value: PyTree) -> PyTree:
        return value

    def rows(self, like: PyTree) -> SetRows:
        return _no_rows(trees.size(like))

    def check(self, like: PyTree, name: str) -> None:
        pass


class Box(ConvexSet):
    """All v with ``lower <= v <= upper``; infinite bounds are absent ones.

    Parameters
    ----------
    lower, upper
        A number, an array that broadcasts to the variable, or a pytree of them with the variable's structure.
    """

    lower: PyTree
    upper: PyTree

    def __init__(self, lower: PyTree, upper: PyTree):
        try:
            self.lower = trees.map_arrays(trees.host_floats, lower)
            self.upper = trees.map_arrays(trees.host_floats, upper)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Box: expected numbers (or infinities) for lower and upper: {error}.") from error

    def __check_init__(self):
        for side, bound, wrong in (("lower", self.lower, np.inf), ("upper", self.upper, -np.inf)):
            for leaf in filter(trees.is_concrete, jax.tree.leaves(bound)):
                if np.isnan(leaf).any():
                    raise ValueError(f"Box: expected numbers (or infinities) for {side}, got NaN.")
                if np.any(leaf == wrong):
                    raise ValueError(f"Box: no value satisfies {side} = {wrong}.")
        if jax.tree.structure(self.lower) == jax.tree.structure(self.upper):
            for low, high in zip(jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=True):
                if trees.is_concrete(low) and trees.is_concrete(high) and np.any(low > high):
                    raise ValueError(f"Box: expected lower <= upper, got {first_pair(low, high)}.")

    def project(self, value: PyTree) -> PyTree:
        low, high = one_per_leaf(self.lower, value), one_per_leaf(self.upper, value)
        return jax.tree.map(lambda v, a, b: jnp.clip(v, _cast(a, v), _cast(b, v)), value, low, high)

    def rows(self, like: PyTree) -> SetRows:
        low, high = self._bounds(like)
        bounded = np.flatnonzero(np.isfinite(low) | np.isfinite(high))
        ends, columns = np.arange(len(bounded) + 1, dtype=np.int32), bounded.astype(np.int32)
        picked = sp.csr_matrix((np.ones(len(bounded)), columns, ends), (len(bounded), len(low)))
        return SetRows(picked, low[bounded], high[bounded])

    def _bounds(self, like: PyTree) -> tuple[np.ndarray, np.ndarray]:
        full = [
            jax.tree.map(lambda leaf, bound: np.broadcast_to(bound, leaf.shape), like, one_per_leaf(side, like))
            for side in (self.lower, self.upper)
        ]
        return trees.flatten_host(full[0]), trees.flatten_host(full[1])

    def check(self, like: PyTree, name: str) -> None:
        for side, bound in (("lower", self.lower), ("upper", self.upper)):
            try:
                spread = one_per_leaf(bound, like)
                jax.tree.map(lambda leaf, b: np.broadcast_to(np.empty(b.shape), leaf.shape), like, spread)
            except ValueError:
                raise ValueError(
                    f"{name}: the box's {side} bound is {trees.describe(bound)}, "
                    f"which does not broadcast to the variable, {trees.describe(like)}."
                ) from None
        low, high = self._bounds(like) if all(map(trees.is_concrete, jax.tree.leaves(self))) else (0.0, 0.0)
        if np.any(np.asarray(low) > np.asarray(high)):
            raise ValueError(f"{name}: expected lower <= upper, got {first_pair(low, high)}.")

    def like(self) -> PyTree | None:
        if jax.tree.structure(self.lower) != jax.tree.structure(self.upper):
            return None
        shapes = jax.tree.map(
            lambda low, high: jax.ShapeDtypeStruct(np.broadcast_shapes(low.shape, high.shape), np.float64),
            self.lower,
            self.upper,
        )
        return None if all(leaf.ndim == 0 for leaf in jax.tree.leaves(shapes)) else shapes


class NonNegative(Box):
    """All v >= 0."""

    def __init__(self):
        super().__init__(0.0, np.inf)


class Simplex(ConvexSet):
    """All v >= 0 whose entries add up to ``total``."""

    total: Any

    def __init__(self, total: Any = 1.0):
        self.total = trees.host_floats(total)

    def __check_init__(self):
        if self.total.ndim or (trees.is_concrete(self.total) and not 0 < self.total < np.inf):
            raise ValueError(f"Simplex: expected a positive number for total, got {self.total}.")

    def project(self, value: PyTree) -> PyTree:
        flat = trees.flatten(value)
        flat = flat - jnp.max(flat)  # changes nothing but rounding: far away the total would be lost in the sums
        ordered = jnp.sort(flat)[::-1]
        # The largest k for which the k biggest entries stay positive after the common shift.
        shifts = (jnp.cumsum(ordered) - _cast(self.total, flat)) / jnp.arange(1, flat.shape[0] + 1, dtype=flat.dtype)
        count = jnp.sum(ordered > shifts)
        return trees.unflatten(jnp.maximum(flat - shifts[count - 1], 0.0), value)

    def rows(self, like: PyTree) -> SetRows:
        size, total = trees.size(like), float(self.total)
        matrix = sp.vstack([sp.csr_matrix(np.ones((1, size))), sp.eye(size)], format="csr")
        return SetRows(matrix, np.r_[total, np.zeros(size)], np.r_[total, np.full(size, np.inf)])

    def check(self, like: PyTree, name: str) -> None:
        if trees.size(like) == 0:
            raise ValueError(f"{name}: a simplex needs at least one entry, got {trees.describe(like)}.")


class Ball(ConvexSet):
    """All v with ``|v - center| <= radius`` (Euclidean, over all entries)."""

    radius: Any
    center: PyTree

    def __init__(self, radius: Any, center: PyTree = 0.0):
        self.radius = trees.host_floats(radius)
        self.center = trees.map_arrays(trees.host_floats, center)

    def __check_init__(self):
        if self.radius.ndim or (trees.is_concrete(self.radius) and not 0 < self.radius < np.inf):
            raise ValueError(f"Ball: expected a positive number for radius, got {self.radius}.")
        if any(trees.is_concrete(c) and not np.isfinite(c).all() for c in jax.tree.leaves(self.center)):
            raise ValueError("Ball: expected a finite center, got NaN or infinity.")

    def project(self, value: PyTree) -> PyTree:
        center = jax.tree.map(_cast, one_per_leaf(self.center, value), value)
        offset = jax.tree.map(lambda v, c: v - c, value, center)
        square = trees.dot(offset, offset)
        radius = _cast(self.radius, square)
        outside = square > radius**2
        # The double `where` keeps the derivative finite at the center.
        scale = jnp.where(outside, radius / jnp.sqrt(jnp.where(outside, square, 1.0)), 1.0)
        return jax.tree.map(lambda v, c, o: jnp.where(outside, c + scale * o, v), value, center, offset)

    def rows(self, like: PyTree) -> SetRows:
        size = trees.size(like)
        center = jax.tree.map(lambda leaf, c: np.broadcast_to(c, leaf.shape), like, one_per_leaf(self.center, like))
        ball = BallConstraint(np.arange(size), trees.flatten_host(center), float(self.radius))
        return _no_rows(size)._replace(balls=(ball,))

    def check(self, like: PyTree, name: str) -> None:
        try:
            spread = one_per_leaf(self.center, like)
            jax.tree.map(lambda leaf, c: np.broadcast_to(np.empty(c.shape), leaf.shape), like, spread)
        except ValueError:
            raise ValueError(
                f"{name}: the ball's center is {trees.describe(self.center)}, "
                f"which does not broadcast to the variable, {trees.describe(like)}."
            ) from None


class Polyhedron(ConvexSet):
    """All v with ``lower <= A v <= upper``, A acting on the flattened variable.

    Its projection is a quadratic program solved exactly on the host, also from within compiled code: correct
    everywhere, but slower than the other sets inside first-order loops.
    """

    A: LinearMap
    lower: np.ndarray
    upper: np.ndarray

    def __init__(self, A: Any, lower: Any = -np.inf, upper: Any = np.inf):
        self.A = as_linear_map(A, "Polyhedron: A")
        if isinstance(self.A, Lineax):  # its matrix is found by compiled code, which a projection cannot call
            self.A = as_linear_map(self.A.to_scipy(), "Polyhedron: A")
        count = self.A.shape[0]
        self.lower = row_bound(lower, count, "Polyhedron: lower")
        self.upper = row_bound(upper, count, "Polyhedron: upper")

    def __check_init__(self):
        if all(map(trees.is_concrete, (self.lower, self.upper))):
            if np.any(self.lower > self.upper):
                raise ValueError(f"Polyhedron: expected lower <= upper, got {first_pair(self.lower, self.upper)}.")
            if np.any(np.isposinf(self.lower)) or np.any(np.isneginf(self.upper)):
                raise ValueError("Polyhedron: no value satisfies lower = +inf or upper = -inf.")

    def __and__(self, other: ConvexSet) -> "Polyhedron":
        """Return the intersection with another set that rows describe: ``Polyhedron(A, upper=1.0) & Box(0.0, 1.0)``."""
        if not isinstance(other, ConvexSet):
            return NotImplemented
        told, size = other.like(), self.A.shape[1]
        mine, rows = self.rows(None), other.rows(jax.ShapeDtypeStruct((size,), float) if told is None else told)
        if rows.balls or rows.matrix.shape[1] != size:
            kind = "a Ball" if rows.balls else f"one of {rows.matrix.shape[1]}"
            raise ValueError(f"Polyhedron: expected a set of {size} entries without balls to cut it with, got {kind}.")
        sides = [np.concatenate([getattr(part, side) for part in (mine, rows)]) for side in ("lower", "upper")]
        return Polyhedron(sp.vstack([mine.matrix, rows.matrix], format="csr"), *sides)

    __rand__ = __and__

    def project(self, value: PyTree) -> PyTree:
        flat = trees.flatten(value)
        if all(map(trees.is_concrete, jax.tree.leaves((self, flat)))):
            nearest = jnp.asarray(self._nearest(np.asarray(flat)), flat.dtype)
        else:
            # The set is an argument: inside compiled code its numbers are known only when the host is called.
            nearest = call_host(Polyhedron._nearest, jax.ShapeDtypeStruct(flat.shape, flat.dtype), self, flat)
        return trees.unflatten(nearest, value)

    def _nearest(self, point: np.ndarray) -> np.ndarray:
        point = point.astype(np.float64)
        matrix, lower, upper, *_ = self.rows(point)
        image = matrix @ point
        if np.all((image >= lower) & (image <= upper)):
            return point
        identity = sp.eye(len(point), format="csc")
        distance = Objective(
            value=lambda v: 0.5 * float((v - point) @ (v - point)),
            gradient=lambda v: v - point,
            hessian=lambda v: identity,
        )
        with unlimited():  # quick, and often called by XLA, through which no exception comes as what it is
            nearest = minimise(distance, Constraints(matrix, lower, upper, relaxable=len(lower)), point)
        if nearest.outcome is Outcome.INFEASIBLE:
            raise ValueError(f"Polyhedron: the set is empty; its rows miss each other by {nearest.relaxation:g}.")
        return nearest.y

    def rows(self, like: PyTree) -> SetRows:
        return SetRows(self.A.to_scipy(), np.asarray(self.lower), np.asarray(self.upper))

    def check(self, like: PyTree, name: str) -> None:
        if self.A.shape[1] != trees.size(like):
            raise ValueError(
                f"{name}: the polyhedron's A has {self.A.shape[1]} columns, "
                f"but the variable, {trees.describe(like)}, has {trees.size(like)} entries."
            )
        known = lambda leaf: trees.is_concrete(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)
        if all(map(known, jax.tree.leaves((self, like)))):
            point = trees.flatten_host(like)
            if self.rows(like).violation(point) > 1e-6:  # else the point proves that there is one
                try:
                    self._nearest(point)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None

    def like(self) -> PyTree | None:
        return jax.ShapeDtypeStruct((self.A.shape[1],), np.float64)


class Product(ConvexSet):
    """One set for each leaf of the variable, in a pytree of the variable's structure.

    Examples
    --------
    >>> shares_and_flows = Product({"share": Box(0.0, 1.0), "flow": NonNegative()})
    """

    sets: PyTree

    def __check_init__(self):
        for leaf in self._leaves():
            if not isinstance(leaf, ConvexSet):
                raise ValueError(f"Product: expected a pytree of sets, got a leaf of type {type(leaf).__name__}.")

    def _leaves(self) -> list[ConvexSet]:
        return jax.tree.leaves(self.sets, is_leaf=_is_set)

    def project(self, value: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(value)
        projected = [part.project(leaf) for part, leaf in zip(self._leaves(), leaves, strict=True)]
        return jax.tree.unflatten(structure, projected)

    def rows(self, like: PyTree) -> SetRows:
        parts, balls, start = [], [], 0
        for part, leaf in zip(self._leaves(), jax.tree.leaves(like), strict=True):
            rows = part.rows(leaf)
            parts.append(rows)
            balls += [BallConstraint(ball.index + start, ball.center, ball.radius) for ball in rows.balls]
            start += trees.size(leaf)
        return SetRows(
            sp.block_diag([rows.matrix for rows in parts], format="csr"),
            np.concatenate([rows.lower for rows in parts]),
            np.concatenate([rows.upper for rows in parts]),
            tuple(balls),
        )

    def check(self, like: PyTree, name: str) -> None:
        found, wanted = jax.tree.structure(self.sets, is_leaf=_is_set), jax.tree.structure(like)
        if found != wanted:
            raise ValueError(f"{name}: the product's sets have structure {found}, the variable has {wanted}.")
        for index, (part, leaf) in enumerate(zip(self._leaves(), jax.tree.leaves(like), strict=True)):
            part.check(leaf, f"{name}, leaf {index}")


def _is_set(value: Any) -> bool:
    return isinstance(value, ConvexSet)


def _cast(number: Any, like: Any) -> Any:
    """Return a set's numbers in the precision of the point that is projected."""
    return jnp.asarray(number, jnp.result_type(like))
