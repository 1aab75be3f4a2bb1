"""Sparsity of second derivatives, learned by probing: later evaluations need few products with directions.

Columns that share no row may be probed together, so a sparse matrix of thousands of columns takes a handful of products
(the columns are coloured; one product a colour). What did not change from point to point takes one product, a check.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax.model.operators import probe_columns

# Up to this many columns a Hessian is probed in full; above, its sparsity is detected first.
DENSE_COLUMNS = 400
# Up to this many products are made along with others, whether they are needed or not.
_FEW_SEEDS = 4


Products = Callable[[np.ndarray], np.ndarray]


class Pattern:
    """Sparsity of one second derivative: found by probing, then used to evaluate it with few products.

    Every evaluation is checked against a product with a random vector; where it fails (an entry that was zero where
    the pattern was found) the pattern is found anew and widened. A ``strict`` check suits any units: a row is compared
    with its own terms alone, not with 1.
    """

    def __init__(self, shape: tuple[int, int], strict: bool = False):
        self.shape = shape
        self.least = 0.0 if strict else 1.0
        self.dense = shape[1] <= DENSE_COLUMNS
        self.varies = False  # whether the matrix was seen to change from point to point
        self.last: sp.csc_matrix | None = None
        self._operator: tuple[Any, Any] | None = None
        self.random = np.random.default_rng(0)
        if not self.dense:  # the first guess, right for separable functions: a diagonal, or nothing
            self._set(sp.eye(*shape, format="csc") if shape[0] == shape[1] else sp.csc_matrix(shape))

    @property
    def operator(self) -> Any:
        """The last matrix in the form in which it multiplies fastest: an array where it is nearly full."""
        assert self.last is not None
        if self._operator is None or self._operator[0] is not self.last:
            full = self.last.nnz > 0.2 * self.shape[0] * self.shape[1]
            self._operator = self.last, self.last.toarray() if full else self.last
        return self._operator[1]

    def probe(self) -> np.ndarray:
        """Return a random direction."""
        return self.random.standard_normal(self.shape[1])

    def few_seeds(self) -> np.ndarray:
        """Return the directions whose products are the matrix, if they are few; else none."""
        few = not self.dense and len(self.seeds) <= _FEW_SEEDS
        return self.seeds if few else np.zeros((0, self.shape[1]))

    def evaluate(
        self,
        products: Products,
        known: tuple[np.ndarray, np.ndarray] | None = None,
        transposed: Products | None = None,
        seeded: np.ndarray | None = None,
    ) -> sp.csc_matrix:
        """Return the matrix.

        Parameters
        ----------
        products
            Directions, one a row, to their products with the matrix.
        known
            A random direction with its product, where that is at hand.
        transposed
            The same as ``products`` for the transposed matrix: the shorter way to one with few rows and many columns.
        seeded
            The products with the `few_seeds`, where they are at hand.
        """
        if self.last is None and self.shape[0] > DENSE_COLUMNS:  # perhaps there is nothing: one product tells
            nothing = sp.csc_matrix(self.shape)
            if not products(self.probe()[None]).any():
                self.last = nothing
                return nothing
        if self.dense and (self.last is None or (self.varies and known is None)):
            self.last = self._in_full(products, transposed)
            return self.last
        probe = self.probe() if known is None else known[0]
        expected = products(probe[None])[0] if known is None else known[1]

        def right(matrix: sp.csc_matrix) -> bool:
            # Row by row: next to a border of its domain a function's second derivatives may be 1e20, and others 1.
            off, terms = np.abs(matrix @ probe - expected), self.least + np.abs(expected)
            if np.all(off <= 1e-11 * terms):
                return True
            return bool(np.all(off <= 1e-11 * (terms + abs(matrix) @ np.abs(probe))))

        # Quadratic functions: the last matrix still holds, and one product proves it.
        if self.last is not None:
            if right(self.last):
                return self.last
            self.varies = True
        matrix = None if self.dense else self._compressed(products if seeded is None else lambda _: seeded)
        if matrix is None or not right(matrix):
            matrix = self._in_full(products, transposed)
            self.dense = self.dense or matrix.nnz > 0.05 * self.shape[0] * self.shape[1]
            if not self.dense:
                self._set(sp.csc_matrix(abs(matrix) + self.structure))
        self.last = matrix
        return matrix

    def _in_full(self, products: Products, transposed: Products | None) -> sp.csc_matrix:
        if transposed is None or self.shape[0] >= self.shape[1]:
            return probe_columns(products, self.shape, compile=False)
        return sp.csc_matrix(probe_columns(transposed, (self.shape[1], self.shape[0]), compile=False).T)

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


class Learned(NamedTuple):
    """The patterns of second derivatives, by what they belong to."""

    patterns: dict[Any, Pattern]


def _color_columns(structure: sp.csc_matrix) -> np.ndarray:
    """Return a color for each column such that columns of one color share no row (greedy)."""
    conflicts = sp.csr_matrix(structure.T @ structure)
    color, crowded = np.full(structure.shape[1], -1), np.diff(conflicts.indptr) > 1
    color[~crowded] = 0
    for column in np.flatnonzero(crowded):
        taken = set(color[conflicts.indices[conflicts.indptr[column] : conflicts.indptr[column + 1]]])
        color[column] = next(c for c in range(len(taken) + 1) if c not in taken)
    return color
