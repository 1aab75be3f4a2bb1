"""Exact descent in (x, y, force) together: the pieces of Phi for large sparse problems and merely convex lower levels.

A point that satisfies the lower level's optimality conditions proves itself: its f is Phi(x). Around such a point every
row, and every bound of y, is *held*, *open*, or *undecided* where both its force and its room are within a margin. The
step minimises a quadratic model of f under the linearised conditions

    (grad_y g + H dy + G dx + A' force)_i  = 0 where y_i is open, >= 0 where it may be held by its lower bound, ...
    rows held: equations; rows open: no force; undecided: neither,

x + dx in X and a trust region. The model may press and open an undecided row at once: exact evaluation
judges the step, and a smaller margin leaves fewer rows undecided.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from bilevax.solvers.default.interior import InteriorLower, InteriorPoint
from bilevax.solvers.default.quadratic_program import UpperSet, solve_sparse_qp
from bilevax.solvers.default.relaxation import convexified

OPEN, UNDECIDED, HELD = -1, 0, 1


@dataclasses.dataclass(frozen=True)
class Sides:
    """On which side each lower bound, each upper bound and each row is."""

    below: np.ndarray
    above: np.ndarray
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class JointPoint:
    """x with the exact lower level there; ``reduced`` is grad_y g + A' force, which the bounds of y balance."""

    x: np.ndarray
    y: np.ndarray
    force: np.ndarray
    reduced: np.ndarray
    slack: np.ndarray
    value: float


def joint_descent(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, rtol: float, iterations: int = 40
) -> Iterator[JointPoint]:
    """Yield exact points that descend on Phi, until no descent is left to see."""
    size = 1 + np.abs(point.x).max(initial=0.0)
    radius, margin = 0.1 * size, 1e-3
    adjoint, crawled = _first_adjoint(lower, point), 0
    for _ in range(iterations):
        step = _model_step(lower, upper, point, classify(lower, point, margin), adjoint, radius)
        length = radius if step is None else step.length
        # A promise worse than no step at all: the program was not solved well.
        if step is not None and step.predicted >= -_EPSILON * (1 + abs(point.value)):
            if step.predicted <= 1e-2 * rtol**2 * (1 + abs(point.value)) or length <= 1e-3 * rtol * size:
                return
            trial = evaluate_jointly(lower, upper.project(point.x + step.x), step.y, step.force)
            if trial is not None and point.value - trial.value >= 1e-3 * step.predicted:
                crawled = crawled + 1 if point.value - trial.value <= 0.1 * rtol * (1 + abs(point.value)) else 0
                point, adjoint = trial, step.adjoint
                radius = 2 * radius if length >= 0.9 * radius else radius
                yield point
                if crawled == _MAX_CRAWL:
                    return
                continue
        # Too long a step, or too many rows left undecided, which the model may press and open at once.
        radius, margin = 0.25 * min(radius, length), max(0.3 * margin, 1e-9)
        if radius <= 1e-11 * size:
            return


_EPSILON = 1e-9
_MAX_CRAWL = 3


def _first_adjoint(lower: InteriorLower, point: JointPoint) -> np.ndarray:
    """Return the multipliers of the lower level's conditions on the piece at hand."""
    sides = classify(lower, point, 0.0)
    held = (sides.below == HELD) | (sides.above == HELD) | lower.fixed
    try:
        lower.factorise_active(point.x, point.y, held, sides.rows == HELD)
    except FloatingPointError:
        return np.zeros(lower.flat.n_y)
    f_y = lower.flat.gradients("upper", point.x, point.y)[1]
    return -lower.back(np.where(held, 0.0, f_y), np.zeros(len(lower.c)))[0]


def evaluate_jointly(
    lower: InteriorLower, x: np.ndarray, y: np.ndarray | None = None, force: np.ndarray | None = None
) -> JointPoint | None:
    """Return the exact lower level at x, from a guess of its answer where there is one; None where it fails."""
    if y is not None and force is not None:
        guess = _point(lower, x, y, force)
        found = sharpen(lower, guess, classify(lower, guess, 0.0))
        if found is not None:
            return found
    central = lower.start(x, y)
    unit = lower.pull * lower.room
    for barrier in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-14):
        nearer = lower.solve(x, barrier * unit, max(1e-5 * barrier, 1e-13) * lower.room / lower.pull, central)
        if nearer is None:
            break
        central = nearer
    if central.barrier > 1e-9 * unit:
        return None
    guess = _point(
        lower, x, central.y, np.where(lower.inequality & (central.force < central.slack), 0.0, central.force)
    )
    found = sharpen(lower, guess, _sides(lower, central, central.below, central.above, 0.0))
    if found is not None:
        return found
    violation = np.where(lower.inequality, np.maximum(-guess.slack, 0.0), np.abs(guess.slack)).max(initial=0.0)
    return guess if violation <= 1e-9 * lower.room else None


def sharpen(lower: InteriorLower, point: JointPoint, sides: Sides) -> JointPoint | None:
    """Solve the optimality conditions on the held bounds and rows; None unless the result satisfies all of them."""
    held = (sides.below == HELD) | (sides.above == HELD) | lower.fixed
    rows = sides.rows == HELD
    y = np.where(sides.below == HELD, lower.low, np.where(sides.above == HELD, lower.high, point.y))
    force = np.where(rows, point.force, 0.0)
    for _ in range(_MAX_SHARPENING):
        try:
            step, push = lower.active_step(point.x, y, force, held, rows)
        except (FloatingPointError, ValueError):
            return None
        y, force = y + step, force + push
        inside = (y >= lower.low - 1e-9 * lower.room) & (y <= lower.high + 1e-9 * lower.room)
        if not (np.isfinite(y).all() and np.isfinite(force).all() and inside.all()):
            return None
        found = _point(lower, point.x, y, force)
        if _holds(lower, found, sides, held, rows):
            return found
    return None


_MAX_SHARPENING = 6


def _holds(lower: InteriorLower, point: JointPoint, sides: Sides, held: np.ndarray, rows: np.ndarray) -> bool:
    """Return whether the point satisfies the lower level's optimality conditions to working precision."""
    press = 1e-9 * (lower.pull + np.abs(point.force).max(initial=0.0))
    room = 1e-10 * (lower.room + np.abs(point.x).max(initial=0.0) + np.abs(point.y).max(initial=0.0))
    wrong_sign = np.where(sides.below == HELD, -point.reduced, np.where(sides.above == HELD, point.reduced, 0.0))
    wrong_sign = np.where(lower.fixed, 0.0, wrong_sign)
    violated = np.where(rows, np.abs(point.slack), -point.slack)
    return bool(
        np.abs(point.reduced[~held]).max(initial=0.0) <= press
        and wrong_sign.max(initial=0.0) <= press
        and (-point.force[lower.inequality]).max(initial=0.0) <= press
        and violated.max(initial=0.0) <= room
    )


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
class _Step:
    x: np.ndarray
    y: np.ndarray
    force: np.ndarray
    adjoint: np.ndarray
    predicted: float
    length: float


def _model_step(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides, adjoint: np.ndarray, radius: float
) -> _Step | None:
    flat, x, y = lower.flat, point.x, point.y
    n_x, n_y, count, unit = flat.n_x, flat.n_y, len(lower.c), lower.pull
    gradient_y = flat.gradients("lower", x, y)[1]
    hessian, mixed = flat.hessian("lower", "y", "y", x, y), flat.hessian("lower", "y", "x", x, y)
    f_gradient = np.concatenate(flat.gradients("upper", x, y))
    model, _ = convexified(flat.lagrangian_hessian(x, y, adjoint))
    model = model + sp.diags(np.full(n_x + n_y, _TRACE * (1 + np.abs(f_gradient).max()) / lower.room))
    # Forces, in multiples of the pull, are drawn to moderate ones: at a border of feasibility they are unbounded.
    near = np.clip(point.force / unit, -_LARGE_FORCE, _LARGE_FORCE)
    may_hold_low, may_hold_high = sides.below != OPEN, sides.above != OPEN
    free = lower.fixed
    floor = np.where(sides.above == HELD, lower.high, lower.low) - y
    ceiling = np.where(sides.below == HELD, lower.low, lower.high) - y
    slack, steps = point.slack, upper.rows.around(x)
    eye, none = sp.eye, lambda r, c: sp.csr_matrix((r, c))
    blocks = [
        # grad_y g + H dy + G dx + A' force
        (
            sp.hstack([mixed, hessian, unit * lower.A.T]),
            np.where(may_hold_high | free, -np.inf, -gradient_y),
            np.where(may_hold_low | free, np.inf, -gradient_y),
        ),
        # B dx + A dy against the slack
        (
            sp.hstack([lower.B, lower.A, none(count, count)]),
            np.where(sides.rows == HELD, slack, -np.inf),
            np.where(sides.rows == HELD, slack, np.maximum(slack, 0.0)),
        ),
        (sp.hstack([none(n_y, n_x), eye(n_y), none(n_y, count)]), np.minimum(floor, ceiling), ceiling),
        (
            sp.hstack([none(count, n_x + n_y), eye(count)]),
            np.where(lower.inequality, 0.0, -np.inf),
            np.where(sides.rows == OPEN, 0.0, np.inf),
        ),
        (sp.hstack([steps.matrix, none(len(steps.lower), n_y + count)]), steps.lower, steps.upper),
        (sp.hstack([eye(n_x), none(n_x, n_y + count)]), np.full(n_x, -radius), np.full(n_x, radius)),
    ]
    matrix = sp.vstack([block[0] for block in blocks], format="csr")
    low, high = (np.concatenate([block[side] for block in blocks]) for side in (1, 2))
    low = np.where(high - low <= 1e-15, high, low)
    bounded = np.isfinite(low) | np.isfinite(high)
    solved = solve_sparse_qp(
        sp.block_diag([model, _DRAW * eye(count)], format="csc"),
        np.concatenate([f_gradient, -_DRAW * near]),
        matrix[bounded],
        low[bounded],
        high[bounded],
    )
    if solved is None:
        return None
    v, multipliers = solved
    along = v[: n_x + n_y]
    dx, dy, force = v[:n_x], v[n_x : n_x + n_y], unit * v[n_x + n_y :]
    every = np.zeros(len(low))
    every[bounded] = multipliers
    return _Step(
        x=dx,
        y=y + dy,
        force=force,
        adjoint=every[:n_y],
        predicted=-float(f_gradient @ along + 0.5 * along @ (model @ along)),
        length=float(np.abs(dx).max(initial=0.0)),
    )


_TRACE = 1e-9
_DRAW = 1e-10
_LARGE_FORCE = 20.0
