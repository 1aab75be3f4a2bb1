"""Pieces of Phi by dense linear algebra: y and the active multipliers are eliminated from a step.

What is left are the step d of x and the changes theta of the biactive constraints' multipliers. The end of a step is
made exact by solving the lower level there.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.lower.active_set import DenseLower
from bilevax.solvers.default.lower.dense_algebra import DenseAlgebra, Expansion
from bilevax.solvers.default.lower.domain import Domain, find_domain
from bilevax.solvers.default.lower.row_space import RowSpace
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.pieces.descent import Promises, Step
from bilevax.solvers.default.pieces.point import ACTIVE, BIACTIVE, INACTIVE, ExactPoint, Units, classify
from bilevax.solvers.default.pieces.row_steps import RowSteps, row_steps
from bilevax.solvers.default.programs.box import box_step
from bilevax.solvers.default.programs.cholesky import refined_solver
from bilevax.solvers.default.programs.complementarity import dependent_rows, independent_rows
from bilevax.solvers.default.programs.convexify import convex_model
from bilevax.solvers.default.programs.quadratic import solve_qp
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import EXACT, PROGRAMS, SIZES


@dataclasses.dataclass(frozen=True)
class DenseTrust:
    """A trust region around x, against the size of x where it began."""

    radius: float
    size: float
    crawling: bool = False

    @property
    def exhausted(self) -> bool:
        """Whether the region has shrunk to nothing."""
        return self.radius <= EXACT.least_radius * self.size

    def after_success(self, length: float, gain: float, share: float) -> "DenseTrust":
        """Return a larger region where its size was what limited the step."""
        return dataclasses.replace(self, radius=3 * self.radius) if length >= 0.9 * self.radius else self

    def after_failure(self, length: float) -> "DenseTrust":
        """Return a region that leaves the step out."""
        return dataclasses.replace(self, radius=0.25 * min(self.radius, length))


class DensePieces:
    """The pieces of Phi of one problem, for `exact_descent`."""

    resolution = EXACT.dense_resolution
    lands_anywhere = True
    inset = 0.0

    def __init__(self, flat: FlatProblem, upper: UpperSet, algebra: DenseAlgebra, domain: Domain):
        self.flat, self.upper, self.algebra, self.rows = flat, upper, algebra, algebra.rows
        self.lower = DenseLower(flat, algebra.rows, algebra, domain)
        # A step is a program in x: too large where only the lower level is small.
        self.descends = max(flat.n_x, algebra.rows.count) <= SIZES.largest_dense
        self._expanded: tuple[ExactPoint, Expansion] | None = None
        self._in_rows: tuple[Expansion, sp.csc_matrix, np.ndarray] | None = None
        self._row_steps: tuple[RowSpace, RowSteps | None] | None = None

    def evaluate(self, x: np.ndarray, y: np.ndarray, active: np.ndarray | None = None) -> ExactPoint | None:
        """Return the exact point at x, or None where the lower level is infeasible."""
        try:
            answer = self.lower.solve(x, y, active)
        except (FloatingPointError, np.linalg.LinAlgError):
            return None
        if answer is None:
            return None
        violation = np.where(self.rows.inequality, answer.values, np.abs(answer.values)).max(initial=0.0)
        if violation > EXACT.feasible * (1 + np.abs(answer.y).max(initial=0.0)):
            return None
        value = self.flat.value("upper", x, answer.y)
        return ExactPoint(x, answer.y, answer.multiplier, -answer.values, value) if np.isfinite(value) else None

    def resume(self, x: np.ndarray, y: np.ndarray, coupled: np.ndarray) -> ExactPoint | None:
        """Return the exact point at an earlier answer, known by the multipliers of its coupled rows."""
        return self.evaluate(x, y, self.lower.active_at(x, y, coupled))

    def units(self, point: ExactPoint) -> Units:
        """Return what multipliers and slacks are measured in: their sizes at the point."""
        return Units(1 + np.abs(point.multiplier).max(initial=0.0), 1 + np.abs(point.y).max(initial=0.0))

    def trust(self, point: ExactPoint, rtol: float) -> DenseTrust:
        """Return the trust to begin with."""
        size = 1 + np.abs(point.x).max(initial=0.0)
        return DenseTrust(size, size)

    def readings(self, point: ExactPoint) -> Iterable[tuple[ExactPoint, np.ndarray]]:
        """Return the point with the sides of its constraints.

        Of dependent active constraints a basis is kept as equations. The rest count as biactive, so that their
        multipliers may change.
        """
        sides = self._sides(point)
        active = np.flatnonzero(sides == ACTIVE)
        basis = independent_rows(self._expand(point).compliance, active)
        sides[np.setdiff1d(active[self.rows.inequality[active]], basis)] = BIACTIVE
        return [(point, sides)]

    def other_readings(self, point: ExactPoint, promises: Promises) -> Iterable[tuple[ExactPoint, np.ndarray]]:
        """Return the point with all constraints biactive whose multipliers are not unique: any of them may open."""
        sides = self._sides(point)
        changing = dependent_rows(self._expand(point).compliance, np.flatnonzero(sides != INACTIVE))
        changing = changing[self.rows.inequality[changing]]
        opened = np.any(sides[changing] == ACTIVE)
        sides[changing] = BIACTIVE
        return [(point, sides)] if opened else []

    def model(self, point: ExactPoint, trust: DenseTrust) -> "_Model":
        """Return the model of f around a point."""
        return _Model(self, point, self._expand(point), trust.radius)

    def arrive(self, step: Step) -> ExactPoint | None:
        """Return the exact point at the x where a step ends, with the step's constraints as first guess."""
        end = step.end
        guess = (step.sides == ACTIVE) | ((step.sides == BIACTIVE) & (end.multiplier > end.slack))
        return self.evaluate(self.upper.project(end.x), end.y, guess)

    def polished(self, point: ExactPoint, trust: DenseTrust) -> None:
        """Return None: points are as exact as they can be."""

    def _sides(self, point: ExactPoint) -> np.ndarray:
        return classify(point, self.units(point), self.rows.inequality, EXACT.biactive)

    def _expand(self, point: ExactPoint) -> Expansion:
        if self._expanded is None or self._expanded[0] is not point:
            there = self.flat.lower_derivatives(point.x, point.y)
            self._expanded = point, self.algebra.expand(there, point.y, point.multiplier)
        return self._expanded[1]

    @property
    def lifted(self) -> bool:
        """Whether g had to be lifted, in a problem that is small enough to do without at the end."""
        few = max(self.flat.n_x, self.flat.n_y, self.rows.count) <= SIZES.unlifted
        return self.algebra.lift > 0.0 and few and not self.rows.balls and self.flat.problem.choice == "optimistic"

    @property
    def large(self) -> bool:
        """Whether descents are worth their time only if they promise the best value yet."""
        return self.row_steps() is not None

    def row_steps(self) -> RowSteps | None:
        """Return the programs of all pieces in the space of the constraints, where they can be solved there."""
        bounded = not self.upper.is_box or np.isfinite([self.upper.lower, self.upper.upper]).any()
        space = None if bounded else self.algebra.space()
        if space is None:
            return None
        if self._row_steps is None or self._row_steps[0] is not space:
            self._row_steps = space, row_steps(space)
        return self._row_steps[1]

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


def dense_pieces(flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray) -> DensePieces:
    """Return the pieces of a problem, as seen from a point: it tells where g is defined."""
    domain = find_domain(flat, x, y)
    low, high = flat.y_rows.intervals()
    rows = stack_rows(
        flat,
        np.where(np.isfinite(domain.low), -np.inf, low),
        np.where(np.isfinite(domain.high), np.inf, high),
        sparse=False,
    )
    ordinary = np.isinf(domain.low) & np.isinf(domain.high)
    return DensePieces(flat, upper, DenseAlgebra(flat, rows, ordinary), domain)


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Constraints and objective as functions of a step d of x and a change theta of the biactive multipliers.

    other constraints:   value + value_x d - value_theta theta
    active multipliers:  multiplier + multiplier_x d - multiplier_theta theta
    """

    active: np.ndarray
    biactive: np.ndarray
    value_x: np.ndarray
    value_theta: np.ndarray
    multiplier_x: np.ndarray
    multiplier_theta: np.ndarray
    gradient_x: np.ndarray
    gradient_theta: np.ndarray
    hessian: np.ndarray


class _Model:
    """The quadratic model of f around an exact point."""

    def __init__(self, pieces: DensePieces, point: ExactPoint, expansion: Expansion, radius: float):
        self.pieces, self.point, self.expansion, self.radius = pieces, point, expansion, radius
        self.f_x, self.f_y = pieces.flat.gradients("upper", point.x, point.y)

    def reduce(self, active: np.ndarray, biactive: np.ndarray) -> Reduction:
        """Eliminate y and the multipliers of the active constraints, which are kept as equations."""
        expansion = self.expansion
        compliance, slope = expansion.compliance, expansion.slope
        adjoint = expansion.solve(self.f_y)
        pull = expansion.rows @ adjoint
        # Refined, since in a gradient of large numbers what keeps a factor definite would be seen.
        solve = refined_solver(compliance[np.ix_(active, active)]) if len(active) else lambda right: right
        multiplier_x = solve(slope[active])
        multiplier_theta = solve(compliance[np.ix_(active, biactive)])
        others = compliance[:, active]
        price = -solve(pull[active])  # of the active constraints: H weight + rows' price = -f_y
        weight = -adjoint - expansion.inverse_rows[:, active] @ price
        hessian = self._hessian(weight, price, active, biactive, multiplier_x, multiplier_theta)
        return Reduction(
            active=active,
            biactive=biactive,
            value_x=slope - others @ multiplier_x,
            value_theta=compliance[:, biactive] - others @ multiplier_theta,
            multiplier_x=multiplier_x,
            multiplier_theta=multiplier_theta,
            gradient_x=self.f_x - expansion.mixed.T @ adjoint - multiplier_x.T @ pull[active],
            gradient_theta=multiplier_theta.T @ pull[active] - pull[biactive],
            hessian=0.5 * (hessian + hessian.T),
        )

    def _hessian(
        self,
        weight: np.ndarray,
        price: np.ndarray,
        active: np.ndarray,
        biactive: np.ndarray,
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
            free, bound = np.concatenate([np.arange(n_x), n_x + biactive]), n_x + active
            follow = np.hstack([multiplier_x, -multiplier_theta])
            half = whole[np.ix_(free, bound)] + 0.5 * (whole[np.ix_(bound, bound)] @ follow).T
            cross = half @ follow
            return whole[np.ix_(free, free)] + cross + cross.T
        # The derivative of y in a step of x and in the multiplier of a biactive constraint.
        rows = expansion.inverse_rows
        y_x = -expansion.inverse_mixed - rows[:, active] @ multiplier_x
        y_theta = -(rows[:, biactive] - rows[:, active] @ multiplier_theta)
        directions = np.block([[np.eye(n_x), y_x.T], [np.zeros((len(biactive), n_x)), y_theta.T]])
        hessian = directions @ flat.curvature(x, y, weight, directions).T
        if not all_rows.balls:
            return hessian
        # A ball's normal turns with y while its multiplier changes; an active ball has curvature of its own.
        multipliers = np.zeros((len(directions), all_rows.count))
        multipliers[:, active] = np.hstack([multiplier_x, -multiplier_theta]).T
        multipliers[n_x:, biactive] = np.eye(len(biactive))
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
        if (step := self._in_row_space(sides, active)) is not None:
            return step
        reduction = self.reduce(active, np.flatnonzero(sides == BIACTIVE))
        solved = self._program(reduction)
        if solved is None:
            return None
        d, theta, predicted = solved
        change = reduction.multiplier_x @ d - reduction.multiplier_theta @ theta
        moved = expansion.solve(expansion.mixed @ d) + expansion.inverse_rows[:, active] @ change
        y = point.y - (moved + expansion.inverse_rows[:, reduction.biactive] @ theta)
        multiplier = np.zeros(len(sides))
        multiplier[active] = point.multiplier[active] + change
        multiplier[reduction.biactive] = point.multiplier[reduction.biactive] + theta
        slack = point.slack - reduction.value_x @ d + reduction.value_theta @ theta
        end = ExactPoint(point.x + d, y, multiplier, slack, point.value)
        steepest = 1 + float(np.linalg.norm(reduction.gradient_x))
        slope = predicted / positive(float(np.linalg.norm(d))) / steepest
        return Step(end, sides, predicted, float(np.abs(d).max(initial=0.0)), slope)

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

    def _program(self, reduction: Reduction) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Minimise the model in (d, theta): slacks and multipliers stay nonnegative, x in X and in the trust region."""
        point, radius, inequality = self.point, self.radius, self.pieces.rows.inequality
        n_x, count = len(point.x), len(reduction.biactive)
        others = np.ones(len(inequality), bool)
        others[reduction.active] = False
        multiplier_now = point.multiplier[reduction.active]
        fading = inequality[reduction.active] & (
            multiplier_now <= radius * np.abs(reduction.multiplier_x).sum(axis=1) + 1e-6
        )
        rows = [
            (
                np.hstack([reduction.value_x[others], -reduction.value_theta[others]]),
                -np.inf,
                np.maximum(point.slack[others], 0.0),
            ),
            (
                np.hstack([reduction.multiplier_x[fading], -reduction.multiplier_theta[fading]]),
                -np.maximum(multiplier_now[fading], 0.0),
                np.inf,
            ),
        ]
        low = np.append(np.full(n_x, -radius), -point.multiplier[reduction.biactive])
        high = np.append(np.full(n_x, radius), np.full(count, np.inf))
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
        return v[:n_x], np.maximum(v[n_x:], -point.multiplier[reduction.biactive]), predicted

    def _in_box(
        self,
        model: tuple[np.ndarray, np.ndarray],
        unit: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        rows: list[tuple[np.ndarray, Any, Any]],
    ) -> np.ndarray | None:
        """Return the minimiser within bounds and X, if that is a box; None unless it satisfies the rows, too.

        Small programs are left to an interior point, which ends in the middle of what the model cannot tell apart: from
        there a descent sees beyond a region in which Phi is flat.
        """
        upper, x = self.pieces.upper, self.point.x
        if not upper.is_box or len(unit) < PROGRAMS.smallest_box:
            return None
        low, high = low.copy(), high.copy()
        low[: len(x)] = np.minimum(np.maximum(low[: len(x)], upper.lower - x), 0.0)
        high[: len(x)] = np.maximum(np.minimum(high[: len(x)], upper.upper - x), 0.0)
        hessian, gradient = model
        v = box_step(gradient, hessian, low / unit, high / unit)
        if v is None:
            return None
        images = [(matrix @ (v * unit), below, above) for matrix, below, above in rows]
        return v if all(np.all((image >= below) & (image <= above)) for image, below, above in images) else None
