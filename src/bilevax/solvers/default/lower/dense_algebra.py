"""The lower level's KKT systems by LAPACK, in the space of the constraints.

With H the lower Hessian and R the constraints' normals at a point, the *compliance* ``S = R H^-1 R'`` tells by how much
a multiplier moves the constraints. It turns the lower level around that point into a problem in as many unknowns as
there are constraints, and is computed once where g is quadratic.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack

from bilevax.model.flat import FlatProblem, LowerDerivatives
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.programs.cholesky import factorise_nearly, lifted, solve_factored
from bilevax.solvers.default.settings import ALGEBRA
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The quadratic model of the lower level around a point, reduced to its constraints.

    ``factor`` is the Cholesky factor of H, or H's diagonal where that is all of it. ``slope`` is the derivative in x of
    the constraints' values where y follows x with all multipliers held.
    """

    factor: np.ndarray
    hessian: sp.csc_matrix
    mixed: np.ndarray
    rows: np.ndarray
    inverse_rows: np.ndarray
    compliance: np.ndarray
    slope: np.ndarray

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Apply H^-1."""
        return _solve(self.factor, right)

    @functools.cached_property
    def rounding(self) -> float:
        """What dependent equalities need on the diagonal of the compliance."""
        return ALGEBRA.rounding * float(self.compliance.diagonal().max())

    @functools.cached_property
    def inverse_mixed(self) -> np.ndarray:
        """H^-1 times the mixed derivative."""
        return self.solve(self.mixed)


@dataclasses.dataclass(frozen=True)
class DenseFactor:
    """Solves with ``K = [H, R'; R, -give]``; ``factor`` is that of ``S + give``."""

    expansion: Expansion
    factor: np.ndarray
    general: int

    @property
    def mixed(self) -> np.ndarray:
        """The derivative of grad_y g in x."""
        return self.expansion.mixed

    def solve(self, along_y: np.ndarray, along_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the solution, one part for y and one for the constraints."""
        expansion = self.expansion
        free = expansion.solve(along_y)
        multiplier = solve_factored(self.factor, expansion.rows @ free - along_rows)
        return free - expansion.inverse_rows @ multiplier, multiplier

    def response(self, B: np.ndarray) -> np.ndarray:
        """Return the derivatives in x of y and of the general rows' multipliers, one row for each x."""
        along_y, along_rows = self.solve(-self.mixed, -B)
        return np.vstack([along_y, along_rows[: self.general]]).T


class DenseState(NamedTuple):
    """The lift that g was found to need."""

    lift: float


class DenseAlgebra(Learning):
    """Expansions of the lower level and factors of its KKT matrix.

    Where g is merely convex a small multiple of |y|^2 / 2, the ``lift``, is added to it: y* is then its least
    minimiser. The mask ``ordinary`` tells which variables are not steep near a border of g's domain.
    """

    State = DenseState
    shifts = (0.0,)

    def __init__(self, flat: FlatProblem, rows: LowerRows, ordinary: np.ndarray):
        self.flat, self.rows, self.ordinary = flat, rows, ordinary
        self.lift = 0.0
        self._cached: tuple[sp.csc_matrix, sp.csc_matrix, Expansion] | None = None

    def value(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return g with its lift."""
        return self.flat.value("lower", x, y) + 0.5 * self.lift * float(y @ y)

    def gradient(self, there: LowerDerivatives, y: np.ndarray) -> np.ndarray:
        """Return the gradient of `value` in y."""
        return there.gradient + self.lift * y

    def factorise(
        self,
        there: LowerDerivatives,
        y: np.ndarray,
        multiplier: np.ndarray,
        give: np.ndarray,
        unit: float,
        shift: float,
    ) -> DenseFactor:
        """Return a factor of K, whose lower right block is ``-give``; `FloatingPointError` where it has none."""
        try:
            expansion = self.expand(there, y, multiplier)
        except np.linalg.LinAlgError as error:
            raise FloatingPointError(str(error)) from error
        if not self.rows.count:
            return DenseFactor(expansion, np.zeros((0, 0)), 0)
        compliance = lifted(expansion.compliance, give + expansion.rounding)
        factor, failed = lapack.dpotrf(compliance.T, clean=0, overwrite_a=True)
        if failed:
            raise FloatingPointError("the compliance is not positive definite")
        return DenseFactor(expansion, factor, self.rows.general)

    def expand(self, there: LowerDerivatives, y: np.ndarray, multiplier: np.ndarray) -> Expansion:
        """Return the model at a point, reusing the last where nothing of it has changed."""
        _, hessian, mixed = there
        balls = self.rows.balls
        if not balls and self._cached is not None and self._cached[0] is hessian and self._cached[1] is mixed:
            return self._cached[2]
        if not (np.isfinite(hessian.data).all() and np.isfinite(mixed.data).all()):
            raise FloatingPointError("the lower objective has a second derivative that is not finite")
        if balls:
            hessian = sp.csc_matrix(hessian + sp.diags(self.rows.curvature(multiplier)))
        diagonal, mixed_dense, rows = hessian.diagonal(), mixed.toarray(), self.rows.normals(y)
        dense = None if hessian.nnz == np.count_nonzero(diagonal) == len(diagonal) else hessian.toarray()
        if self.lift == 0.0 and self._is_flat(diagonal, dense):
            self.lift = ALGEBRA.lift * max(np.abs(diagonal).max(), 1e-3)
        # The entropy of many shares has a diagonal Hessian: no reason to factorise it.
        plain = dense is None and diagonal.min() > 0
        factor = diagonal + self.lift if plain else factorise_nearly(lifted(hessian.toarray(), self.lift))
        inverse_rows = _solve(factor, rows.T)
        compliance = rows @ inverse_rows
        expansion = Expansion(
            factor=factor,
            hessian=hessian,
            mixed=mixed_dense,
            rows=rows,
            inverse_rows=inverse_rows,
            compliance=0.5 * (compliance + compliance.T),
            slope=self.rows.B - inverse_rows.T @ mixed_dense,
        )
        if not balls:
            self._cached = (hessian, mixed, expansion)
        return expansion

    def _is_flat(self, diagonal: np.ndarray, dense: np.ndarray | None) -> bool:
        """Return whether g is hardly curved along some direction, against where it is not steep near a border."""
        usual = diagonal[self.ordinary]
        if np.min(diagonal) <= 0 or np.min(usual, initial=np.inf) < ALGEBRA.flat * np.max(usual, initial=0):
            return True
        if dense is None:
            return False
        unit = 1 / np.sqrt(np.where(self.ordinary, np.max(usual, initial=0.0), diagonal))
        return bool(np.linalg.eigvalsh(dense * np.outer(unit, unit))[0] < ALGEBRA.flat)


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Apply the inverse of a matrix given by its Cholesky factor, or by its diagonal."""
    if factor.ndim == 2:
        return solve_factored(factor, right)
    return (right.T / factor).T
