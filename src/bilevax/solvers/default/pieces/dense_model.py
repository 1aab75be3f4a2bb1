"""The quadratic model of f around an exact point, by dense linear algebra: y and the active multipliers eliminated.

What is left are the step d of x and the changes theta of the multipliers that are not eliminated.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevax._support.division import positive
from bilevax.solvers.default.lower.dense_algebra import Expansion
from bilevax.solvers.default.pieces.descent import Step
from bilevax.solvers.default.pieces.point import ACTIVE, BIACTIVE, INACTIVE, ExactPoint
from bilevax.solvers.default.programs.box import box_program
from bilevax.solvers.default.programs.cholesky import refined_solver
from bilevax.solvers.default.programs.complementarity import independent_rows
from bilevax.solvers.default.programs.convexify import convex_model
from bilevax.solvers.default.programs.quadratic import solve_qp
from bilevax.solvers.default.settings import EXACT, PROGRAMS, SIZES

if TYPE_CHECKING:
    from bilevax.solvers.default.pieces.dense import DensePieces


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Constraints and objective as functions of a step d of x and a change theta of the moving multipliers.

    other constraints:   value + value_x d - value_theta theta
    active multipliers:  multiplier + multiplier_x d - multiplier_theta theta

    The ``moving`` multipliers are those that are variables: of biactive constraints, of active ones that depend on
    others, and of inactive ones that have still to give theirs away.
    """

    active: np.ndarray
    moving: np.ndarray
    value_x: np.ndarray
    value_theta: np.ndarray
    multiplier_x: np.ndarray
    multiplier_theta: np.ndarray
    gradient_x: np.ndarray
    gradient_theta: np.ndarray
    hessian: np.ndarray


class DenseModel:
    """The quadratic model of f around an exact point."""

    def __init__(self, pieces: "DensePieces", point: ExactPoint, expansion: Expansion, radius: float):
        self.pieces, self.point, self.expansion, self.radius = pieces, point, expansion, radius
        self.f_x, self.f_y = pieces.flat.gradients("upper", point.x, point.y)

    def reduce(self, active: np.ndarray, moving: np.ndarray) -> Reduction:
        """Eliminate y and the multipliers of the active constraints, which are kept as equations."""
        expansion = self.expansion
        compliance, slope = expansion.compliance, expansion.slope
        adjoint = expansion.solve(self.f_y)
        pull = expansion.rows @ adjoint
        # Refined, since in a gradient of large numbers what keeps a factor definite would be seen.
        solve = refined_solver(compliance[np.ix_(active, active)]) if len(active) else lambda right: right
        multiplier_x = solve(slope[active])
        multiplier_theta = solve(compliance[np.ix_(active, moving)])
        others = compliance[:, active]
        price = -solve(pull[active])  # of the active constraints: H weight + rows' price = -f_y
        weight = -adjoint - expansion.inverse_rows[:, active] @ price
        hessian = self._hessian(weight, price, active, moving, multiplier_x, multiplier_theta)
        return Reduction(
            active=active,
            moving=moving,
            value_x=slope - others @ multiplier_x,
            value_theta=compliance[:, moving] - others @ multiplier_theta,
            multiplier_x=multiplier_x,
            multiplier_theta=multiplier_theta,
            gradient_x=self.f_x - expansion.mixed.T @ adjoint - multiplier_x.T @ pull[active],
            gradient_theta=multiplier_theta.T @ pull[active] - pull[moving],
            hessian=0.5 * (hessian + hessian.T),
        )

    def _hessian(
        self,
        weight: np.ndarray,
        price: np.ndarray,
        active: np.ndarray,
        moving: np.ndarray,
        multiplier_x: np.ndarray,
        multiplier_theta: np.ndarray,
    ) -> np.ndarray:
        """Return the second derivative of f in (d, theta), y and the active multipliers following."""
        pieces, expansion, x, y = self.pieces, self.expansion, self.point.x, self.point.y
        flat, all_rows = pieces.flat, pieces.rows
        n_x, size = flat.n_x, flat.n_x + flat.n_y
        simple = pieces.algebra.lift == 0.0 and not all_rows.balls and not flat.lagrangian_varies
        if size > SIZES.directions and all_rows.count <= flat.n_y and simple:
            # In the space of x and all multipliers it is computed once: an elimination then costs a sixth.
            whole = pieces.in_rows(expansion, flat.lagrangian_hessian(x, y, weight))
            free, bound = np.concatenate([np.arange(n_x), n_x + moving]), n_x + active
            follow = np.hstack([multiplier_x, -multiplier_theta])
            half = whole[np.ix_(free, bound)] + 0.5 * (whole[np.ix_(bound, bound)] @ follow).T
            cross = half @ follow
            return whole[np.ix_(free, free)] + cross + cross.T
        # The derivative of y in a step of x and in a moving multiplier.
        rows = expansion.inverse_rows
        y_x = -expansion.inverse_mixed - rows[:, active] @ multiplier_x
        y_theta = -(rows[:, moving] - rows[:, active] @ multiplier_theta)
        directions = np.block([[np.eye(n_x), y_x.T], [np.zeros((len(moving), n_x)), y_theta.T]])
        hessian = directions @ flat.curvature(x, y, weight, directions).T
        if not all_rows.balls:
            return hessian
        # A ball's normal turns with y while its multiplier changes; an active ball has curvature of its own.
        multipliers = np.zeros((len(directions), all_rows.count))
        multipliers[:, active] = np.hstack([multiplier_x, -multiplier_theta]).T
        multipliers[n_x:, moving] = np.eye(len(moving))
        prices = np.zeros(all_rows.count)
        prices[active] = price
        for row, ball in enumerate(all_rows.balls, all_rows.count - len(all_rows.balls)):
            along = directions[:, n_x + ball.index] / ball.radius
            turned = np.outer(along @ weight[ball.index], multipliers[:, row])
            hessian += turned + turned.T + prices[row] * ball.radius * (along @ along.T)
        return hessian

    def solve(self, sides: np.ndarray) -> Step | None:
        """Return the model's best step on the piece with these sides, or on those that meet where sides are open."""
        point, expansion = self.point, self.expansion
        active = independent_rows(expansion.compliance, np.flatnonzero(sides == ACTIVE))
        moving = self._moving(sides, active)
        if np.all(sides[moving] == BIACTIVE) and (step := self._in_row_space(sides, active)) is not None:
            return step
        reduction = self.reduce(active, moving)
        solved = self._program(reduction, sides)
        if solved is None:
            return None
        d, theta, predicted = solved
        change = reduction.multiplier_x @ d - reduction.multiplier_theta @ theta
        moved = expansion.solve(expansion.mixed @ d) + expansion.inverse_rows[:, active] @ change
        y = point.y - (moved + expansion.inverse_rows[:, reduction.moving] @ theta)
        multiplier = np.zeros(len(sides))
        multiplier[active] = point.multiplier[active] + change
        multiplier[reduction.moving] = point.multiplier[reduction.moving] + theta
        slack = point.slack - reduction.value_x @ d + reduction.value_theta @ theta
        end = ExactPoint(point.x + d, y, multiplier, slack, point.value)
        steepest = 1 + float(np.linalg.norm(reduction.gradient_x))
        slope = predicted / positive(float(np.linalg.norm(d))) / steepest
        return Step(end, sides, predicted, float(np.abs(d).max(initial=0.0)), slope)

    def _moving(self, sides: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return the constraints whose multipliers are variables of the program: see `Reduction`."""
        given = self.point.multiplier > EXACT.biactive * self.pieces.units(self.point).multiplier
        moving = (sides == BIACTIVE) | ((sides == INACTIVE) & given) | ((sides == ACTIVE) & self.pieces.rows.inequality)
        moving[active] = False
        return np.flatnonzero(moving)

    def _in_row_space(self, sides: np.ndarray, active: np.ndarray) -> Step | None:
        """Return the step by a program in the space of the constraints; None where there is none within the radius."""
        point, steps = self.point, self.pieces.row_steps()
        if steps is None or len(active) < np.count_nonzero(sides == ACTIVE):
            return None
        gradient, biactive = steps.space.gradient(self.f_x, self.f_y), np.flatnonzero(sides == BIACTIVE)
        solved = steps.solve(point, gradient, active, biactive, self.pieces.rows.inequality)
        if solved is None or np.abs(solved[0][: len(point.x)]).max() > self.radius:
            return None
        (d, pushed), predicted = np.split(solved[0], [len(point.x)]), solved[1]
        moving, multiplier = np.concatenate([active, biactive]), np.zeros(len(sides))
        multiplier[moving] = point.multiplier[moving] + pushed[moving]
        multiplier[biactive] = np.maximum(multiplier[biactive], 0.0)
        slack = point.slack - steps.values(solved[0])
        end = ExactPoint(point.x + d, point.y + steps.space.answer @ solved[0], multiplier, slack, point.value)
        steepest = 1 + float(np.linalg.norm(steps.steepest(gradient, active)))
        slope = predicted / positive(float(np.linalg.norm(d))) / steepest
        return Step(end, sides, predicted, float(np.abs(d).max()), slope)

    def _program(self, reduction: Reduction, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Minimise the model in (d, theta): slacks and multipliers stay nonnegative, x in X and in the trust region.

        Active constraints keep their slacks, those that depend on others too; inactive ones lose their multipliers.
        """
        point, radius, inequality = self.point, self.radius, self.pieces.rows.inequality
        n_x, count = len(point.x), len(reduction.moving)
        others = np.ones(len(inequality), bool)
        others[reduction.active] = False
        slack, kept = np.maximum(point.slack, 0.0), np.zeros(len(inequality), bool)
        kept[reduction.moving[sides[reduction.moving] == ACTIVE]] = True
        multiplier_now = point.multiplier[reduction.active]
        fading = inequality[reduction.active] & (
            multiplier_now <= radius * np.abs(reduction.multiplier_x).sum(axis=1) + 1e-6
        )
        rows = [
            (
                np.hstack([reduction.value_x[others], -reduction.value_theta[others]]),
                np.where(kept[others], slack[others], -np.inf),
                slack[others],
            ),
            (
                np.hstack([reduction.multiplier_x[fading], -reduction.multiplier_theta[fading]]),
                -np.maximum(multiplier_now[fading], 0.0),
                np.inf,
            ),
        ]
        least = -point.multiplier[reduction.moving]
        low = np.append(np.full(n_x, -radius), least)
        high = np.append(np.full(n_x, radius), np.where(sides[reduction.moving] == INACTIVE, least, np.inf))
        gradient = np.concatenate([reduction.gradient_x, reduction.gradient_theta])
        held = self.pieces.upper.held(point.x, reduction.gradient_x)
        hessian = convex_model(reduction.hessian, np.append(held, np.zeros(count, bool)))
        # Balanced units: steps and multipliers in multiples of what the model makes of them.
        steepness = positive(np.abs(gradient).max(initial=0.0))
        unit = 1 / np.sqrt(np.maximum(np.diag(hessian) / steepness, 1 / radius))
        if self.pieces.upper.rows.balls:
            unit[:] = 1.0
        model = hessian * np.outer(unit, unit) / steepness, gradient * unit / steepness
        solved = self._in_box(model, unit, low, high, rows)
        if solved is None:
            steps = self.pieces.upper.rows.around(point.x)
            of_x = np.hstack([steps.matrix.toarray(), np.zeros((len(steps.lower), count))])
            blocks = [*rows, (np.eye(n_x + count), low, high), (of_x, steps.lower, steps.upper)]
            matrix = np.vstack([block[0] for block in blocks])
            low, high = (
                np.concatenate([np.broadcast_to(block[side], (len(block[0]),)) for block in blocks]) for side in (1, 2)
            )
            solved = solve_qp(*model, matrix * unit, low, high, steps.balls)
        if solved is None:
            return None
        v = solved * unit
        predicted = -float(gradient @ v + 0.5 * v @ hessian @ v)
        return v[:n_x], np.maximum(v[n_x:], -point.multiplier[reduction.moving]), predicted

    def _in_box(
        self,
        model: tuple[np.ndarray, np.ndarray],
        unit: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        rows: list[tuple[np.ndarray, Any, Any]],
    ) -> np.ndarray | None:
        """Return the minimiser within the rows, bounds and X, if that is a box; None where many rows bind.

        Small programs are left to an interior point, which ends in the middle of what the model cannot tell apart: from
        there a descent sees beyond a region in which Phi is flat.
        """
        upper, x = self.pieces.upper, self.point.x
        if not upper.is_box or len(unit) < PROGRAMS.smallest_box or np.any(high < 0.0):
            return None
        low, high = low.copy(), high.copy()
        low[: len(x)] = np.minimum(np.maximum(low[: len(x)], upper.lower - x), 0.0)
        high[: len(x)] = np.maximum(np.minimum(high[: len(x)], upper.upper - x), 0.0)
        hessian, gradient = model
        matrix, lower, upper = (
            np.concatenate([np.broadcast_to(row[part], row[0].shape[: 2 if part == 0 else 1]) for row in rows])
            for part in range(3)
        )
        return box_program(gradient, hessian, low / unit, high / unit, (matrix * unit, lower, upper))
