"""The lower level in the space of its rows.

With H the lower Hessian, all rows stacked in R (equalities first, then one-sided inequalities ``R y + N x <= c`` scaled
to unit length), and y0 the point of expansion, the minimiser under multipliers ``force`` is

    y = y_free - H^-1 R' force,       y_free = y0 - H^-1 grad_y g(x, y0),

and the rows take the values ``R y + N x - c = free - S force`` with the compliance ``S = R H^-1 R'``. The lower level
is then the linear complementarity problem ``0 <= force  _|_  free - S force <= 0`` in as many unknowns as there are
rows, and x enters through ``slope = d free / dx = N - R H^-1 G`` alone. For quadratic g, H^-1 R', S and slope are
computed once.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import lsq_linear

from bilevax.derivatives import FlatProblem, LowerDerivatives
from bilevax.solvers.default.cholesky import factorise_nearly, lifted, solve_factored
from bilevax.solvers.default.complementarity import solve_complementarity
from bilevax.solvers.default.quadratic_program import solve_qp
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class StackedRows:
    """All lower-level rows, equalities first, each of unit length in (y, x)."""

    R: np.ndarray
    N: np.ndarray
    c: np.ndarray
    equalities: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.c)

    @functools.cached_property
    def inequality(self) -> np.ndarray:
        """Mask of the one-sided rows."""
        return np.arange(self.count) >= self.equalities


def stack_rows(flat: FlatProblem) -> StackedRows:
    """Return the coupling's rows and those of Y, oriented and scaled."""
    rows, simple = flat.rows, flat.y_rows
    matrix = sp.vstack([rows.A, simple.matrix], format="csr").toarray()
    x_matrix = np.vstack([rows.B.toarray(), np.zeros((simple.matrix.shape[0], flat.n_x))])
    lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
    equal = lower == upper
    parts = [(matrix[equal], x_matrix[equal], upper[equal])]
    above, below = ~equal & np.isfinite(upper), ~equal & np.isfinite(lower)
    parts += [(matrix[above], x_matrix[above], upper[above]), (-matrix[below], -x_matrix[below], -lower[below])]
    R, N, c = (np.concatenate([part[index] for part in parts]) for index in range(3))
    length = np.sqrt((R**2).sum(axis=1) + (N**2).sum(axis=1))
    length[length == 0] = 1.0
    return StackedRows(R / length[:, None], N / length[:, None], c / length, int(equal.sum()))


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The lower level's quadratic model around (x, y0), reduced to its rows."""

    factor: np.ndarray
    hessian: sp.csc_matrix
    mixed: np.ndarray
    inverse_rows: np.ndarray
    compliance: np.ndarray
    slope: np.ndarray

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Apply H^-1."""
        return solve_factored(self.factor, right)

    @functools.cached_property
    def inverse_mixed(self) -> np.ndarray:
        """H^-1 times the mixed derivative."""
        return self.solve(self.mixed)


@dataclasses.dataclass(frozen=True)
class LowerPoint:
    """The exact lower level at x: its answer, the rows' values and forces, and the expansion there."""

    x: np.ndarray
    y: np.ndarray
    force: np.ndarray
    value: np.ndarray
    held: np.ndarray
    expansion: Expansion
    violation: float


class ModelState(NamedTuple):
    """The lift that g was found to need."""

    lift: float


class LowerModel(Learning):
    """Exact lower-level answers at many x, each started from the last."""

    State = ModelState

    def __init__(self, flat: FlatProblem):
        self.flat = flat
        self.rows = stack_rows(flat)
        self.lift = 0.0
        self._cached: tuple[sp.csc_matrix, sp.csc_matrix, Expansion] | None = None
        self._in_rows: tuple[Expansion, sp.csc_matrix, np.ndarray] | None = None

    def pressed(self, y: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
        """Return the rows active at an earlier answer, by the coupled rows' multipliers and the bounds y lies on."""
        rows, simple = self.flat.rows, self.flat.y_rows
        image = simple.matrix @ y
        at_upper = np.concatenate([multipliers > 0, image >= simple.upper])
        at_lower = np.concatenate([multipliers < 0, image <= simple.lower])
        lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
        open_above, open_below = (lower < upper) & np.isfinite(upper), (lower < upper) & np.isfinite(lower)
        return np.concatenate([np.ones(self.rows.equalities, bool), at_upper[open_above], at_lower[open_below]])

    def value(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return g, lifted by a trace of |y|^2 where it is merely convex: then y* is the smallest of its minimisers."""
        return self.flat.value("lower", x, y) + 0.5 * self.lift * float(y @ y)

    def gradient(self, y: np.ndarray, there: LowerDerivatives) -> np.ndarray:
        """Return the gradient of `value` in y."""
        return there.gradient + self.lift * y

    def expand(self, there: LowerDerivatives) -> Expansion:
        """Return the model at a point, reusing the last where the second derivatives have not changed."""
        _, hessian, mixed = there
        if self._cached is not None and self._cached[0] is hessian and self._cached[1] is mixed:
            return self._cached[2]
        dense, mixed_dense = hessian.toarray(), mixed.toarray()
        if not (np.isfinite(dense).all() and np.isfinite(mixed_dense).all()):
            raise FloatingPointError("the lower objective has a second derivative that is not finite")
        if self.lift == 0.0 and np.linalg.eigvalsh(dense)[0] < _FLAT * np.abs(np.diag(dense)).max(initial=1e-300):
            self.lift = _LIFT * max(np.abs(np.diag(dense)).max(), 1e-3)
        factor = factorise_nearly(lifted(dense, self.lift))
        inverse_rows = solve_factored(factor, self.rows.R.T)
        compliance = self.rows.R @ inverse_rows
        expansion = Expansion(
            factor=factor,
            hessian=hessian,
            mixed=mixed_dense,
            inverse_rows=inverse_rows,
            compliance=0.5 * (compliance + compliance.T),
            slope=self.rows.N - inverse_rows.T @ mixed_dense,
        )
        self._cached = (hessian, mixed, expansion)
        return expansion

    def in_rows(self, expansion: Expansion, matrix: sp.csc_matrix) -> np.ndarray:
        """Return ``T' matrix T`` where ``T (d, force)`` is how (x, y) answers them; the last one is remembered."""
        if self._in_rows is None or self._in_rows[0] is not expansion or self._in_rows[1] is not matrix:
            n_x, array = self.flat.n_x, matrix.toarray()
            answer = -np.hstack([expansion.inverse_mixed, expansion.inverse_rows])
            image = array[:, n_x:] @ answer
            image[:, :n_x] += array[:, :n_x]
            whole = answer.T @ image[n_x:]
            whole[:n_x] += image[:n_x]
            self._in_rows = expansion, matrix, whole
        return self._in_rows[2]

    def solve(self, x: np.ndarray, y: np.ndarray, held: np.ndarray | None = None) -> LowerPoint | None:
        """Solve the lower level at x from the guess (y, held rows); None where it is infeasible or fails."""
        rows = self.rows
        held = ~rows.inequality if held is None else held | ~rows.inequality
        here, value = self.flat.lower_derivatives(x, y, proven=False), None  # the answer is: at its end
        for _ in range(_MAX_NEWTON):
            expansion = self.expand(here)  # decides whether g needs a lift
            gradient = self.gradient(y, here)
            if not np.isfinite(gradient).all():
                return None
            free_y = y - expansion.solve(gradient)
            free = rows.R @ free_y + rows.N @ x - rows.c
            solved = solve_complementarity(expansion.compliance, free, rows.inequality, held)
            if solved is None:
                solved = self._interior(expansion, free_y, x)
            if solved is None:
                return None
            force, held = solved
            target = free_y - expansion.inverse_rows @ force
            there = self.flat.lower_derivatives(x, target)
            target_gradient = self.gradient(target, there)
            scale = 1 + np.abs(target_gradient).max(initial=0.0) + np.abs(force).max(initial=0.0)
            residual = np.abs(target_gradient + rows.R.T @ force).max(initial=0.0)
            if residual <= 1e-10 * scale:
                values = rows.R @ target + rows.N @ x - rows.c
                worst = np.maximum(np.where(rows.inequality, values, np.abs(values)).max(initial=0.0), 0.0)
                return LowerPoint(x, target, force, values, held, self.expand(there), float(worst))
            # Both ends satisfy the rows once y does, so g itself is the merit function.
            step, feasible = target - y, np.all(rows.R @ y + rows.N @ x - rows.c <= 1e-9)
            value = self.value(x, y) if value is None else value
            for length in 0.5 ** np.arange(35):
                trial_value = self.value(x, y + length * step)
                enough = value + 1e-4 * length * float(gradient @ step) + 1e-14 * abs(value)
                if np.isfinite(trial_value) and (not feasible or trial_value <= enough):
                    y, value = y + length * step, trial_value
                    here = there if length == 1.0 else self.flat.lower_derivatives(x, y)
                    break
            else:
                return None
        return None

    def _interior(
        self, expansion: Expansion, free_y: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (force, held) of the quadratic model by an interior point: for degenerate rows where pivots cycle."""
        rows = self.rows
        hessian = sp.csc_matrix(expansion.hessian + self.lift * sp.eye(len(free_y)))
        upper = rows.c - rows.N @ x
        lower = np.where(rows.inequality, -np.inf, upper)
        y = solve_qp(hessian, -(hessian @ free_y), sp.csr_matrix(rows.R), lower, upper)
        if y is None:
            return None
        held = ~rows.inequality | (rows.R @ y - upper >= -1e-8 * (1 + np.abs(upper).max(initial=0.0)))
        bounds = (np.where(rows.inequality[held], 0.0, -np.inf), np.inf)
        force = np.zeros(rows.count)
        force[held] = lsq_linear(rows.R[held].T, hessian @ (free_y - y), bounds, method="bvls", tol=1e-14).x
        return force, held


# Curvature below _FLAT of the largest counts as none, and is replaced by _LIFT of the largest.
_FLAT = 1e-9
_LIFT = 1e-6
_MAX_NEWTON = 60
