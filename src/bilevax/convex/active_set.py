"""From an approximate minimiser to an exact one: guess which rows are active, hold them, and correct the guess."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sparse

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.convex.basic_multipliers import (
    Active,
    basic_multipliers,
    independent,
    rows_within,
    vertex_multipliers,
    with_basic_multipliers,
)
from bilevax.convex.curvature import curved_separably, nearly_full
from bilevax.convex.optimality import Local, Point, Rows, measure, stacked
from bilevax.convex.saddle_point import solve_saddle_point
from bilevax.convex.settings import ACTIVE_SET, DENSE, RANK


def settle(rows: Rows, at: Local, tolerance: float) -> Point:
    """The minimiser near a point without multipliers, or the best point on the way to it."""
    nothing, large = (np.zeros(len(rows.lower)), np.zeros(len(rows.balls))), at.y.size > DENSE.basic_multipliers
    if large and rows.only_equalities:
        return _settled_from(rows, at, nothing, tolerance)
    # Which rows are active is the question. Many variables that are curved each by itself are told without multipliers:
    # of the rows those are held that are violated where no other is.
    if large and is_separable(rows, at):
        point = _settled_from(rows, at, nothing, tolerance, patient=True)
        if np.count_nonzero(point.multipliers) <= at.y.size:  # more of them depend on each other
            return point
    close = rows_within(rows, at.y, ACTIVE_SET.guess_width)
    if not large or isinstance(rows.matrix, np.ndarray) or nearly_full(at.hessian):
        basic = basic_multipliers(rows, at, close)
    else:
        vertex = vertex_multipliers(rows, at, close)
        basic = None if vertex is None else (vertex, nothing[1])
    return _settled_from(rows, at, nothing if basic is None else basic, tolerance, patient=True)


def _settled_from(
    rows: Rows, at: Local, multipliers: tuple[np.ndarray, np.ndarray], tolerance: float, patient: bool = False
) -> Point:
    """The minimiser near a point, given multipliers of rows and balls there, or that point."""
    point = measure(at, rows, *multipliers)
    if point.error <= ACTIVE_SET.exact:
        return point
    candidate = _newton_on_active(rows, point, _strongly_active(rows, point), patient)
    candidate = with_basic_multipliers(rows, candidate, tolerance)
    return candidate if candidate.error < point.error and candidate.at.finite else point


def is_separable(rows: Rows, at: Local) -> bool:
    """Whether there are inequalities, without balls or a domain, and variables that are each curved by itself."""
    simple = not (rows.only_equalities or rows.balls or rows.domain.bounded)
    return simple and curved_separably(at.hessian)


def follow(rows: Rows, at: Local, multipliers: np.ndarray, ball_multipliers: np.ndarray, tolerance: float) -> Point:
    """The minimiser near that of a problem a little different, whose multipliers tell which rows are active."""
    if not rows.domain.bounded:
        # One step is all it takes where the same rows stay active and the objective is a quadratic.
        side = np.where(rows.equality, 1, np.sign(multipliers)).astype(int)
        active = Active(side, ball_multipliers != 0)
        move, moved, balls_moved = _newton_step(rows, at, active, multipliers, ball_multipliers)
        point = measure(at.moved(move), rows, moved, np.maximum(balls_moved, 0.0))
        if point.error <= ACTIVE_SET.good_enough * tolerance:
            return point
        before = measure(at, rows, multipliers, ball_multipliers)
        point = point if point.error < before.error and point.at.finite else before
    else:
        point = measure(at, rows, multipliers, ball_multipliers)
    if point.error <= ACTIVE_SET.exact:
        return point
    # Rows are exchanged a few at a time, and in between the error grows: still less work than finding all of them anew.
    return _newton_on_active(rows, point, _strongly_active(rows, point), True, ACTIVE_SET.good_enough * tolerance)


def polish(rows: Rows, point: Point, tolerance: float) -> Point:
    """Newton's method on guesses of the active rows; the point itself when no guess has a smaller error."""
    best = point
    # Far from the end a guess is most likely wrong: trying hard would cost more than the next quadratic program.
    near = point.residual <= ACTIVE_SET.near or point.at.y.size <= DENSE.systems
    for active in _guesses(rows, point):
        candidate = _newton_on_active(rows, point, active)
        if near or candidate.residual <= tolerance:
            candidate = with_basic_multipliers(rows, candidate, tolerance)
        # Where no exact point exists, on the border of feasibility, basic multipliers matter more than a last digit.
        acceptable = best is point and candidate.residual <= ACTIVE_SET.acceptable * tolerance
        if (candidate.error < best.error or acceptable) and candidate.at.finite:
            best = candidate
        if best.error <= ACTIVE_SET.good_enough * tolerance or not near:
            break
    return best


def _guesses(rows: Rows, point: Point) -> Iterator[Active]:
    """Guesses of the active set, the likeliest first."""
    yield _strongly_active(rows, point)
    close = rows_within(rows, point.at.y, ACTIVE_SET.guess_width)
    small = point.at.y.size <= DENSE.basic_multipliers
    if small and (basic := basic_multipliers(rows, point.at, close)) is not None:
        yield Active(np.where(rows.equality | (basic[0] != 0), close.side, 0), basic[1] > 0)
    yield close


def _strongly_active(rows: Rows, point: Point) -> Active:
    """The rows and balls whose multiplier is larger than their slack, both relative, and all equalities."""
    below, above = rows.slack(point.at.y)
    upward = point.multipliers > 0
    slack, bound = np.where(upward, above, below), np.where(upward, rows.upper, rows.lower)
    strong = rows.equality | (rows.relative(abs(point.multipliers), point.scale) * (1 + abs(bound)) > slack)
    side = np.where(rows.equality, 1, np.sign(point.multipliers)).astype(int)
    ball_multipliers = rows.ball_relative(point.ball_multipliers, point.scale)
    balls = ball_multipliers * (1 + rows.radii) > abs(rows.ball_gaps(point.at.y))
    return Active(np.where(strong, side, 0), balls)


def _newton_on_active(
    rows: Rows, point: Point, active: Active, patient: bool = False, enough: float = ACTIVE_SET.exact
) -> Point:
    """Newton's method for the optimality conditions with the active rows and balls as equalities.

    After each step rows with a multiplier of the wrong sign are let go, and violated ones are held. A large system is
    factorised again only as long as the error falls fast, unless one is ``patient``. Steps end well inside the domain.
    At a flat minimum they shrink by the same factor again and again: then they are stretched to where that would lead.
    An error of ``enough`` ends it.
    """
    thorough = patient or point.at.y.size <= DENSE.systems
    max_steps = ACTIVE_SET.max_steps_small if thorough else ACTIVE_SET.max_steps_large
    max_stalled = ACTIVE_SET.max_stalled_small if thorough else ACTIVE_SET.max_stalled_large
    multipliers = np.where(active.side != 0, point.multipliers, 0.0)
    ball_multipliers = np.where(active.balls, point.ball_multipliers, 0.0)
    at, best, error, stalled, seen, before = point.at, point, point.error, 0, set(), None
    for iteration in range(ACTIVE_SET.max_steps_domain if rows.domain.bounded else max_steps):
        clock.check()
        if not np.all(np.isfinite(at.hessian.data)):
            break
        move, multipliers, ball_multipliers = _newton_step(rows, at, active, multipliers, ball_multipliers)
        if not all(np.all(np.isfinite(part)) for part in (move, multipliers, ball_multipliers)):
            break
        # Multipliers of the wrong sign are set to zero here, so that they show up in the stationarity.
        sign = np.where(rows.equality, 0, active.side)
        signed = np.where(sign * multipliers < 0, 0.0, multipliers), np.maximum(ball_multipliers, 0.0)
        length, trial = _moved(rows, at, move, signed, error)
        if trial is None:
            break
        shrinking = 0.0 if before is None or length < 1.0 else _shrinking(move, before)
        before = move
        if shrinking:
            stretched = _moved(rows, at, move / (1 - shrinking), signed, error)[1]
            if stretched is not None and stretched.error < trial.error:
                trial, before = stretched, None
        at, error = trial.at, trial.error
        halved = iteration == 0 or trial.error < 0.5 * best.error
        stalled = 0 if halved or length < 1.0 or shrinking else stalled + 1
        if iteration == 0 or trial.error < best.error:
            best = trial
        if best.error <= enough or stalled > max_stalled:
            break
        held = active
        active, multipliers, ball_multipliers = _corrected(rows, trial, held, multipliers, ball_multipliers)
        same = np.array_equal(active.side != 0, held.side != 0) and np.array_equal(active.balls, held.balls)
        key = (active.side.tobytes(), active.balls.tobytes())
        if not (halved or shrinking) and length == 1.0 and (same or key in seen) and iteration > 1:
            break
        seen.add(key)
    return best


def _newton_step(
    rows: Rows, at: Local, active: Active, multipliers: np.ndarray, ball_multipliers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The step of y and the multipliers of rows and balls that solve the linearised optimality conditions."""
    held, held_balls = np.flatnonzero(active.side), np.flatnonzero(active.balls)
    hessian, gradient = at.hessian, at.gradient + rows.transpose @ multipliers  # of the Lagrangian
    slack = (np.where(active.side > 0, rows.upper, rows.lower) - rows.product @ at.y)[held]
    if not rows.balls and (found := rows.full_systems.solve(hessian, held, -gradient, slack)) is not None:
        multipliers = multipliers.copy()
        multipliers[held] += found[1]
        return found[0], multipliers, ball_multipliers
    matrix, column = rows.matrix[held], rows.only_column[held]
    if rows.balls:
        normals, gaps = rows.ball_normals(at.y), rows.ball_gaps(at.y)[held_balls]
        gradient = gradient + normals.T @ ball_multipliers
        # (r^2 - |y - c|^2) / 2 with the gap r - |y - c|, which does not cancel.
        slack = np.append(slack, gaps * (rows.radii[held_balls] - 0.5 * gaps))
        hessian = hessian + sparse.diags_array(rows.ball_curvature(ball_multipliers, at.y.size))
        matrix, column = stacked([matrix, normals[held_balls]]), np.append(column, np.full(held_balls.size, -1))
    move, change = solve_saddle_point(hessian, matrix, column, -gradient, slack, rows.last_factor)
    multipliers, ball_multipliers = multipliers.copy(), ball_multipliers.copy()
    multipliers[held] += change[: held.size]
    ball_multipliers[held_balls] += change[held.size :]
    return move, multipliers, ball_multipliers


def _moved(
    rows: Rows, at: Local, move: np.ndarray, multipliers: tuple[np.ndarray, np.ndarray], error: float
) -> tuple[float, Point | None]:
    """The share of a move after which the objective is still finite, and the point it leads to; None where none is.

    A move that would leave the domain is bent, which does well near logarithms, or else bent less.
    """
    domain, length = rows.domain, 1.0
    if domain.bounded and domain.leaves(at.y, move):
        bent = measure(Local(at.objective, domain.bent(at.y, move)), rows, *multipliers)
        if bent.error < ACTIVE_SET.bent_progress * error:
            return 0.5, bent
        length = 0.5
    for shorter in 0.5 ** np.arange(ACTIVE_SET.max_halvings):
        step = shorter * move
        end = domain.bent(at.y, step, ACTIVE_SET.cautious_exponent) if domain.bounded else at.y + step
        moved = Local(at.objective, end)
        if np.all(np.isfinite(moved.y)) and np.all(np.isfinite(moved.gradient)):
            return min(length, float(shorter)), measure(moved, rows, *multipliers)
    return 0.0, None


def _shrinking(move: np.ndarray, before: np.ndarray) -> float:
    """By what factor a move is shorter than the one before, if they have the same direction; else 0."""
    ratio = float(move @ before / positive(before @ before))
    same = np.linalg.norm(move - ratio * before) <= ACTIVE_SET.same_direction * np.linalg.norm(move)
    least, largest = ACTIVE_SET.flat_ratios
    return ratio if same and least < ratio < largest else 0.0


def _corrected(
    rows: Rows, point: Point, active: Active, multipliers: np.ndarray, ball_multipliers: np.ndarray
) -> tuple[Active, np.ndarray, np.ndarray]:
    """The active set without multipliers of the wrong sign and with violated rows and balls, and its multipliers."""
    sign = np.where(rows.equality, 0, active.side)
    wrong = sign * rows.relative(multipliers, point.scale) < -ACTIVE_SET.rounding
    wrong_balls = rows.ball_relative(ball_multipliers, point.scale) < -ACTIVE_SET.rounding
    violated = rows_within(rows, point.at.y, -ACTIVE_SET.rounding)
    kept = Active(np.where(wrong, 0, active.side), (active.balls | violated.balls) & ~wrong_balls)
    added = np.flatnonzero((kept.side == 0) & (violated.side != 0) & ~wrong)
    multipliers = np.where(kept.side == 0, 0.0, multipliers)
    side, multipliers = _with_added(rows, point.at.y, kept, multipliers, added, violated.side)
    return Active(side, kept.balls), multipliers, np.where(kept.balls, ball_multipliers, 0.0)


def _with_added(
    rows: Rows, y: np.ndarray, active: Active, multipliers: np.ndarray, added: np.ndarray, added_side: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sides and multipliers with some rows added; a row that depends on those held takes the place of one of them.

    Which one, the ratio test of the dual simplex method tells: the first whose multiplier vanishes as that of the new
    row grows.
    """
    whole = active.side.copy()
    whole[added] = added_side[added]
    one_by_one = 0 < added.size <= ACTIVE_SET.max_exchanges and y.size <= DENSE.systems
    if not one_by_one or independent(rows, y, Active(whole, active.balls)):
        return whole, multipliers
    side, multipliers = active.side.copy(), multipliers.copy()
    for row in added:
        held = np.flatnonzero(side)
        side[row] = added_side[row]
        if not held.size:
            continue
        normals, new = (rows.matrix[held] * side[held, None]).T, rows.matrix[row] * side[row]
        share = np.linalg.lstsq(normals, new, rcond=RANK.pivot)[0]
        if np.max(abs(normals @ share - new)) > RANK.remainder:
            continue
        leaving = ~rows.equality[held] & (share > RANK.remainder)
        ratios = np.where(leaving, np.maximum(side[held] * multipliers[held], 0.0) / share, np.inf)
        first = int(np.argmin(ratios))
        if leaving[first]:
            multipliers[held] -= side[held] * ratios[first] * share
            multipliers[row] = side[row] * ratios[first]
            multipliers[held[first]] = side[held[first]] = 0
    return side, multipliers
