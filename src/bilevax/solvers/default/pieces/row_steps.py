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
from bilevax.solvers.default.programs.cholesky import (
    factorise,
    factorise_nearly,
    half_solved,
    inverse,
    solve_factored,
    wholly_solved,
)
from bilevax.solvers.default.programs.complementarity import solve_complementarity
from bilevax.solvers.default.settings import PROGRAMS


class _Pushes:
    """Pushes of held conditions and of those that were ``met``, some of them ``active``.

    ``following`` tells by how much held ones give way to a push of those, ``inner`` what that leaves of their own
    compliance.
    """

    def __init__(self, held: np.ndarray, factor: np.ndarray, push: np.ndarray):
        self.held, self.factor, self.push = held, factor, push
        self.met, self.active = np.zeros(0, int), np.zeros(0, bool)
        self.following, self.inner = np.zeros((len(held), 0)), np.zeros((0, 0))

    def join(self, new: np.ndarray, compliance: np.ndarray) -> None:
        """Add conditions to those that were met."""
        across = compliance[np.ix_(self.held, new)]
        follow = solve_factored(self.factor, across)
        corner = compliance[np.ix_(self.met, new)] - self.following.T @ across
        own = compliance[np.ix_(new, new)] - follow.T @ across
        self.inner = np.block([[self.inner, corner], [corner.T, 0.5 * (own + own.T)]])
        self.following, self.met = np.hstack([self.following, follow]), np.concatenate([self.met, new])
        self.active = np.concatenate([self.active, np.ones(len(new), bool)])

    def change(self, image: np.ndarray) -> np.ndarray:
        """Return the change of pushes that takes what held and active conditions are beyond their levels to zero."""
        met, following = self.met[self.active], self.following[:, self.active]
        left = image[met] - following.T @ image[self.held]
        change = np.zeros(len(image))
        if len(met):
            change[met] = solve_factored(factorise_nearly(self.inner[np.ix_(self.active, self.active)]), left)
        change[self.held] = solve_factored(self.factor, image[self.held]) - following @ change[met]
        return change


class RowSteps:
    """Programs of the pieces, by the Cholesky ``factor`` of f's Hessian in x and the multipliers."""

    def __init__(self, space: RowSpace, factor: np.ndarray):
        self.space, self._factor = space, factor

    @functools.cached_property
    def _compliance(self) -> np.ndarray:
        """What pushing against a condition does to the others: on the constraints' values, then on the multipliers."""
        n_x, count = self.space.n_x, len(self.space.slope)
        rows = np.empty((n_x + count, count), order="F")
        rows[:n_x], rows[n_x:] = self.space.slope.T, -self.space.compliance
        half = half_solved(self._factor, rows, overwrite=True)
        # A multiplier alone is pushed through the last part of the factor, the only one that it meets.
        corner, whole = np.asfortranarray(self._factor[n_x:, n_x:]), np.empty((2 * count, 2 * count))
        with clock.work(count * half.size):
            whole[:count, :count] = half.T @ half
        whole[count:, :count] = -wholly_solved(corner, half[n_x:])
        whole[:count, count:] = whole[count:, :count].T
        whole[count:, count:] = inverse(corner)
        return whole

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
        # Multipliers of equalities may have any sign.
        binding = np.concatenate([np.ones(count, bool), inequality]) & ~held
        pushes = self._pushes(beyond, np.flatnonzero(held), binding)
        if pushes is None:
            return None
        push, held[pushes.met[pushes.active]] = pushes.push, True
        step, off = free, np.inf
        for _ in range(2):  # the second time for what rounding has left: without conditions the step may be a long one
            pushed = push[:count]
            pull = gradient + np.concatenate([space.slope.T @ pushed, -space.compliance @ pushed - push[count:]])
            step = -solve_factored(self._factor, pull)
            step -= solve_factored(self._factor, space.hessian @ step + pull)
            image = np.concatenate([self.values(step), -step[n_x:]]) - level
            off = np.where(held, np.abs(image), np.where(binding, image, 0.0)).max(initial=0.0)
            if off <= PROGRAMS.finest * (1 + np.abs(step).max(initial=0.0)):
                break
            push = push + pushes.change(image)
        if not off <= PROGRAMS.proof * (1 + np.abs(step).max(initial=0.0)):
            return None
        return step, -float(gradient @ step + 0.5 * step @ (space.hessian @ step))

    def _pushes(self, beyond: np.ndarray, held: np.ndarray, binding: np.ndarray) -> "_Pushes | None":
        """Return by how much each condition pushes: the held ones either way, of the ``binding`` ones some in theirs.

        Conditions are ``beyond`` their levels without any push. The held ones are eliminated; binding ones join them as
        they are met, and what is left is a complementarity problem of those.
        """
        compliance, unit = self._compliance, positive(np.abs(beyond).max(initial=0.0))
        found = _Pushes(held, factorise_nearly(compliance[np.ix_(held, held)]), np.zeros(len(beyond)))
        found.push[held] = alone = solve_factored(found.factor, beyond[held])
        for _ in range(PROGRAMS.turns):
            image = beyond - compliance @ found.push
            image[~binding] = image[found.met] = 0.0
            new = np.flatnonzero(image > PROGRAMS.zero * unit)
            if not len(new):
                return found
            found.join(new, compliance)
            left = (beyond[found.met] - found.following.T @ beyond[held]) / unit
            solved = solve_complementarity(found.inner, left, np.ones(len(found.met), bool), found.active)
            if solved is None:
                return None
            found.active = solved[1]
            found.push[found.met] = unit * solved[0]
            found.push[held] = alone - found.following @ found.push[found.met]
        return None

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


def row_steps(space: RowSpace) -> RowSteps | None:
    """Return the programs of a problem's pieces; None unless f is strictly convex in x and the multipliers."""
    try:
        return RowSteps(space, factorise(space.hessian))
    except np.linalg.LinAlgError:
        return None
