"""Phi by sparse linear algebra, for lower levels with many variables or constraints and g strictly convex.

The lower level at x is solved as in the compiled `program`: Newton's method with a set of active constraints, which is
then corrected. Entries of y on an active bound and rows that are not active are taken out of the KKT matrix, whose
pattern stays the same: the order of elimination is found once, and a step costs one factorisation. Of a g that is
quadratic in y two evaluations tell all that is needed at x.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import qdldl
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.hypergradient.phi import Answer, Lower, Phi
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.lower.sparse_algebra import Layout
from bilevax.solvers.default.quasi_newton import SmoothPoint
from bilevax.solvers.default.settings import ALGEBRA, EXACT, HYPERGRADIENT


@dataclasses.dataclass(frozen=True)
class _Lower:
    """The lower level at x: the gradient of g in y, and its second derivative, as functions of y."""

    x: np.ndarray
    gradient: Callable[[np.ndarray], np.ndarray]
    hessian: Callable[[np.ndarray], sp.csc_matrix]

    @classmethod
    def at(cls, flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> "_Lower":
        """Return it, y being where a quadratic g is looked at."""
        gradient = lambda y: flat.gradients("lower", x, y)[1]
        hessian = lambda y: flat.hessian("lower", "y", "y", x, y)
        if not flat.lower_is_quadratic:
            return cls(x, gradient, hessian)
        slope, bent = gradient(y), hessian(y)
        return cls(x, lambda other: slope + bent @ (other - y), lambda _: bent)


class SparsePhi(Phi):
    """Phi of one problem; of its answers y lies on the active bounds, and inactive rows have no multiplier."""

    def __init__(self, flat: FlatProblem, rows: LowerRows):
        super().__init__(flat, rows)
        self._general = sp.csr_matrix(rows.A if rows.general == rows.count else rows.A[: rows.general])
        self._transposed = sp.csr_matrix(self._general.T)
        self._layout: Layout | None = None

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")  # a failure shows in its numbers, and returns None
    def _evaluate(self, x: np.ndarray, guess: Lower) -> SmoothPoint | None:
        flat, rows = self.flat, self.rows
        try:
            at = _Lower.at(flat, x, guess.y)
            lower = self._solve(at, guess)
            if lower is None:
                return None
            value, f_x, f_y = flat.value_and_gradients("upper", x, lower.y)
            p, q = self._step(at, lower, f_y, np.zeros(rows.general))
        except FloatingPointError:
            return None
        gradient = f_x - flat.products("lower", "x", "y", x, lower.y)(p[None])[0] - rows.B[: rows.general].T @ q
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        state = Answer(lower.active, -rows.values(x, lower.y))
        return SmoothPoint(x, lower.y, lower.multiplier, value, gradient, None, state)

    def _solve(self, at: _Lower, guess: Lower) -> Lower | None:
        """Return the lower level's answer at x; None where no set of active constraints fits."""
        lower, seen = self._with(guess, guess.active), set()
        for _ in range(HYPERGRADIENT.newton_steps):
            newton = self._newton(at, lower)
            if newton is None:
                return None
            lower, active = self._corrected(at, newton)
            if np.array_equal(active, lower.active):
                return lower
            if active.tobytes() in seen:
                return None  # the sets go round in circles
            seen.add(active.tobytes())
            lower = self._with(lower, active)
        return None

    def _newton(self, at: _Lower, lower: Lower) -> Lower | None:
        """Return the answer with this set of active constraints, whatever their signs."""
        misfit, before, general = self._misfit(at, lower), np.inf, self.rows.general
        for _ in range(HYPERGRADIENT.newton_steps):
            clock.check()
            size = np.abs(misfit).max(initial=0.0) / (1 + np.abs(lower.multiplier).max(initial=0.0))
            if size <= EXACT.finest or (size <= EXACT.accurate and size > 0.1 * before):
                return lower
            along_y, along_rows = self._step(at, lower, -misfit[: self.flat.n_y], -misfit[self.flat.n_y :])
            for length in 0.5 ** np.arange(HYPERGRADIENT.halvings):
                multiplier = lower.multiplier.copy()
                multiplier[:general] += length * along_rows
                trial = Lower(lower.y + length * along_y, multiplier, lower.active)
                left = self._misfit(at, trial)
                if np.linalg.norm(left) <= (1 - 1e-4 * length) * np.linalg.norm(misfit):  # false for NaN
                    lower, misfit, before = trial, left, size
                    break
            else:
                return lower if size <= EXACT.accurate else None
        return None

    def _with(self, lower: Lower, active: np.ndarray) -> Lower:
        """Return the point with another set of active constraints."""
        rows, y, on = self.rows, lower.y.copy(), active[self.rows.bounds]
        y[rows.column[on]] = (rows.sign * rows.c[rows.bounds])[on]
        return Lower(y, np.where(active, lower.multiplier, 0.0), active)

    def _reduced(self, at: _Lower, lower: Lower) -> np.ndarray:
        """Return the gradient of the Lagrangian without the bounds."""
        return at.gradient(lower.y) + self._transposed @ lower.multiplier[: self.rows.general]

    def _misfit(self, at: _Lower, lower: Lower) -> np.ndarray:
        """Return what is left of the equations of this set of active constraints."""
        values = self._general @ lower.y + (self.rows.B @ at.x - self.rows.c)[: self.rows.general]
        return np.where(self._kept(lower.active), np.concatenate([self._reduced(at, lower), values]), 0.0)

    def _kept(self, active: np.ndarray) -> np.ndarray:
        """Return which entries of y and which rows are in the equations."""
        rows, free = self.rows, np.ones(self.flat.n_y, bool)
        free[rows.column[active[rows.bounds]]] = False
        return np.concatenate([free, active[: rows.general]])

    def _corrected(self, at: _Lower, lower: Lower) -> tuple[Lower, np.ndarray]:
        """Return the point with the multipliers of its bounds, and the constraints that should be active."""
        rows, multiplier = self.rows, lower.multiplier.copy()
        pressing = -rows.sign * self._reduced(at, lower)[rows.column]
        multiplier[rows.bounds] = np.where(lower.active[rows.bounds], pressing, 0.0)
        violated = rows.values(at.x, lower.y) > HYPERGRADIENT.violated * (1 + np.abs(lower.y).max(initial=0.0))
        active = ~rows.inequality | np.where(lower.active, multiplier > 0, violated)
        return lower._replace(multiplier=multiplier), active

    def _step(
        self, at: _Lower, lower: Lower, along_y: np.ndarray, along_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Solve with the KKT matrix of this set of active constraints; zero for what is not in it."""
        hessian, kept, n_y = at.hessian(lower.y), self._kept(lower.active), self.flat.n_y
        solver = self._factorised(hessian, kept)
        right, refined = np.where(kept, np.concatenate([along_y, along_rows]), 0.0), 0

        def left(vector: np.ndarray) -> np.ndarray:
            y, multiplier = vector[:n_y], vector[n_y:]
            image = np.concatenate([hessian @ y + self._transposed @ multiplier, self._general @ y])
            return right - np.where(kept, image, 0.0)

        solution = solver.solve(right)
        residual = left(solution)
        while refined < ALGEBRA.refinements:
            better = solution + solver.solve(residual)
            after = left(better)
            if not np.abs(after).max(initial=0.0) < 0.5 * np.abs(residual).max(initial=0.0):
                break
            solution, residual, refined = better, after, refined + 1
        return solution[:n_y], solution[n_y:]

    def _factorised(self, hessian: sp.csc_matrix, kept: np.ndarray) -> qdldl.Solver:
        if self._layout is None or not self._layout.fits(hessian):
            self._layout = Layout(hessian, self._general)
        n_y, shift = self.flat.n_y, ALGEBRA.shifts[0]
        unit = max(float(np.abs(hessian.diagonal()).max(initial=0.0)), 1e-300)
        sign = np.where(np.arange(len(kept)) < n_y, 1.0, -1.0)
        diagonal = sign * np.where(kept, shift * np.where(sign > 0, unit, 1 / unit), 1.0)
        return self._layout.factorise(hessian, diagonal, kept)
