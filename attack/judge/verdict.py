"""The verdict on a claimed success: feasible, lower-level optimal, the right value, and no way down."""

from typing import NamedTuple

import numpy as np

from attack.judge.descent import find_descent
from attack.model import Abstain, Claim, Problem

STRICT = 1e-9  # lower levels at trial points
FORGIVING = 1e-6  # at the claimed point, which may lie beside a border of feasibility or a tie
_DOUBTFUL = 1e-4
_X_OUTSIDE = 1e-6
_Y_OUTSIDE = 1e-6
_GAP = 1e-7
_VALUE = 5e-6


class Verdict(NamedTuple):
    """Whether a claim is right, and if not, why."""

    right: bool
    reason: str = ""


def judge(problem: Problem, claim: Claim, seed: int = 0) -> Verdict:
    """Decide about a claimed success. Raises `Abstain` where Phi cannot be evaluated accurately enough."""
    if not (np.isfinite(claim.x).all() and np.isfinite(claim.y).all() and np.isfinite(claim.value)):
        return Verdict(False, "the answer is not finite")
    x = problem.x_set.project(claim.x)
    outside = float((np.abs(claim.x - x) / problem.scale).max())
    if outside > _X_OUTSIDE:
        return Verdict(False, f"x is outside X by {outside:.1e}")
    responses = [y for slack in (STRICT, FORGIVING) if (y := problem.follower.respond(x, slack)) is not None]
    if not responses:
        if problem.follower.respond(x, _DOUBTFUL) is not None:
            raise Abstain("the lower level is nearly feasible")
        return Verdict(False, "the lower level is infeasible at x")
    beyond = min(problem.leader_violation(x, y) for y in responses)
    if beyond > _Y_OUTSIDE:
        return Verdict(False, f"an upper row is violated by {beyond:.1e}")
    random = np.random.default_rng(seed)
    unit = value_scale(problem, x, random)
    return (
        _lower_level(problem, x, claim.y, responses)
        or _value(problem, x, claim.value, responses, unit)
        or _stationary(problem, x, claim.value, responses, unit, random)
        or Verdict(True)
    )


def value_scale(problem: Problem, x: np.ndarray, random: np.random.Generator) -> float:
    """Return the natural scale of f: how much Phi varies within one natural scale of x.

    Where Phi is flat by cancellation, it is a hundredth of what f varies by when x and y move on their own.
    """
    around = [problem.x_set.project(x + problem.scale * random.uniform(-1, 1, x.size)) for _ in range(24)]
    answers = [(p, y) for p in around if (y := _try(problem, p)) is not None]
    here = problem.follower.respond(x, FORGIVING)
    assert here is not None
    values = np.array([problem.f(p, y) for p, y in answers])
    coupled = np.abs(values - problem.f(x, here)).max(initial=0.0)
    apart = [problem.f(p, here) for p, _ in answers] + [problem.f(x, y) for _, y in answers]
    apart += [problem.f(x, here + random.uniform(-0.5, 0.5, here.size)) for _ in range(4)]
    alone = np.abs(np.array([v for v in apart if np.isfinite(v)]) - problem.f(x, here)).max(initial=0.0)
    return float(max(coupled, 1e-2 * alone, 1e-12))


def _try(problem: Problem, x: np.ndarray) -> np.ndarray | None:
    try:
        return problem.follower.respond(x, STRICT)
    except Abstain:
        return None


def _lower_level(problem: Problem, x: np.ndarray, y: np.ndarray, responses: list[np.ndarray]) -> Verdict | None:
    size = 1.0 + np.abs(y)
    outside = float((np.abs(y - problem.y_set.project(y)) / size).max())
    if problem.rows is not None:
        outside = max(outside, problem.rows.violation(x, y))
    if problem.bent_rows is not None:
        outside = max(outside, float(np.max(problem.bent_rows(np, x, y, problem.data))))
    if outside > _Y_OUTSIDE:
        return Verdict(False, f"y is infeasible by {outside:.1e}")
    least = min(problem.g(x, response) for response in responses)
    moved = [problem.g(x, problem.y_set.project(responses[0] + d)) for d in np.r_[np.eye(y.size), -np.eye(y.size)]]
    unit = np.nanmax([1e-3, abs(least), *(abs(g - least) for g in moved if np.isfinite(g))])
    gap = (problem.g(x, y) - least) / unit
    return Verdict(False, f"y is not optimal: g is {gap:.1e} above its minimum") if gap > _GAP else None


def _value(problem: Problem, x: np.ndarray, value: float, responses: list[np.ndarray], unit: float) -> Verdict | None:
    exact = [problem.f(x, response) for response in responses]
    error = min(abs(value - phi) / (unit + abs(phi)) for phi in exact)
    between = min(exact) <= value <= max(exact)
    return None if between or error <= _VALUE else Verdict(False, f"value {value:.9g}, but Phi(x) = {exact[0]:.9g}")


def _stationary(
    problem: Problem,
    x: np.ndarray,
    value: float,
    responses: list[np.ndarray],
    unit: float,
    random: np.random.Generator,
) -> Verdict | None:
    here = min((problem.f(x, response) for response in responses), key=lambda phi: abs(phi - value))
    allowed = STRICT + min(problem.leader_violation(x, response) for response in responses)

    def drop(p: np.ndarray) -> float:
        """Return by how much Phi is lower at p, in natural units."""
        y = _try(problem, p)
        if y is None or problem.leader_violation(p, y) > allowed:
            return -np.inf
        return (here - problem.f(p, y)) / unit

    found = find_descent(drop, x, problem.x_set, problem.scale, random)
    if found is None:
        return None
    way = np.array2string(found.direction, precision=3)
    return Verdict(False, f"Phi descends along {way} with slope {found.slope:.2g} at distance {found.distance:.1e}")
