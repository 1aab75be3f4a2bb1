"""A bilevel problem in plain numbers: what bilevax, pympcc and the judge are all built from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

import bilevax as bx

Objective = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Rows:
    """Rows ``lower <= matrix v <= upper``; where the two sides are equal the row is an equality."""

    matrix: Any
    lower: np.ndarray
    upper: np.ndarray

    @property
    def equal(self) -> np.ndarray:
        return self.lower == self.upper

    @classmethod
    def none(cls, columns: int) -> "Rows":
        return cls(np.zeros((0, columns)), np.zeros(0), np.zeros(0))

    @classmethod
    def bounds(cls, lower: np.ndarray, upper: np.ndarray) -> "Rows":
        """Return the finite bounds of a vector as rows."""
        bounded = np.isfinite(lower) | np.isfinite(upper)
        return cls(sp.eye(len(lower), format="csr")[bounded], lower[bounded], upper[bounded])


@dataclass(frozen=True)
class QuadraticLower:
    """The lower objective ``y'Hy / 2 + y'(Cx + c)``."""

    H: Any
    C: Any
    c: np.ndarray


@dataclass(frozen=True)
class Instance:
    """Minimise ``upper(x, y*(x), data)``; y* minimises ``lower(x, ., data)`` over its box and ``rows`` on (x, y).

    The objectives are JAX functions. ``x_box`` and ``y_box`` are pairs of arrays, infinite where there is no bound;
    ``x_rows`` restrict x alone. ``quadratic`` repeats the lower objective in numbers, for the judge.
    """

    name: str
    upper: Objective
    lower: Objective
    data: dict[str, Any]
    rows: Rows
    x0: np.ndarray
    y0: np.ndarray
    x_box: tuple[np.ndarray, np.ndarray] | None = None
    y_box: tuple[np.ndarray, np.ndarray] | None = None
    x_rows: Rows | None = None
    quadratic: QuadraticLower | None = None

    @property
    def n_x(self) -> int:
        return len(self.x0)

    @property
    def n_y(self) -> int:
        return len(self.y0)

    def x_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return _unbounded(self.n_x) if self.x_box is None else self.x_box

    def y_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return _unbounded(self.n_y) if self.y_box is None else self.y_box

    def to_bilevax(self) -> bx.BilevelProblem:
        """Return the problem for bilevax; instances with the same functions and sizes share compiled code."""
        if self.x_rows is not None:
            raise NotImplementedError("rows on x alone")
        B, A = (_storage(part) for part in (self.rows.matrix[:, : self.n_x], self.rows.matrix[:, self.n_x :]))
        return bx.BilevelProblem(
            self.upper,
            self.lower,
            bx.LinearCoupling(A=A, B=B, lower=self.rows.lower, upper=self.rows.upper),
            x_set=None if self.x_box is None else bx.Box(*self.x_box),
            y_set=None if self.y_box is None else bx.Box(*self.y_box),
            data=self.data,
        )


def _storage(matrix: Any) -> Any:
    """Return a matrix dense or sparse, whichever a user would take."""
    sparse = sp.csr_matrix(matrix)
    return sparse.toarray() if sparse.nnz > 0.3 * sparse.shape[0] * sparse.shape[1] else sparse


def _unbounded(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(size, -np.inf), np.full(size, np.inf)
