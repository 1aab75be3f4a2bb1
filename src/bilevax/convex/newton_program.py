"""The program of a Newton step: a quadratic over the rows and balls of a problem, solved by Clarabel.

With one variable more, for a margin by which rows are widened or narrowed, the same programs find feasible and
interior points.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import clarabel
import numpy as np
import scipy.sparse as sparse

from bilevax._support.programs import conic
from bilevax.convex.curvature import in_own_units, own_units
from bilevax.convex.optimality import Rows, stacked
from bilevax.convex.problem import Ball
from bilevax.convex.settings import PROGRAM


class Status(enum.Enum):
    """How Clarabel ended."""

    SOLVED = "solved"
    INFEASIBLE = "primal infeasible"
    UNBOUNDED = "dual infeasible"
    ROUGH = "not solved to the tolerance"


_STATUS = {"Solved": Status.SOLVED, "PrimalInfeasible": Status.INFEASIBLE, "DualInfeasible": Status.UNBOUNDED}


@dataclass(frozen=True)
class NewtonStep:
    """A step from a point, with the multipliers of rows and balls at its end."""

    status: Status
    direction: np.ndarray
    multipliers: np.ndarray
    ball_multipliers: np.ndarray


class NewtonProgram:
    """Quadratic programs over the same rows and balls: their matrix is built once, for steps from any point."""

    def __init__(self, rows: Rows):
        self.rows = rows
        self.upper = np.isfinite(rows.upper) & ~rows.equality
        self.lower = np.isfinite(rows.lower) & ~rows.equality
        size = rows.matrix.shape[1]
        self.open_low, self.open_high = (
            np.flatnonzero(np.isfinite(side)) for side in (rows.domain.low, rows.domain.high)
        )
        blocks = [rows.matrix[rows.equality], rows.matrix[self.upper], -rows.matrix[self.lower]]
        if rows.domain.bounded:
            borders = sparse.eye_array(size, format="csr")
            blocks += [borders[self.open_high], -borders[self.open_low]]
        self.ends = np.cumsum([block.shape[0] for block in blocks])
        self.cones: list = [
            clarabel.ZeroConeT(int(self.ends[0])),
            clarabel.NonnegativeConeT(int(self.ends[-1] - self.ends[0])),
        ]
        for ball in rows.balls:
            count = len(ball.index)
            entries = (-np.ones(count), (np.arange(1, count + 1), ball.index))
            blocks.append(sparse.csr_matrix(entries, (count + 1, size)))
            self.cones.append(clarabel.SecondOrderConeT(count + 1))
        self.matrix = sparse.csc_matrix(stacked(blocks))

    def solve(
        self,
        hessian: sparse.csc_matrix,
        gradient: np.ndarray,
        y: np.ndarray,
        widening: float = 0.0,
        proximal: float = 0.0,
    ) -> NewtonStep:
        """Minimise gradient'd + d'Hd/2 over d such that y + d is feasible, and well inside the domain.

        The rows are widened by `widening`; `proximal` weighs the length of d, relative to the Hessian.
        """
        rows, matrix, unit = self.rows, self.matrix, 1.0
        below, above = rows.slack(y)
        sides = [0.5 * (above - below)[rows.equality], above[self.upper] + widening, below[self.lower] + widening]
        if rows.domain.bounded:
            down, up = rows.domain.around(y)
            sides += [up[self.open_high], -down[self.open_low]]
        if rows.domain.bounded or np.max(hessian.diagonal(), initial=0.0) > PROGRAM.steep:
            # Near the borders of the domain curvatures, and steps, are of very different sizes.
            unit = own_units(hessian)
            matrix, gradient = sparse.csc_matrix(matrix @ sparse.diags_array(unit)), gradient * unit
            hessian = sparse.csc_matrix(in_own_units(hessian))
        sides += [np.append(ball.radius + widening, y[ball.index] - ball.center) for ball in rows.balls]
        side = np.concatenate(sides)
        # Clarabel's tolerances are partly absolute: bring the objective to unit size.
        largest = np.max(abs(hessian.data), initial=0.0)
        scale = float(max(np.max(abs(gradient)), PROGRAM.least_scale * largest)) or 1.0
        hessian = hessian / scale
        step = None
        for tolerance, extra in PROGRAM.attempts:
            settings = clarabel.DefaultSettings()
            settings.verbose = False
            settings.max_iter = PROGRAM.max_iterations
            settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
            weight = (proximal + extra) * max(largest / scale, 1.0)
            quadratic = hessian + weight * sparse.eye_array(y.size, format="csc") if weight else hessian
            answer = conic(quadratic, gradient / scale, matrix, side, self.cones, settings=settings)
            step = self._step(_STATUS.get(str(answer.status), Status.ROUGH), answer, scale, unit)
            # What stalls far from feasibility is most likely infeasible: measuring that is quicker than trying again.
            if step.status is not Status.ROUGH or self.looks_infeasible(y + step.direction, widening):
                break
        assert step is not None
        return step

    def looks_infeasible(self, end: np.ndarray, widening: float) -> bool:
        """Whether the end of a step that was not solved to the tolerance violates rows grossly."""
        return self.rows.infeasibility(end) > PROGRAM.stalled_infeasibility + 2 * widening

    def _step(
        self, status: Status, answer: clarabel.DefaultSolution, scale: float, unit: np.ndarray | float
    ) -> NewtonStep:
        dual, multipliers = np.array(answer.z) * scale, np.zeros(len(self.upper))
        equality, upper, lower = self.ends[:3]
        multipliers[self.rows.equality] = dual[:equality]
        multipliers[self.upper] += dual[equality:upper]
        multipliers[self.lower] -= dual[upper:lower]
        # The cone's dual is (|w|, -w) for the ball's term w in the gradient; (y - center) carries the radius.
        heads = self.ends[-1] + np.cumsum([0] + [len(ball.index) + 1 for ball in self.rows.balls])[:-1]
        return NewtonStep(status, unit * np.array(answer.x), multipliers, dual[heads] / self.rows.radii)


def cleaned(rows: Rows, step: NewtonStep) -> tuple[np.ndarray, np.ndarray]:
    """The step's multipliers with zero for those of infinite sides and for negative ones of balls."""
    multipliers = step.multipliers
    infinite_side = ((multipliers > 0) & np.isinf(rows.upper)) | ((multipliers < 0) & np.isinf(rows.lower))
    return np.where(infinite_side, 0.0, multipliers), np.maximum(step.ball_multipliers, 0.0)


def with_margin(matrix, lower, upper, balls: tuple[Ball, ...], weight: np.ndarray, floor: float) -> Rows:
    """The rows and balls with a margin t as one variable more, by which rows are widened.

    The rows are ``lower - weight t <= matrix y <= upper + weight t`` and ``t >= floor``.
    """
    matrix, size = sparse.csr_matrix(matrix), matrix.shape[1]
    fixed, above, below = weight == 0, np.isfinite(upper) & (weight != 0), np.isfinite(lower) & (weight != 0)
    column = sparse.csr_matrix(weight[:, None])
    blocks = [
        sparse.hstack([matrix[fixed], column[fixed]]),
        sparse.hstack([matrix[above], -column[above]]),
        sparse.hstack([-matrix[below], -column[below]]),
        sparse.eye_array(1, size + 1, k=size),
    ]
    one_sided = np.full(above.sum() + below.sum(), -np.inf)
    floors = np.concatenate([lower[fixed], one_sided, [floor]])
    ceilings = np.concatenate([upper[fixed], upper[above], -lower[below], [np.inf]])
    return Rows(sparse.vstack(blocks, format="csr"), floors, ceilings, balls)


def interior_point(rows: Rows, near: np.ndarray) -> np.ndarray:
    """A point far from all sides of the rows: the slack of each is at least s, for the largest such s <= 1."""
    size = near.size
    lifted = with_margin(rows.matrix, rows.lower, rows.upper, rows.balls, (~rows.equality).astype(float), -1.0)
    weight = sparse.diags_array(np.append(np.full(size, PROGRAM.interior_weight), 0.0), format="csc")
    cost = np.append(np.zeros(size), 1.0)
    step = NewtonProgram(lifted).solve(sparse.csc_matrix(weight), cost, np.append(near, 0.0))
    return near + step.direction[:size]
