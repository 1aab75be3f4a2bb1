"""Rows as functions of flat vectors, with their Jacobians: those of the upper level, and those that are not affine."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.memory import Frozen, remembered
from bilevax._support.precision import float64
from bilevax.model.compressed_rows import on_top
from bilevax.model.coupling import Coupling
from bilevax.model.kernels import evaluation
from bilevax.model.problem import BilevelProblem, place

Jacobian = tuple[sp.csr_matrix, sp.csr_matrix]


class RowFunctions:
    """The rows ``lower <= c(x, y) <= upper`` of some couplings, on flat float64 vectors in the user's units.

    Parameters
    ----------
    couplings, data
        What the user wrote.
    x_like, y_like
        The shapes of the variables.
    """

    def __init__(self, couplings: tuple[Coupling, ...], data: PyTree, x_like: PyTree, y_like: PyTree):
        self._like = x_like, y_like
        with float64():
            self._parts, self._data = place((couplings, data), np.float64)
            self.shapes = tuple(part.shapes(x_like, y_like, self._data) for part in self._parts)
            bounds = [part.bounds(shape) for part, shape in zip(couplings, self.shapes, strict=True)]
            self.lower, self.upper = (trees.flatten_host([bound[side] for bound in bounds]) for side in (0, 1))
        self.affine = all(part.affine for part in couplings)
        self.count = len(self.lower)

    @functools.cached_property
    def _matrices(self) -> dict[int, tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]]:
        """(B, A, offset) of the affine parts."""
        with float64():
            return {
                index: part.matrices(*self._like, self._data) for index, part in enumerate(self._parts) if part.affine
            }

    def values(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return c(x, y)."""
        parts = []
        for index, part in enumerate(self._parts):
            if part.affine:
                b, a, offset = self._matrices[index]
                parts.append(b @ x + a @ y + offset)
            else:
                parts.append(self._smooth(part)[0](x, y))
        return np.concatenate(parts) if parts else np.zeros(0)

    def jacobian(self, x: np.ndarray, y: np.ndarray) -> Jacobian:
        """Return the derivatives of c in x and in y."""
        if not self._parts:
            return sp.csr_matrix((0, len(x))), sp.csr_matrix((0, len(y)))
        found = [
            self._matrices[index][:2] if part.affine else self._smooth(part)[1](x, y)
            for index, part in enumerate(self._parts)
        ]
        return on_top([sp.csr_matrix(each[0]) for each in found]), on_top([sp.csr_matrix(each[1]) for each in found])

    def _smooth(self, part: Coupling) -> tuple[Callable, Callable]:
        """Return a part that is not affine, and its Jacobians, as functions on the host."""
        numbers, structure = eqx.partition((part, self._data), eqx.is_array)
        value, jacobians = _compiled(Frozen(structure), *map(Frozen, self._like))

        def at(kernel: Callable, x: np.ndarray, y: np.ndarray) -> Any:
            with evaluation():
                return jax.tree.map(np.asarray, kernel(numbers, x, y))

        return functools.partial(at, value), functools.partial(at, jacobians)


@functools.lru_cache(maxsize=256)
def _compiled(structure: Frozen, x_like: Frozen, y_like: Frozen) -> tuple[Callable, Callable]:
    def value(numbers: PyTree, x: Any, y: Any) -> Any:
        part, data = eqx.combine(numbers, structure.tree)
        return trees.flatten(part.value(trees.unflatten(x, x_like.tree), trees.unflatten(y, y_like.tree), data))

    return jax.jit(value), jax.jit(jax.jacobian(value, argnums=(1, 2)))


@remembered
def coupling_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> RowFunctions:
    """Return all rows of a problem's lower level."""
    return RowFunctions(problem.coupling, problem.data, x_like.tree, y_like.tree)


@remembered
def bent_rows_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> tuple[RowFunctions | None, ...]:
    """Return the rows of each coupling of a problem that is not affine, None for the others."""
    like = problem.data, x_like.tree, y_like.tree
    return tuple(None if part.affine else RowFunctions((part,), *like) for part in problem.coupling)


@remembered
def upper_rows_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> RowFunctions:
    """Return what the leader of a problem has to satisfy."""
    return RowFunctions(problem.upper_rows, problem.data, x_like.tree, y_like.tree)
