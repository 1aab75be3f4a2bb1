"""The exact lower level at a given x, by an active-set method in the space of the constraints.

Around y0, with the compliance S and the normals R of `DenseAlgebra`, the minimiser for given multipliers is

    y = y_free - H^-1 R' multiplier,       y_free = y0 - H^-1 grad_y g(x, y0),

and the constraints take the values ``free - S multiplier``. The lower level is then the linear complementarity problem
``0 <= multiplier  _|_  free - S multiplier <= 0``; where g is not quadratic, Newton's method goes around it. Bounds at
which g's gradient is infinite are no constraints here: see `domain`.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.optimize import lsq_linear

from bilevax.model.flat import FlatProblem
from bilevax.model.quadratic import LowerDerivatives
from bilevax.solvers.default.lower.dense_algebra import DenseAlgebra, Expansion
from bilevax.solvers.default.lower.domain import Domain
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.programs.complementarity import solve_complementarity
from bilevax.solvers.default.programs.quadratic import solve_qp
from bilevax.solvers.default.settings import EXACT


@dataclasses.dataclass(frozen=True)
class Answer:
    """The lower level's minimiser, the multipliers, and the constraints' values: positive where they are violated."""

    y: np.ndarray
    multiplier: np.ndarray
    values: np.ndarray


class DenseLower:
    """Exact lower-level answers at many x, each started from a guess."""

    def __init__(self, flat: FlatProblem, rows: LowerRows, algebra: DenseAlgebra, domain: Domain):
        self.flat, self.rows, self.algebra, self.domain = flat, rows, algebra, domain

    def active_at(self, x: np.ndarray, y: np.ndarray, coupled: np.ndarray) -> np.ndarray:
        """Return what was active at an earlier answer, by the coupled rows' multipliers and the bounds y lies on."""
        rows, of_y = self.rows, np.ones(self.rows.count, bool)
        of_y[: rows.general] = rows.origin >= len(coupled)
        values, multiplier = rows.values(x, y), rows.multipliers(coupled)
        on_balls = np.arange(rows.count) >= rows.count - len(rows.balls)
        touched = values >= np.where(on_balls, -1e-9, 0.0)
        return ~rows.inequality | np.where(of_y, touched, multiplier > 0)

    def solve(self, x: np.ndarray, y: np.ndarray, active: np.ndarray | None = None) -> Answer | None:
        """Solve the lower level at x from the guess (y, active constraints); None where it is infeasible or fails."""
        y = self.domain.enter(y)
        if not np.isfinite(self.flat.gradients("lower", x, y)[1]).all():
            y = self.domain.centre
        active = ~self.rows.inequality if active is None else active | ~self.rows.inequality
        answer = self._newton(x, y, active, np.zeros(self.rows.count))
        if answer is None and self.rows.balls and (guess := self._by_cones(x, y)) is not None:
            answer = self._newton(x, *guess)
        return answer

    def _newton(self, x: np.ndarray, y: np.ndarray, active: np.ndarray, multiplier: np.ndarray) -> Answer | None:
        rows, domain, algebra = self.rows, self.domain, self.algebra
        here, value = self.flat.lower_derivatives(x, y, proven=False), None  # the answer is: at its end
        answer, left = None, np.inf
        for _ in range(EXACT.newton_steps):
            expansion = algebra.expand(here, y, multiplier)  # decides whether g needs a lift
            gradient = algebra.gradient(here, y)
            if not np.isfinite(gradient).all():
                return answer
            free_step = -expansion.solve(gradient)
            free = rows.values(x, y) + expansion.rows @ free_step
            solved = solve_complementarity(expansion.compliance, free, rows.inequality, active)
            if solved is None and not rows.balls:
                solved = self._by_interior_point(expansion, y + free_step, x)
            if solved is None:
                return answer
            multiplier, active = solved
            step = free_step - expansion.pushed(multiplier)
            leaving = domain.leaves(y, step)
            target = domain.bent(y, step) if leaving else y + step
            there = self.flat.lower_derivatives(x, target)
            residual = self._residual(x, target, there, multiplier, active)
            # Newton's method goes on as long as it gains: what is left would show in small differences of Phi.
            if answer is not None and residual > 0.1 * left:
                return answer
            if residual <= EXACT.accurate:
                answer, left = Answer(target, multiplier, rows.values(x, target)), residual
                if residual <= EXACT.finest:
                    return answer
                y, here, value = target, there, None
                continue
            if leaving:
                if not residual <= 0.9 * self._residual(x, y, here, multiplier, active):
                    target = domain.bent(y, step, EXACT.cautious)
                    there = self.flat.lower_derivatives(x, target)
                if np.isfinite(there.gradient).all():
                    y, here, value = target, there, None
                    continue
            # Both ends satisfy the rows once y does, so g itself is the merit function.
            feasible = np.all(rows.values(x, y) <= 1e-9)
            value = algebra.value(x, y) if value is None else value
            for length in 0.5 ** np.arange(35):
                trial_value = algebra.value(x, y + length * step)
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
        gradient = self.algebra.gradient(there, y)
        left = self.domain.kept_from(y, gradient + self.rows.pull(y, multiplier))
        scale = 1 + np.abs(gradient).max(initial=0.0) + np.abs(multiplier).max(initial=0.0)
        off = np.abs(left).max(initial=0.0) / scale
        if self.rows.balls or self.domain.bounded:
            values = self.rows.values(x, y)
            off = max(off, np.abs(values[active]).max(initial=0.0), values[self.rows.inequality].max(initial=0.0))
        return float(off) if np.isfinite(off) else np.inf

    def _by_cones(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return (y, active, multiplier) near the answer by second-order cone programs: slower, but reliable."""
        rows, linear = self.rows, self.rows.count - len(self.rows.balls)
        upper = (rows.c - rows.B @ x)[:linear]
        lower = np.where(rows.inequality[:linear], -np.inf, upper)
        matrix, start, value_at = sp.csr_matrix(rows.A[:linear]), y, lambda y: self.algebra.value(x, y)
        for _ in range(EXACT.cones):
            here = self.flat.lower_derivatives(x, y)
            hessian = sp.csc_matrix(here.hessian + self.algebra.lift * sp.eye(len(y)))
            gradient = self.algebra.gradient(here, y)
            if not np.isfinite(gradient).all():
                return None
            target = solve_qp(hessian, gradient - hessian @ y, matrix, lower, upper, rows.balls)
            if target is None:
                return None
            step, value = target - y, value_at(y)
            lengths = [length for length in 0.5 ** np.arange(20) if np.isfinite(value_at(y + length * step))]
            falls = [length for length in lengths if y is not start and value_at(y + length * step) <= value]
            if not lengths:
                return None
            y = y + (falls or lengths)[0] * step
            if np.abs(step).max(initial=0.0) <= 1e-6 * (1 + np.abs(y).max(initial=0.0)):
                break
        active = ~rows.inequality | (rows.values(x, y) >= -1e-7 * (1 + np.abs(y).max(initial=0.0)))
        gradient = self.algebra.gradient(self.flat.lower_derivatives(x, y), y)
        multiplier = self._multipliers(rows.normals(y), active, -gradient)
        return y, active & (~rows.inequality | (multiplier > 0)), multiplier

    def _by_interior_point(
        self, expansion: Expansion, free_y: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (multiplier, active) of the quadratic model by an interior point, where pivots cycle."""
        rows = self.rows
        hessian = sp.csc_matrix(expansion.hessian + self.algebra.lift * sp.eye(len(free_y)))
        upper = rows.c - rows.B @ x
        lower = np.where(rows.inequality, -np.inf, upper)
        y = solve_qp(hessian, -(hessian @ free_y), sp.csr_matrix(rows.A), lower, upper)
        if y is None:
            return None
        active = ~rows.inequality | (rows.A @ y - upper >= -1e-8 * (1 + np.abs(upper).max(initial=0.0)))
        return self._multipliers(rows.A, active, hessian @ (free_y - y)), active

    def _multipliers(self, normals: np.ndarray, active: np.ndarray, pull: np.ndarray) -> np.ndarray:
        """Return the multipliers of the active constraints that best balance a pull on y."""
        multiplier = np.zeros(self.rows.count)
        if active.any():
            bounds = (np.where(self.rows.inequality[active], 0.0, -np.inf), np.inf)
            multiplier[active] = lsq_linear(normals[active].T, pull, bounds, method="bvls", tol=1e-14).x
        return multiplier
