"""Exact minimisation of a smooth convex function under linear rows and balls, on the host.

This is the judge behind the certificates. It shares no code with the solvers and does not import JAX. Every answer is
checked against the optimality conditions, recomputed from the user's own data; an answer that fails the
check is returned as `Outcome.INACCURATE`, never as optimal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sparse

from bilevax.convex.active_set import BASIC, polish, settle
from bilevax.convex.borders import with_domain
from bilevax.convex.existence import descends_forever, is_unique, runs_away
from bilevax.convex.newton_program import NewtonProgram, Status, cleaned, interior_point, with_margin
from bilevax.convex.optimality import Local, Point, Rows, measure, nearly_full, scaled_rows
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.convex.programs import linprog

_SIMPLEX = 40_000  # up to this many rows and variables the smallest relaxation is found by the simplex method
_MAX_ITERATIONS = 100
_PATIENCE = 20  # iterations after which to ask whether there is a minimiser
_SHARP_SIMPLEX = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
_TOLD = 1e-7  # multipliers, relative to the largest cost, that a linear program can tell from zero
_TIES = 4  # how often costs may be too small for the others
_COST_ROUNDING = 1e-15  # relative to the largest, costs that are none
SHARP = 1e-14  # complementarity: with the active rows known it is rounding


@np.errstate(all="ignore")  # overflow and nan are expected outside the domain, and are tested for
def minimise(
    objective: Objective,
    constraints: Constraints,
    start: np.ndarray | None = None,
    *,
    tolerance: float = 1e-9,
    feasibility_tolerance: float = 1e-8,
) -> ConvexSolution:
    """Minimise a smooth convex function under linear rows and balls.

    Damped Newton whose step is a quadratic program over the feasible set, followed by Newton's method on the active
    rows to full precision. A quadratic objective takes one quadratic program.

    Parameters
    ----------
    objective, constraints
        The problem.
    start
        Where to begin; it need not be feasible. Zero when omitted.
    tolerance
        The answer is `Outcome.OPTIMAL` when all three residuals of `ConvexSolution` are at most this.
    feasibility_tolerance
        The problem is `Outcome.INFEASIBLE` when its smallest relaxation exceeds
        ``feasibility_tolerance * (1 + max |finite bound of a relaxable row|)``, or when the relaxed point has an
        `infeasibility` (as in `ConvexSolution`) above ``100 * feasibility_tolerance``.

    Returns
    -------
    ConvexSolution
        The minimiser; its `outcome` says whether to believe it.
    """
    size = constraints.matrix.shape[1]
    origin = np.zeros(size) if start is None else np.array(start, dtype=float)
    if origin.shape != (size,):
        raise ValueError(f"expected a start with {size} entries, got shape {origin.shape}")
    rows, zero_row_violation = scaled_rows(constraints, 0.0)
    result = None
    if zero_row_violation == 0.0:
        rows, origin = with_domain(objective, rows, origin)
        if start is not None or rows.domain.bounded:
            result = _settled(objective, constraints, rows, origin, tolerance)
        if result is None:
            result = _newton(objective, constraints, rows, origin, tolerance)
        # Started at the minimiser, a quadratic program of thousands of rows may be too flat to tell which are active.
        # Where the very first one was infeasible, another start makes no difference.
        hopeless = result.iterations == 1 and not np.isfinite(result.residual)
        if (
            start is not None
            and not hopeless
            and (result.outcome is Outcome.INACCURATE or result.complementarity > SHARP)
        ):
            cold = _newton(objective, constraints, *with_domain(objective, rows, np.zeros(size)), tolerance)
            blunter = result.outcome is Outcome.OPTIMAL and cold.complementarity >= result.complementarity
            result = result if blunter else _better(result, cold)
        if start is None and result.outcome is Outcome.INACCURATE and result.infeasibility <= tolerance:
            vertex = _lowest_vertex(objective, constraints, result.y)
            if vertex is not None:
                result = _better(result, minimise(objective, constraints, vertex, tolerance=tolerance))
    if result is not None and (result.outcome is not Outcome.INACCURATE or result.infeasibility <= tolerance):
        return result
    # Nothing clean came out: measure how feasible the problem is, and solve the nearest feasible one.
    relaxation, nearest = smallest_relaxation(constraints)
    bounds = np.concatenate([constraints.lower[: constraints.relaxable], constraints.upper[: constraints.relaxable]])
    scale = 1 + np.max(abs(bounds[np.isfinite(bounds)]), initial=0.0)
    # One t for rows of all scales: what is rounding for the largest bound may be a gross violation of a small row.
    gross = not np.isfinite(relaxation) or rows.infeasibility(nearest) > 100 * feasibility_tolerance
    if gross or relaxation > feasibility_tolerance * scale:
        multipliers, ball_multipliers = np.zeros(len(constraints.lower)), np.zeros(len(constraints.balls))
        return ConvexSolution(nearest, multipliers, ball_multipliers, Outcome.INFEASIBLE, relaxation)
    rows, nearest = with_domain(objective, scaled_rows(constraints, relaxation)[0], nearest)
    # The second try leaves the interior-point method some room; polishing removes what it made of it.
    for room in (0.0, 10 * feasibility_tolerance):
        again = replace(_newton(objective, constraints, rows, nearest, tolerance, room), relaxation=relaxation)
        result = again if result is None else _better(result, again)
        if result.outcome is not Outcome.INACCURATE:
            break
    assert result is not None
    return result


def _lowest_vertex(objective: Objective, constraints: Constraints, y: np.ndarray) -> np.ndarray | None:
    """The vertex where a linear objective is least, costs counted however small they are; None for other objectives.

    Next to a tie, a linear program has costs that no solver can tell from zero. So the costs that it can tell are met
    first, and those that are left over decide on the face where they are: stretched, and as often as needed.
    """
    if constraints.balls or y.size > BASIC or np.any(objective.hessian(y).data):
        return None
    matrix, cost = constraints.matrix, objective.gradient(y)
    low, high, rounding = constraints.lower.copy(), constraints.upper.copy(), _COST_ROUNDING * np.max(abs(cost))
    for _ in range(_TIES):
        size = float(np.max(abs(cost), initial=0.0))
        if not size > rounding:
            break
        equal, above, below = low == high, (low < high) & np.isfinite(high), (low < high) & np.isfinite(low)
        answer = linprog(
            cost / size,
            A_ub=sparse.vstack([matrix[above], -matrix[below]]),
            b_ub=np.concatenate([high[above], -low[below]]),
            A_eq=matrix[equal],
            b_eq=high[equal],
            bounds=(None, None),
            method="highs",
            options=_SHARP_SIMPLEX,
        )
        if answer.status != 0:
            return None
        y, push = answer.x, np.zeros(len(low))
        push[equal] = 1.0
        push[above] = abs(answer.ineqlin.marginals[: above.sum()])
        push[below] += abs(answer.ineqlin.marginals[above.sum() :])
        met = push > _TOLD
        image = np.clip(matrix @ y, low, high)
        low[met], high[met] = image[met], image[met]
        held = matrix[met].toarray()
        cost = cost - held.T @ np.linalg.lstsq(held.T, cost, rcond=None)[0]
    return y


def smallest_relaxation(constraints: Constraints) -> tuple[float, np.ndarray]:
    """Smallest uniform relaxation of the relaxable rows that makes the constraints feasible.

    Returns
    -------
    t
        Smallest t >= 0 such that ``lower - t <= matrix @ y <= upper + t`` on the relaxable rows, together with the hard
        rows and balls, has a point; inf when the hard constraints alone have none.
    y
        Such a point (nan when t is inf).
    """
    number, size = constraints.matrix.shape
    relaxed = (np.arange(number) < constraints.relaxable).astype(float)
    rows = with_margin(constraints.matrix, constraints.lower, constraints.upper, constraints.balls, relaxed, 0.0)
    cost = np.append(np.zeros(size), 1.0)
    status, point = None, np.full(size + 1, np.nan)
    if not constraints.balls and number + size <= _SIMPLEX:
        # A simplex vertex is exact to rounding, which an interior point is not.
        above, below = np.isfinite(rows.upper), np.isfinite(rows.lower)
        matrix = sparse.vstack([rows.matrix[above], -rows.matrix[below]])
        side = np.concatenate([rows.upper[above], -rows.lower[below]])
        answer = linprog(cost, matrix, side, bounds=(None, None), method="highs", options=_SHARP_SIMPLEX)
        status, point = {0: Status.SOLVED, 2: Status.INFEASIBLE}.get(answer.status), answer.x
    if status is None:
        flat = sparse.csc_matrix((size + 1, size + 1))
        step = NewtonProgram(rows).solve(flat, cost, np.zeros(size + 1))
        status, point = step.status, step.direction
    if status is Status.INFEASIBLE or not np.all(np.isfinite(point)):
        return np.inf, np.full(size, np.nan)
    y = point[:size]
    activity = constraints.matrix @ y
    excess = np.maximum(activity - constraints.upper, constraints.lower - activity)[: constraints.relaxable]
    return float(np.max(excess, initial=0.0)), y


def _better(first: ConvexSolution, second: ConvexSolution) -> ConvexSolution:
    """The second solution if it has an outcome, or smaller residuals."""
    return second if second.outcome is not Outcome.INACCURATE or second.residual < first.residual else first


def solution_at(
    constraints: Constraints, rows: Rows, y: np.ndarray, best: Point | None, outcome: Outcome, iterations: int
) -> ConvexSolution:
    """The best point in the user's terms."""
    multipliers, ball_multipliers = np.zeros(len(constraints.lower)), np.zeros(len(constraints.balls))
    if best is None:
        return ConvexSolution(y, multipliers, ball_multipliers, outcome, iterations=iterations)
    multipliers[rows.kept] = best.multipliers / rows.norms
    if outcome is Outcome.OPTIMAL and not best.at.convex:
        outcome = Outcome.NOT_CONVEX
    unique = outcome is Outcome.OPTIMAL and is_unique(rows, best)
    return ConvexSolution(
        best.at.y, multipliers, best.ball_multipliers, outcome, 0.0, *best.residuals, unique, iterations, rows.domain
    )


def _settled(
    objective: Objective, constraints: Constraints, rows: Rows, start: np.ndarray, tolerance: float
) -> ConvexSolution | None:
    """The solution when the start is so good that no quadratic program is needed, else None.

    Near the minimiser a quadratic program would have an objective near zero, below its solver's tolerances.
    """
    at = Local(objective, start)
    if not at.finite or (start.size > BASIC and not nearly_full(at.hessian)):
        return None
    point = settle(rows, at, tolerance)
    return solution_at(constraints, rows, start, point, Outcome.OPTIMAL, 0) if point.error <= 0.1 * tolerance else None


def _newton(
    objective: Objective,
    constraints: Constraints,
    rows: Rows,
    start: np.ndarray,
    tolerance: float,
    room: float = 0.0,
) -> ConvexSolution:
    """Damped Newton; the feasible set of each quadratic program is widened by `room`, the answer is not."""
    at, best, iterations, stalled, proximal = Local(objective, start), None, 0, 0, 0.0
    feasible, program = rows.infeasibility(start) <= 10 * tolerance, NewtonProgram(rows)

    def finish(outcome: Outcome) -> ConvexSolution:
        return solution_at(constraints, rows, at.y, best, outcome, iterations)

    if not at.finite or (not feasible and not at.convex):
        at, feasible = Local(objective, interior_point(rows, start)), True
    while at.finite and iterations < _MAX_ITERATIONS:
        if feasible and not at.convex:
            return finish(Outcome.NOT_CONVEX)
        step = program.solve(at.hessian, at.gradient, at.y, room, proximal)
        iterations += 1
        target = at.y + step.direction
        rough = step.status is Status.ROUGH
        if step.status is Status.INFEASIBLE or (rough and rows.infeasibility(target) > 1e-7 + 2 * room):
            break
        far = np.max(abs(target)) > 1e7 * (1 + np.max(abs(start)))
        if (far or step.status is not Status.SOLVED) and descends_forever(rows, at):
            return finish(Outcome.UNBOUNDED)
        if step.status is Status.UNBOUNDED or not np.all(np.isfinite(step.direction)):
            if proximal > 1.0:
                break
            proximal = max(100 * proximal, 1e-6)
            continue
        length, trial = _line_search(at, step.direction, feasible)
        if length == 0.0 and not feasible:
            at, feasible = Local(objective, interior_point(rows, start)), True
            continue
        if not trial.finite:
            break
        point = measure(trial, rows, *cleaned(rows, step))
        if length in (0.0, 1.0):
            point = polish(rows, point, tolerance)
        improved = best is None or point.residual < 0.5 * best.residual
        gain = at.value - trial.value
        stalled = 0 if improved or gain > 1e-10 * (1 + abs(trial.value)) else stalled + 1
        if best is None or point.residual < best.residual:
            best = point
        if best.residual <= tolerance:
            return finish(Outcome.OPTIMAL)
        if stalled > 4 or (length == 0.0 and not improved):
            break
        # A wrong guess of the active rows may leave the feasible set, where the value is no measure of progress.
        descends = point.residuals[1] <= tolerance and point.at.value <= trial.value
        at, feasible = (point.at if descends else trial), feasible or length == 1.0
        proximal *= 0.01
        if iterations % _PATIENCE == 0 and runs_away(rows, at, at.y - start):
            return finish(Outcome.UNBOUNDED)
    if at.finite and runs_away(rows, at, at.y - start):
        return finish(Outcome.UNBOUNDED)
    return finish(Outcome.INACCURATE)


def _line_search(at: Local, direction: np.ndarray, feasible: bool) -> tuple[float, Local]:
    """Length of a step that descends and does not overshoot by much, and its end.

    Of a convex function the slope at the end decides, and it stays exact where rounding hides the decrease of the
    value. From an infeasible point any step is of use, the longest most. Where no length will do it is 0, but the end
    is that of the full step: too short to be seen in the value, it may still improve the residual.
    """
    full = at.moved(direction)
    if not feasible:
        ends = ((length, at.moved(length * direction)) for length in (1.0, 0.9, 0.5, 0.25, 0.1))
        return next(((length, trial) for length, trial in ends if trial.finite), (0.0, full))
    slope = abs(at.gradient @ direction)
    highest = at.value + 1e-10 * (1 + abs(at.value))
    # 0.9 before 0.5: a step cut only by the border of the domain should still go most of the way there.
    for length in (1.0, 0.9, *0.5 ** np.arange(1, 40)):
        trial = full if length == 1.0 else at.moved(length * direction)
        if trial.finite and trial.value <= highest and trial.gradient @ direction <= 0.5 * slope:
            return float(length), trial
    return 0.0, full
