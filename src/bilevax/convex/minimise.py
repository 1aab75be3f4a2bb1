"""Exact minimisation of a smooth convex function under linear rows and balls, on the host.

This is the judge behind the certificates. It shares no code with the solvers and does not import JAX. Every answer is
checked against the optimality conditions, recomputed from the user's own data; an answer that fails the
check is returned as `Outcome.INACCURATE`, never as optimal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sparse

from bilevax._support.programs import linprog
from bilevax.convex.active_set import is_separable, polish, settle
from bilevax.convex.borders import with_domain
from bilevax.convex.curvature import nearly_full
from bilevax.convex.existence import descends_forever, is_unique, runs_away
from bilevax.convex.newton_program import NewtonProgram, Status, cleaned, interior_point, with_margin
from bilevax.convex.optimality import Local, Point, Rows, measure, scaled_rows
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.convex.settings import DENSE, NEWTON, SIMPLEX
from bilevax.convex.tolerances import CONVEX_TOLERANCES


@np.errstate(all="ignore")  # overflow and nan are expected outside the domain, and are tested for
def minimise(
    objective: Objective,
    constraints: Constraints,
    start: np.ndarray | None = None,
    *,
    tolerance: float = CONVEX_TOLERANCES.optimality,
    feasibility_tolerance: float = CONVEX_TOLERANCES.feasibility,
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
        large = size > DENSE.basic_multipliers
        if start is not None and large and not result.sharp and result.iterations > 0 and not hopeless:
            # Near enough for a vertex of the multipliers to tell which rows are active.
            result = _settled(objective, constraints, rows, result.y, tolerance) or result
        # Where a start was settled they are told: each row's multiplier or slack is next to nothing there.
        told = result.sharp or (result.iterations == 0 and large)
        doubtful = result.outcome is Outcome.INACCURATE or not told
        if start is not None and doubtful and not hopeless:
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
    # The relaxation is one number for rows of all sizes: what rounds the largest bound may grossly violate a small row.
    largest = CONVEX_TOLERANCES.gross_violation * feasibility_tolerance
    gross = not np.isfinite(relaxation) or rows.infeasibility(nearest) > largest
    if gross or relaxation > feasibility_tolerance * scale:
        multipliers, ball_multipliers = np.zeros(len(constraints.lower)), np.zeros(len(constraints.balls))
        return ConvexSolution(nearest, multipliers, ball_multipliers, Outcome.INFEASIBLE, relaxation)
    rows, nearest = with_domain(objective, scaled_rows(constraints, relaxation)[0], nearest)
    # The second attempt widens the rows, which the interior-point method may need; polishing uses them as they are.
    for widening in (0.0, NEWTON.widening * feasibility_tolerance):
        again = replace(_newton(objective, constraints, rows, nearest, tolerance, widening), relaxation=relaxation)
        result = again if result is None else _better(result, again)
        if result.outcome is not Outcome.INACCURATE:
            break
    assert result is not None
    return result


def _lowest_vertex(objective: Objective, constraints: Constraints, y: np.ndarray) -> np.ndarray | None:
    """The vertex where a linear objective is least, however small some of its costs; None for other objectives.

    Where the best vertices nearly tie, the costs that decide between them are too small for a solver to see. So a
    program is solved with all costs, its solution set (the face where rows with positive multipliers are equalities)
    becomes the feasible set, and what is left of the costs on that face is scaled up for the next program.
    """
    if constraints.balls or y.size > DENSE.basic_multipliers or np.any(objective.hessian(y).data):
        return None
    matrix, cost = constraints.matrix, objective.gradient(y)
    low, high, rounding = constraints.lower.copy(), constraints.upper.copy(), SIMPLEX.cost_rounding * np.max(abs(cost))
    for _ in range(SIMPLEX.max_ties):
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
            options=SIMPLEX.options,
        )
        if answer.status != 0:
            return None
        y, multipliers = answer.x, np.zeros(len(low))
        multipliers[equal] = 1.0
        multipliers[above] = abs(answer.ineqlin.marginals[: above.sum()])
        multipliers[below] += abs(answer.ineqlin.marginals[above.sum() :])
        active = multipliers > SIMPLEX.visible_multiplier
        image = np.clip(matrix @ y, low, high)
        low[active], high[active] = image[active], image[active]
        held = matrix[active].toarray()
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
    if not constraints.balls and number + size <= DENSE.simplex:
        # A simplex vertex is exact to rounding, which an interior point is not.
        above, below = np.isfinite(rows.upper), np.isfinite(rows.lower)
        matrix = sparse.vstack([rows.matrix[above], -rows.matrix[below]])
        side = np.concatenate([rows.upper[above], -rows.lower[below]])
        answer = linprog(cost, matrix, side, bounds=(None, None), method="highs", options=SIMPLEX.options)
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
    """The second solution if it is conclusive or has smaller residuals, else the first."""
    return second if second.outcome is not Outcome.INACCURATE or second.residual < first.residual else first


def solution_at(
    constraints: Constraints, rows: Rows, y: np.ndarray, best: Point | None, outcome: Outcome, iterations: int
) -> ConvexSolution:
    """The solution for the problem's own rows, given the best point of the scaled ones; y alone where there is none."""
    multipliers, ball_multipliers = np.zeros(len(constraints.lower)), np.zeros(len(constraints.balls))
    if best is None:
        return ConvexSolution(y, multipliers, ball_multipliers, outcome, iterations=iterations)
    multipliers[rows.kept] = best.multipliers / rows.norms
    if outcome is Outcome.OPTIMAL and not best.at.convex:
        outcome = Outcome.NOT_CONVEX
    return ConvexSolution(
        best.at.y,
        multipliers,
        best.ball_multipliers,
        outcome,
        0.0,
        *best.residuals,
        sharp=best.residuals[2] <= NEWTON.sharp or best.error <= NEWTON.sharp_error,
        unique=outcome is Outcome.OPTIMAL and is_unique(rows, best),
        iterations=iterations,
        domain=rows.domain,
    )


def _settled(
    objective: Objective, constraints: Constraints, rows: Rows, start: np.ndarray, tolerance: float
) -> ConvexSolution | None:
    """The solution when the start is so good that no quadratic program is needed, else None.

    Near the minimiser a quadratic program would have an objective near zero, below its solver's tolerances. Where all
    rows are equations it would be no more than a linear system.
    """
    at = Local(objective, start)
    if not at.finite or (start.size > DENSE.basic_multipliers and not _is_settled_easily(rows, at, tolerance)):
        return None
    point = settle(rows, at, tolerance)
    settled = point.error <= NEWTON.settled * tolerance
    return solution_at(constraints, rows, start, point, Outcome.OPTIMAL, 0) if settled else None


def _is_settled_easily(rows: Rows, at: Local, tolerance: float) -> bool:
    """Whether Newton's method on active rows is worth a try although there are many variables."""
    if rows.only_equalities or is_separable(rows, at) or nearly_full(at.hessian):
        return True
    return not rows.balls and rows.infeasibility(at.y) <= NEWTON.feasible_start * tolerance


def _newton(
    objective: Objective,
    constraints: Constraints,
    rows: Rows,
    start: np.ndarray,
    tolerance: float,
    widening: float = 0.0,
) -> ConvexSolution:
    """Damped Newton; `widening` widens the rows of its quadratic programs, not those of the optimality conditions."""
    at, best, iterations, stalled, proximal = Local(objective, start), None, 0, 0, 0.0
    feasible, program = rows.infeasibility(start) <= NEWTON.feasible_start * tolerance, NewtonProgram(rows)

    def finish(outcome: Outcome) -> ConvexSolution:
        return solution_at(constraints, rows, at.y, best, outcome, iterations)

    if not at.finite or (not feasible and not at.convex):
        at, feasible = Local(objective, interior_point(rows, start)), True
    while at.finite and iterations < NEWTON.max_iterations:
        if feasible and not at.convex:
            return finish(Outcome.NOT_CONVEX)
        step = program.solve(at.hessian, at.gradient, at.y, widening, proximal)
        iterations += 1
        target = at.y + step.direction
        rough = step.status is Status.ROUGH
        if step.status is Status.INFEASIBLE or (rough and program.looks_infeasible(target, widening)):
            break
        far = np.max(abs(target)) > NEWTON.far * (1 + np.max(abs(start)))
        if (far or step.status is not Status.SOLVED) and descends_forever(rows, at):
            return finish(Outcome.UNBOUNDED)
        if step.status is Status.UNBOUNDED or not np.all(np.isfinite(step.direction)):
            if proximal > NEWTON.proximal_limit:
                break
            proximal = max(NEWTON.proximal_growth * proximal, NEWTON.proximal_first)
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
        improved = best is None or point.residual < NEWTON.improvement * best.residual
        gain = at.value - trial.value
        stalled = 0 if improved or gain > NEWTON.gain * (1 + abs(trial.value)) else stalled + 1
        if best is None or point.residual < best.residual:
            best = point
        if best.residual <= tolerance:
            return finish(Outcome.OPTIMAL)
        if stalled > NEWTON.max_stalled or (length == 0.0 and not improved):
            break
        # A wrong guess of the active rows may leave the feasible set, where the value is no measure of progress.
        descends = point.residuals[1] <= tolerance and point.at.value <= trial.value
        at, feasible = (point.at if descends else trial), feasible or length == 1.0
        proximal *= NEWTON.proximal_decay
        if iterations % NEWTON.existence_every == 0 and runs_away(rows, at, at.y - start):
            return finish(Outcome.UNBOUNDED)
    if at.finite and runs_away(rows, at, at.y - start):
        return finish(Outcome.UNBOUNDED)
    return finish(Outcome.INACCURATE)


def _line_search(at: Local, direction: np.ndarray, feasible: bool) -> tuple[float, Local]:
    """The length of a step that descends and does not overshoot by much, and the point at its end.

    For a convex function the slope at the end tells whether a step overshoots, even where rounding hides the decrease
    of the value. From an infeasible point the longest step with a finite objective is taken. Where no length will do it
    is 0, with the end of the full step: though it does not decrease the value, it may still improve the residual.
    """
    full = at.moved(direction)
    if not feasible:
        ends = ((length, at.moved(length * direction)) for length in NEWTON.infeasible_lengths)
        return next(((length, trial) for length, trial in ends if trial.finite), (0.0, full))
    slope = abs(at.gradient @ direction)
    highest = at.value + NEWTON.value_rounding * (1 + abs(at.value))
    for length in NEWTON.feasible_lengths:
        trial = full if length == 1.0 else at.moved(length * direction)
        if trial.finite and trial.value <= highest and trial.gradient @ direction <= NEWTON.overshoot * slope:
            return float(length), trial
    return 0.0, full
