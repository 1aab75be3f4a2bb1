"""Pieces of Phi by dense linear algebra: the end of a step is made exact by solving the lower level there."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp

from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.lower.active_set import DenseLower
from bilevax.solvers.default.lower.dense_algebra import DenseAlgebra, Expansion
from bilevax.solvers.default.lower.domain import Domain, find_domain
from bilevax.solvers.default.lower.row_space import RowSpace
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.pieces.dense_model import DenseModel
from bilevax.solvers.default.pieces.descent import Promises, Step
from bilevax.solvers.default.pieces.point import ACTIVE, BIACTIVE, INACTIVE, ExactPoint, Units, classify
from bilevax.solvers.default.pieces.row_steps import RowSteps, row_steps
from bilevax.solvers.default.programs.complementarity import dependent_rows, independent_rows
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import EXACT, SIZES


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
        sides, expansion = self._sides(point), self._expand(point)
        changing = dependent_rows(expansion.compliance, np.flatnonzero(sides != INACTIVE), expansion.B)
        changing = changing[self.rows.inequality[changing]]
        opened = np.any(sides[changing] == ACTIVE)
        sides[changing] = BIACTIVE
        return [(point, sides)] if opened else []

    def model(self, point: ExactPoint, trust: DenseTrust) -> "DenseModel":
        """Return the model of f around a point."""
        return DenseModel(self, point, self._expand(point), trust.radius)

    def arrive(self, step: Step) -> ExactPoint | None:
        """Return the exact point at the x where a step ends, with the step's constraints as first guess."""
        end = step.end
        guess = (step.sides == ACTIVE) | ((step.sides == BIACTIVE) & (end.multiplier > end.slack))
        return self.evaluate(self.upper.project(end.x), end.y, guess)

    def polished(self, point: ExactPoint, trust: DenseTrust) -> None:
        """Return None: points are as exact as they can be."""

    def forget(self) -> None:
        """Give up what is as large as the rows and quickly made again, before work that holds as much itself."""
        self._expanded = None
        self.algebra.forget()

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
