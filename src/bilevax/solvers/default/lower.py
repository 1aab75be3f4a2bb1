"""The lower level in the space of its rows.

With H the lower Hessian, all rows stacked in R (equalities first, then one-sided inequalities ``R y + N x <= c`` scaled
to unit length), and y0 the point of expansion, the minimiser for given multipliers is

    y = y_free - H^-1 R' multiplier,       y_free = y0 - H^-1 grad_y g(x, y0),

and the rows take the values ``R y + N x - c = free - S multiplier`` with the compliance ``S = R H^-1 R'``. The lower
level is then the linear complementarity problem ``0 <= multiplier  _|_  free - S multiplier <= 0`` in as many unknowns
as there are rows, and x enters through ``slope = d free / dx = N - R H^-1 G`` alone. For quadratic g, H^-1 R', S and
slope are computed once.

A ball of Y is a row whose normal turns with y, ``(|y - center|^2 - radius^2) / (2 radius) <= 0``: linearised at y0, and
its multiplier adds to H, the Hessian of the Lagrangian. Bounds at which g's gradient is infinite are no rows: see
`domain`.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import lsq_linear

from bilevax.convex.problem import Ball
from bilevax.model.flat import FlatProblem, LowerDerivatives
from bilevax.model.sets import SetRows
from bilevax.solvers.default.cholesky import factorise_nearly, lifted, solve_factored
from bilevax.solvers.default.complementarity import solve_complementarity
from bilevax.solvers.default.domain import Domain, no_domain
from bilevax.solvers.default.quadratic_program import solve_qp
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class StackedRows:
    """All lower-level rows, equalities first, each of unit length in (y, x); then the balls."""

    R: np.ndarray
    N: np.ndarray
    c: np.ndarray
    equalities: int
    balls: tuple[Ball, ...] = ()

    @property
    def count(self) -> int:
        """Number of rows and balls."""
        return len(self.c)

    @functools.cached_property
    def inequality(self) -> np.ndarray:
        """Mask of the one-sided rows."""
        return np.arange(self.count) >= self.equalities

    def normals(self, y: np.ndarray) -> np.ndarray:
        """Return R with the normals of the balls at y."""
        if not self.balls:
            return self.R
        R = self.R.copy()
        for row, ball in zip(R[-len(self.balls) :], self.balls, strict=True):
            row[ball.index] = (y[ball.index] - ball.center) / ball.radius
        return R

    def values(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the rows' values at (x, y), positive where they are violated."""
        values = self.R @ y + self.N @ x - self.c
        if self.balls:
            gaps = [np.linalg.norm(y[ball.index] - ball.center) - ball.radius for ball in self.balls]
            # (r + gap)^2 - r^2 without cancellation
            values[-len(self.balls) :] = [
                gap * (1 + gap / (2 * b.radius)) for gap, b in zip(gaps, self.balls, strict=True)
            ]
        return values

    def curvature(self, multiplier: np.ndarray) -> np.ndarray:
        """Return what the multipliers on the balls add to the diagonal of the Hessian."""
        added = np.zeros(self.R.shape[1])
        for part, ball in zip(multiplier[len(multiplier) - len(self.balls) :], self.balls, strict=True):
            added[ball.index] += max(part, 0.0) / ball.radius
        return added


def stack_rows(flat: FlatProblem, simple: SetRows) -> StackedRows:
    """Return the coupling's rows and those of Y, oriented and scaled."""
    rows = flat.rows
    matrix = sp.vstack([rows.A, simple.matrix], format="csr").toarray()
    x_matrix = np.vstack([rows.B.toarray(), np.zeros((simple.matrix.shape[0], flat.n_x))])
    lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
    equal = lower == upper
    parts = [(matrix[equal], x_matrix[equal], upper[equal])]
    above, below = ~equal & np.isfinite(upper), ~equal & np.isfinite(lower)
    parts += [(matrix[above], x_matrix[above], upper[above]), (-matrix[below], -x_matrix[below], -lower[below])]
    balls = len(simple.balls)
    parts += [(np.zeros((balls, flat.n_y)), np.zeros((balls, flat.n_x)), np.zeros(balls))]
    R, N, c = (np.concatenate([part[index] for part in parts]) for index in range(3))
    length = np.sqrt((R**2).sum(axis=1) + (N**2).sum(axis=1))
    length[length == 0] = 1.0
    return StackedRows(R / length[:, None], N / length[:, None], c / length, int(equal.sum()), simple.balls)


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The lower level's quadratic model around (x, y0), reduced to its rows, whose normals there are ``rows``.

    ``factor`` is the Cholesky factor of H, or H's diagonal where that is all of it.
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
    def inverse_mixed(self) -> np.ndarray:
        """H^-1 times the mixed derivative."""
        return self.solve(self.mixed)


@dataclasses.dataclass(frozen=True)
class LowerPoint:
    """The exact lower level at x: its answer, the rows' values and multipliers, and the expansion there."""

    x: np.ndarray
    y: np.ndarray
    multiplier: np.ndarray
    value: np.ndarray
    active: np.ndarray
    expansion: Expansion
    violation: float


class ModelState(NamedTuple):
    """The lift that g was found to need."""

    lift: float


class LowerModel(Learning):
    """Exact lower-level answers at many x, each started from the last."""

    State = ModelState

    def __init__(self, flat: FlatProblem, domain: Domain | None = None):
        self.flat = flat
        self.domain = no_domain(flat.n_y) if domain is None else domain
        self.simple = self.domain.others(flat.y_rows)
        self.rows = stack_rows(flat, self.simple)
        self.lift = 0.0
        self._cached: tuple[sp.csc_matrix, sp.csc_matrix, Expansion] | None = None
        self._in_rows: tuple[Expansion, sp.csc_matrix, np.ndarray] | None = None

    def active_at(self, y: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
        """Return the rows active at an earlier answer, by the coupled rows' multipliers and the bounds y lies on."""
        rows, simple = self.flat.rows, self.simple
        image = simple.matrix @ y
        at_upper = np.concatenate([multipliers > 0, image >= simple.upper])
        at_lower = np.concatenate([multipliers < 0, image <= simple.lower])
        lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
        open_above, open_below = (lower < upper) & np.isfinite(upper), (lower < upper) & np.isfinite(lower)
        on_balls = [np.linalg.norm(y[ball.index] - ball.center) >= (1 - 1e-9) * ball.radius for ball in simple.balls]
        equal = np.ones(self.rows.equalities, bool)
        return np.concatenate([equal, at_upper[open_above], at_lower[open_below], np.array(on_balls, bool)])

    def value(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return g, plus a small multiple of |y|^2 where it is merely convex: y* is then the least minimiser."""
        return self.flat.value("lower", x, y) + 0.5 * self.lift * float(y @ y)

    def gradient(self, y: np.ndarray, there: LowerDerivatives) -> np.ndarray:
        """Return the gradient of `value` in y."""
        return there.gradient + self.lift * y

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
            self.lift = _LIFT * max(np.abs(diagonal).max(), 1e-3)
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
            slope=self.rows.N - inverse_rows.T @ mixed_dense,
        )
        if not balls:
            self._cached = (hessian, mixed, expansion)
        return expansion

    def _is_flat(self, diagonal: np.ndarray, dense: np.ndarray | None) -> bool:
        """Return whether g is hardly curved along some direction, against where it is not steep near a border."""
        ordinary = np.isinf(self.domain.low) & np.isinf(self.domain.high)
        if np.min(diagonal) <= 0 or np.min(diagonal[ordinary], initial=np.inf) < _FLAT * np.max(
            diagonal[ordinary], initial=0
        ):
            return True
        if dense is None:
            return False
        unit = 1 / np.sqrt(np.where(ordinary, np.max(diagonal[ordinary], initial=0.0), diagonal))
        return bool(np.linalg.eigvalsh(dense * np.outer(unit, unit))[0] < _FLAT)

    def in_rows(self, expansion: Expansion, matrix: sp.csc_matrix) -> np.ndarray:
        """Return ``T' matrix T`` where ``T (d, multiplier)`` is the change of (x, y); the last one is remembered."""
        if self._in_rows is None or self._in_rows[0] is not expansion or self._in_rows[1] is not matrix:
            n_x, array = self.flat.n_x, matrix.toarray()
            answer = -np.hstack([expansion.inverse_mixed, expansion.inverse_rows])
            image = array[:, n_x:] @ answer
            image[:, :n_x] += array[:, :n_x]
            whole = answer.T @ image[n_x:]
            whole[:n_x] += image[:n_x]
            self._in_rows = expansion, matrix, whole
        return self._in_rows[2]

    def solve(self, x: np.ndarray, y: np.ndarray, active: np.ndarray | None = None) -> LowerPoint | None:
        """Solve the lower level at x from the guess (y, active rows); None where it is infeasible or fails."""
        y = self.domain.enter(y)
        if not np.isfinite(self.flat.gradients("lower", x, y)[1]).all():
            y = self.domain.centre
        active = ~self.rows.inequality if active is None else active | ~self.rows.inequality
        point = self._newton(x, y, active, np.zeros(self.rows.count))
        if point is None and self.rows.balls and (guess := self._by_cones(x, y)) is not None:
            point = self._newton(x, *guess)
        return point

    def _newton(self, x: np.ndarray, y: np.ndarray, active: np.ndarray, multiplier: np.ndarray) -> LowerPoint | None:
        rows, domain = self.rows, self.domain
        here, value = self.flat.lower_derivatives(x, y, proven=False), None  # the answer is: at its end
        answer, left = None, np.inf
        for _ in range(_MAX_NEWTON):
            expansion = self.expand(here, y, multiplier)  # decides whether g needs a lift
            gradient = self.gradient(y, here)
            if not np.isfinite(gradient).all():
                return answer
            free_step = -expansion.solve(gradient)
            free = rows.values(x, y) + expansion.rows @ free_step
            solved = solve_complementarity(expansion.compliance, free, rows.inequality, active)
            if solved is None and not rows.balls:
                solved = self._interior(expansion, y + free_step, x)
            if solved is None:
                return answer
            multiplier, active = solved
            step = free_step - expansion.inverse_rows @ multiplier
            leaving = domain.leaves(y, step)
            target = domain.bent(y, step) if leaving else y + step
            there = self.flat.lower_derivatives(x, target)
            residual = self._residual(x, target, there, multiplier, active)
            # Newton's method goes on as long as it gains: what is left would show in small differences of Phi.
            if answer is not None and residual > 0.1 * left:
                return answer
            if residual <= _ACCURATE:
                values, left = rows.values(x, target), residual
                worst = np.maximum(np.where(rows.inequality, values, np.abs(values)).max(initial=0.0), 0.0)
                answer = LowerPoint(
                    x, target, multiplier, values, active, self.expand(there, target, multiplier), float(worst)
                )
                if residual <= _EXACT:
                    return answer
                y, here, value = target, there, None
                continue
            if leaving:
                if not residual <= 0.9 * self._residual(x, y, here, multiplier, active):
                    target = domain.bent(y, step, CAUTIOUS)
                    there = self.flat.lower_derivatives(x, target)
                if np.isfinite(there.gradient).all():
                    y, here, value = target, there, None
                    continue
            # Both ends satisfy the rows once y does, so g itself is the merit function.
            feasible = np.all(rows.values(x, y) <= 1e-9)
            value = self.value(x, y) if value is None else value
            for length in 0.5 ** np.arange(35):
                trial_value = self.value(x, y + length * step)
                enough = value + 1e-4 * length * float(gradient @ step) + 1e-14 * abs(value)
                if np.isfinite(trial_value) and (not feasible or trial_value <= enough):
                    y, value = y + length * step, trial_value
                    here = there if there is not None and length == 1.0 else self.flat.lower_derivatives(x, y)
                    break
            else:
                return answer
        return answer

    def _residual(
        self, x: np.ndarray, y: np.ndarray, there: LowerDerivatives, multiplier: np.ndarray, active: np.ndarray
    ) -> float:
        """Return the relative KKT residual of (y, multiplier); rows count only where steps are not straight."""
        gradient = self.gradient(y, there)
        left = self.domain.kept_from(y, gradient + self.rows.normals(y).T @ multiplier)
        scale = 1 + np.abs(gradient).max(initial=0.0) + np.abs(multiplier).max(initial=0.0)
        off = np.abs(left).max(initial=0.0) / scale
        if self.rows.balls or self.domain.bounded:
            values = self.rows.values(x, y)
            off = max(off, np.abs(values[active]).max(initial=0.0), values[self.rows.inequality].max(initial=0.0))
        return float(off) if np.isfinite(off) else np.inf

    def _by_cones(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return (y, active, multiplier) near the answer by second-order cone programs: slower, but reliable."""
        rows, linear = self.rows, self.rows.count - len(self.rows.balls)
        upper = (rows.c - rows.N @ x)[:linear]
        lower = np.where(rows.inequality[:linear], -np.inf, upper)
        matrix, start = sp.csr_matrix(rows.R[:linear]), y
        for _ in range(_MAX_CONES):
            here = self.flat.lower_derivatives(x, y)
            hessian = sp.csc_matrix(here.hessian + self.lift * sp.eye(len(y)))
            gradient = self.gradient(y, here)
            if not np.isfinite(gradient).all():
                return None
            target = solve_qp(hessian, gradient - hessian @ y, matrix, lower, upper, rows.balls)
            if target is None:
                return None
            step, value = target - y, self.value(x, y)
            lengths = [length for length in 0.5 ** np.arange(20) if np.isfinite(self.value(x, y + length * step))]
            falls = [length for length in lengths if y is not start and self.value(x, y + length * step) <= value]
            if not lengths:
                return None
            y = y + (falls or lengths)[0] * step
            if np.abs(step).max(initial=0.0) <= 1e-6 * (1 + np.abs(y).max(initial=0.0)):
                break
        values = rows.values(x, y)
        active = ~rows.inequality | (values >= -1e-7 * (1 + np.abs(y).max(initial=0.0)))
        bounds = (np.where(rows.inequality[active], 0.0, -np.inf), np.inf)
        multiplier = np.zeros(rows.count)
        if active.any():
            gradient = self.gradient(y, self.flat.lower_derivatives(x, y))
            multiplier[active] = lsq_linear(rows.normals(y)[active].T, -gradient, bounds, method="bvls", tol=1e-14).x
        return y, active & (~rows.inequality | (multiplier > 0)), multiplier

    def _interior(
        self, expansion: Expansion, free_y: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (multiplier, active) of the quadratic model by an interior point, where pivots cycle."""
        rows = self.rows
        hessian = sp.csc_matrix(expansion.hessian + self.lift * sp.eye(len(free_y)))
        upper = rows.c - rows.N @ x
        lower = np.where(rows.inequality, -np.inf, upper)
        y = solve_qp(hessian, -(hessian @ free_y), sp.csr_matrix(rows.R), lower, upper)
        if y is None:
            return None
        active = ~rows.inequality | (rows.R @ y - upper >= -1e-8 * (1 + np.abs(upper).max(initial=0.0)))
        bounds = (np.where(rows.inequality[active], 0.0, -np.inf), np.inf)
        multiplier = np.zeros(rows.count)
        multiplier[active] = lsq_linear(rows.R[active].T, hessian @ (free_y - y), bounds, method="bvls", tol=1e-14).x
        return multiplier, active


# Curvature below _FLAT of the largest counts as none, and is replaced by _LIFT of the largest.
_FLAT = 1e-9
_LIFT = 1e-6
_ACCURATE, _EXACT = 1e-10, 1e-14
_MAX_NEWTON = 60
_MAX_CONES = 30
CAUTIOUS = 3.0  # distances to a border shrink twentyfold


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Apply the inverse of a matrix given by its Cholesky factor, or by its diagonal."""
    if factor.ndim == 2:
        return solve_factored(factor, right)
    return (right.T / factor).T
