"""The lower level's KKT systems by LAPACK, in the space of the constraints.

With H the lower Hessian and R the constraints' normals at a point, the *compliance* ``S = R H^-1 R'`` tells by how much
a multiplier moves the constraints. It turns the lower level around that point into a problem in as many unknowns as
there are constraints, and is computed once where g is quadratic. With many more constraints than variables it is kept
as a product, and systems are solved in the space of the variables: the smaller side of one formula.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack

from bilevax._support import clock, full
from bilevax.model.compressed_rows import scaled
from bilevax.model.flat import FlatProblem
from bilevax.model.quadratic import LowerDerivatives
from bilevax.solvers.default.lower.central import CentralPoint, KktPoint
from bilevax.solvers.default.lower.path_in_rows import central_in_rows
from bilevax.solvers.default.lower.row_space import RowSpace, row_space
from bilevax.solvers.default.lower.rows import LowerRows, as_array, in_fast_form
from bilevax.solvers.default.programs.cholesky import (
    factorise,
    factorise_nearly,
    half_solved,
    lifted,
    solve_factored,
    wholly_solved,
)
from bilevax.solvers.default.programs.complementarity import Product
from bilevax.solvers.default.settings import ALGEBRA, SIZES
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The quadratic model of the lower level around a point, reduced to its constraints.

    ``factor`` is the Cholesky factor of H, or H's diagonal where that is all of it; ``B`` is the constraints' part in
    x.
    """

    factor: np.ndarray
    hessian: sp.csc_matrix
    mixed: Any
    rows: np.ndarray
    B: Any
    compliance: np.ndarray | Product

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Apply H^-1."""
        return _solve(self.factor, right)

    def pushed(self, multiplier: np.ndarray) -> np.ndarray:
        """Return by how much multipliers push y back: H^-1 times what they add to the gradient."""
        if isinstance(self.compliance, Product):
            return self.solve(self.rows.T @ multiplier)
        return self.inverse_rows @ multiplier

    def free_y(self, gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the minimiser without constraints, the gradient at the origin being given."""
        return -self.solve(gradient + self.mixed @ x)

    @functools.cached_property
    def inverse_rows(self) -> np.ndarray:
        """H^-1 times the normals."""
        return self.solve(self.rows.T)

    @functools.cached_property
    def rounding(self) -> float:
        """What dependent equalities need on the diagonal of the compliance."""
        return ALGEBRA.rounding * float(self.compliance.diagonal().max())

    @functools.cached_property
    def inverse_mixed(self) -> np.ndarray:
        """H^-1 times the mixed derivative."""
        return self.solve(as_array(self.mixed))

    @functools.cached_property
    def slope(self) -> np.ndarray:
        """The derivative in x of the constraints' values where y follows x with all multipliers held."""
        return as_array(self.B) - self.inverse_rows.T @ as_array(self.mixed)


@dataclasses.dataclass(frozen=True)
class DenseFactor:
    """Solves with ``K = [H, R'; R, -give]``; ``factor`` is that of ``S + give``, or of ``I + W' give^-1 W``."""

    expansion: Expansion
    give: np.ndarray
    factor: np.ndarray
    general: int

    @property
    def mixed(self) -> Any:
        """The derivative of grad_y g in x."""
        return self.expansion.mixed

    def solve(self, along_y: np.ndarray, along_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the solution, one part for y and one for the constraints."""
        expansion = self.expansion
        free = expansion.solve(along_y)
        if isinstance(expansion.compliance, Product):
            multiplier = self._in_variables(expansion.compliance, expansion.rows @ free - along_rows)
            return free - expansion.pushed(multiplier), multiplier
        multiplier = solve_factored(self.factor, expansion.rows @ free - along_rows)
        return free - expansion.inverse_rows @ multiplier, multiplier

    def _in_variables(self, compliance: Product, right: np.ndarray) -> np.ndarray:
        """Solve with ``W W' + give`` in as many unknowns as W has columns, refined once."""
        half, give = compliance.half, self.give if right.ndim == 1 else self.give[:, None]
        rough = lambda right: (right - half @ solve_factored(self.factor, half.T @ (right / give))) / give
        answer = rough(right)
        return answer + rough(right - compliance @ answer - give * answer)

    def response(self, B: Any) -> np.ndarray:
        """Return the derivatives in x of y and of the general rows' multipliers, one row for each x."""
        along_y, along_rows = self.solve(-as_array(self.mixed), -as_array(B))
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
        self._last: DenseFactor | None = None
        self._space: tuple[Expansion, RowSpace] | None = None

    def value(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return g with its lift."""
        return self.flat.value("lower", x, y) + 0.5 * self.lift * float(y @ y)

    def gradient(self, there: LowerDerivatives, y: np.ndarray) -> np.ndarray:
        """Return the gradient of `value` in y."""
        return there.gradient + self.lift * y

    def factorise(self, at: KktPoint, unit: float, shift: float) -> DenseFactor:
        """Return a factor of K; `FloatingPointError` where it has none."""
        try:
            expansion = self.expand(at.there, at.y, at.multiplier)
        except np.linalg.LinAlgError as error:
            raise FloatingPointError(str(error)) from error
        return self._factor(expansion, at.give)

    def nearer(self, point: CentralPoint, soft: np.ndarray) -> CentralPoint:
        """Return the central point itself where g is a quadratic of many variables: found without them."""
        rows, quadratic = self.rows, self.flat.lower_quadratic
        if quadratic is None or rows.balls or not rows.count or self.flat.n_y <= SIZES.directions:
            return point
        expansion = self.expand(quadratic.at_origin, point.y, point.multiplier)
        if isinstance(expansion.compliance, Product):
            return point
        free_y = expansion.free_y(quadratic.gradient, point.x)
        found = central_in_rows(
            expansion.compliance,
            rows.values(point.x, free_y),
            lambda give: functools.partial(solve_factored, self._factor(expansion, give).factor),
            rows.equalities,
            soft,
            point.barrier,
            (point.multiplier, point.slack),
        )
        if found is None:
            return point
        y = free_y - expansion.pushed(found[0])
        inside = np.all(rows.values(point.x, y)[rows.bounds] < 0)  # bounds are never left: else Newton's method fails
        return dataclasses.replace(point, y=y, multiplier=found[0], slack=found[1]) if inside else point

    def space(self) -> RowSpace | None:
        """Return the problem in the space of x and the multipliers: where both objectives are large quadratics."""
        flat, rows = self.flat, self.rows
        upper, lower = flat.quadratics["upper"], flat.lower_quadratic
        if upper is None or lower is None or rows.balls or flat.n_x + flat.n_y <= SIZES.directions:
            return None
        expansion = self.expand(lower.at_origin, np.zeros(flat.n_y), np.zeros(rows.count))
        if self.lift or not 0 < rows.count <= flat.n_y or isinstance(expansion.compliance, Product):
            return None
        if self._space is None or self._space[0] is not expansion:
            parts = expansion.inverse_mixed, expansion.inverse_rows, expansion.slope, expansion.compliance
            curvature = (upper.own_block(of, by) for of, by in ("xx", "xy", "yy"))
            self._space = expansion, row_space(*parts, *curvature)
        return self._space[1]

    def _factor(self, expansion: Expansion, give: np.ndarray) -> DenseFactor:
        """Return a factor for what the constraints give, the last one where nothing has changed."""
        if not self.rows.count:
            return DenseFactor(expansion, give, np.zeros((0, 0)), 0)
        compliance, give, last = expansion.compliance, give + expansion.rounding, self._last
        if last is not None and last.expansion is expansion and np.array_equal(last.give, give):
            return last
        if isinstance(compliance, Product):
            scaled = compliance.half / np.sqrt(give)[:, None]
            system = lifted(scaled.T @ scaled, 1.0)
        else:
            system = lifted(compliance, give)
        clock.check()
        factor, failed = lapack.dpotrf(system.T, clean=0, overwrite_a=True)
        if failed:
            raise FloatingPointError("the compliance is not positive definite")
        self._last = DenseFactor(expansion, give, factor, self.rows.general)
        return self._last

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
        diagonal, rows = hessian.diagonal(), self.rows.normals(y)
        large, dense, factor = len(diagonal) > SIZES.directions, None, None
        if hessian.nnz != len(diagonal) or np.count_nonzero(diagonal) != len(diagonal):
            dense = full.as_array(hessian).T if large else hessian.toarray()
        if dense is not None and self.lift == 0.0 and self.ordinary.all() and large:
            factor = _factor_of_curved(dense)
        if factor is None:
            if self.lift == 0.0 and self._is_flat(diagonal, dense):
                self.lift = ALGEBRA.lift * max(np.abs(diagonal).max(), 1e-3)
            # The entropy of many shares has a diagonal Hessian: no reason to factorise it.
            plain = dense is None and diagonal.min() > 0
            array = hessian.toarray() if dense is None and not plain else dense
            factor = diagonal + self.lift if array is None or plain else factorise_nearly(lifted(array, self.lift))
        compliance, inverse = _compliance(factor, rows, None if balls else self._thin)
        expansion = Expansion(factor, hessian, in_fast_form(mixed), rows, self.rows.B, compliance)
        if inverse is not None:
            vars(expansion)["inverse_rows"] = inverse  # what would be found out anyway
        if not balls:
            self._cached = (hessian, mixed, expansion)
        return expansion

    def forget(self) -> None:
        """Give up the last model if its compliance is a product: that is made in the time of a look at the rows."""
        if self._cached is not None and isinstance(self._cached[2].compliance, Product):
            self._cached = self._last = None

    @functools.cached_property
    def _thin(self) -> sp.csr_matrix | None:
        """The rows without their zeros, where these are most of them."""
        rows = self.rows.A
        return sp.csr_matrix(rows) if np.count_nonzero(rows) <= SIZES.thin * rows.size else None

    def _is_flat(self, diagonal: np.ndarray, dense: np.ndarray | None) -> bool:
        """Return whether g is hardly curved along some direction, against where it is not steep near a border."""
        usual = diagonal[self.ordinary]
        if np.min(diagonal) <= 0 or np.min(usual, initial=np.inf) < ALGEBRA.flat * np.max(usual, initial=0):
            return True
        if dense is None:
            return False
        unit = 1 / np.sqrt(np.where(self.ordinary, np.max(usual, initial=0.0), diagonal))
        # Cholesky's method tells whether an eigenvalue is smaller, at a tenth of the cost of the eigenvalues.
        return lapack.dpotrf(lifted(dense * np.outer(unit, unit), -ALGEBRA.flat), clean=0)[1] != 0


def _factor_of_curved(hessian: np.ndarray) -> np.ndarray | None:
    """Return the Cholesky factor if its condition tells that g is curved along all directions; else None."""
    try:
        factor = factorise(hessian)
    except np.linalg.LinAlgError:
        return None
    largest = lapack.dlange("I", hessian.T)  # of a symmetric matrix any order will do
    return factor if lapack.dpocon(factor, largest)[0] > 10 * ALGEBRA.flat else None


def _compliance(
    factor: np.ndarray, rows: np.ndarray, thin: sp.csr_matrix | None
) -> tuple[np.ndarray | Product, np.ndarray | None]:
    """Return ``R H^-1 R'``, as a product where there are many more rows than variables, and ``H^-1 R'`` if it is known.

    Rows with few entries are given as ``thin``, too: with a diagonal H their zeros need not be multiplied.
    """
    count, size = rows.shape
    if count > max(SIZES.few_rows, 2 * size):
        half = rows / np.sqrt(factor) if factor.ndim == 1 else lapack.dtrtrs(factor, rows.T, trans=1)[0].T
        return Product(half), None
    if thin is not None and factor.ndim == 1:
        return (scaled(thin, np.ones(count), 1 / factor) @ thin.T).toarray(), None
    if factor.ndim == 2 and size > SIZES.directions:  # half of the work
        half = half_solved(factor, rows.T)
        with clock.work(count * half.size):
            compliance = half.T @ half
        return compliance, wholly_solved(factor, half)
    inverse = _solve(factor, rows.T)
    compliance = rows @ inverse
    return 0.5 * (compliance + compliance.T), inverse


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Apply the inverse of a matrix given by its Cholesky factor, or by its diagonal."""
    if factor.ndim == 2:
        return solve_factored(factor, right)
    return (right.T / factor).T
