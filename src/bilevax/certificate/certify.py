"""`certify`: the lower level solved exactly at x, and what follows from it. The judge of every answer."""

import dataclasses
import functools
import time
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support import clock, trees
from bilevax._support.clock import deadline, in_time
from bilevax._support.heap import give_back
from bilevax._support.hints import names_arguments
from bilevax._support.precision import float64
from bilevax._support.threads import blas_threads
from bilevax._support.trees import summarise
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.challenge import Challenge, Descent, Neighbourhood, challenge
from bilevax.certificate.convexity import LowerConvexity, lower_convexity, own_convexity, rows_convexity, weaker
from bilevax.certificate.settings import CERTIFICATE
from bilevax.certificate.stationarity import Stationarity, measure
from bilevax.certificate.status import Status
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.convex.problem import ConvexSolution, Outcome
from bilevax.exact.curved import solve_curved
from bilevax.exact.lower import smallest_relaxation_at, solve_flat
from bilevax.exact.lower_level import wrap
from bilevax.exact.phi import CurvedSurroundings, Phi, Surroundings, evaluate, evaluate_at
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.prices import usual
from bilevax.model.problem import BilevelProblem, Level, validate
from bilevax.model.row_functions import upper_rows_of
from bilevax.model.scales import Scales
from bilevax.model.tangent import tangent_problem, upper_row_kinks

_FAILURES = {
    Outcome.INFEASIBLE: Status.LOWER_INFEASIBLE,
    Outcome.UNBOUNDED: Status.LOWER_UNBOUNDED,
    Outcome.NOT_CONVEX: Status.LOWER_NOT_CONVEX,
    Outcome.INACCURATE: Status.STALLED,
}


@names_arguments
def certify(
    problem: BilevelProblem, x: PyTree, y: PyTree = None, *, delta: Any = None, time_limit: float | None = None
) -> Certificate:
    """Check anybody's answer: solve the lower level at x exactly and measure what can be proven.

    Parameters
    ----------
    problem, x
        The problem and the point, in float64 whatever JAX's settings.
    y
        A lower-level answer to compare with: it also gives y its structure, and a start to the exact solve where that
        needs one.
    delta
        Also measure the gap Phi - Phi_delta at this penalty (one more exact solve).
    time_limit
        Seconds after which what is proven by then is returned: a weaker certificate, which is not ``complete``.
    """
    limit = np.inf if time_limit is None else time.monotonic() + time_limit
    asked = usual(problem, x, y)
    with float64():
        point, y_like, guess = validate(asked.problem, x, asked.start(y))
    with deadline(limit):
        found = certify_flat(FlatProblem(asked.problem, point, y_like), point, guess, delta)
    apart = trees.flatten_host(asked.y(found.y)) - trees.flatten_host(y) if y is not None else None
    return asked.answer(found, y_error=None if apart is None else float(np.abs(apart).max(initial=0.0)))


def certify_flat(
    user: FlatProblem, x: PyTree, y: PyTree, delta: Any = None, earlier: tuple[Scales, Phi | None] | None = None
) -> Certificate:
    """Return the certificate of x, for a flat problem in the user's units; see `certify`.

    ``earlier`` is what `evaluate` found at x in certain units, without a start or for the only minimiser: what it would
    find again.
    """
    if user.problem.curved:
        return _certify_curved(user, x, y, delta)
    with blas_threads(max(user.n_y, min(user.rows.A.shape[0], 2 * user.n_y))):
        helpful = y if user.n_y > CERTIFICATE.start_counts else None
        flat = in_time(lambda: equilibrated(user, x, helpful)) or user  # without the time, nothing will be measured
        start = None if y is None else flat.y_flat(y)
        units, phi = (None, None) if earlier is None else earlier
        known = phi if units is not None and units.key == flat.scales.key and not _start_helps(flat) else None
        return _certify(flat, flat.x_flat(x), start, None if delta is None else float(delta), known=known)


def _certify_curved(user: FlatProblem, x: PyTree, y: PyTree, delta: Any) -> Certificate:
    """Return the certificate of x for a problem with rows that are not affine: that of its tangent problem at x.

    Both agree to first order. The lower level is solved with the rows themselves, and so it is at the points of the
    challenge.
    """
    start = None if y is None else user.y_flat(y)
    answer = in_time(lambda: solve_curved(user, user.x_flat(x), start))
    if answer is None:
        zeros = tuple(np.zeros(trees.size(shape)) for shape in user.row_shapes)
        with clock.unlimited():  # what has no answer needs rows all the same
            tangent = tangent_problem(user.problem, x, user.y_tree(np.zeros(user.n_y)) if y is None else y, zeros)
        return certify_flat(FlatProblem(tangent, user.x_like, user.y_like), x, y)
    flat = answer.tangent
    around = CurvedSurroundings(user, flat, answer.lower)
    penalty = None if delta is None else float(delta)
    phi = None if answer.lower.outcome is not Outcome.INFEASIBLE else evaluate_at(flat, flat.x_flat(x), answer.lower)
    found = _certify(flat, flat.x_flat(x), answer.lower.y, penalty, around, phi)
    rows = tuple(
        trees.unflatten(trees.flatten_host(part), shape)
        for part, shape in zip(found.multipliers, user.row_shapes, strict=True)
    )
    apart = np.abs(user.y_flat(found.y) - answer.y).max(initial=0.0) / (1 + np.abs(answer.y).max(initial=0.0))
    known = found.failure in (None, Status.LOWER_INFEASIBLE) and np.isfinite(answer.error)
    error = max(found.lower_infeasibility, answer.error if known else 0.0)
    changes: dict[str, Any] = {"multipliers": user.problem.unwrap_rows(rows), "lower_infeasibility": error}
    if found.failure is None:
        of_g, of_rows = (
            in_time(functools.partial(look, user, flat, x, answer.y)) or LowerConvexity("unknown")
            for look in (own_convexity, rows_convexity)
        )
        changes["lower_convexity"] = weaker(of_g.evidence, of_rows.evidence)
        if of_g.point is not None or of_rows.point is not None:
            what, where = ("g", of_g.point) if of_rows.point is None else ("a row of the lower level", of_rows.point)
            remark = f"{what} curves down at y = {summarise(where)}."
            changes |= {"failure": Status.LOWER_NOT_CONVEX, "remark": remark}
        elif error > TOLERANCES.lower or (found.lower_unique and apart > TOLERANCES.lower):
            changes |= {"failure": Status.STALLED, "remark": f"the lower level could be solved to {error:.2g} only"}
    given = None if start is None else float(np.abs(start - user.y_flat(found.y)).max(initial=0.0))
    return dataclasses.replace(found, y_error=given, **changes)


def _certify(
    flat: FlatProblem,
    x: np.ndarray,
    start: np.ndarray | None,
    delta: float | None,
    around: Neighbourhood | None = None,
    known: Phi | None = None,
) -> Certificate:
    found = in_time(lambda: _evaluate(flat, x, start)) if known is None else known
    phi = Phi(_unsolved(flat, start), np.nan, np.nan, np.nan, np.inf, False) if found is None else found
    lower, solved = phi.lower, phi.solved
    answer = wrap(flat, lower)
    feasible = lower.outcome is not Outcome.INFEASIBLE
    give_back(flat.n_x + flat.n_y)
    quality = (in_time(lambda: measure(flat, x, lower)) or _TOO_LATE) if solved else _NOTHING
    around = (Surroundings(flat, x, lower) if around is None else around) if solved else None
    tried, lowest = (in_time(lambda: challenge(flat, x, phi, quality, around)) if around else None) or Challenge(
        0, None
    )
    curved = in_time(lambda: lower_convexity(flat, x, lower.y)) if feasible and found is not None else None
    convexity = LowerConvexity("unknown") if curved is None else curved
    gap = in_time(lambda: _penalty_gap(flat, x, lower, phi.value, delta)) if solved and delta is not None else None
    missing = lower.infeasibility if feasible else in_time(lambda: smallest_relaxation_at(flat, x))
    outside = (in_time(lambda: upper_rows_at(flat, x, lower.y).violation) if solved else None) or 0.0
    complete = clock.remaining() > 0
    failure, remark = (Status.TIME_LIMIT, "") if found is None else _failure(flat, phi, convexity, outside)
    unit = flat.scales.upper
    return Certificate(
        value=phi.value / unit,
        y=answer.y,
        multipliers=answer.multipliers,
        lower_feasible=feasible,
        lower_stationarity=lower.stationarity,
        lower_infeasibility=np.inf if missing is None else missing,
        lower_complementarity=lower.complementarity,
        lower_unique=phi.unique,
        value_range=(phi.low / unit, phi.high / unit),
        value_error=phi.error / unit,
        value_unit=1 / unit,
        x_infeasibility=flat.x_rows.violation(x),
        upper_infeasibility=outside,
        upper_multipliers=_upper_multipliers(flat, quality),
        hypergradient=None if quality.hypergradient is None else flat.gradient_tree(quality.hypergradient),
        stationarity=quality.value,
        stationarity_test=quality.test,
        radius=quality.radius,
        descent=None if lowest is None else Descent(flat.x_tree(lowest.x), lowest.value / unit),
        challenges=tried,
        licq=quality.licq,
        smallest_singular_value=quality.smallest_singular_value,
        strict_complementarity=quality.strict_complementarity,
        complementarity_margin=quality.complementarity_margin,
        penalty_gap=gap,
        delta=delta,
        y_error=None if start is None else float(np.abs((start - lower.y) * flat.scales.y).max(initial=0.0)),
        lower_convexity=convexity.evidence,
        failure=failure,
        remark=remark,
        complete=complete,
    )


def _evaluate(flat: FlatProblem, x: np.ndarray, start: np.ndarray | None) -> Phi:
    """Return Phi at x; a start for y is used only where the lower level is large or not solved without it.

    In between it is used for a minimiser that is the only one, so that the start makes no difference.
    """
    if start is None or _start_helps(flat):
        found = evaluate(flat, x, start)
        if start is None or _size(flat) > CERTIFICATE.start_counts or found.lower.unique:
            return found
    cold = evaluate(flat, x)
    return cold if cold.solved or cold.lower.outcome is Outcome.INFEASIBLE else evaluate(flat, x, start)


def _size(flat: FlatProblem) -> int:
    return max(flat.n_y, flat.rows.A.shape[0])


def _start_helps(flat: FlatProblem) -> bool:
    """Return whether the lower level is so large that it is solved from a start."""
    return _size(flat) > CERTIFICATE.start_helps


def _upper_multipliers(flat: FlatProblem, quality: Stationarity) -> PyTree | None:
    """Return the multipliers of the upper rows in the user's units and structure."""
    problem = flat.problem
    if not problem.upper_rows:
        return None
    shapes = upper_rows_of(problem, *flat.shapes).shapes
    known = quality.upper_multipliers if len(quality.upper_multipliers) else np.full(trees.size(shapes), np.nan)
    found = trees.unflatten(known / flat.scales.upper, shapes)
    return problem.upper_rows_form.restore(found)


def _failure(flat: FlatProblem, phi: Phi, convexity: LowerConvexity, outside: float) -> tuple[Status | None, str]:
    """Return why nothing can be proven at x, and details of it; None if something can."""
    names: dict[Level, str] = {"upper": "the upper objective", "lower": "the lower objective"}
    for level, name in names.items():
        if kinks := flat.properties(level).refused:
            return Status.NOT_SMOOTH, f"{name} has a kink: {kinks[0]}"
    if kinks := upper_row_kinks(flat.problem, *flat.shapes):
        return Status.NOT_SMOOTH, f"an upper row has a kink: {kinks[0]}"
    if convexity.point is not None:
        return Status.LOWER_NOT_CONVEX, f"g curves down at y = {summarise(convexity.point)}."
    if phi.solved and outside > TOLERANCES.lower:
        return Status.UPPER_INFEASIBLE, f"an upper row is violated by {outside:.2g}"
    if phi.solved:
        return None, ""
    return _FAILURES[phi.lower.outcome], "" if phi.lower.outcome is not Outcome.INACCURATE else (
        f"the lower level could be solved to {phi.lower.residual:.2g} only"
    )


_NOTHING = Stationarity(
    value=np.inf,
    radius=np.inf,
    test="none: the lower level has no proven minimiser",
    scale=np.inf,
    pieces=(),
    hypergradient=None,
    licq=False,
    smallest_singular_value=np.nan,
    strict_complementarity=False,
    complementarity_margin=np.nan,
)
_TOO_LATE = dataclasses.replace(_NOTHING, test="none: out of time")


def _unsolved(flat: FlatProblem, start: np.ndarray | None) -> ConvexSolution:
    """Return a placeholder for a lower level that there was no time to solve: its start, with infinite residuals."""
    rows, balls = flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0], len(flat.y_rows.balls)
    y = np.zeros(flat.n_y) if start is None else start
    return ConvexSolution(y, np.zeros(rows), np.zeros(balls), Outcome.INACCURATE)


def _penalty_gap(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, value: float, delta: float) -> float | None:
    """Return Phi(x) - Phi_delta(x); None where ``g + delta f`` has no proven minimiser."""
    weight = flat.penalty(delta)
    penalised = solve_flat(flat, x, lower.y, penalty=weight)
    if penalised.outcome is not Outcome.OPTIMAL:
        return None
    excess = flat.value("lower", x, penalised.y) - flat.value("lower", x, lower.y)
    return (value - (flat.value("upper", x, penalised.y) + excess / weight)) / flat.scales.upper
