"""`solve_lower_level`: the exact lower level at a given x, in the user's structures and units."""

import dataclasses

import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax.convex.problem import ConvexSolution, Outcome
from bilevax.exact.lower import in_user_units, smallest_relaxation_at, solve_flat
from bilevax.exact.phi import evaluate
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.prices import usual
from bilevax.model.problem import BilevelProblem, validate


@dataclasses.dataclass(frozen=True)
class LowerSolution:
    """The minimiser of the lower level at x, with its proof.

    Attributes
    ----------
    y
        The minimiser; where the lower level is infeasible, the point of the smallest relaxation.
    multipliers
        The rows' multipliers, in the form in which the coupling was given: ``grad_y g + A' multipliers + normals of
        Y = 0``, positive only on an active upper side, negative only on an active lower side, free on equality rows.
    outcome
        Optimal, infeasible, unbounded, not convex, or inaccurate.
    relaxation
        The smallest t for which ``lower - t <= B x + A y <= upper + t`` has a point y in Y; 0 when feasible.
    unique
        Whether the minimiser is known to be the only one.
    flat
        The same on flat vectors, with the multipliers of Y's rows after those of the coupling.
    """

    y: PyTree
    multipliers: PyTree
    outcome: Outcome
    relaxation: float
    unique: bool
    flat: ConvexSolution


def solve_lower_level(
    problem: BilevelProblem, x: PyTree, y_like: PyTree = None, *, start: PyTree = None, penalty: float = 0.0
) -> LowerSolution:
    """Solve the lower level at x exactly.

    Parameters
    ----------
    problem, x
        The problem and the point.
    y_like
        An example of y, or its shapes, where the problem does not tell them.
    start
        Where Newton's method starts.
    penalty
        Minimise ``g + penalty f`` instead of g: the answer is y_delta(x) of the reformulation.
    """
    example = start if start is not None else _example(y_like)
    asked = usual(problem, x, example)
    start = asked.start(start)
    with float64():
        x, y_like, _ = validate(asked.problem, x, asked.start(example))
    flat = equilibrated(FlatProblem(asked.problem, x, y_like), x, start)
    guess = None if start is None else flat.y_flat(start)
    point = flat.x_flat(x)
    if penalty == 0.0:
        found = evaluate(flat, point, guess).lower
    else:
        found = solve_flat(flat, point, guess, flat.penalty(penalty))
    if found.outcome is Outcome.INFEASIBLE:
        found = dataclasses.replace(found, relaxation=smallest_relaxation_at(flat, point))
    return asked.answer(wrap(flat, found))


def wrap(flat: FlatProblem, solution: ConvexSolution) -> LowerSolution:
    """Return a flat solution in the user's structures."""
    rows = flat.multiplier_tree(solution.multipliers[: trees.size(flat.row_shapes)])
    user = in_user_units(flat, solution)
    return LowerSolution(
        y=flat.y_tree(solution.y),
        multipliers=flat.problem.unwrap_rows(rows),
        outcome=solution.outcome,
        relaxation=user.relaxation,
        unique=solution.unique,
        flat=user,
    )


def _example(y_like: PyTree) -> PyTree:
    """Return zeros shaped like an example of y, or None."""
    return None if y_like is None else trees.map_arrays(lambda leaf: np.zeros(np.shape(leaf)), y_like)
