"""From an approximate minimiser to an exact one: guess which rows are active, hold them, and correct the guess."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse as sparse
import scipy.sparse.linalg

from bilevax._support import clock
from bilevax.convex.optimality import SMALL, Local, Point, Rows, as_array, measure, nearly_full, own_units, stacked

_SCHUR = 500  # rows up to which a diagonal Hessian is eliminated in dense algebra
BASIC = 1000  # up to this many variables multipliers are made basic by nonnegative least squares
_TOUCHING = 1e-9  # relative slack below which a polished point counts as lying on a row
_ROUNDING = 1e-12  # violations and wrong signs below this, relatively, do not correct a guess
_MOST_DAMPED = 200  # steps where the objective has a domain: they are cut short at its borders
_MOST_HALVINGS = 20
_CAUTIOUS = 3.0  # distances to a border shrink twentyfold
_EXACT = 1e-14  # an error at which there is nothing left to gain


@dataclass(frozen=True)
class _Active:
    """Rows and balls held as equalities; `side` is +1 on the upper side, -1 on the lower one, 0 when inactive."""

    side: np.ndarray
    balls: np.ndarray


def settle(rows: Rows, at: Local, tolerance: float) -> Point:
    """The minimiser near a point without multipliers, or the best point on the way to it."""
    basic = _basic_multipliers(rows, at, _touching(rows, at.y, 1e-6))
    if basic is None:
        basic = np.zeros(len(rows.lower)), np.zeros(len(rows.balls))
    point = measure(at, rows, *basic)
    if point.error <= _EXACT:
        return point
    candidate = _newton_on_active(rows, point, _pushing(rows, point))
    candidate = _with_basic_multipliers(rows, candidate, tolerance)
    return candidate if candidate.error < point.error and candidate.at.finite else point


def follow(rows: Rows, at: Local, multipliers: np.ndarray, ball_multipliers: np.ndarray, tolerance: float) -> Point:
    """The minimiser near that of a problem a little different, whose multipliers tell which rows are active."""
    if not rows.domain.bounded:
        # One step is all it takes where the same rows stay active and the objective is a quadratic.
        side = np.where(rows.equality, 1, np.sign(multipliers)).astype(int)
        held, held_balls = np.flatnonzero(side), np.flatnonzero(ball_multipliers)
        move, change = _newton_step(rows, at, side, held, held_balls, multipliers, ball_multipliers)
        moved, balls_moved = multipliers.copy(), ball_multipliers.copy()
        moved[held] += change[: held.size]
        balls_moved[held_balls] += change[held.size :]
        point = measure(at.moved(move), rows, moved, np.maximum(balls_moved, 0.0))
        if point.error <= 1e-3 * tolerance:
            return point
    point = measure(at, rows, multipliers, ball_multipliers)
    return point if point.error <= _EXACT else _newton_on_active(rows, point, _pushing(rows, point))


def polish(rows: Rows, point: Point, tolerance: float) -> Point:
    """Newton's method on guesses of the active rows; the point itself when no guess has a smaller error."""
    best = point
    # Far from the end a guess is most likely wrong: trying hard would cost more than the next quadratic program.
    near = point.residual <= 1e-3 or point.at.y.size <= SMALL
    for active in _guesses(rows, point):
        candidate = _newton_on_active(rows, point, active)
        if near or candidate.residual <= tolerance:
            candidate = _with_basic_multipliers(rows, candidate, tolerance)
        # Where no exact point exists, on the border of feasibility, basic multipliers matter more than a last digit.
        better = candidate.error < best.error or (best is point and candidate.residual <= 0.2 * tolerance)
        if better and candidate.at.finite:
            best = candidate
        if best.error <= 1e-3 * tolerance or not near:
            break
    return best


def _guesses(rows: Rows, point: Point) -> Iterator[_Active]:
    """Guesses of the active set, the likeliest first."""
    yield _pushing(rows, point)
    touching = _touching(rows, point.at.y, 1e-6)
    if point.at.y.size <= BASIC and (basic := _basic_multipliers(rows, point.at, touching)) is not None:
        yield _Active(np.where(rows.equality | (basic[0] != 0), touching.side, 0), basic[1] > 0)
    yield touching


def _pushing(rows: Rows, point: Point) -> _Active:
    """All rows and balls whose multiplier is larger than their slack, both relative."""
    below, above = rows.slack(point.at.y)
    upward = point.multipliers > 0
    slack, bound = np.where(upward, above, below), np.where(upward, rows.upper, rows.lower)
    strong = rows.equality | (rows.relative(abs(point.multipliers), point.scale) * (1 + abs(bound)) > slack)
    side = np.where(rows.equality, 1, np.sign(point.multipliers)).astype(int)
    push = rows.ball_relative(point.ball_multipliers, point.scale)
    balls = push * (1 + rows.radii) > abs(rows.ball_gaps(point.at.y))
    return _Active(np.where(strong, side, 0), balls)


def _touching(rows: Rows, y: np.ndarray, width: float) -> _Active:
    """All rows and balls whose relative slack is at most `width`; a negative width asks for violated ones."""
    below, above = rows.slack(y)
    upper = rows.equality | ((above <= below) & (above <= width * (1 + abs(rows.upper))))
    lower = ~upper & (below <= width * (1 + abs(rows.lower)))
    return _Active(upper.astype(int) - lower, rows.ball_gaps(y) <= width * (1 + rows.radii))


def _newton_on_active(rows: Rows, point: Point, active: _Active) -> Point:
    """Newton's method for the optimality conditions with the active rows and balls as equalities.

    After each step rows with a multiplier of the wrong sign are let go, and violated ones are held. A large system is
    factorised again only as long as the error falls fast. Steps end well inside the domain. At a flat minimum they
    shrink by the same factor again and again: then they are stretched to where that would lead.
    """
    side, balls, small = active.side, active.balls, point.at.y.size <= SMALL
    multipliers = np.where(side != 0, point.multipliers, 0.0)
    ball_multipliers = np.where(balls, point.ball_multipliers, 0.0)
    at, best, error, stalled, seen, before = point.at, point, point.error, 0, set(), None
    for iteration in range(_MOST_DAMPED if rows.domain.bounded else 30 if small else 10):
        clock.check()
        if not np.all(np.isfinite(at.hessian.data)):
            break
        held, held_balls = np.flatnonzero(side), np.flatnonzero(balls)
        move, change = _newton_step(rows, at, side, held, held_balls, multipliers, ball_multipliers)
        if not (np.all(np.isfinite(move)) and np.all(np.isfinite(change))):
            break
        multipliers, ball_multipliers = multipliers.copy(), ball_multipliers.copy()
        multipliers[held] += change[: held.size]
        ball_multipliers[held_balls] += change[held.size :]
        # Wrong signs are cut off here, so that they show up in the stationarity.
        sign = np.where(rows.equality, 0, side)
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
        if best.error <= _EXACT or stalled > (4 if small else 0):
            break
        wrong = sign * rows.relative(multipliers, trial.scale) < -_ROUNDING
        wrong_balls = rows.ball_relative(ball_multipliers, trial.scale) < -_ROUNDING
        violated = _touching(rows, at.y, -_ROUNDING)
        side, balls = np.where(wrong, 0, side), (balls | violated.balls) & ~wrong_balls
        multipliers[side == 0], ball_multipliers[~balls] = 0.0, 0.0
        added = np.flatnonzero((side == 0) & (violated.side != 0) & ~wrong)
        side = _hold(rows, at.y, side, balls, multipliers, added, violated.side)
        same = np.array_equal(np.flatnonzero(side), held) and np.array_equal(np.flatnonzero(balls), held_balls)
        key = (side.tobytes(), balls.tobytes())
        if not (halved or shrinking) and length == 1.0 and (same or key in seen) and iteration > 1:
            break
        seen.add(key)
    return best


def _shrinking(move: np.ndarray, before: np.ndarray) -> float:
    """By what factor a move is shorter than the one before, if they have the same direction; else 0."""
    ratio = float(move @ before / max(before @ before, 1e-300))
    same = np.linalg.norm(move - ratio * before) <= 0.1 * np.linalg.norm(move)
    return ratio if same and 0.3 < ratio < 0.99 else 0.0


def _moved(
    rows: Rows, at: Local, move: np.ndarray, multipliers: tuple[np.ndarray, np.ndarray], error: float
) -> tuple[float, Point | None]:
    """The share of a move after which the objective is still finite, and the point it leads to; None where none is.

    A move that would leave the domain is bent, which does well near logarithms, or else bent less.
    """
    domain, length = rows.domain, 1.0
    if domain.bounded and domain.leaves(at.y, move):
        bent = measure(Local(at.objective, domain.bent(at.y, move)), rows, *multipliers)
        if bent.error < 0.9 * error:
            return 0.5, bent
        length = 0.5
    for shorter in 0.5 ** np.arange(_MOST_HALVINGS):
        end = domain.bent(at.y, shorter * move, _CAUTIOUS) if domain.bounded else at.y + shorter * move
        moved = Local(at.objective, end)
        if np.all(np.isfinite(moved.y)) and np.all(np.isfinite(moved.gradient)):
            return min(length, float(shorter)), measure(moved, rows, *multipliers)
    return 0.0, None


def _newton_step(
    rows: Rows,
    at: Local,
    side: np.ndarray,
    held: np.ndarray,
    held_balls: np.ndarray,
    multipliers: np.ndarray,
    ball_multipliers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The changes of y and of the held multipliers that solve the linearised optimality conditions."""
    hessian, matrix, column = at.hessian, rows.matrix[held], rows.only_column[held]
    force = at.gradient + rows.transpose @ multipliers
    miss = np.where(side > 0, rows.upper, rows.lower)[held] - matrix @ at.y
    if rows.balls:
        normals, gaps = rows.ball_normals(at.y), rows.ball_gaps(at.y)[held_balls]
        force = force + normals.T @ ball_multipliers
        # (r^2 - |y - c|^2) / 2 with the gap r - |y - c|, which does not cancel.
        miss = np.append(miss, gaps * (rows.radii[held_balls] - 0.5 * gaps))
        hessian = hessian + sparse.diags_array(rows.ball_curvature(ball_multipliers, at.y.size))
        matrix, column = stacked([matrix, normals[held_balls]]), np.append(column, np.full(held_balls.size, -1))
    return _saddle_point(hessian, matrix, column, -force, miss)


def _hold(
    rows: Rows,
    y: np.ndarray,
    side: np.ndarray,
    balls: np.ndarray,
    multipliers: np.ndarray,
    added: np.ndarray,
    added_side: np.ndarray,
) -> np.ndarray:
    """The sides with some rows added; a row that depends on those held takes the place of one of them.

    Which one, the ratio test of the dual simplex method tells: the first whose multiplier vanishes as that of the new
    row grows. The multipliers follow, in place.
    """
    whole = side.copy()
    whole[added] = added_side[added]
    if not 0 < added.size <= 10 or y.size > SMALL or _independent(rows, y, _Active(whole, balls)):
        return whole
    side = side.copy()
    for row in added:
        held = np.flatnonzero(side)
        side[row] = added_side[row]
        if not held.size:
            continue
        normals, new = (rows.matrix[held] * side[held, None]).T, rows.matrix[row] * side[row]
        share = np.linalg.lstsq(normals, new, rcond=1e-11)[0]
        if np.max(abs(normals @ share - new)) > 1e-10:
            continue
        leaving = ~rows.equality[held] & (share > 1e-10)
        ratios = np.where(leaving, np.maximum(side[held] * multipliers[held], 0.0) / share, np.inf)
        first = int(np.argmin(ratios))
        if leaving[first]:
            multipliers[held] -= side[held] * ratios[first] * share
            multipliers[row] = side[row] * ratios[first]
            multipliers[held[first]] = side[held[first]] = 0
    return side


def _saddle_point(
    hessian: sparse.csc_matrix, matrix: Any, column: np.ndarray, force: np.ndarray, miss: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve H d + A'u = force, A d = miss in the least-squares sense.

    `column` names the only column of a row of A, or is -1; such rows eliminate their variable.
    """
    size, dense = force.size, isinstance(matrix, np.ndarray)
    second = as_array(hessian) if dense else hessian
    fixed, single = np.unique(column, return_index=True)
    fixed, single = fixed[fixed >= 0], single[fixed >= 0]
    pivot = np.asarray(matrix[single, fixed]).ravel()
    free, others = np.ones(size, bool), np.ones(miss.size, bool)
    free[fixed], others[single] = False, False
    free, others = np.flatnonzero(free), np.flatnonzero(others)
    move, change = np.zeros(size), np.zeros(miss.size)
    move[fixed] = miss[single] / pivot
    block: Any = second[free][:, free]
    rest = matrix[others]
    right = np.concatenate([(force - second @ move)[free], miss[others] - rest @ move])
    # Variables in the units of their curvature and rows of length 1 keep the cut-off of least squares meaningful.
    unit = own_units(hessian)[free]
    border = rest[:, free] if dense else sparse.csr_matrix(rest[:, free]) @ sparse.diags_array(unit)
    border = border * unit if dense else border
    length = np.linalg.norm(border, axis=1) if dense else scipy.sparse.linalg.norm(border, axis=1)
    length = np.where(length > 0, length, 1.0)
    right[: free.size] *= unit
    right[free.size :] /= length
    if not right.size:
        answer = right
    elif dense or right.size <= SMALL or nearly_full(block):
        border = (border if dense else border.toarray()) / length[:, None]
        saddle = np.zeros((right.size, right.size))
        saddle[: free.size, : free.size] = (block if dense else block.toarray()) * np.outer(unit, unit)
        saddle[free.size :, : free.size] = border
        saddle[: free.size, free.size :] = border.T
        answer = _dense_solution(saddle, right)
    else:
        border, units = sparse.diags_array(1 / length) @ border, sparse.diags_array(unit)
        answer = _regularised(sparse.csc_matrix(units @ block @ units), border, right)
    move[free], change[others] = unit * answer[: free.size], answer[free.size :] / length
    change[single] = (force - second @ move - rest.T @ change[others])[fixed] / pivot
    return move, change


def _dense_solution(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    factors, pivots, _ = scipy.linalg.lapack.dgetrf(matrix)
    if scipy.linalg.lapack.dgecon(factors, np.max(np.sum(abs(matrix), axis=0)))[0] > 1e-12:
        return scipy.linalg.lapack.dgetrs(factors, pivots, right)[0]
    # Singular: QR with pivoting gives the solution of least norm, as singular values would at a higher cost.
    return scipy.linalg.lstsq(matrix, right, cond=1e-13, lapack_driver="gelsy", check_finite=False)[0]


def _regularised(block: sparse.csc_matrix, border: sparse.csr_matrix, right: np.ndarray) -> np.ndarray:
    """Solve [block border'; border 0] z = right, which may be singular but has a solution."""
    saddle = sparse.block_array([[block, border.T], [border, None]], format="csc")
    solve = _regular_solver(block, border, saddle)
    answer, error = np.zeros_like(right), right
    # Refinement against the system without the regularisation removes its effect on the range.
    for _ in range(20):
        trial = answer + solve(error)
        trial_error = right - saddle @ trial
        if not np.max(abs(trial_error)) < np.max(abs(error)):
            break
        answer, error = trial, trial_error
    return answer


def _regular_solver(
    block: sparse.csc_matrix, border: sparse.csr_matrix, saddle: sparse.csc_matrix
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the solution of the system with 1e-8 added to its block and taken from its zero."""
    weight, size, count = 1e-8, block.shape[0], border.shape[0]
    entries = block.tocoo()
    if count > _SCHUR or np.any(entries.row != entries.col):
        regular = np.repeat([weight, -weight], [size, count])
        return scipy.sparse.linalg.splu(sparse.csc_matrix(saddle + sparse.diags_array(regular))).solve
    # With a diagonal block, as of an entropy, the rows alone are left to be factorised.
    inverse = 1 / (block.diagonal() + weight)
    schur = (border @ sparse.diags_array(inverse) @ border.T).toarray() + weight * np.eye(count)
    factor = scipy.linalg.cho_factor(schur, check_finite=False)

    def solve(error: np.ndarray) -> np.ndarray:
        multipliers = scipy.linalg.cho_solve(factor, border @ (inverse * error[:size]) - error[size:])
        return np.concatenate([inverse * (error[:size] - border.T @ multipliers), multipliers])

    return solve


def _with_basic_multipliers(rows: Rows, point: Point, tolerance: float) -> Point:
    """The point with a basic multiplier vector where multipliers are not unique or have wrong signs."""
    if point.at.y.size > BASIC:
        return point
    touching = _touching(rows, point.at.y, _TOUCHING)
    if point.residual <= tolerance and _independent(rows, point.at.y, touching):
        return point
    basic = _basic_multipliers(rows, point.at, touching)
    if basic is None:
        return point
    candidate = measure(point.at, rows, *basic)
    return candidate if candidate.error <= max(point.error, 1e-3 * tolerance) else point


def _independent(rows: Rows, y: np.ndarray, active: _Active) -> bool:
    held = np.vstack([_array(rows.matrix[active.side != 0]), _array(rows.ball_normals(y)[active.balls])])
    if held.shape[0] == 0 or held.shape[0] > y.size:
        return held.shape[0] == 0
    triangle = scipy.linalg.qr(held.T, mode="r", pivoting=True, check_finite=False)[0]
    return bool(np.min(abs(np.diag(triangle))) > 1e-11)


def _array(matrix: Any) -> np.ndarray:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def _nonnegative(matrix: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Nonnegative least squares: plain ones, wrong signs let go, where those satisfy its conditions."""
    used = np.arange(matrix.shape[1])
    while 0 < used.size <= len(right):
        clock.check()
        orthogonal, triangle = scipy.linalg.qr(matrix[:, used], mode="economic", check_finite=False)
        if scipy.linalg.lapack.dtrcon(triangle)[0] < 1e-10:
            break
        weights = np.zeros(matrix.shape[1])
        weights[used] = scipy.linalg.solve_triangular(triangle, orthogonal.T @ right, check_finite=False)
        if np.min(weights) >= 0:
            if np.max(matrix.T @ (right - matrix @ weights)) <= 1e-11 * np.linalg.norm(right):
                return weights
            break
        used = used[weights[used] > 1e-12 * np.max(weights)]
    if len(right) > BASIC:
        return None
    try:
        return scipy.optimize.nnls(matrix, right, maxiter=100 + 10 * matrix.shape[1])[0]
    except RuntimeError:
        return None


def _basic_multipliers(rows: Rows, at: Local, active: _Active) -> tuple[np.ndarray, np.ndarray] | None:
    """Multipliers of the active rows nearest to stationarity, by nonnegative least squares; None when it fails.

    Their columns are linearly independent, so they stay finite where the feasible set has no interior.
    """
    balls = np.flatnonzero(active.balls)
    inequality = np.flatnonzero((active.side != 0) & ~rows.equality)
    normals = _array(rows.ball_normals(at.y)[balls])
    lengths = np.linalg.norm(normals, axis=1)
    signed = _array(rows.matrix[inequality]) * active.side[inequality, None]
    columns = np.vstack([signed, normals / lengths[:, None]]).T
    equality = _array(rows.matrix[rows.equality]).T
    target = -at.gradient
    orthogonal, triangle, order = scipy.linalg.qr(equality, mode="economic", pivoting=True)
    rank = int(np.sum(abs(np.diag(triangle)) > 1e-11))
    orthogonal = orthogonal[:, :rank]
    projected = columns - orthogonal @ (orthogonal.T @ columns)
    # What an equality row already spans would only be rounding noise for the least squares.
    useful = np.flatnonzero(np.linalg.norm(projected, axis=0) > 1e-10)
    weights = np.zeros(columns.shape[1])
    if useful.size:  # scipy's nnls crashes the interpreter on a matrix without columns
        solved = _nonnegative(projected[:, useful], target - orthogonal @ (orthogonal.T @ target))
        if solved is None:
            return None
        weights[useful] = solved
    multipliers, ball_multipliers = np.zeros(len(active.side)), np.zeros(len(active.balls))
    chosen = np.flatnonzero(rows.equality)[order[:rank]]
    rest = orthogonal.T @ (target - columns @ weights)
    multipliers[chosen] = scipy.linalg.solve_triangular(triangle[:rank, :rank], rest)
    multipliers[inequality] = weights[: inequality.size] * active.side[inequality]
    ball_multipliers[balls] = weights[inequality.size :] / lengths
    return multipliers, ball_multipliers
