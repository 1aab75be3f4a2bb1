"""Problems next to one that is solved: the same rows with other sides, an objective that is a little different.

The active rows of the solved problem are mostly those of the new one, so Newton's method with those held takes a step
or two. Its answer counts only if it satisfies the optimality conditions as well as an answer of `minimise` has to;
otherwise `minimise` solves the problem from the start.
"""

import numpy as np

from bilevax.convex.active_set import follow
from bilevax.convex.minimise import minimise, solution_at
from bilevax.convex.optimality import Local, Point, Rows, measure, scaled_rows
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.convex.settings import NEWTON
from bilevax.convex.tolerances import CONVEX_TOLERANCES


class Nearby:
    """Minimises problems with the rows of a solved one."""

    def __init__(self, constraints: Constraints, solution: ConvexSolution):
        self.solution = solution
        self._rows = scaled_rows(constraints, 0.0)[0]
        self._empty = np.flatnonzero(np.asarray(abs(constraints.matrix).sum(axis=1)).ravel() == 0)

    def minimise(
        self, objective: Objective, constraints: Constraints, tolerance: float = CONVEX_TOLERANCES.optimality
    ) -> ConvexSolution:
        """Return the minimiser of a problem with the same rows, whose sides may be others; see `convex.minimise`."""
        found = self._followed(objective, constraints, tolerance)
        return minimise(objective, constraints, self.solution.y, tolerance=tolerance) if found is None else found

    @np.errstate(all="ignore")  # overflow and nan are expected outside the domain, and are tested for
    def _followed(self, objective: Objective, constraints: Constraints, tolerance: float) -> ConvexSolution | None:
        rows, known = self._at(constraints), self.solution
        at = Local(objective, known.y)
        if rows is None or not (np.all(np.isfinite(at.gradient)) and np.all(np.isfinite(at.hessian.data))):
            return None
        multipliers = known.multipliers[rows.kept] * rows.norms
        point = follow(rows, at, multipliers, known.ball_multipliers, tolerance)
        return self._accepted(constraints, rows, point, tolerance)

    @np.errstate(all="ignore")
    def verified(
        self,
        objective: Objective,
        constraints: Constraints,
        y: np.ndarray,
        multipliers: np.ndarray,
        tolerance: float = CONVEX_TOLERANCES.optimality,
    ) -> ConvexSolution | None:
        """Return a point that was found elsewhere as the minimiser it has to be; None if it is not as good as others.

        The problem has the same rows, whose sides may be others, and no balls.
        """
        if (rows := self._at(constraints)) is None:
            return None
        point = measure(Local(objective, y), rows, multipliers[rows.kept] * rows.norms, np.zeros(0))
        return self._accepted(constraints, rows, point, tolerance)

    def _accepted(self, constraints: Constraints, rows: Rows, point: Point, tolerance: float) -> ConvexSolution | None:
        """Return a point as the solution if it satisfies the optimality conditions well enough."""
        if not (point.error <= NEWTON.settled * tolerance and point.at.finite):
            return None
        found = solution_at(constraints, rows, self.solution.y, point, Outcome.OPTIMAL, 0)
        return found if found.sharp else None

    def _at(self, constraints: Constraints) -> Rows | None:
        """The rows with other sides; None where these contradict rows of zeros or change the domain."""
        lower, upper, empty, domain = constraints.lower, constraints.upper, self._empty, self.solution.domain
        if np.any(lower[empty] > 0) or np.any(upper[empty] < 0):
            return None
        rows = self._rows.with_sides(lower, upper)
        if not domain.bounded:
            return rows
        rows = rows.with_domain(np.isfinite(domain.low), np.isfinite(domain.high))
        same = np.array_equal(rows.domain.low, domain.low) and np.array_equal(rows.domain.high, domain.high)
        return rows if same else None
