"""Exact descent in (x, y, force) together: the pieces of Phi for large sparse problems and merely convex lower levels.

A point that satisfies the lower level's optimality conditions proves itself: its f is Phi(x). At such a point every
row, and every bound of y, is *held* or *open*, or *undecided* where both its force and its room vanish. One piece of
Phi has all of them decided, and on it the conditions are equations and inequalities without complementarity:

    (grad_y g + A' force)_i  = 0 where y_i is open, >= 0 where its lower bound holds it, <= 0 where its upper one does;
    rows held: equations, force >= 0;  rows open: inequalities, no force.

A step minimises a model of f under these conditions linearised, x + dx in X and in a trust region. Undecided rows may
at first press and open at once; `_step` branches on those that do. The step's end is
brought back to the piece (`restore`), which moves x too: where the lower level is only just feasible, nothing
but x can give.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax.solvers.default.interior import InteriorLower, InteriorPoint
from bilevax.solvers.default.quadratic_program import UpperSet, nearest_on_rows, solve_sparse_qp
from bilevax.solvers.default.relaxation import convexified

OPEN, UNDECIDED, HELD = -1, 0, 1


@dataclasses.dataclass(frozen=True)
class Sides:
    """On which side each lower bound, each upper bound and each row is."""

    below: np.ndarray
    above: np.ndarray
    rows: np.ndarray

    def where(self, chosen: "Sides", other: "Sides") -> "Sides":
        """Return these sides with those of ``other`` where ``chosen`` is nonzero."""
        pick = lambda name: np.where(getattr(chosen, name), getattr(other, name), getattr(self, name))
        return Sides(pick("below"), pick("above"), pick("rows"))

    @property
    def each(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The three of them, in the order in which they are given."""
        return self.below, self.above, self.rows

    @property
    def holds(self) -> np.ndarray:
        """Which entries of y a bound holds."""
        return (self.below == HELD) | (self.above == HELD)


@dataclasses.dataclass(frozen=True)
class JointPoint:
    """x with y and the rows' forces; ``reduced`` is grad_y g + A' force, which the bounds of y balance."""

    x: np.ndarray
    y: np.ndarray
    force: np.ndarray
    reduced: np.ndarray
    slack: np.ndarray
    value: float


def joint_descent(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, rtol: float, iterations: int = 60
) -> Iterator[JointPoint]:
    """Yield exact points that descend on Phi, until no descent is left to see."""
    radius, drag, curved, crawled, failed = 0.1 * (1 + np.abs(point.x).max(initial=0.0)), _FIRST_DRAG, False, 0, False
    adjoint = np.zeros(lower.flat.n_y)
    for _ in range(iterations):
        size, last_look = 1 + abs(point.value), crawled == _MAX_CRAWL
        look = functools.partial(_look, lower, upper, point, adjoint * curved, radius, drag, rtol)
        seen = look([] if last_look else [(point, classify(lower, point, margin)) for margin in (_UNDECIDED, 0.0)])
        if seen.found is None and seen.promise == 0.0 and seen.settled:
            seen = look((other, classify(lower, other, _UNDECIDED)) for other in _other_forces(lower, point))
        if seen.found is not None:
            length = np.abs(seen.found.x - point.x).max(initial=0.0)
            gain = point.value - seen.found.value
            if gain > 1e-3 * rtol * size:
                crawled = 0
            elif last_look:
                return
            elif failed or drag <= _LEAST_DRAG:
                crawled += 1
            # Close to the end only second derivatives tell how far to go.
            point, adjoint, curved = seen.found, seen.adjoint, curved or gain <= rtol * size
            radius = 2 * radius if length >= 0.9 * radius else radius
            drag, failed = max(0.1 * drag, _LEAST_DRAG), False
            yield point
            continue
        if last_look or drag >= _MOST_DRAG or (seen.promise == 0.0 and (seen.settled or drag >= 1.0)):
            return
        # The model was wrong, or its program too flat to be solved well: bend it, hold it back, shorten it.
        curved, drag, radius, failed = not curved, 10 * drag, radius if not curved else 0.5 * radius, True


@dataclasses.dataclass(frozen=True)
class _Look:
    """What was seen of a point: a better one and its adjoint, what decrease was promised, whether all was settled."""

    found: JointPoint | None
    adjoint: np.ndarray
    promise: float
    settled: bool


def _look(
    lower: InteriorLower,
    upper: UpperSet,
    point: JointPoint,
    adjoint: np.ndarray,
    radius: float,
    drag: float,
    rtol: float,
    readings: Iterable[tuple[JointPoint, Sides]],
) -> _Look:
    """Try a step from each reading of the point, its forces and sides, until one leads to a better point."""
    promise, settled, size = 0.0, True, 1 + abs(point.value)
    steepest = 1 + np.linalg.norm(np.concatenate(lower.flat.gradients("upper", point.x, point.y)))
    for start, sides in readings:
        step = _step(lower, upper, start, sides, adjoint, radius, drag)
        if step is None:
            settled = False
            continue
        # A slope can be left to see where the decrease along it is not worth a mention: next to a smooth minimum.
        slope = step.predicted / max(float(np.linalg.norm(step.point.x - point.x)), 1e-300)
        if step.predicted <= _EPSILON * size and not (
            step.predicted > _ROUNDING * size and slope > 0.01 * rtol * steepest
        ):
            continue
        promise = max(promise, step.predicted)
        trial = restore(lower, upper, step.point, step.sides)
        if trial is None:
            break  # a step too long to be restored is so for any reading
        if point.value - trial.value >= 0.1 * step.predicted - _ROUNDING * size:
            return _Look(trial, step.adjoint, promise, settled)
    return _Look(None, adjoint, promise, settled)


def _other_forces(lower: InteriorLower, point: JointPoint) -> Iterator[JointPoint]:
    """Yield the point with other forces, where rows depend on each other: the largest and the least along each x.

    What presses on one row others may carry, and then it can open. Two links of a road, one after the other, are both
    full, and either of them holds the traffic back.
    """
    sides = classify(lower, point, _UNDECIDED)
    held, free = sides.rows != OPEN, (sides.below == OPEN) & (sides.above == OPEN) & ~lower.fixed
    rows, B, now = lower.A[held], lower.B[held], point.force[held]
    # Conditions on a change of the forces: what it does to grad_y g + A' force, and the forces' signs.
    matrix, pressed = (
        sp.vstack([rows.T, sp.eye(len(now))], format="csr"),
        np.where(lower.inequality[held], -now, -np.inf),
    )
    low = np.where(sides.above != OPEN, -np.inf, np.where(free, 0.0, -np.maximum(point.reduced, 0.0)))
    high = np.where(sides.below != OPEN, np.inf, np.where(free, 0.0, np.maximum(-point.reduced, 0.0)))
    low, high = np.concatenate([low, pressed]), np.concatenate([high, np.full(len(now), np.inf)])
    used = np.concatenate([~lower.fixed, np.ones(len(now), bool)]) & (np.isfinite(low) | np.isfinite(high))
    weight = sp.eye(len(now), format="csc") * (_NEARBY / lower.pull)

    def furthest(along: np.ndarray) -> np.ndarray:
        solved = solve_sparse_qp(weight, -along, matrix[used], low[used], high[used])
        return np.zeros(len(now)) if solved is None else np.maximum(solved[0], pressed)

    # A random change that y does not feel, of the forces that can be there at all, tells along which x they differ.
    silent = sides.rows[held] == UNDECIDED
    carrying = ~silent | (furthest(silent.astype(float)) > _UNDECIDED * lower.pull)
    random, part, count = np.random.default_rng(0).standard_normal(carrying.sum()), rows[carrying][:, free], free.sum()
    whole = sp.bmat([[sp.eye(len(random)), part], [part.T, -1e-12 * sp.eye(count)]], format="csc")
    change = spl.splu(whole).solve(np.concatenate([random, np.zeros(count)]))[: len(random)]
    seen = set()
    for index in np.flatnonzero(np.abs(B[carrying].T @ change) > 1e-6):
        for sign in (1, -1):
            force = point.force.copy()
            force[held] += furthest(sign * B[:, [index]].toarray().ravel())
            if np.abs(force).max() > _LARGER * (lower.pull + np.abs(now).max()):
                continue  # without a bound: the border of what is feasible, which no force can move
            other = _point(lower, point.x, point.y, force)
            key = tuple(side.tobytes() for side in classify(lower, other, _UNDECIDED).each)
            if key not in seen and _residual(lower, other) <= _EXACT:
                seen.add(key)
                yield other


_LARGER = 10.0
_NEARBY = 1e-8  # how much the nearest of those forces is preferred


# Force and room within which a row is undecided, in the units of `pull` and `room`.
_UNDECIDED = 1e-7
_EPSILON, _ROUNDING = 1e-11, 1e-15
_MAX_CRAWL = 3
# The pull back to the point, of x and y and, a hundred times weaker, of the forces: a tenth of it after each success.
_FIRST_DRAG, _LEAST_DRAG, _MOST_DRAG = 1e-2, 1e-6, 1e3


def evaluate_jointly(lower: InteriorLower, upper: UpperSet, x: np.ndarray) -> JointPoint | None:
    """Return an exact point at x, or next to it where the lower level is only just feasible; None where it fails."""
    central = lower.start(x, None)
    unit = lower.pull * lower.room
    for barrier in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-14):
        nearer = lower.solve(x, barrier * unit, max(1e-5 * barrier, 1e-13) * lower.room / lower.pull, central)
        if nearer is None:
            break
        central = nearer
    if central.barrier > _ROUGH * unit:
        return None
    sides = _sides(lower, central, central.below, central.above, 0.0)
    return restore(lower, upper, _point(lower, x, central.y, central.force), sides)


_ROUGH = 1e-6


def evaluate_from(
    lower: InteriorLower, upper: UpperSet, x: np.ndarray, y: np.ndarray, force: np.ndarray
) -> JointPoint | None:
    """Return an exact point next to an earlier answer, on its piece; None where that piece has none near."""
    lower.start(x, y)
    guess = _point(lower, x, y, force)
    return restore(lower, upper, guess, classify(lower, guess, 0.0))


def restore(lower: InteriorLower, upper: UpperSet, guess: JointPoint, sides: Sides) -> JointPoint | None:
    """Return the nearest point of the piece with these sides, by Newton's method; None where it has none near."""
    point = _on_sides(lower, guess.x, guess.y, guess.force, sides)
    before = [np.inf, np.inf]
    for _ in range(_MAX_RESTORING):
        residual = _residual(lower, point)
        if residual <= _EXACT:
            for _ in range(_MAX_POLISHING):
                polished = _nearer(lower, upper, point, sides, 0.2 * _residual(lower, point), quick=True)
                if polished is None:
                    break
                point = polished
            return _on_rows(lower, upper, point, sides)
        if residual > 0.5 * before[-2]:
            return None  # near a solution Newton's method is fast
        before.append(residual)
        nearer = _nearer(lower, upper, point, sides, 0.5 * residual)
        if nearer is None:
            return None
        point = nearer
    return None


def _nearer(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides, wanted: float, quick: bool = False
) -> JointPoint | None:
    """Return the point after a step of Newton's method.

    If the residual wanted is met that way, all kinks at hand are kept; otherwise, unless that would not be ``quick``,
    it may leave those it has to.
    """
    flat, piece = lower.flat, _conditions(lower, upper, point, sides)
    # Steep entries of y move in the units of their curvature: Newton's method must not overshoot a tiny share.
    steep = flat.hessian("lower", "y", "y", point.x, point.y).diagonal() * lower.room / lower.pull
    weights = np.concatenate([np.full(flat.n_x, 1e8), 1e4 * (1 + steep**2), np.full(len(lower.c), 1e-2)])
    weights, start = weights[piece.moving], piece.start
    arrive = lambda end: _on_sides(lower, upper.project(end.x), end.y, end.force, sides)
    if not upper.rows.balls:
        near = nearest_on_rows(weights, piece.matrix, piece.low, piece.high, start)
        if near is not None and _residual(lower, arrived := arrive(piece.end(near))) <= wanted:
            return arrived
    if quick:
        return None
    far = solve_sparse_qp(sp.diags(weights, format="csc"), -weights * start, piece.matrix, piece.low, piece.high)
    return None if far is None else arrive(piece.end(far[0]))


_MAX_RESTORING, _MAX_POLISHING = 8, 3
_EXACT = 1e-9


def _residual(lower: InteriorLower, point: JointPoint) -> float:
    """Return how far the lower level's optimality conditions are from holding, relative to its scales."""
    y, low, high = (v / lower.room for v in (point.y, lower.low, lower.high))
    off = y - np.clip(y - np.where(lower.fixed, 0.0, point.reduced / lower.pull), low, high)
    slack, force = point.slack / lower.room, point.force / lower.pull
    rows = np.where(lower.inequality, np.minimum(slack, force), slack)
    size = 1 + max(np.abs(point.x).max(initial=0.0) / lower.room, np.abs(force).max(initial=0.0))
    return float(max(np.abs(off).max(initial=0.0), np.abs(rows).max(initial=0.0))) / size


def _on_sides(lower: InteriorLower, x: np.ndarray, y: np.ndarray, force: np.ndarray, sides: Sides) -> JointPoint:
    """Return the point with held entries of y on their bounds and no force on open rows."""
    y = np.clip(y, lower.low, lower.high)
    y = np.where(sides.below == HELD, lower.low, np.where(sides.above == HELD, lower.high, y))
    pressed = np.where(sides.rows == OPEN, 0.0, np.maximum(force, 0.0))
    return _point(lower, x, y, np.where(lower.inequality, pressed, force))


def _on_rows(lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides) -> JointPoint:
    """Return the point with its held rows satisfied to the last digit, if it stays within all bounds.

    Where only one y is feasible, a lower level that misses by rounding has none.
    """
    held, free = sides.rows == HELD, ~(sides.holds | lower.fixed)
    if not held.any():
        return point
    matrix = sp.hstack([lower.B[held], lower.A[held][:, free]], format="csr")
    x, y = point.x.copy(), point.y.copy()
    for _ in range(2):
        miss = (lower.c - lower.A @ y - lower.B @ x)[held]
        step = spl.lsmr(matrix, miss, atol=1e-16, btol=1e-16, maxiter=2000)[0]
        x, y[free] = x + step[: len(x)], y[free] + step[len(x) :]
    inside = np.all((y >= lower.low) & (y <= lower.high)) and np.array_equal(upper.project(x), x)
    return _point(lower, x, y, point.force) if inside else point


def _point(lower: InteriorLower, x: np.ndarray, y: np.ndarray, force: np.ndarray) -> JointPoint:
    reduced = lower.flat.gradients("lower", x, y)[1] + lower.A.T @ force
    return JointPoint(x, y, force, reduced, lower.c - lower.A @ y - lower.B @ x, lower.flat.value("upper", x, y))


def classify(lower: InteriorLower, point: JointPoint, margin: float) -> Sides:
    """Return the sides of the bounds, which balance what is left of the gradient, and of the rows."""
    return _sides(lower, point, np.maximum(point.reduced, 0.0), np.maximum(-point.reduced, 0.0), margin)


def _sides(
    lower: InteriorLower, point: JointPoint | InteriorPoint, below: np.ndarray, above: np.ndarray, margin: float
) -> Sides:
    """Return the sides: the larger of force and room decides, unless both are within the margin."""

    def side(force: np.ndarray, room: np.ndarray, where: np.ndarray, otherwise: int) -> np.ndarray:
        force, room = force / lower.pull, room / lower.room
        decided = np.where(force > room, HELD, OPEN)
        return np.where(where, np.where(np.maximum(force, room) <= margin, UNDECIDED, decided), otherwise)

    room_low, room_high = lower.rooms(point.y)
    return Sides(
        below=side(below, room_low, lower.has_low, OPEN),
        above=side(above, room_high, lower.has_high, OPEN),
        rows=side(point.force, point.slack, lower.inequality, HELD),
    )


@dataclasses.dataclass(frozen=True)
class _Solved:
    """Where a program ends, with the linearised ``reduced``; its multipliers of the lower level's conditions."""

    point: JointPoint
    adjoint: np.ndarray
    predicted: float
    sides: Sides


def _step(
    lower: InteriorLower,
    upper: UpperSet,
    point: JointPoint,
    sides: Sides,
    adjoint: np.ndarray,
    radius: float,
    drag: float,
) -> _Solved | None:
    """Return the model's best step on one piece, found by branching on the undecided rows.

    A program with undecided rows bounds what its pieces promise. Where rows press and open at once, they are all
    decided by what they do more; and, lest that leads nowhere, the worst of them alone the other way.
    """
    flat, x, y = lower.flat, point.x, point.y
    gradient = np.concatenate(flat.gradients("upper", x, y))
    model, _ = convexified(flat.lagrangian_hessian(x, y, adjoint))
    model = model + sp.diags(np.full(len(gradient), drag * (1 + np.abs(gradient).max()) / lower.room))
    best, promise, branches, order = None, np.inf, [(-np.inf, 0, sides)], itertools.count(1)
    for _ in range(_MAX_BRANCHES):
        if not branches or (best is not None and best.predicted >= min(_ENOUGH * promise, -branches[0][0])):
            break
        _, _, tried = heapq.heappop(branches)
        solved = _program(lower, upper, point, tried, radius, model, gradient, 1e-2 * drag)
        if solved is None:
            continue
        promise = min(promise, solved.predicted) if tried is sides else promise
        torn, now = _torn(lower, solved.point, tried), classify(lower, solved.point, 0.0)
        most = max(part.max(initial=0.0) for part in torn.each)
        if most == 0.0 or promise <= _EPSILON * (1 + abs(point.value)):
            if best is None or solved.predicted > best.predicted:
                undecided = Sides(*(side == UNDECIDED for side in tried.each))
                best = dataclasses.replace(solved, sides=tried.where(undecided, now))
            continue
        worst, opposite = Sides(*(part == most for part in torn.each)), Sides(*(-side for side in now.each))
        for chosen, decided in ((torn, now), (worst, opposite)):
            heapq.heappush(branches, (-solved.predicted, next(order), tried.where(chosen, decided)))
    return best


_MAX_BRANCHES = 8
_ENOUGH = 0.3  # of what the undecided rows promise


def _torn(lower: InteriorLower, point: JointPoint, sides: Sides) -> Sides:
    """Return how far undecided rows and bounds have both force and room."""
    room_low, room_high = lower.rooms(point.y)

    def both(side: np.ndarray, force: np.ndarray, room: np.ndarray) -> np.ndarray:
        part = np.minimum(force / lower.pull, room / lower.room)
        return np.where((side == UNDECIDED) & (part > _TORN), part, 0.0)

    return Sides(
        below=both(sides.below, point.reduced, room_low),
        above=both(sides.above, -point.reduced, room_high),
        rows=both(sides.rows, point.force, point.slack),
    )


_TORN = 1e-8


@dataclasses.dataclass(frozen=True)
class _Conditions:
    """The conditions of a piece, linearised: ``low <= matrix v <= high`` for v = (dx, dy, force / pull).

    Without the entries of v that do not move: those of y that a bound holds, and the forces of open rows.
    """

    lower: InteriorLower
    point: JointPoint
    moving: np.ndarray
    used: np.ndarray  # which of the conditions say anything; the first are those on grad_y g
    matrix: sp.csr_matrix
    low: np.ndarray
    high: np.ndarray

    @property
    def start(self) -> np.ndarray:
        """The point itself."""
        flat = self.lower.flat
        return np.concatenate([np.zeros(flat.n_x + flat.n_y), self.point.force / self.lower.pull])[self.moving]

    def end(self, v: np.ndarray) -> JointPoint:
        """Return where v leads, with what the conditions say of it."""
        lower, x, y, n_x, n_y = self.lower, self.point.x, self.point.y, self.lower.flat.n_x, self.lower.flat.n_y
        whole = np.zeros(len(self.moving))
        whole[self.moving] = v
        dx, dy, force = whole[:n_x], whole[n_x : n_x + n_y], lower.pull * whole[n_x + n_y :]
        reduced = lower.flat.gradients("lower", x, y)[1] + lower.A.T @ force
        reduced += lower.flat.hessian("lower", "y", "x", x, y) @ dx + lower.flat.hessian("lower", "y", "y", x, y) @ dy
        slack = self.point.slack - lower.B @ dx - lower.A @ dy
        return JointPoint(x + dx, y + dy, force, reduced, slack, self.point.value)


def _conditions(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides, radius: float = np.inf
) -> _Conditions:
    """Return the conditions for steps from a point, x within a radius of it."""
    flat, x, y = lower.flat, point.x, point.y
    n_x, n_y, count = flat.n_x, flat.n_y, len(lower.c)
    gradient_y = flat.gradients("lower", x, y)[1]
    hessian, mixed = flat.hessian("lower", "y", "y", x, y), flat.hessian("lower", "y", "x", x, y)
    steps = upper.rows.around(x)
    eye, none = sp.eye, lambda r, c: sp.csr_matrix((r, c))
    blocks = [
        # grad_y g + H dy + G dx + A' force
        (
            sp.hstack([mixed, hessian, lower.pull * lower.A.T]),
            np.where((sides.above != OPEN) | lower.fixed, -np.inf, -gradient_y),
            np.where((sides.below != OPEN) | lower.fixed, np.inf, -gradient_y),
        ),
        # B dx + A dy against the slack
        (
            sp.hstack([lower.B, lower.A, none(count, count)]),
            np.where(sides.rows == HELD, point.slack, -np.inf),
            np.where(sides.rows == HELD, point.slack, np.maximum(point.slack, 0.0)),
        ),
        (sp.hstack([none(n_y, n_x), eye(n_y), none(n_y, count)]), *_ways(lower, point, np.isfinite(radius))),
        (
            sp.hstack([none(count, n_x + n_y), eye(count)]),
            np.where(lower.inequality, 0.0, -np.inf),
            np.full(count, np.inf),
        ),
        (sp.hstack([steps.matrix, none(len(steps.lower), n_y + count)]), steps.lower, steps.upper),
        (sp.hstack([eye(n_x), none(n_x, n_y + count)]), np.full(n_x, -radius), np.full(n_x, radius)),
    ]
    matrix = sp.vstack([block[0] for block in blocks], format="csc")
    low, high = (np.concatenate([block[side] for block in blocks]) for side in (1, 2))
    moving = np.concatenate([np.ones(n_x, bool), ~(sides.holds | lower.fixed), sides.rows != OPEN])
    matrix = sp.csr_matrix(matrix[:, moving])
    used = (np.isfinite(low) | np.isfinite(high)) & (np.diff(matrix.indptr) > 0)
    low = np.where(high - low <= 1e-15, high, low)
    return _Conditions(lower, point, moving, used, matrix[used], low[used], high[used])


def _ways(lower: InteriorLower, point: JointPoint, cautious: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return how far y may go: to its bounds; for a step only most of the way where grad_y g bends on it.

    A model that takes an entropy for straight would empty a share at once, from where no Newton's method returns.
    """
    down, up = np.minimum(lower.low - point.y, 0.0), lower.high - point.y
    if not cautious:
        return down, up
    curvature = lambda y: lower.flat.hessian("lower", "y", "y", point.x, y).diagonal()
    here = curvature(point.y)

    def part(way: np.ndarray) -> np.ndarray:
        there = curvature(point.y + np.where(np.isfinite(way), _MOST * way, 0.0))
        return np.where((there > _BENT * here) | (here > _BENT * there), _MOST * way, way)

    return part(down), part(up)


_MOST, _BENT = 0.8, 2.0


def _program(
    lower: InteriorLower,
    upper: UpperSet,
    point: JointPoint,
    sides: Sides,
    radius: float,
    model: sp.spmatrix | sp.sparray,
    gradient: np.ndarray,
    drag: float,
) -> _Solved | None:
    """Minimise ``gradient d + d model d / 2`` over d = (dx, dy) and the forces, which are dragged to those at hand."""
    piece = _conditions(lower, upper, point, sides, radius)
    whole = sp.block_diag([model, drag * sp.eye(len(lower.c))], format="csc")[piece.moving][:, piece.moving]
    linear = np.concatenate([gradient, -drag * point.force / lower.pull])[piece.moving]
    solved = solve_sparse_qp(whole, linear, piece.matrix, piece.low, piece.high)
    if solved is None:
        return None
    every = np.zeros(len(piece.used))
    every[piece.used] = solved[1]
    end = piece.end(solved[0])
    along = np.concatenate([end.x - point.x, end.y - point.y])
    predicted = -float(gradient @ along + 0.5 * along @ (model @ along))
    return _Solved(end, every[: lower.flat.n_y], predicted, sides)
