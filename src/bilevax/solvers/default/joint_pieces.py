"""Exact descent in (x, y, multiplier) together: for large sparse problems and merely convex lower levels.

A step minimises a quadratic model of f under the linearised conditions of a piece (see `joint_point`), x + dx in X and
in a trust region. Biactive rows may at first have slack and multiplier at once, a relaxation; the step branches on
those that do. Its end is brought back to the piece. Where nothing descends any more, the step is tried with
`other_multipliers` of the same point.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import scipy.sparse as sp

from bilevax.solvers.default.interior import InteriorLower
from bilevax.solvers.default.joint_point import (
    BIACTIVE,
    BIACTIVE_MARGIN,
    JointPoint,
    Sides,
    classify,
    conditions,
    restore,
)
from bilevax.solvers.default.other_multipliers import other_multipliers
from bilevax.solvers.default.quadratic_program import UpperSet, solve_sparse_qp
from bilevax.solvers.default.relaxation import convexified


def joint_descent(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, rtol: float, iterations: int = 100
) -> Iterator[JointPoint]:
    """Yield exact points that descend on Phi, until no descent is left to see."""
    radius, drag, curved, crawled, failed = 0.1 * (1 + np.abs(point.x).max(initial=0.0)), _FIRST_DRAG, False, 0, False
    adjoint = np.zeros(lower.flat.n_y)
    for _ in range(iterations):
        last_look, size = crawled == _MAX_CRAWL, 1 + abs(point.value)
        worth, none = 1e-5 * rtol * size, _EPSILON * size
        look = functools.partial(_look, lower, upper, point, adjoint * curved, radius, drag, rtol, worth * last_look)
        seen = look([] if last_look else [(point, classify(lower, point, margin)) for margin in (BIACTIVE_MARGIN, 0.0)])
        if seen.found is None and seen.promise <= none and seen.settled:
            seen = look((other, classify(lower, other, BIACTIVE_MARGIN)) for other in other_multipliers(lower, point))
        if seen.found is not None:
            length = np.abs(seen.found.x - point.x).max(initial=0.0)
            gain = point.value - seen.found.value
            if gain > worth or last_look:
                crawled = 0
            elif failed or drag <= _LEAST_DRAG:
                crawled += 1
            # Close to the end only second derivatives tell how far to go.
            point, adjoint, curved = seen.found, seen.adjoint, curved or gain <= rtol * size
            radius = 2 * radius if length >= 0.9 * radius else radius
            drag, failed = max(0.1 * drag, _LEAST_DRAG), False
            yield point
            continue
        if last_look or drag >= _MOST_DRAG or (seen.promise <= none and (seen.settled or drag >= 1.0)):
            yield from _polished(lower, upper, point, adjoint, radius)
            return
        # The model was wrong, or its program too flat to be solved well: change curvature, proximal weight and radius.
        curved, drag, radius, failed = not curved, 10 * drag, radius if not curved else 0.5 * radius, True


def _polished(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, adjoint: np.ndarray, radius: float
) -> Iterator[JointPoint]:
    """Yield where the model's last step leads, if f is the same there: it cannot tell digits that its slope can."""
    step = _step(lower, upper, point, classify(lower, point, BIACTIVE_MARGIN), adjoint, radius, _LEAST_DRAG)
    if step is not None and abs(step.predicted) <= _EPSILON * (1 + abs(point.value)):
        trial = restore(lower, upper, step.point, step.sides)
        if trial is not None and trial.value <= point.value + _EPSILON * (1 + abs(point.value)):
            yield trial


@dataclasses.dataclass(frozen=True)
class _Look:
    """A better point with its adjoint, if found; the largest predicted decrease; whether all programs were solved."""

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
    least: float,
    readings: Iterable[tuple[JointPoint, Sides]],
) -> _Look:
    """Try a step from each reading of the point (its multipliers and sides) until one leads to a better point.

    Steps that promise no more than ``least`` do not count.
    """
    promise, settled, size = 0.0, True, 1 + abs(point.value)
    steepest = 1 + np.linalg.norm(lower.flat.gradients("upper", point.x, point.y)[0])
    for start, sides in readings:
        step = _step(lower, upper, start, sides, adjoint, radius, drag)
        if step is None:
            settled = False
            continue
        # A slope can be left to see where the decrease along it is not worth a mention: next to a smooth minimum.
        slope = step.predicted / max(float(np.linalg.norm(step.point.x - point.x)), 1e-300)
        visible = step.predicted > _EPSILON * size or (
            step.predicted > _ROUNDING * size and slope > 0.01 * rtol * steepest
        )
        if not visible or step.predicted <= least:
            continue
        promise = max(promise, step.predicted)
        trial = restore(lower, upper, step.point, step.sides)
        if trial is None:
            break  # a step too long to be restored is so for any reading
        if point.value - trial.value >= 0.1 * step.predicted - _ROUNDING * size:
            return _Look(trial, step.adjoint, promise, settled)
    return _Look(None, adjoint, promise, settled)


_EPSILON, _ROUNDING = 1e-11, 1e-15  # decreases of f, relative, that count as none, and that cannot be told
_MAX_CRAWL = 3  # steps in a row that gain next to nothing
# The proximal weight on x and y and, a hundred times smaller, on the multipliers: a tenth of it after each success.
_FIRST_DRAG, _LEAST_DRAG, _MOST_DRAG = 1e-2, 1e-6, 1e3


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
    """Return the model's best step on one piece, found by branching on the biactive rows.

    A program with biactive rows bounds what its pieces promise. Where rows have slack and multiplier at once, two
    branches follow: all of them on the side of the larger of the two, or the worst of them alone on the other side.
    """
    flat, x, y = lower.flat, point.x, point.y
    gradient = np.concatenate(flat.gradients("upper", x, y))
    model, _ = convexified(flat.lagrangian_hessian(x, y, adjoint))
    model = model + sp.diags(drag * _sizes(gradient, model.diagonal(), flat.n_x) / lower.slack_scale)
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
                biactive = Sides(*(side == BIACTIVE for side in tried.each))
                best = dataclasses.replace(solved, sides=tried.where(biactive, now))
            continue
        worst, opposite = Sides(*(part == most for part in torn.each)), Sides(*(-side for side in now.each))
        for chosen, decided in ((torn, now), (worst, opposite)):
            heapq.heappush(branches, (-solved.predicted, next(order), tried.where(chosen, decided)))
    return best


def _sizes(gradient: np.ndarray, curvature: np.ndarray, n_x: int) -> np.ndarray:
    """Return the size of the derivatives of f in x and in y, one for all entries of each: many of y may be small."""
    steep = np.maximum(np.abs(gradient), np.abs(curvature))
    parts = steep[:n_x].max(initial=0.0), steep[n_x:].max(initial=0.0)
    least = _SMALLEST_SHARE * (1 + max(parts))
    return np.repeat([max(part, least) for part in parts], [n_x, len(gradient) - n_x])


_SMALLEST_SHARE = 1e-4
_MAX_BRANCHES = 8
_ENOUGH = 0.3  # of what the biactive rows promise


def _torn(lower: InteriorLower, point: JointPoint, sides: Sides) -> Sides:
    """Return how far biactive rows and bounds have both multiplier and slack."""
    slack_low, slack_high = lower.bound_slacks(point.y)

    def both(side: np.ndarray, multiplier: np.ndarray, slack: np.ndarray) -> np.ndarray:
        part = np.minimum(multiplier / lower.multiplier_scale, slack / lower.slack_scale)
        return np.where((side == BIACTIVE) & (part > _TORN), part, 0.0)

    return Sides(
        below=both(sides.below, point.reduced, slack_low),
        above=both(sides.above, -point.reduced, slack_high),
        rows=both(sides.rows, point.multiplier, point.slack),
    )


_TORN = 1e-8  # slack and multiplier up to this, in natural units, are not both there


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
    """Minimise ``gradient d + d model d / 2`` over d = (dx, dy) and the multipliers, the latter proximal."""
    piece = conditions(lower, upper, point, sides, radius)
    whole = sp.block_diag([model, drag * sp.eye(len(lower.c))], format="csc")[piece.moving][:, piece.moving]
    linear = np.concatenate([gradient, -drag * point.multiplier / lower.multiplier_scale])[piece.moving]
    solved = solve_sparse_qp(whole, linear, piece.matrix, piece.low, piece.high)
    if solved is None:
        return None
    every = np.zeros(len(piece.used))
    every[piece.used] = solved[1]
    end = piece.end(solved[0])
    along = np.concatenate([end.x - point.x, end.y - point.y])
    predicted = -float(gradient @ along + 0.5 * along @ (model @ along))
    return _Solved(end, every[: lower.flat.n_y], predicted, sides)
