"""The lower level at x as a convex program on flat vectors, for `convex.minimise`, which the solvers do not use."""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp

from bilevax.convex.minimise import minimise, smallest_relaxation
from bilevax.convex.problem import Constraints, ConvexSolution, Objective
from bilevax.model.flat import FlatProblem
from bilevax.model.scales import Scales


def solve_flat(
    flat: FlatProblem, x: np.ndarray, start: np.ndarray | None = None, penalty: float = 0.0
) -> ConvexSolution:
    """Solve the lower level at a flat x; see `solve_lower_level`."""
    return minimise(objective_at(flat, x, penalty), constraints_at(flat, x), start)


def objective_at(flat: FlatProblem, x: np.ndarray, penalty: float = 0.0) -> Objective:
    """Return ``g(x, .) + penalty f(x, .)`` with its derivatives."""
    if penalty == 0.0 and (quadratic := flat.lower_quadratic) is not None:
        return quadratic.at(x)

    last: list[Any] = []  # y and what is known there: whoever asks for the value asks for the gradient, too
    same: list[sp.csc_matrix] = []  # the second derivative of g at this x, where it is the same for all y

    def evaluated(y: np.ndarray) -> tuple[float, np.ndarray]:
        if not last or last[0] is not y:
            value, _, gradient = flat.value_and_gradients("lower", x, y)
            if penalty != 0.0:
                of_f, _, along = flat.value_and_gradients("upper", x, y)
                value, gradient = value + penalty * of_f, gradient + penalty * along
            last[:] = y, (value, gradient)
        return last[1]

    def hessian(y: np.ndarray) -> sp.csc_matrix:
        found = same[0] if same else flat.hessian("lower", "y", "y", x, y)
        same[:] = [found] if flat.lower_is_quadratic else []
        return found if penalty == 0.0 else found + penalty * flat.hessian("upper", "y", "y", x, y)

    return Objective(value=lambda y: evaluated(y)[0], gradient=lambda y: evaluated(y)[1], hessian=hessian)


def constraints_at(flat: FlatProblem, x: np.ndarray) -> Constraints:
    """Return the rows at x, then those of Y."""
    rows, simple = flat.rows, flat.y_rows
    shift = rows.B @ x
    return Constraints(
        matrix=flat.rows_in_y,
        lower=np.concatenate([rows.lower - shift, simple.lower]),
        upper=np.concatenate([rows.upper - shift, simple.upper]),
        balls=simple.balls,
        relaxable=len(shift),
    )


def smallest_relaxation_at(flat: FlatProblem, x: np.ndarray) -> float:
    """Return the smallest relaxation of the rows, in the user's units, for which the lower level is feasible at x."""
    user = flat.in_units(Scales.ones(flat.n_x, flat.n_y, len(flat.rows.lower)))
    return smallest_relaxation(constraints_at(user, x * flat.scales.x))[0]


def in_user_units(flat: FlatProblem, solution: ConvexSolution) -> ConvexSolution:
    """Return a flat solution in the units in which the problem was written; residuals have none."""
    scales = flat.scales
    rows = np.concatenate(
        [scales.rows, np.ones(len(flat.y_rows.lower)) if flat.y_rows.unit is None else flat.y_rows.unit]
    )
    balls = np.array([scales.y[ball.index[0]] for ball in flat.y_rows.balls])
    return dataclasses.replace(
        solution,
        y=solution.y * scales.y,
        multipliers=solution.multipliers * rows / scales.lower,
        ball_multipliers=solution.ball_multipliers / (scales.lower * balls**2),
    )
