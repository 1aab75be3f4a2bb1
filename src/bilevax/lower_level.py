"""The exact lower level at a given x, by a method that shares nothing with the solvers."""

import dataclasses

import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax import _trees
from bilevax._precision import float64
from bilevax.convex import Constraints, ConvexSolution, Objective, Outcome, minimise
from bilevax.derivatives import FlatProblem
from bilevax.problem import BilevelProblem, validate


@dataclasses.dataclass(frozen=True)
class LowerSolution:
    """The minimiser of the lower level at x, with its proof.

    Attributes
    ----------
    y
        The minimiser; where the lower level is infeasible, the point of the smallest relaxation.
    multipliers
        Of the rows, in the form in which the coupling was given: ``grad_y g + A' multipliers + normals of Y = 0``,
        positive only on an active upper side, negative only on an active lower side, free on equality rows.
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
        Solves for ``g + penalty f`` instead of g: y_delta(x) of the reformulation.
    """
    with float64():
        x, y_like, _ = validate(problem, x, start if start is not None else _example(y_like))
    flat = FlatProblem(problem, x, y_like)
    guess = None if start is None else _trees.flatten_host(start)
    return wrap(flat, solve_flat(flat, _trees.flatten_host(x), guess, penalty))


def solve_flat(
    flat: FlatProblem, x: np.ndarray, start: np.ndarray | None = None, penalty: float = 0.0
) -> ConvexSolution:
    """Solve the lower level at a flat x; see `solve_lower_level`."""
    return minimise(objective_at(flat, x, penalty), constraints_at(flat, x), start)


def wrap(flat: FlatProblem, solution: ConvexSolution) -> LowerSolution:
    """Return a flat solution in the user's structures."""
    rows = flat.split_rows(solution.multipliers[: flat.rows.A.shape[0]])
    return LowerSolution(
        y=flat.y_tree(solution.y),
        multipliers=flat.problem.unwrap_rows(rows),
        outcome=solution.outcome,
        relaxation=solution.relaxation,
        unique=solution.unique,
        flat=solution,
    )


def objective_at(flat: FlatProblem, x: np.ndarray, penalty: float = 0.0) -> Objective:
    """Return ``g(x, .) + penalty f(x, .)`` with its derivatives."""

    def combine(of_level):
        lower = of_level("lower")
        return lower if penalty == 0.0 else lower + penalty * of_level("upper")

    return Objective(
        value=lambda y: combine(lambda level: flat.value(level, x, y)),
        gradient=lambda y: combine(lambda level: flat.gradients(level, x, y)[1]),
        hessian=lambda y: combine(lambda level: flat.hessian(level, "y", "y", x, y)),
    )


def constraints_at(flat: FlatProblem, x: np.ndarray) -> Constraints:
    """Return the rows at x, then those of Y."""
    rows, simple = flat.rows, flat.y_rows
    shift = rows.B @ x
    return Constraints(
        matrix=sp.vstack([rows.A, simple.matrix], format="csr"),
        lower=np.concatenate([rows.lower - shift, simple.lower]),
        upper=np.concatenate([rows.upper - shift, simple.upper]),
        balls=simple.balls,
        relaxable=len(shift),
    )


def _example(y_like: PyTree) -> PyTree:
    """Return zeros shaped like an example of y, or None."""
    return None if y_like is None else _trees.map_arrays(lambda leaf: np.zeros(np.shape(leaf)), y_like)
