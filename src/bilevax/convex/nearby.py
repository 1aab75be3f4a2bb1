"""Problems next to one that is solved: other bounds, an objective that is a little different, the same rows.

Which rows are active is known there, so Newton's method with those held takes a step or two, and nothing has to be
scaled or found out again. Where it ends counts only if it satisfies the optimality conditions as well as an answer of
`minimise` has to; otherwise `minimise` is asked.
"""

import numpy as np

from bilevax.convex.active_set import follow
from bilevax.convex.minimise import SHARP, minimise, solution_at
from bilevax.convex.optimality import Local, Rows, scaled_rows
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome


class Nearby:
    """The surroundings of a solved problem."""

    def __init__(self, constraints: Constraints, solution: ConvexSolution):
        self.solution = solution
        self._rows = scaled_rows(constraints, 0.0)[0]
        self._empty = np.flatnonzero(np.asarray(abs(constraints.matrix).sum(axis=1)).ravel() == 0)

    def minimise(self, objective: Objective, constraints: Constraints, tolerance: float = 1e-9) -> ConvexSolution:
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
        if not (point.error <= 0.1 * tolerance and point.at.finite):
            return None
        found = solution_at(constraints, rows, known.y, point, Outcome.OPTIMAL, 0)
        return found if found.complementarity <= SHARP else None

    def _at(self, constraints: Constraints) -> Rows | None:
        """The rows with other sides; None where these change what was known of rows and domain."""
        lower, upper, empty, domain = constraints.lower, constraints.upper, self._empty, self.solution.domain
        if np.any(lower[empty] > 0) or np.any(upper[empty] < 0):
            return None
        rows = self._rows.with_sides(lower, upper)
        if not domain.bounded:
            return rows
        rows = rows.with_domain(np.isfinite(domain.low), np.isfinite(domain.high))
        same = np.array_equal(rows.domain.low, domain.low) and np.array_equal(rows.domain.high, domain.high)
        return rows if same else None
