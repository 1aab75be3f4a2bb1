"""Steps on the pieces of Phi of a quadratic problem, in the space of its constraints.

On every piece the model of f is the same quadratic in x and the multipliers, only the conditions differ: a constraint
or its multiplier is held, the other one must not change its sign. So the program of a piece is a complementarity
problem whose matrix is computed once for all of them.
"""

import functools

import numpy as np

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.solvers.default.lower.row_space import RowSpace
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.programs.cholesky import factorise, factorise_nearly, half_solved, solve_factored
from bilevax.solvers.default.programs.complementarity import pivot
from bilevax.solvers.default.settings import PROGRAMS


class RowSteps:
    """Programs of the pieces; ``works`` tells whether f is curved along all of x and the multipliers."""

    def __init__(self, space: RowSpace):
        self.space = space
        try:
            self._factor = factorise(space.hessian)
        except np.linalg.LinAlgError:
            self._factor = None

    @property
    def works(self) -> bool:
        """Whether f is strictly convex in x and the multipliers."""
        return self._factor is not None

    @functools.cached_property
    def _compliance(self) -> np.ndarray:
        """What pushing against a condition does to the others: on the constraints' values, then on the multipliers."""
        n_x, count = self.space.n_x, len(self.space.slope)
        rows = np.zeros((n_x + count, 2 * count), order="F")
        rows[:n_x, :count] = self.space.slope.T
        rows[n_x:, :count] = -self.space.compliance
        rows[n_x:, count:][np.diag_indices(count)] = -1.0
        clock.check()
        half = half_solved(self._factor, rows, overwrite=True)
        clock.check()
        return half.T @ half

    def solve(
        self,
        point: ExactPoint,
        gradient: np.ndarray,
        active: np.ndarray,
        biactive: np.ndarray,
        inequality: np.ndarray,
    ) -> tuple[np.ndarray, float] | None:
        """Return the step of x and the multipliers that minimises f, and by how much it falls; None where that fails.

        Values of ``active`` constraints stay, and so do the multipliers of those that are neither active nor biactive.
        """
        space, n_x, count = self.space, self.space.n_x, len(inequality)
        held = np.zeros(2 * count, bool)
        held[active] = True
        held[count:] = True
        held[count + np.concatenate([active, biactive])] = False
        level = np.concatenate([np.maximum(point.slack, 0.0), np.maximum(point.multiplier, 0.0)])
        level[held] = 0.0
        free = -solve_factored(self._factor, gradient)
        beyond = np.concatenate([self.values(free), -free[n_x:]]) - level
        compliance, used = self._compliance, None
        if not inequality.all():  # multipliers of equalities may have any sign
            used = np.flatnonzero(held | np.concatenate([np.ones(count, bool), inequality]))
            compliance, beyond, held = compliance[np.ix_(used, used)], beyond[used], held[used]
        unit = positive(np.abs(beyond).max(initial=0.0))
        size = 1 + np.abs(beyond).max(initial=0.0) / unit
        solved = pivot(compliance, beyond / unit, ~held, held, size)
        if solved is None:
            return None
        push = np.zeros(2 * count)
        push[slice(None) if used is None else used] = unit * solved[0]
        pull = gradient + np.concatenate(
            [space.slope.T @ push[:count], -space.compliance @ push[:count] - push[count:]]
        )
        step = -solve_factored(self._factor, pull)
        bent = space.hessian @ step
        correction = solve_factored(self._factor, bent + pull)  # a refinement
        step -= correction
        bent = space.hessian @ step
        image = np.concatenate([self.values(step), -step[n_x:]]) - level
        image = image if used is None else image[used]
        off = np.where(held, np.abs(image), image).max(initial=0.0)
        if not off <= PROGRAMS.proof * (unit + np.abs(step).max(initial=0.0)):
            return None
        return step, -float(gradient @ step + 0.5 * step @ bent)

    def steepest(self, gradient: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return the gradient of Phi on the piece on which these constraints are active."""
        space, n_x = self.space, self.space.n_x
        if not len(active):
            return gradient[:n_x]
        factor = factorise_nearly(space.compliance[np.ix_(active, active)])
        return gradient[:n_x] + space.slope[active].T @ solve_factored(factor, gradient[n_x:][active])

    def values(self, step: np.ndarray) -> np.ndarray:
        """Return by how much the constraints' values change."""
        n_x = self.space.n_x
        return self.space.slope @ step[:n_x] - self.space.compliance @ step[n_x:]
