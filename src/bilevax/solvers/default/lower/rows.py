"""The constraints of the lower level on flat vectors, all one-sided and of unit length, in one order.

    A y + B x <= c:    equalities, then inequalities, then bounds of y, then balls of Y.

Bounds of y come last among the rows because linear algebra has an easier way with them. A ball is a row whose normal
turns with y, ``(|y - center|^2 - radius^2) / (2 radius) <= 0``; its multiplier adds to the Hessian of the Lagrangian.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import qdldl
import scipy.sparse as sp

from bilevax._support import full
from bilevax.model.compressed_rows import on_top, row_squares, scaled
from bilevax.model.flat import FlatProblem
from bilevax.model.set_rows import BallConstraint
from bilevax.solvers.default.settings import SIZES


@dataclasses.dataclass(frozen=True)
class LowerRows:
    """All constraints of the lower level.

    ``A`` and ``B`` are arrays for dense linear algebra (``B`` up to a size), sparse matrices for sparse. The first
    ``general`` constraints are rows with the places ``origin`` among those of the coupling followed by those of Y, and
    were multiplied by ``scale``; then come bounds ``sign * y[column] <= c``.
    """

    A: Any
    B: Any
    c: np.ndarray
    equalities: int
    general: int
    origin: np.ndarray
    scale: np.ndarray
    column: np.ndarray
    sign: np.ndarray
    balls: tuple[BallConstraint, ...] = ()

    @property
    def count(self) -> int:
        """Number of constraints."""
        return len(self.c)

    @functools.cached_property
    def inequality(self) -> np.ndarray:
        """Mask of all constraints but the equalities."""
        return np.arange(self.count) >= self.equalities

    @functools.cached_property
    def bounds(self) -> slice:
        """Where the bounds of y are."""
        return slice(self.general, self.general + len(self.column))

    @functools.cached_property
    def transposed(self) -> Any:
        """A', in the form in which it multiplies fastest."""
        return sp.csr_matrix(self.A.T) if sp.issparse(self.A) else self.A.T

    def normals(self, y: np.ndarray) -> Any:
        """Return A with the normals of the balls at y."""
        if not self.balls:
            return self.A
        A = self.A.copy()
        for row, ball in zip(A[-len(self.balls) :], self.balls, strict=True):
            row[ball.index] = (y[ball.index] - ball.center) / ball.radius
        return A

    def pull(self, y: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
        """Return what the multipliers add to the gradient of the Lagrangian in y."""
        return self.normals(y).T @ multiplier if self.balls else self.transposed @ multiplier

    def values(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the values at (x, y), positive where a constraint is violated: the negative slacks."""
        values = self.A @ y + self.B @ x - self.c
        if self.balls:
            gaps = [np.linalg.norm(y[ball.index] - ball.center) - ball.radius for ball in self.balls]
            # (r + gap)^2 - r^2 without cancellation
            values[-len(self.balls) :] = [
                gap * (1 + gap / (2 * b.radius)) for gap, b in zip(gaps, self.balls, strict=True)
            ]
        return values

    def curvature(self, multiplier: np.ndarray) -> np.ndarray:
        """Return what the multipliers on the balls add to the diagonal of the Lagrangian's Hessian."""
        added = np.zeros(self.A.shape[1])
        for part, ball in zip(multiplier[len(multiplier) - len(self.balls) :], self.balls, strict=True):
            added[ball.index] += max(part, 0.0) / ball.radius
        return added

    def multipliers(self, coupled: np.ndarray) -> np.ndarray:
        """Return the multipliers of all constraints, given those of the coupling's rows; 0 for those of Y."""
        given = np.append(coupled, np.zeros(max(self.origin.max(initial=0) + 1 - len(coupled), 0)))
        multiplier = np.zeros(self.count)
        multiplier[: self.general] = given[self.origin] / self.scale
        return np.where(self.inequality, np.maximum(multiplier, 0.0), multiplier)

    def coupled(self, multiplier: np.ndarray, count: int) -> np.ndarray:
        """Return the multipliers of the coupling's ``count`` rows, given those of all constraints."""
        own = self.origin < count
        return np.bincount(self.origin[own], (self.scale * multiplier[: self.general])[own], minlength=count)


def stack_rows(flat: FlatProblem, low: np.ndarray, high: np.ndarray, *, sparse: bool) -> LowerRows:
    """Return the constraints of the lower level, with these bounds of y.

    For ``sparse`` linear algebra equalities that follow from others are left out: they would leave its matrix singular.
    """
    rows, simple = flat.rows, flat.y_rows
    others = np.diff(simple.matrix.indptr) != 1
    fixed = np.flatnonzero(low == high)  # an equality in all but name
    pick = lambda index, sign=1.0: sp.csr_matrix(
        (np.full(len(index), sign), index, np.arange(len(index) + 1)), shape=(len(index), flat.n_y)
    )
    A = on_top([rows.A, simple.matrix[others], pick(fixed)])
    B = on_top([rows.B, sp.csr_matrix((A.shape[0] - rows.B.shape[0], flat.n_x))])
    lower = np.concatenate([rows.lower, simple.lower[others], low[fixed]])
    upper = np.concatenate([rows.upper, simple.upper[others], low[fixed]])
    equal = lower == upper
    if sparse and equal.any():
        equations = np.flatnonzero(equal)
        equal[equations] = _independent(sp.hstack([A, B], format="csr")[equations])
    above, below = (lower < upper) & np.isfinite(upper), (lower < upper) & np.isfinite(lower)
    origin = np.concatenate([np.flatnonzero(part) for part in (equal, above, below)])
    sign = np.repeat([1.0, 1.0, -1.0], [equal.sum(), above.sum(), below.sum()])
    length = np.sqrt(row_squares(A) + row_squares(B))[origin]
    scale = sign / np.where(length > 0, length, 1.0)
    at_low, at_high = np.flatnonzero(np.isfinite(low) & (low < high)), np.flatnonzero(np.isfinite(high) & (low < high))
    column, side = np.concatenate([at_low, at_high]), np.repeat([-1.0, 1.0], [len(at_low), len(at_high)])
    balls = len(simple.balls)
    no_row = lambda size: sp.csr_matrix((balls, size))
    c = scale * np.where(scale > 0, upper[origin], lower[origin])
    ones = np.ones(flat.n_x), np.ones(flat.n_y)
    A, B = (part if np.array_equal(origin, np.arange(len(lower))) else part[origin] for part in (A, B))
    A = on_top([scaled(A, scale, ones[1]), pick(at_low, -1.0), pick(at_high), no_row(flat.n_y)])
    B = on_top([scaled(B, scale, ones[0]), sp.csr_matrix((len(column), flat.n_x)), no_row(flat.n_x)])
    return LowerRows(
        A=A if sparse else full.as_array(A),
        B=B if sparse else in_fast_form(B),
        c=np.concatenate([c, -low[at_low], high[at_high], np.zeros(balls)]),
        equalities=int(equal.sum()),
        general=len(origin),
        origin=origin,
        scale=scale,
        column=column,
        sign=side,
        balls=simple.balls,
    )


def in_fast_form(matrix: Any) -> Any:
    """Return a sparse matrix as an array, unless it is large and has few entries."""
    size = matrix.shape[0] * matrix.shape[1]
    return matrix if size > SIZES.entries_of_an_array and matrix.nnz <= SIZES.full * size else matrix.toarray()


def as_array(matrix: Any) -> np.ndarray:
    """Return a matrix, sparse or not, as an array."""
    return matrix.toarray() if sp.issparse(matrix) else matrix


def _independent(rows: sp.csr_matrix) -> np.ndarray:
    """Return which rows do not depend on others.

    In the factorisation of ``rows rows'`` each pivot is the squared distance of a row from those before it.
    """
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    unit = sp.diags(1 / np.where(length > 0, length, 1.0)) @ rows
    gram = sp.csc_matrix(sp.triu(unit @ unit.T + 1e-13 * sp.eye(rows.shape[0]), format="csc"))
    gram.sort_indices()
    _, pivots, order = qdldl.Solver(gram, upper=True).factors()
    independent = np.zeros(rows.shape[0], bool)
    independent[order] = pivots > 1e-10
    return independent
