"""Exact minimisation of a smooth convex function under linear rows and balls, on the host.

This is the judge behind the certificates. It shares no code with the solvers and does not import JAX. Every answer is
checked against the optimality conditions, recomputed from the user's own data; an answer that fails the
check is returned as `Outcome.INACCURATE`, never as optimal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import clarabel
import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse as sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

_SMALL = 150  # up to this many unknowns systems are solved densely, by least squares
_DENSE = 500  # up to this many variables eigenvalues are computed densely
_BASIC = 1000  # up to this many variables multipliers are made basic by nonnegative least squares
_MAX_ITERATIONS = 100
_TOUCHING = 1e-9  # relative slack below which a polished point counts as lying on a row


@dataclass(frozen=True)
class Objective:
    """A twice differentiable convex function, as callables of a point.

    Attributes
    ----------
    value, gradient
        The function and its gradient. They may return nan or inf outside the function's domain.
    hessian
        The full symmetric Hessian as a sparse matrix.
    """

    value: Callable[[np.ndarray], float]
    gradient: Callable[[np.ndarray], np.ndarray]
    hessian: Callable[[np.ndarray], sparse.csc_matrix]


@dataclass(frozen=True)
class Ball:
    """The constraint ``|y[index] - center| <= radius``."""

    index: np.ndarray
    center: np.ndarray
    radius: float


@dataclass(frozen=True)
class Constraints:
    """The rows ``lower <= matrix @ y <= upper`` and some balls.

    Attributes
    ----------
    matrix, lower, upper
        The rows; a side may be infinite, and ``lower == upper`` is an equality.
    balls
        Constraints ``|y[index] - center| <= radius``.
    relaxable
        How many leading rows the smallest uniform relaxation may relax; the other rows and the balls are hard.
    """

    matrix: sparse.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    balls: tuple[Ball, ...] = ()
    relaxable: int = 0

    def __post_init__(self):
        rows, columns = self.matrix.shape
        if columns == 0:
            raise ValueError("the matrix has no columns: there is nothing to minimise over")
        if self.lower.shape != (rows,) or self.upper.shape != (rows,):
            raise ValueError(f"expected {rows} bounds, got lower {self.lower.shape} and upper {self.upper.shape}")
        if not 0 <= self.relaxable <= rows:
            raise ValueError(f"relaxable must lie between 0 and {rows}, got {self.relaxable}")
        if not np.all(np.isfinite(self.matrix.data)):
            raise ValueError("the matrix of the rows has entries that are not finite")
        if not (np.all(self.lower < np.inf) and np.all(self.upper > -np.inf)):
            raise ValueError("expected lower < inf and upper > -inf; at least one bound is nan or on the wrong side")
        for ball in self.balls:
            if not (ball.radius > 0 and np.shape(ball.center) == np.shape(ball.index)):
                raise ValueError(f"a ball needs a radius > 0 and one center per index, got radius {ball.radius}")


class Outcome(enum.Enum):
    """How a minimisation ended."""

    OPTIMAL = "the optimality conditions hold within the tolerance"
    INFEASIBLE = "no point satisfies the constraints; `relaxation` says by how much they miss each other"
    UNBOUNDED = "the objective decreases without end along a ray of feasible points"
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
        Smallest s with ``max |gradient + matrix.T @ multipliers + ball terms| <= s (1 + max |gradient|)``.
    infeasibility
        Smallest s with ``violation_i <= s (|row_i| + |bound_i|)`` for every row that is not zero and
        ``violation <= s (1 + radius)`` for every ball. Scaling a row does not change it.
    complementarity
        Smallest s with ``|multiplier_i| slack_i <= s (1 + max |gradient|) (1 + max |y|)``, the slack being that of the
        side the multiplier's sign belongs to; inf for a multiplier that pushes to an infinite side.
    unique
        True when the minimiser is known to be unique; False when it may not be.
    iterations
        Number of quadratic programs solved.
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

    @property
    def residual(self) -> float:
        """The largest of the three residuals."""
        return max(self.stationarity, self.infeasibility, self.complementarity)


@dataclass(frozen=True)
class _Rows:
    """The rows that can bind, each scaled to norm 1, and the balls."""

    matrix: sparse.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    balls: tuple[Ball, ...]
    kept: np.ndarray
    norms: np.ndarray
    equality: np.ndarray = field(init=False)
    transpose: sparse.csr_matrix = field(init=False)

    def __post_init__(self):
        # A width at rounding level has no interior for the interior-point method: it is an equality.
        width = self.upper - self.lower
        tiny = 1e-13 * (1 + np.minimum(abs(self.upper), abs(self.lower)))
        object.__setattr__(self, "equality", abs(width) <= tiny)
        object.__setattr__(self, "transpose", self.matrix.T.tocsr())

    def slack(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances to the lower and the upper side, negative when violated."""
        activity = self.matrix @ y
        return activity - self.lower, self.upper - activity

    def ball_gaps(self, y: np.ndarray) -> np.ndarray:
        return np.array([ball.radius - np.linalg.norm(y[ball.index] - ball.center) for ball in self.balls])

    def ball_normals(self, y: np.ndarray) -> sparse.csr_matrix:
        """One row (y - center)_index per ball."""
        normals = sparse.lil_matrix((len(self.balls), y.size))
        for k, ball in enumerate(self.balls):
            normals[k, ball.index] = y[ball.index] - ball.center
        return normals.tocsr()

    def infeasibility(self, y: np.ndarray) -> float:
        below, above = self.slack(y)
        bound = np.where(below < above, self.lower, self.upper)
        rows = np.max(-np.minimum(below, above) / (1 + abs(bound)), initial=0.0)
        radii = np.array([ball.radius for ball in self.balls])
        return float(max(0.0, rows, np.max(-self.ball_gaps(y) / (1 + radii), initial=0.0)))


@dataclass(frozen=True)
class _Point:
    """A point, its multipliers for scaled rows, and its residuals."""

    y: np.ndarray
    gradient: np.ndarray
    multipliers: np.ndarray
    ball_multipliers: np.ndarray
    residuals: tuple[float, float, float]

    @property
    def residual(self) -> float:
        return max(self.residuals)


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
    origin = np.zeros(constraints.matrix.shape[1]) if start is None else np.array(start, dtype=float)
    if origin.shape != (constraints.matrix.shape[1],):
        raise ValueError(f"expected a start with {constraints.matrix.shape[1]} entries, got shape {origin.shape}")
    rows, zero_row_violation = _scaled_rows(constraints, 0.0)
    result = None
    if zero_row_violation == 0.0:
        result = _newton(objective, constraints, rows, origin, tolerance)
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
    # The second try leaves the interior-point method some room; polishing removes what it made of it.
    for room in (0.0, 10 * feasibility_tolerance):
        rows = _scaled_rows(constraints, relaxation)[0]
        again = _newton(objective, constraints, rows, nearest, tolerance, room)
        if result is None or again.outcome is not Outcome.INACCURATE or again.residual < result.residual:
            result = replace(again, relaxation=relaxation)
        if result.outcome is not Outcome.INACCURATE:
            break
    assert result is not None
    return result


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
    relaxed = (np.arange(number) < constraints.relaxable).astype(float)[:, None]
    below, above = np.isfinite(constraints.lower), np.isfinite(constraints.upper)
    matrix = sparse.vstack(
        [
            sparse.hstack([constraints.matrix[above], -relaxed[above]]),
            sparse.hstack([-constraints.matrix[below], -relaxed[below]]),
        ]
    ).tocsr()
    bound = np.concatenate([constraints.upper[above], -constraints.lower[below]])
    cost = np.append(np.zeros(size), 1.0)
    status, point = None, np.full(size + 1, np.nan)
    if not constraints.balls and number + size <= 40 * _BASIC:
        # A simplex vertex is exact to rounding, which an interior point is not.
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        sides = [(None, None)] * size + [(0.0, None)]
        answer = scipy.optimize.linprog(cost, matrix, bound, bounds=sides, method="highs", options=options)
        status = {0: _Status.SOLVED, 2: _Status.INFEASIBLE}.get(answer.status)
        point = answer.x
    if status is None:
        lifted = sparse.vstack([matrix, -sparse.eye_array(1, size + 1, k=size)]).tocsr()
        ceiling, count = np.append(bound, 0.0), len(bound) + 1
        rows = _Rows(lifted, np.full(count, -np.inf), ceiling, constraints.balls, np.arange(count), np.ones(count))
        step = _quadratic_program(sparse.csc_matrix((size + 1, size + 1)), cost, rows, np.zeros(size + 1), 0.0)
        status, point = step.status, step.direction
    if status is _Status.INFEASIBLE or not np.all(np.isfinite(point)):
        return np.inf, np.full(size, np.nan)
    y = point[:size]
    activity = constraints.matrix[: constraints.relaxable] @ y
    excess = np.maximum(activity - constraints.upper[: constraints.relaxable], 0.0)
    shortfall = np.maximum(constraints.lower[: constraints.relaxable] - activity, 0.0)
    return float(np.max(np.maximum(excess, shortfall), initial=0.0)), y


def _scaled_rows(constraints: Constraints, relaxation: float) -> tuple[_Rows, float]:
    """Rows that can bind, of norm 1, relaxed; and the largest violation of rows of zeros."""
    matrix = sparse.csr_matrix(constraints.matrix)
    relaxed = np.where(np.arange(matrix.shape[0]) < constraints.relaxable, relaxation, 0.0)
    lower, upper = constraints.lower - relaxed, constraints.upper + relaxed
    norms = scipy.sparse.linalg.norm(matrix, axis=1) if matrix.shape[0] else np.zeros(0)
    kept = np.flatnonzero((norms > 0) & (np.isfinite(lower) | np.isfinite(upper)))
    violation = np.max(np.maximum(lower, -upper)[norms == 0], initial=0.0)
    scaling = sparse.diags_array(1 / norms[kept])
    scaled = sparse.csr_matrix(scaling @ matrix[kept])
    rows = _Rows(scaled, lower[kept] / norms[kept], upper[kept] / norms[kept], constraints.balls, kept, norms[kept])
    return rows, float(violation)


def _newton(
    objective: Objective,
    constraints: Constraints,
    rows: _Rows,
    start: np.ndarray,
    tolerance: float,
    room: float = 0.0,
) -> ConvexSolution:
    """Damped Newton; the feasible set of each quadratic program is widened by `room`, the answer is not."""
    y, best, iterations, stalled, proximal = start, None, 0, 0, 0.0
    feasible = rows.infeasibility(y) <= 10 * tolerance
    if not _finite(objective, y) or (not feasible and not _positive_semidefinite(objective.hessian(y))):
        y, feasible = _interior_point(rows, start), True

    def finish(outcome: Outcome) -> ConvexSolution:
        multipliers, ball_multipliers = np.zeros(len(constraints.lower)), np.zeros(len(constraints.balls))
        if best is None:
            return ConvexSolution(y, multipliers, ball_multipliers, outcome, iterations=iterations)
        multipliers[rows.kept] = best.multipliers / rows.norms
        unique = outcome is Outcome.OPTIMAL and _unique(objective.hessian(best.y), rows, best)
        return ConvexSolution(
            best.y, multipliers, best.ball_multipliers, outcome, 0.0, *best.residuals, unique, iterations
        )

    if not _finite(objective, y):
        return finish(Outcome.INACCURATE)
    while iterations < _MAX_ITERATIONS:
        gradient, hessian = objective.gradient(y), sparse.csc_matrix(objective.hessian(y))
        if feasible and not _positive_semidefinite(hessian):
            return finish(Outcome.NOT_CONVEX)
        step = _quadratic_program(hessian, gradient, rows, y, room, proximal)
        far = np.max(abs(y + step.direction)) > 1e7 * (1 + np.max(abs(start)))
        iterations += 1
        rough = step.status is _Status.ROUGH
        if step.status is _Status.INFEASIBLE or (rough and rows.infeasibility(y + step.direction) > 1e-7 + 2 * room):
            break
        if (far or step.status is not _Status.SOLVED) and _descends_forever(objective, rows, y, gradient, hessian):
            return finish(Outcome.UNBOUNDED)
        if step.status is _Status.UNBOUNDED or not np.all(np.isfinite(step.direction)):
            if proximal > 1.0:
                break
            proximal = max(100 * proximal, 1e-6)
            continue
        length = _line_search(objective, y, gradient, step.direction, feasible)
        if length == 0.0 and not feasible:
            y, feasible = _interior_point(rows, start), True
            if _finite(objective, y):
                continue
            break
        # A step too short to be seen in the value may still improve the residual: near the end rounding hides descent.
        trial = y + (length or 1.0) * step.direction
        if not _finite(objective, trial):
            break
        point = _measure(objective, rows, trial, *_cleaned(rows, trial, step.multipliers, step.ball_multipliers))
        if length in (0.0, 1.0):
            point = _polished(objective, rows, point, tolerance)
        improved = best is None or point.residual < 0.5 * best.residual
        gain = objective.value(y) - objective.value(trial)
        stalled = 0 if improved or gain > 1e-10 * (1 + abs(objective.value(trial))) else stalled + 1
        if best is None or point.residual < best.residual:
            best = point
        if best.residual <= tolerance:
            convex = _positive_semidefinite(objective.hessian(best.y))
            return finish(Outcome.OPTIMAL if convex else Outcome.NOT_CONVEX)
        if stalled > 4 or (length == 0.0 and not improved):
            break
        # A wrong guess of the active rows may leave the feasible set, where the value is no measure of progress.
        descends = point.residuals[1] <= tolerance and objective.value(point.y) <= objective.value(trial)
        y, feasible = (point.y if descends else trial), True
        proximal *= 0.01
    return finish(Outcome.INACCURATE)


def _finite(objective: Objective, y: np.ndarray) -> bool:
    if not (np.all(np.isfinite(y)) and np.isfinite(objective.value(y))):
        return False
    return bool(np.all(np.isfinite(objective.gradient(y))) and np.all(np.isfinite(objective.hessian(y).data)))


def _line_search(
    objective: Objective, y: np.ndarray, gradient: np.ndarray, direction: np.ndarray, feasible: bool
) -> float:
    """Length of a step that descends and does not overshoot by much; 0 when there is none.

    Of a convex function the slope at the end decides, and it stays exact where rounding hides the decrease of the
    value. From an infeasible point only the full step is of use.
    """
    if not feasible:
        return 1.0 if _finite(objective, y + direction) else 0.0
    slope, value = abs(gradient @ direction), objective.value(y)
    highest = value + 1e-10 * (1 + abs(value))
    # 0.9 before 0.5: a step cut only by the border of the domain should still go most of the way there.
    for length in (1.0, 0.9, *0.5 ** np.arange(1, 40)):
        trial = y + length * direction
        descends = _finite(objective, trial) and objective.value(trial) <= highest
        if descends and objective.gradient(trial) @ direction <= 0.5 * slope:
            return float(length)
    return 0.0


class _Status(enum.Enum):
    SOLVED = "solved"
    INFEASIBLE = "primal infeasible"
    UNBOUNDED = "dual infeasible"
    ROUGH = "not solved to the tolerance"


@dataclass(frozen=True)
class _Step:
    status: _Status
    direction: np.ndarray
    multipliers: np.ndarray
    ball_multipliers: np.ndarray


def _quadratic_program(
    hessian: sparse.csc_matrix,
    gradient: np.ndarray,
    rows: _Rows,
    y: np.ndarray,
    room: float,
    proximal: float = 0.0,
) -> _Step:
    """Minimise gradient'd + d'Hd/2 over d such that y + d is feasible, with Clarabel."""
    below, above = rows.slack(y)
    equality = rows.equality
    upper, lower = np.isfinite(above) & ~equality, np.isfinite(below) & ~equality
    blocks: list = [rows.matrix[equality], rows.matrix[upper], -rows.matrix[lower]]
    sides = [0.5 * (above - below)[equality], above[upper] + room, below[lower] + room]
    cones: list = [
        clarabel.ZeroConeT(int(equality.sum())),
        clarabel.NonnegativeConeT(int(upper.sum() + lower.sum())),
    ]
    for ball in rows.balls:
        size = len(ball.index)
        selection = sparse.csr_matrix((-np.ones(size), (np.arange(1, size + 1), ball.index)), (size + 1, y.size))
        blocks.append(selection)
        sides.append(np.append(ball.radius + room, y[ball.index] - ball.center))
        cones.append(clarabel.SecondOrderConeT(size + 1))
    matrix, side = sparse.csc_matrix(sparse.vstack(blocks)), np.concatenate(sides)
    # Clarabel's tolerances are partly absolute: bring the objective to unit size.
    largest = np.max(abs(hessian.data), initial=0.0)
    scale = max(np.max(abs(gradient)), 1e-6 * largest) or 1.0
    identity = sparse.eye_array(y.size, format="csc")
    step = None
    for tolerance, extra in ((1e-11, 0.0), (1e-9, 0.0), (1e-9, 1e-9), (1e-8, 1e-7)):
        weight = (proximal + extra) * max(largest, scale)
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_iter = 100
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
        quadratic = sparse.triu((hessian + weight * identity) / scale, format="csc")
        answer = clarabel.DefaultSolver(quadratic, gradient / scale, matrix, side, cones, settings).solve()
        status = {
            "Solved": _Status.SOLVED,
            "PrimalInfeasible": _Status.INFEASIBLE,
            "DualInfeasible": _Status.UNBOUNDED,
        }
        found = status.get(str(answer.status), _Status.ROUGH)
        dual = np.array(answer.z) * scale
        count = np.cumsum([equality.sum(), upper.sum(), lower.sum()])
        multipliers = np.zeros(len(equality))
        multipliers[equality] = dual[: count[0]]
        multipliers[upper] += dual[count[0] : count[1]]
        multipliers[lower] -= dual[count[1] : count[2]]
        ball_multipliers, position = np.zeros(len(rows.balls)), count[2]
        for k, ball in enumerate(rows.balls):
            # The cone's dual is (|w|, -w) for the force w on the ball; (y - center) carries the radius.
            ball_multipliers[k] = dual[position] / ball.radius
            position += len(ball.index) + 1
        step = _Step(found, np.array(answer.x), multipliers, ball_multipliers)
        # What stalls far from feasibility is most likely infeasible: measuring that is quicker than trying again.
        if found is not _Status.ROUGH or rows.infeasibility(y + step.direction) > 1e-7 + 2 * room:
            break
    assert step is not None
    return step


def _interior_point(rows: _Rows, near: np.ndarray) -> np.ndarray:
    """A point far from all sides of the rows and balls: max s <= 1 with all slacks >= s."""
    size = near.size
    upper, lower = np.isfinite(rows.upper) & ~rows.equality, np.isfinite(rows.lower) & ~rows.equality
    column = np.ones((len(rows.equality), 1))
    matrix = sparse.vstack(
        [
            sparse.hstack([rows.matrix[rows.equality], 0 * column[rows.equality]]),
            sparse.hstack([rows.matrix[upper], column[upper]]),
            sparse.hstack([-rows.matrix[lower], column[lower]]),
            sparse.eye_array(1, size + 1, k=size),
        ]
    ).tocsr()
    bounds = [rows.upper[rows.equality], rows.upper[upper], -rows.lower[lower], [1.0]]
    side = np.concatenate(bounds)
    floor = np.where(np.arange(len(side)) < rows.equality.sum(), side, -np.inf)
    lifted = _Rows(matrix, floor, side, rows.balls, np.arange(len(side)), np.ones(len(side)))
    weight = sparse.diags_array(np.append(np.full(size, 1e-6), 0.0), format="csc")
    cost = np.append(np.zeros(size), -1.0)
    step = _quadratic_program(sparse.csc_matrix(weight), cost, lifted, np.append(near, 0.0), 0.0)
    return near + step.direction[:size]


def _cleaned(
    rows: _Rows, y: np.ndarray, multipliers: np.ndarray, ball_multipliers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers without those that push to an infinite side or are negative on a ball."""
    pushes_nowhere = ((multipliers > 0) & np.isinf(rows.upper)) | ((multipliers < 0) & np.isinf(rows.lower))
    return np.where(pushes_nowhere, 0.0, multipliers), np.maximum(ball_multipliers, 0.0)


def _measure(
    objective: Objective, rows: _Rows, y: np.ndarray, multipliers: np.ndarray, ball_multipliers: np.ndarray
) -> _Point:
    """The residuals documented in `ConvexSolution`."""
    gradient = objective.gradient(y)
    scale = 1 + np.max(abs(gradient))
    force = gradient + rows.transpose @ multipliers + rows.ball_normals(y).T @ ball_multipliers
    below, above = rows.slack(y)
    slack = abs(np.where(multipliers > 0, above, below))
    product = np.where(multipliers == 0, 0.0, abs(multipliers) * np.where(multipliers == 0, 0.0, slack))
    ball_product = ball_multipliers * abs(rows.ball_gaps(y))
    complementarity = max(np.max(product, initial=0.0), np.max(ball_product, initial=0.0))
    relative = complementarity / (scale * (1 + np.max(abs(y))))
    residuals = (float(np.max(abs(force)) / scale), rows.infeasibility(y), float(relative))
    return _Point(y, gradient, multipliers, ball_multipliers, residuals)


def _polished(objective: Objective, rows: _Rows, point: _Point, tolerance: float) -> _Point:
    """Newton's method on guesses of the active rows; the point itself when no guess has smaller residuals."""
    best = point
    # Far from the end a guess is most likely wrong: trying hard would cost more than the next quadratic program.
    near = point.residual <= 1e-3 or point.y.size <= _SMALL
    for active in _active_guesses(rows, point):
        candidate = _newton_on_active(objective, rows, point, active)
        if near or candidate.residual <= tolerance:
            candidate = _with_basic_multipliers(objective, rows, candidate, tolerance)
        # Where no exact point exists, on the border of feasibility, basic multipliers matter more than a last digit.
        if candidate.residual < best.residual or (best is point and candidate.residual <= 0.2 * tolerance):
            best = candidate
        if best.residual <= 1e-3 * tolerance or not near:
            break
    return best


@dataclass(frozen=True)
class _Active:
    """Rows and balls held as equalities; `side` is +1 on the upper side, -1 on the lower one, 0 when inactive."""

    side: np.ndarray
    balls: np.ndarray


def _touching(rows: _Rows, y: np.ndarray, width: float) -> _Active:
    """All rows and balls whose relative slack is at most `width`."""
    below, above = rows.slack(y)
    upper = rows.equality | ((above <= below) & (above <= width * (1 + abs(rows.upper))))
    lower = ~upper & (below <= width * (1 + abs(rows.lower)))
    radii = np.array([ball.radius for ball in rows.balls])
    return _Active(upper.astype(int) - lower, rows.ball_gaps(y) <= width * (1 + radii))


def _active_guesses(rows: _Rows, point: _Point) -> Iterator[_Active]:
    """Guesses of the active set, the likeliest first."""
    scale = 1 + np.max(abs(point.gradient))
    below, above = rows.slack(point.y)
    pushes_up = point.multipliers > 0
    slack, bound = np.where(pushes_up, above, below), np.where(pushes_up, rows.upper, rows.lower)
    strong = rows.equality | (abs(point.multipliers) * (1 + abs(bound)) > scale * slack)
    side = np.where(rows.equality, 1, np.sign(point.multipliers)).astype(int)
    yield _Active(np.where(strong, side, 0), point.ball_multipliers > scale * abs(rows.ball_gaps(point.y)))
    for width in (1e-7, 1e-5):
        touching = _touching(rows, point.y, width)
        if point.y.size <= _BASIC and (basic := _basic_multipliers(rows, point, touching)) is not None:
            support = rows.equality | (basic[0] != 0)
            yield _Active(np.where(support, touching.side, 0), basic[1] > 0)
        yield touching


def _newton_on_active(objective: Objective, rows: _Rows, point: _Point, active: _Active) -> _Point:
    """Newton's method for the optimality conditions with the active rows and balls as equalities."""
    held, held_balls = np.flatnonzero(active.side), np.flatnonzero(active.balls)
    target = np.where(active.side[held] > 0, rows.upper[held], rows.lower[held])
    sign = np.where(rows.equality, 0, active.side)
    radii = np.array([ball.radius for ball in rows.balls])
    multipliers = np.where(active.side != 0, point.multipliers, 0.0)
    ball_multipliers = np.where(active.balls, point.ball_multipliers, 0.0)
    y, best = point.y, None
    for _ in range(10):
        gradient, hessian, normals = (
            objective.gradient(y),
            sparse.csc_matrix(objective.hessian(y)),
            rows.ball_normals(y),
        )
        curvature = np.zeros(y.size)
        for k in held_balls:
            np.add.at(curvature, rows.balls[k].index, ball_multipliers[k])
        force = gradient + rows.transpose @ multipliers + normals.T @ ball_multipliers
        gaps = rows.ball_gaps(y)[held_balls]
        # (r^2 - |y - c|^2) / 2 with the gap r - |y - c|, which does not cancel.
        ball_miss = gaps * (radii[held_balls] - 0.5 * gaps) if held_balls.size else np.zeros(0)
        miss = np.concatenate([target - rows.matrix[held] @ y, ball_miss])
        matrix = sparse.csr_matrix(sparse.vstack([rows.matrix[held], normals[held_balls]]))
        hessian = sparse.csc_matrix(hessian + sparse.diags_array(curvature))
        move, change = _saddle_point(hessian, matrix, -force, miss)
        y = y + move
        multipliers[held] += change[: held.size]
        ball_multipliers[held_balls] += change[held.size :]
        if not (np.all(np.isfinite(change)) and _finite(objective, y)):
            break
        # Wrong signs are cut off here, so that they show up in the stationarity.
        signed = np.where(sign * multipliers < 0, 0.0, multipliers)
        trial = _measure(objective, rows, y, signed, np.maximum(ball_multipliers, 0.0))
        progress = best is None or trial.residual < 0.5 * best.residual
        if best is None or trial.residual < best.residual:
            best = trial
        if not progress:
            break
    return point if best is None else best


def _saddle_point(
    hessian: sparse.csc_matrix, matrix: sparse.csr_matrix, force: np.ndarray, miss: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve H d + A'u = force, A d = miss in the least-squares sense; rows with one entry eliminate their variable."""
    size = force.size
    single = np.flatnonzero(np.diff(matrix.indptr) == 1)
    fixed, first = np.unique(matrix.indices[matrix.indptr[single]], return_index=True)
    single = single[first]
    pivot = matrix.data[matrix.indptr[single]]
    free, others = np.setdiff1d(np.arange(size), fixed), np.setdiff1d(np.arange(matrix.shape[0]), single)
    move, change = np.zeros(size), np.zeros(matrix.shape[0])
    move[fixed] = miss[single] / pivot
    block, rest = hessian[free][:, free], matrix[others]
    right = np.concatenate([(force - hessian @ move)[free], miss[others] - rest @ move])
    # Bringing H to the size of the rows keeps the least-squares cut-off meaningful for both.
    scale = np.max(abs(block.data), initial=0.0) or 1.0
    right[: free.size] /= scale
    saddle = sparse.block_array([[block / scale, rest[:, free].T], [rest[:, free], None]], format="csc")
    answer = _least_squares(saddle, right, free.size) if right.size else right
    move[free], change[others] = answer[: free.size], scale * answer[free.size :]
    change[single] = (force - hessian @ move - rest.T @ change[others])[fixed] / pivot
    return move, change


def _least_squares(saddle: sparse.csc_matrix, right: np.ndarray, size: int) -> np.ndarray:
    """Solve a symmetric, possibly singular but consistent system whose first `size` unknowns are primal."""
    if right.size <= _SMALL:
        # QR with pivoting gives the solution of least norm, as singular values would, at a fraction of the cost.
        dense = saddle.toarray()
        return np.asarray(scipy.linalg.lstsq(dense, right, cond=1e-13, lapack_driver="gelsy", check_finite=False)[0])
    regular = np.where(np.arange(right.size) < size, 1e-8, -1e-8)
    factors = scipy.sparse.linalg.splu(sparse.csc_matrix(saddle + sparse.diags_array(regular)))
    answer, error = np.zeros_like(right), right
    # Refinement against the system without the regularisation removes its effect on the range.
    for _ in range(20):
        trial = answer + factors.solve(error)
        trial_error = right - saddle @ trial
        if not np.max(abs(trial_error)) < np.max(abs(error)):
            break
        answer, error = trial, trial_error
    return answer


def _with_basic_multipliers(objective: Objective, rows: _Rows, point: _Point, tolerance: float) -> _Point:
    """The point with a basic multiplier vector where multipliers are not unique or have wrong signs."""
    if point.y.size > _BASIC:
        return point
    touching = _touching(rows, point.y, _TOUCHING)
    if point.residual <= tolerance and _independent(rows, point.y, touching):
        return point
    basic = _basic_multipliers(rows, point, touching)
    if basic is None:
        return point
    candidate = _measure(objective, rows, point.y, *basic)
    return candidate if candidate.residual <= max(point.residual, 1e-3 * tolerance) else point


def _independent(rows: _Rows, y: np.ndarray, active: _Active) -> bool:
    held = sparse.vstack([rows.matrix[active.side != 0], rows.ball_normals(y)[active.balls]])
    if held.shape[0] > y.size:
        return False
    if held.shape[0] == 0:
        return True
    triangle = scipy.linalg.qr(held.toarray().T, mode="r", pivoting=True, check_finite=False)[0]
    return bool(np.min(abs(np.diag(triangle))) > 1e-11)


def _basic_multipliers(rows: _Rows, point: _Point, active: _Active) -> tuple[np.ndarray, np.ndarray] | None:
    """Multipliers of the active rows nearest to stationarity, by nonnegative least squares; None when it fails.

    Their columns are linearly independent, so they stay finite where the feasible set has no interior.
    """
    balls = np.flatnonzero(active.balls)
    inequality = np.flatnonzero((active.side != 0) & ~rows.equality)
    normals = rows.ball_normals(point.y)[balls].toarray()
    lengths = np.linalg.norm(normals, axis=1)
    signed = rows.matrix[inequality].toarray() * active.side[inequality, None]
    columns = np.vstack([signed, normals / lengths[:, None]]).T
    equality = rows.matrix[rows.equality].toarray().T
    target = -point.gradient
    orthogonal, triangle, order = scipy.linalg.qr(equality, mode="economic", pivoting=True)
    rank = int(np.sum(abs(np.diag(triangle)) > 1e-11))
    orthogonal = orthogonal[:, :rank]
    projected = columns - orthogonal @ (orthogonal.T @ columns)
    # What an equality row already spans would only be rounding noise for the least squares.
    useful = np.flatnonzero(np.linalg.norm(projected, axis=0) > 1e-10)
    weights = np.zeros(columns.shape[1])
    if useful.size:  # scipy's nnls crashes the interpreter on a matrix without columns
        remainder = target - orthogonal @ (orthogonal.T @ target)
        try:
            weights[useful] = scipy.optimize.nnls(projected[:, useful], remainder, maxiter=100 + 10 * useful.size)[0]
        except RuntimeError:
            return None
    multipliers, ball_multipliers = np.zeros(len(active.side)), np.zeros(len(active.balls))
    chosen = np.flatnonzero(rows.equality)[order[:rank]]
    rest = orthogonal.T @ (target - columns @ weights)
    multipliers[chosen] = scipy.linalg.solve_triangular(triangle[:rank, :rank], rest)
    multipliers[inequality] = weights[: inequality.size] * active.side[inequality]
    ball_multipliers[balls] = weights[inequality.size :] / lengths
    return multipliers, ball_multipliers


def _smallest_eigenvalue(matrix: sparse.csc_matrix) -> float:
    """Smallest eigenvalue, or a lower bound of it that is not negative; nan when not found."""
    labels = scipy.sparse.csgraph.connected_components(matrix, directed=False)[1]
    sizes = np.bincount(labels)
    smallest = float(np.min(matrix.diagonal()[sizes[labels] == 1], initial=np.inf))
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    for index in (members[k] for k in np.flatnonzero(sizes > 1)):
        block = matrix[index][:, index]
        if index.size <= _DENSE:
            smallest = min(smallest, float(np.linalg.eigvalsh(block.toarray())[0]))
            continue
        diagonal = block.diagonal()
        bound = float(np.min(diagonal + abs(diagonal) - abs(block).sum(axis=1)))  # Gershgorin
        if bound < 0:
            try:
                bound = float(scipy.sparse.linalg.eigsh(block, 1, which="SA", return_eigenvectors=False)[0])
            except scipy.sparse.linalg.ArpackNoConvergence:
                bound = np.nan
        smallest = float(np.minimum(smallest, bound))
    return smallest


def _positive_semidefinite(hessian: sparse.csc_matrix) -> bool:
    scale = np.max(abs(hessian.data), initial=0.0)
    return not _smallest_eigenvalue(sparse.csc_matrix(hessian)) < -1e-9 * scale


def _unique(hessian: sparse.csc_matrix, rows: _Rows, point: _Point) -> bool:
    """Whether the Lagrangian is strictly convex along the strongly active rows, which every minimiser satisfies."""
    scale = 1 + np.max(abs(point.gradient))
    curvature = np.zeros(point.y.size)
    for ball, multiplier in zip(rows.balls, point.ball_multipliers, strict=True):
        np.add.at(curvature, ball.index, multiplier)
    hessian = sparse.csc_matrix(hessian + sparse.diags_array(curvature))
    largest = np.max(abs(hessian.data), initial=0.0)
    if largest > 0 and _smallest_eigenvalue(hessian) > 1e-9 * largest:
        return True
    strong = rows.matrix[rows.equality | (abs(point.multipliers) > 1e-8 * scale)]
    single = np.diff(strong.indptr) == 1
    free = np.setdiff1d(np.arange(point.y.size), strong[single].indices)
    if free.size == 0 or free.size > _DENSE:
        return free.size == 0
    kernel = scipy.linalg.null_space(strong[~single][:, free].toarray(), rcond=1e-10)
    if kernel.shape[1] == 0:
        return True
    reduced = kernel.T @ (hessian[free][:, free] @ kernel)
    return bool(largest > 0 and np.linalg.eigvalsh(reduced)[0] > 1e-9 * largest)


def _descends_forever(
    objective: Objective, rows: _Rows, y: np.ndarray, gradient: np.ndarray, hessian: sparse.csc_matrix
) -> bool:
    """Whether the objective falls without end along a ray of the feasible set: a linear program finds the ray."""
    steepest = np.max(abs(gradient))
    if steepest == 0.0:
        return False
    limit = np.ones(y.size)
    for ball in rows.balls:
        limit[ball.index] = 0.0
    rising, falling = np.isfinite(rows.upper), np.isfinite(rows.lower)
    reach = 1 + np.max(abs(y))
    # Curvature that has died out on the way here no longer stops a ray.
    curved = hessian.multiply(abs(hessian) * reach > 1e-9 * steepest)
    matrix = sparse.vstack([rows.matrix[rising], -rows.matrix[falling], curved, -curved])
    side = np.zeros(matrix.shape[0])
    bounds = np.column_stack([-limit, limit])
    options = {"primal_feasibility_tolerance": 1e-10}
    answer = scipy.optimize.linprog(gradient / steepest, matrix, side, bounds=bounds, method="highs", options=options)
    if answer.status != 0 or answer.fun > -1e-8:
        return False
    # The linear program only knows the Hessian here. The values far out decide.
    ray = np.where(abs(answer.x) > 1e-9, answer.x, 0.0)  # rounding dust would bend the values far out
    value, slope = objective.value(y), gradient @ ray
    lengths = 10.0 ** np.arange(14)
    return bool(slope < 0 and all(objective.value(y + s * ray) <= value + 0.5 * s * slope for s in lengths))
