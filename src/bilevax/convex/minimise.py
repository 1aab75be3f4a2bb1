"""Exact minimisation of a smooth convex function under linear rows and balls, on the host.

This is the judge behind the certificates. It shares no code with the solvers and does not import JAX. Every answer is
checked against the optimality conditions, recomputed from the user's own data; an answer that fails the
check is returned as `Outcome.INACCURATE`, never as optimal.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

import clarabel
import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse as sparse

from bilevax.convex.active_set import BASIC, polish, settle
from bilevax.convex.optimality import (
    Ball,
    Constraints,
    Domain,
    Local,
    Objective,
    Point,
    Rows,
    eigenvalues_above,
    in_own_units,
    measure,
    nearly_full,
    own_units,
    scaled_rows,
    stacked,
)
from bilevax.convex.programs import conic, linprog

__all__ = ["Ball", "Constraints", "ConvexSolution", "Objective", "Outcome", "minimise", "smallest_relaxation"]

_DENSE = 500  # up to this many free variables uniqueness is decided on a null space
_SIMPLEX = 40_000  # up to this many rows and variables the smallest relaxation is found by the simplex method
_MAX_ITERATIONS = 100
_PATIENCE = 20  # iterations after which to ask whether there is a minimiser
_STEEP = 1e100  # a curvature that only stands for an infinite one


class Outcome(enum.Enum):
    """How a minimisation ended."""

    OPTIMAL = "the optimality conditions hold within the tolerance"
    INFEASIBLE = "no point satisfies the constraints; `relaxation` says by how much they miss each other"
    UNBOUNDED = "the objective decreases for ever along a ray of feasible points: it has no minimiser"
    NOT_CONVEX = "the Hessian has a negative eigenvalue at a feasible point"
    INACCURATE = "the optimality conditions could not be met within the tolerance; see the residuals"


@dataclass(frozen=True)
class ConvexSolution:
    """A minimiser with its multipliers and the residuals of the optimality conditions.

    The conditions are ``gradient + matrix.T @ multipliers + sum_k ball_multipliers[k] (y - center)_index = 0``. A
    multiplier is positive only when the upper side of its row is active, negative only when the lower side is, and
    free on equality rows; ball multipliers are nonnegative.

    Attributes
    ----------
    y, multipliers, ball_multipliers
        The point and the multipliers of the rows and of the balls.
    outcome
        What the point is.
    relaxation
        Smallest t >= 0 such that the hard constraints and ``lower - t <= matrix @ y <= upper + t`` on the
        relaxable rows have a common point: 0 when the constraints are feasible, inf when the hard ones are not.
        A positive value with `Outcome.OPTIMAL` is rounding; residuals then refer to the rows relaxed by it.
    stationarity
        Smallest s with ``|gradient + matrix.T @ multipliers + ball terms|_k <= s scale_k`` for every entry k, where
        ``scale_k = |gradient_k| + min(sum_i |matrix_ik multipliers_i| + hessian_kk (1 + |y_k|), 1 + max |gradient|)``
        is the size of what is added up there.
    infeasibility
        Smallest s with ``violation_i <= s (|row_i| + |bound_i|)`` for every row that is not zero and
        ``violation <= s (1 + radius)`` for every ball. Scaling a row does not change it.
    complementarity
        Smallest s with ``push_i slack_i <= s (1 + |bound_i|)`` for every row i of length 1, where ``push_i`` is the
        largest ``|matrix_ik multiplier_i| / scale_k`` and the slack that of the side the multiplier's sign belongs to;
        inf for a multiplier that pushes to an infinite side.
    unique
        True when the minimiser is known to be unique; False when it may not be.
    iterations
        Number of quadratic programs solved.
    domain
        Which sides of rows are borders of the objective's domain: its gradient there is infinite, so no minimiser lies
        on them, however close.
    """

    y: np.ndarray
    multipliers: np.ndarray
    ball_multipliers: np.ndarray
    outcome: Outcome
    relaxation: float = 0.0
    stationarity: float = np.inf
    infeasibility: float = np.inf
    complementarity: float = np.inf
    unique: bool = False
    iterations: int = 0
    domain: Domain = field(default_factory=Domain)

    @property
    def residual(self) -> float:
        """The largest of the three residuals."""
        return max(self.stationarity, self.infeasibility, self.complementarity)


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
        rows, origin = _with_domain(objective, rows, origin)
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
            cold = _newton(objective, constraints, *_with_domain(objective, rows, np.zeros(size)), tolerance)
            blunter = result.outcome is Outcome.OPTIMAL and cold.complementarity >= result.complementarity
            result = result if blunter else _better(result, cold)
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
    rows, nearest = _with_domain(objective, scaled_rows(constraints, relaxation)[0], nearest)
    # The second try leaves the interior-point method some room; polishing removes what it made of it.
    for room in (0.0, 10 * feasibility_tolerance):
        again = replace(_newton(objective, constraints, rows, nearest, tolerance, room), relaxation=relaxation)
        result = again if result is None else _better(result, again)
        if result.outcome is not Outcome.INACCURATE:
            break
    assert result is not None
    return result


SHARP = 1e-14  # with the active rows known it is rounding


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
    rows = _lifted(constraints.matrix, constraints.lower, constraints.upper, constraints.balls, relaxed, 0.0)
    cost = np.append(np.zeros(size), 1.0)
    status, point = None, np.full(size + 1, np.nan)
    if not constraints.balls and number + size <= _SIMPLEX:
        # A simplex vertex is exact to rounding, which an interior point is not.
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        above, below = np.isfinite(rows.upper), np.isfinite(rows.lower)
        matrix = sparse.vstack([rows.matrix[above], -rows.matrix[below]])
        side = np.concatenate([rows.upper[above], -rows.lower[below]])
        answer = linprog(cost, matrix, side, bounds=(None, None), method="highs", options=options)
        status, point = {0: _Status.SOLVED, 2: _Status.INFEASIBLE}.get(answer.status), answer.x
    if status is None:
        flat = sparse.csc_matrix((size + 1, size + 1))
        step = _Program(rows).solve(flat, cost, np.zeros(size + 1))
        status, point = step.status, step.direction
    if status is _Status.INFEASIBLE or not np.all(np.isfinite(point)):
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
    unique = outcome is Outcome.OPTIMAL and _unique(rows, best)
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
    feasible, program = rows.infeasibility(start) <= 10 * tolerance, _Program(rows)

    def finish(outcome: Outcome) -> ConvexSolution:
        return solution_at(constraints, rows, at.y, best, outcome, iterations)

    if not at.finite or (not feasible and not at.convex):
        at, feasible = Local(objective, _interior_point(rows, start)), True
    while at.finite and iterations < _MAX_ITERATIONS:
        if feasible and not at.convex:
            return finish(Outcome.NOT_CONVEX)
        step = program.solve(at.hessian, at.gradient, at.y, room, proximal)
        iterations += 1
        target = at.y + step.direction
        rough = step.status is _Status.ROUGH
        if step.status is _Status.INFEASIBLE or (rough and rows.infeasibility(target) > 1e-7 + 2 * room):
            break
        far = np.max(abs(target)) > 1e7 * (1 + np.max(abs(start)))
        if (far or step.status is not _Status.SOLVED) and _descends_forever(rows, at):
            return finish(Outcome.UNBOUNDED)
        if step.status is _Status.UNBOUNDED or not np.all(np.isfinite(step.direction)):
            if proximal > 1.0:
                break
            proximal = max(100 * proximal, 1e-6)
            continue
        length, trial = _line_search(at, step.direction, feasible)
        if length == 0.0 and not feasible:
            at, feasible = Local(objective, _interior_point(rows, start)), True
            continue
        if not trial.finite:
            break
        point = measure(trial, rows, *_cleaned(rows, step))
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
        if iterations % _PATIENCE == 0 and _runs_away(rows, at, at.y - start):
            return finish(Outcome.UNBOUNDED)
    if at.finite and _runs_away(rows, at, at.y - start):
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


class _Status(enum.Enum):
    SOLVED = "solved"
    INFEASIBLE = "primal infeasible"
    UNBOUNDED = "dual infeasible"
    ROUGH = "not solved to the tolerance"


_STATUS = {"Solved": _Status.SOLVED, "PrimalInfeasible": _Status.INFEASIBLE, "DualInfeasible": _Status.UNBOUNDED}


@dataclass(frozen=True)
class _Step:
    status: _Status
    direction: np.ndarray
    multipliers: np.ndarray
    ball_multipliers: np.ndarray


class _Program:
    """Quadratic programs over the rows and balls, by Clarabel."""

    def __init__(self, rows: Rows):
        self.rows = rows
        self.upper = np.isfinite(rows.upper) & ~rows.equality
        self.lower = np.isfinite(rows.lower) & ~rows.equality
        size = rows.matrix.shape[1]
        self.open_low, self.open_high = (
            np.flatnonzero(np.isfinite(side)) for side in (rows.domain.low, rows.domain.high)
        )
        borders = sparse.eye_array(size, format="csr")
        blocks = [rows.matrix[rows.equality], rows.matrix[self.upper], -rows.matrix[self.lower]]
        blocks += [borders[self.open_high], -borders[self.open_low]] if rows.domain.bounded else []
        self.ends = np.cumsum([block.shape[0] for block in blocks])
        self.cones: list = [
            clarabel.ZeroConeT(int(self.ends[0])),
            clarabel.NonnegativeConeT(int(self.ends[-1] - self.ends[0])),
        ]
        for ball in rows.balls:
            count = len(ball.index)
            entries = (-np.ones(count), (np.arange(1, count + 1), ball.index))
            blocks.append(sparse.csr_matrix(entries, (count + 1, size)))
            self.cones.append(clarabel.SecondOrderConeT(count + 1))
        self.matrix = sparse.csc_matrix(stacked(blocks))

    def solve(
        self,
        hessian: sparse.csc_matrix,
        gradient: np.ndarray,
        y: np.ndarray,
        room: float = 0.0,
        proximal: float = 0.0,
    ) -> _Step:
        """Minimise gradient'd + d'Hd/2 over d such that y + d is feasible, and well inside the domain."""
        rows, matrix, unit = self.rows, self.matrix, 1.0
        below, above = rows.slack(y)
        sides = [0.5 * (above - below)[rows.equality], above[self.upper] + room, below[self.lower] + room]
        if rows.domain.bounded:
            down, up = rows.domain.around(y)
            sides += [up[self.open_high], -down[self.open_low]]
        if rows.domain.bounded or np.max(hessian.diagonal(), initial=0.0) > _STEEP:
            # Near the borders of the domain curvatures, and steps, are of very different sizes.
            unit = own_units(hessian)
            matrix, gradient = matrix @ sparse.diags_array(unit), gradient * unit
            hessian = sparse.csc_matrix(in_own_units(hessian))
        sides += [np.append(ball.radius + room, y[ball.index] - ball.center) for ball in rows.balls]
        side = np.concatenate(sides)
        # Clarabel's tolerances are partly absolute: bring the objective to unit size.
        largest = np.max(abs(hessian.data), initial=0.0)
        scale = float(max(np.max(abs(gradient)), 1e-6 * largest)) or 1.0
        hessian = hessian / scale
        step = None
        for tolerance, extra in ((1e-11, 0.0), (1e-9, 1e-9), (1e-8, 1e-7)):
            settings = clarabel.DefaultSettings()
            settings.verbose = False
            settings.max_iter = 100
            settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
            weight = (proximal + extra) * max(largest / scale, 1.0)
            quadratic = hessian + weight * sparse.eye_array(y.size, format="csc") if weight else hessian
            answer = conic(quadratic, gradient / scale, sparse.csc_matrix(matrix), side, self.cones, settings=settings)
            step = self._step(_STATUS.get(str(answer.status), _Status.ROUGH), answer, scale, unit)
            # What stalls far from feasibility is most likely infeasible: measuring that is quicker than trying again.
            if step.status is not _Status.ROUGH or rows.infeasibility(y + step.direction) > 1e-7 + 2 * room:
                break
        assert step is not None
        return step

    def _step(self, status: _Status, answer: clarabel.DefaultSolution, scale: float, unit: np.ndarray | float) -> _Step:
        dual, multipliers = np.array(answer.z) * scale, np.zeros(len(self.upper))
        equality, upper, lower = self.ends[:3]
        multipliers[self.rows.equality] = dual[:equality]
        multipliers[self.upper] += dual[equality:upper]
        multipliers[self.lower] -= dual[upper:lower]
        # The cone's dual is (|w|, -w) for the force w on the ball; (y - center) carries the radius.
        heads = self.ends[-1] + np.cumsum([0] + [len(ball.index) + 1 for ball in self.rows.balls])[:-1]
        return _Step(status, unit * np.array(answer.x), multipliers, dual[heads] / self.rows.radii)


def _lifted(matrix, lower, upper, balls: tuple[Ball, ...], weight: np.ndarray, floor: float) -> Rows:
    """The rows ``lower - weight t <= matrix y <= upper + weight t`` and ``t >= floor`` of (y, t), and the balls."""
    matrix, size = sparse.csr_matrix(matrix), matrix.shape[1]
    fixed, above, below = weight == 0, np.isfinite(upper) & (weight != 0), np.isfinite(lower) & (weight != 0)
    column = sparse.csr_matrix(weight[:, None])
    blocks = [
        sparse.hstack([matrix[fixed], column[fixed]]),
        sparse.hstack([matrix[above], -column[above]]),
        sparse.hstack([-matrix[below], -column[below]]),
        sparse.eye_array(1, size + 1, k=size),
    ]
    one_sided = np.full(above.sum() + below.sum(), -np.inf)
    floors = np.concatenate([lower[fixed], one_sided, [floor]])
    ceilings = np.concatenate([upper[fixed], upper[above], -lower[below], [np.inf]])
    return Rows(sparse.vstack(blocks, format="csr"), floors, ceilings, balls)


def _with_domain(objective: Objective, rows: Rows, start: np.ndarray) -> tuple[Rows, np.ndarray]:
    """The rows without bounds that are borders of the objective's domain, and the start moved inside them."""
    if rows.domain.bounded:
        return rows, start
    low, high = rows.bounds
    free = low < high
    inset = 0.1 * np.minimum(1.0, np.where(np.isfinite(high - low), high - low, 1.0))
    centre = np.where(free, np.clip(start, low + inset, high - inset), start)
    if not np.all(np.isfinite(objective.gradient(centre))):
        return rows, start if Local(objective, start).finite else _somewhere_inside(objective, rows, start)
    below = _borders(objective, centre, low, free & np.isfinite(low))
    above = _borders(objective, centre, high, free & np.isfinite(high))
    if not (below.any() or above.any()):
        return rows, start
    rows = rows.with_domain(below, above)
    return rows, rows.domain.inside(start, centre)


def _borders(objective: Objective, centre: np.ndarray, bound: np.ndarray, bounded: np.ndarray) -> np.ndarray:
    """The bounds at which the gradient is infinite: it grows as fast on every hundredth part of the way there.

    Where a function is guarded (0 log 0 = 0) the gradient at the bound may be finite, but it does not go on from there.
    """

    def infinite(among: np.ndarray) -> np.ndarray:
        at = lambda part: objective.gradient(np.where(among, bound + part * (centre - bound), centre))
        near, nearer, nearest, there = (np.sign(centre - bound) * at(part) for part in (1e-6, 1e-8, 1e-10, 0.0))
        grows = nearer - nearest > np.maximum(0.5 * (near - nearer), 1e-10 * abs(nearer))
        return among & grows & ~(np.isfinite(there) & (there <= nearest))

    found = infinite(bounded) if bounded.any() else bounded
    if not found.any():
        return found
    coupled = abs(sparse.csc_matrix(objective.hessian(centre))[:, np.flatnonzero(found)])
    if coupled.nnz <= found.sum():
        return found
    # What is infinite for several variables at once may not be so for each of them: log(a + b).
    index, random = np.flatnonzero(found), np.random.default_rng(0)
    groups = np.eye(index.size, dtype=bool) if index.size <= _SINGLE else random.random((_GROUPS, index.size)) < 0.5
    for group in groups:
        among = np.zeros(len(found), bool)
        among[index[group]] = True
        found &= ~among | infinite(among)
    return found


_SINGLE, _GROUPS = 100, 16


def _somewhere_inside(objective: Objective, rows: Rows, start: np.ndarray) -> np.ndarray:
    """A point where the objective is finite, if one is found: inside the rows, else wherever one may be expected."""
    interior, random = _interior_point(rows, start), np.random.default_rng(0)
    points = [interior, np.ones(start.size), -np.ones(start.size)]
    points += [size * random.standard_normal(start.size) for size in (1.0, 0.1, 10.0) for _ in range(20)]
    return next((point for point in points if Local(objective, point).finite), interior)


def _interior_point(rows: Rows, near: np.ndarray) -> np.ndarray:
    """A point far from all sides of the rows and balls: max s <= 1 with all slacks >= s."""
    size = near.size
    lifted = _lifted(rows.matrix, rows.lower, rows.upper, rows.balls, (~rows.equality).astype(float), -1.0)
    weight = sparse.diags_array(np.append(np.full(size, 1e-6), 0.0), format="csc")
    cost = np.append(np.zeros(size), 1.0)
    step = _Program(lifted).solve(sparse.csc_matrix(weight), cost, np.append(near, 0.0))
    return near + step.direction[:size]


def _cleaned(rows: Rows, step: _Step) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers without those that push to an infinite side or are negative on a ball."""
    multipliers = step.multipliers
    pushes_nowhere = ((multipliers > 0) & np.isinf(rows.upper)) | ((multipliers < 0) & np.isinf(rows.lower))
    return np.where(pushes_nowhere, 0.0, multipliers), np.maximum(step.ball_multipliers, 0.0)


def _unique(rows: Rows, point: Point) -> bool:
    """Whether the Lagrangian is strictly convex along the strongly active rows, which every minimiser satisfies."""
    hessian, scaled, size = point.at.hessian, point.at.scaled_hessian, point.at.y.size
    if rows.balls:
        hessian = sparse.csc_matrix(hessian + sparse.diags_array(rows.ball_curvature(point.ball_multipliers, size)))
        scaled = in_own_units(hessian)
    largest = np.max(abs(hessian.data), initial=0.0)
    if largest > 0 and eigenvalues_above(scaled, 1e-9):
        return True
    strong = rows.equality | (rows.relative(abs(point.multipliers), point.scale) > 1e-8)
    free = np.setdiff1d(np.arange(size), rows.only_column[strong])
    if free.size == 0 or free.size > _DENSE:
        return free.size == 0
    held = sparse.csr_matrix(rows.matrix[strong & (rows.only_column < 0)])
    orthogonal, triangle = scipy.linalg.qr(held[:, free].toarray().T, pivoting=True)[:2]
    diagonal = abs(np.diag(triangle))
    kernel = orthogonal[:, np.sum(diagonal > 1e-10) :]
    if kernel.shape[1] == 0:
        return True
    reduced = kernel.T @ (sparse.csr_matrix(hessian)[free][:, free] @ kernel)
    return bool(largest > 0 and np.linalg.eigvalsh(reduced)[0] > 1e-9 * largest)


def _runs_away(rows: Rows, at: Local, way: np.ndarray) -> bool:
    """Whether the objective falls for ever along the way that the iteration has come, perhaps to a finite infimum.

    Of a convex function it suffices that it still falls far out.
    """
    length = float(np.max(abs(way)))
    if not length > 1.0:
        return False
    ray = np.where(abs(way) > 1e-3 * length, way / length, 0.0)
    along = rows.matrix @ ray
    leaves = ((along > 1e-9) & np.isfinite(rows.upper)) | ((along < -1e-9) & np.isfinite(rows.lower))
    leaves_ball = any(np.any(ray[ball.index]) for ball in rows.balls)
    falls_out = np.any((ray < 0) & np.isfinite(rows.domain.low)) or np.any((ray > 0) & np.isfinite(rows.domain.high))
    if np.any(leaves) or leaves_ball or falls_out or not at.gradient @ ray < 0:
        return False
    ends = (at.moved(distance * length * ray) for distance in 10.0 ** np.arange(7))
    return all(np.isfinite(end.value) and end.value <= at.value and end.gradient @ ray <= 0 for end in ends)


def _descends_forever(rows: Rows, at: Local) -> bool:
    """Whether the objective falls without end along a ray of the feasible set: a linear program finds the ray."""
    steepest = np.max(abs(at.gradient))
    if steepest == 0.0:
        return False
    limit = np.ones(at.y.size)
    for ball in rows.balls:
        limit[ball.index] = 0.0
    # Curvature that has died out on the way here no longer stops a ray.
    curved = at.hessian.multiply(abs(at.hessian) * (1 + np.max(abs(at.y))) > 1e-9 * steepest)
    matrix = stacked([rows.matrix[np.isfinite(rows.upper)], -rows.matrix[np.isfinite(rows.lower)], curved, -curved])
    answer = linprog(
        at.gradient / steepest,
        matrix,
        np.zeros(matrix.shape[0]),
        bounds=np.column_stack([-limit, limit]),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if answer.status != 0 or answer.fun > -1e-8:
        return False
    # The linear program only knows the Hessian here. The values far out decide.
    ray = np.where(abs(answer.x) > 1e-9, answer.x, 0.0)  # rounding dust would bend the values far out
    slope, lengths = at.gradient @ ray, 10.0 ** np.arange(14)
    return bool(slope < 0 and all(at.moved(s * ray).value <= at.value + 0.5 * s * slope for s in lengths))
