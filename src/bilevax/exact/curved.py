"""The lower level with rows that are not affine: Newton's method on tangent problems (`bilevax.model.tangent`).

Each step solves the lower level of the tangent problem at the last y and multipliers exactly. Its fixed point satisfies
the KKT conditions of the lower level itself, which prove a minimiser since g and the rows are convex. Steps are
shortened until ``g + price * violation of the rows`` falls.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock, trees
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.exact.lower import solve_flat
from bilevax.exact.settings import CURVED
from bilevax.model.compressed_rows import on_top
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.row_functions import RowFunctions, coupling_of
from bilevax.model.tangent import tangent_problem


@dataclasses.dataclass(frozen=True)
class CurvedAnswer:
    """The lower level at x, solved.

    Attributes
    ----------
    tangent
        The tangent problem at the answer, in natural units.
    lower
        Its lower level, solved: the answer's own, in its units.
    error
        How far ``lower`` is from the point at which the tangents were taken, relative; the violation of the rows
        included. Where it is small, ``lower`` satisfies the KKT conditions with the rows themselves.
    """

    tangent: FlatProblem
    lower: ConvexSolution
    error: float

    @property
    def y(self) -> np.ndarray:
        """The minimiser in the user's units."""
        return self.lower.y * self.tangent.scales.y


def solve_curved(flat: FlatProblem, x: np.ndarray, start: np.ndarray | None = None) -> CurvedAnswer:
    """Solve the lower level of a problem, in the user's units, at a flat x."""
    problem, tree = flat.problem, flat.x_tree(x)
    rows = coupling_of(problem, *flat.shapes)
    y = flat.y_rows.well_inside(np.zeros(flat.n_y)) if start is None else start
    sizes = [trees.size(shape) for shape in flat.row_shapes]
    bent = np.repeat([not part.affine for part in problem.coupling], sizes)  # rows that are not affine
    split = lambda multipliers: tuple(np.split(multipliers, np.cumsum(sizes)[:-1]))
    multipliers = np.full(rows.count, CURVED.first_multiplier)
    beyond = lambda y: np.maximum(rows.values(x, y) - rows.upper, rows.lower - rows.values(x, y)).max(initial=0.0)
    answer = None
    for _ in range(CURVED.steps):
        clock.check()
        tangent = tangent_problem(problem, tree, flat.y_tree(y), split(multipliers))
        user = FlatProblem(tangent, flat.x_like, flat.y_like)
        natural = equilibrated(user, tree, flat.y_tree(y)) if answer is None else user.in_units(answer.tangent.scales)
        lower = solve_flat(natural, natural.x_flat(tree), natural.y_flat(flat.y_tree(y)))
        answer = CurvedAnswer(natural, lower, np.inf)
        if lower.outcome not in (Outcome.OPTIMAL, Outcome.INACCURATE):
            return answer
        found = trees.flatten_host(natural.multiplier_tree(lower.multipliers[: rows.count]))
        moved = np.abs(lower.y - y / natural.scales.y).max(initial=0.0) / (1 + np.abs(lower.y).max(initial=0.0))
        changed = np.abs(found - multipliers)[bent].max(initial=0.0) / (1 + np.abs(found).max(initial=0.0))
        missing = max(beyond(answer.y), 0.0) / (1 + np.abs(rows.values(x, answer.y)).max(initial=0.0))
        answer = dataclasses.replace(answer, error=max(moved, changed, missing))
        if answer.error <= CURVED.accuracy:
            break
        y = _shortened(flat, x, y, answer.y, 2 * np.abs(found).sum(), beyond)
        multipliers = found
        if np.abs(found).max(initial=0.0) > CURVED.too_large:
            break
    assert answer is not None
    if answer.error > CURVED.accurate and _contradict(flat, x, answer.y, rows):
        answer = dataclasses.replace(answer, lower=dataclasses.replace(answer.lower, outcome=Outcome.INFEASIBLE))
    return answer


def _contradict(flat: FlatProblem, x: np.ndarray, y: np.ndarray, rows: RowFunctions) -> bool:
    """Return whether tangents of the rows, taken at points that approach them, are seen to contradict each other.

    The feasible set of convex rows satisfies all their tangents.
    """
    simple, identity = flat.y_rows, sp.csc_matrix(sp.eye(flat.n_y))
    matrices, lows, highs = [simple.matrix], [simple.lower], [simple.upper]
    for _ in range(CURVED.cuts):
        slope, value = rows.jacobian(x, y)[1], rows.values(x, y)
        size = 1 + np.abs(value).max(initial=0.0)
        if np.maximum(value - rows.upper, rows.lower - value).max(initial=0.0) <= CURVED.accurate * size:
            return False
        shift = value - slope @ y
        matrices, lows, highs = [*matrices, slope], [*lows, rows.lower - shift], [*highs, rows.upper - shift]
        near = Objective(lambda z, y=y: 0.5 * float((z - y) @ (z - y)), lambda z, y=y: z - y, lambda z: identity)
        cuts = Constraints(on_top(matrices), np.concatenate(lows), np.concatenate(highs), simple.balls)
        found = minimise(near, cuts, y)
        if found.outcome is Outcome.INFEASIBLE:
            return True
        if found.outcome is not Outcome.OPTIMAL:
            return False
        y = found.y
    return False


def _shortened(
    flat: FlatProblem, x: np.ndarray, y: np.ndarray, end: np.ndarray, price: float, beyond: Callable
) -> np.ndarray:
    """Return a point on the way from y to the end of a step where the merit is not above that of y."""
    merit = lambda y: flat.value("lower", x, y) + price * max(beyond(y), 0.0)
    here, share = merit(y), 1.0
    for _ in range(CURVED.halvings):
        trial = y + share * (end - y)
        if merit(trial) <= here + CURVED.rounding * (1 + abs(here)):
            return trial
        share *= 0.5
    return end
