"""Central points of a quadratic lower level in the space of its constraints.

With multipliers m the constraints take the values ``free - S m``, where S is the compliance and ``free`` is affine in x
(see `dense_algebra`). So Newton's method for the equations of `central` needs neither y nor g until it is done, and one
of its steps is hardly more than a factorisation of ``S + give``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevax._support import clock
from bilevax.solvers.default.lower.central import aim_of, largest, reach
from bilevax.solvers.default.settings import CENTRAL


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # a failure shows in its numbers, and returns None
def central_in_rows(
    compliance: Any,
    free: np.ndarray,
    solver: Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]],
    equal: int,
    soft: np.ndarray,
    barrier: float,
    start: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return multipliers and slacks on the central path; None where Newton's method fails.

    Parameters
    ----------
    compliance, free
        The constraints' values are ``free - compliance @ multiplier``.
    solver
        For each ``give``, what solves with ``compliance + diag(give)``.
    equal
        How many constraints, from the first on, are equalities.
    soft
        The softness of each constraint.
    barrier
        What multipliers times slacks are to be.
    start
        Multipliers and slacks to begin with, positive for inequalities.
    """
    (multiplier, slack), length, lifts, tolerance = start, 1.0, 0, 1 + largest(free)
    for _ in range(CENTRAL.newton_steps):
        clock.check()
        primal = free - compliance @ multiplier - soft * multiplier + slack
        products = (multiplier * slack)[equal:]
        if not np.isfinite(primal).all():
            return None
        rounding = 1e-15 * tolerance * largest(multiplier)
        near = largest(products - barrier) <= CENTRAL.products * barrier + rounding
        if near and largest(primal) <= CENTRAL.primal * tolerance:
            return multiplier, slack
        aim = aim_of(products, barrier, length)
        give, positive = soft.copy(), multiplier.copy()
        positive[:equal] = 1.0
        give[equal:] += slack[equal:] / positive[equal:]
        solve = solver(give)
        pushed, moved = _step(solve, primal, aim, slack, multiplier, positive, equal)
        length = _reach(slack, moved, multiplier, pushed, equal)
        if length <= CENTRAL.short and lifts < CENTRAL.lifts:
            multiplier, slack = _lifted(multiplier + pushed, equal), _lifted(slack + moved, equal)
            length, lifts = 1.0, lifts + 1
            continue
        # The products bend: further solves with the same factor take what they will be off by into account.
        for _ in range(CENTRAL.corrections):
            bent = np.zeros(len(slack))
            bent[equal:] = (pushed * moved)[equal:]
            again = _step(solve, primal, aim - bent, slack, multiplier, positive, equal)
            longer = _reach(slack, again[1], multiplier, again[0], equal)
            if longer < length:
                break
            (pushed, moved), length = again, longer
        multiplier, slack = multiplier + length * pushed, slack + length * moved
    return None


def _step(
    solve: Callable[[np.ndarray], np.ndarray],
    primal: np.ndarray,
    aim: Any,
    slack: np.ndarray,
    multiplier: np.ndarray,
    positive: np.ndarray,
    equal: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return Newton's step of multipliers and slacks towards products of the size ``aim``."""
    away = aim / positive - slack
    away[:equal] = 0.0
    pushed = solve(primal + away)
    moved = away - slack * pushed / positive
    moved[:equal] = 0.0
    return pushed, moved


def _lifted(end: np.ndarray, equal: int) -> np.ndarray:
    """Return the end of a step that goes too far, with what is negative there, and less than that is, made positive.

    From a start whose products are small, short steps would follow the boundary; this one is well inside it.
    """
    floor = max(-float(np.min(end[equal:], initial=0.0)), np.finfo(float).tiny)
    return np.concatenate([end[:equal], np.maximum(end[equal:], floor)])


def _reach(slack: np.ndarray, moved: np.ndarray, multiplier: np.ndarray, pushed: np.ndarray, equal: int) -> float:
    """Return the share of a step, at most 1, that keeps all inequalities' slacks and multipliers positive."""
    return min(reach(slack[equal:], moved[equal:]), reach(multiplier[equal:], pushed[equal:]))
