"""The lower level's answers at several points around x where g is no quadratic: Newton's method on all at once."""

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.convex.nearby import Nearby
from bilevax.convex.problem import ConvexSolution, Objective
from bilevax.exact.lower import constraints_at
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.model.flat import FlatProblem


def joint_newton(flat: FlatProblem, nearby: Nearby, points: list[np.ndarray]) -> list[ConvexSolution | None]:
    """Return the lower level's answers at points around a solved one; None where one is not found.

    The rows that hold y at the solved point are held at all of them, and all points share each evaluation of g. An
    answer counts only if it satisfies the optimality conditions of all rows as any other answer has to: where other
    rows are active there is none.
    """
    known, matrix = nearby.solution, flat.rows_in_y
    rows = [constraints_at(flat, x) for x in points]
    low, high = (np.array([getattr(at, side) for at in rows]) for side in ("lower", "upper"))
    held = np.flatnonzero((known.multipliers != 0) | (low[0] == high[0]))
    a, n_y = matrix[held].toarray(), flat.n_y
    sides = np.where(known.multipliers[held] > 0, high[:, held], low[:, held])
    x, y = np.array(points), np.tile(known.y, (len(points), 1))
    multipliers = np.zeros(low.shape)
    multipliers[:, held] = known.multipliers[held]
    system = np.zeros((len(points), n_y + len(held), n_y + len(held)))
    system[:, n_y:, :n_y], system[:, :n_y, n_y:] = a, a.T
    value, gradient, hessian = flat.lower_at_each(x, y)
    for _ in range(EXACT_SETTINGS.joint_steps):
        clock.check()
        system[:, :n_y, :n_y] = hessian
        right = np.concatenate([-gradient, sides - y @ a.T], axis=1)
        try:
            found = np.linalg.solve(system, right[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            return [None] * len(points)
        step = found[:, :n_y]
        y, multipliers[:, held] = y + step, found[:, n_y:]
        value, gradient, hessian = flat.lower_at_each(x, y)
        # The error falls as its square: a step this short has left nothing but rounding.
        if not np.any(np.abs(step) > EXACT_SETTINGS.joint_last_step * (1 + np.abs(y))):
            break

    def answer(k: int) -> ConvexSolution | None:
        second = sp.csc_matrix(hessian[k])
        local = Objective(lambda _: float(value[k]), lambda _: gradient[k], lambda _: second)
        return nearby.verified(local, rows[k], y[k], multipliers[k])

    return [answer(k) for k in range(len(points))]


def suits_joint_newton(flat: FlatProblem, lower: ConvexSolution) -> bool:
    """Return whether the points around a solved lower level are worth a compiled program of their own."""
    few_y, many_x = flat.n_y <= EXACT_SETTINGS.joint_most_y, flat.n_x >= EXACT_SETTINGS.joint_fewest_x
    return few_y and many_x and lower.unique and not (flat.y_rows.balls or lower.domain.bounded)
