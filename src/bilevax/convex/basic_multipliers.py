"""Basic multipliers: those of independent active rows, which stay finite where the feasible set has no interior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse as sparse

from bilevax._support import clock
from bilevax._support.programs import linprog
from bilevax.convex.optimality import Local, Point, Rows, measure
from bilevax.convex.settings import ACTIVE_SET, DENSE, RANK, SIMPLEX


@dataclass(frozen=True)
class Active:
    """Rows and balls held as equalities.

    `side` is +1 for rows on their upper side, -1 for rows on their lower one, 0 for inactive rows; `balls` says which
    balls are active.
    """

    side: np.ndarray
    balls: np.ndarray


def rows_within(rows: Rows, y: np.ndarray, width: float) -> Active:
    """The rows and balls whose relative slack is at most `width`, and all equalities.

    A negative width asks for those that are violated by more than that.
    """
    below, above = rows.slack(y)
    near = lambda slack, side: np.isfinite(side) & (slack <= width * (1 + abs(side)))
    upper = rows.equality | ((above <= below) & near(above, rows.upper))
    lower = ~upper & near(below, rows.lower)
    return Active(upper.astype(int) - lower, rows.ball_gaps(y) <= width * (1 + rows.radii))


def with_basic_multipliers(rows: Rows, point: Point, tolerance: float) -> Point:
    """The point with basic multipliers, if its own are not unique or have wrong signs and these are as good."""
    if point.at.y.size > DENSE.basic_multipliers:
        return point
    active = rows_within(rows, point.at.y, ACTIVE_SET.active_width)
    if point.residual <= tolerance and independent(rows, point.at.y, active):
        return point
    basic = basic_multipliers(rows, point.at, active)
    if basic is None:
        return point
    candidate = measure(point.at, rows, *basic)
    return candidate if candidate.error <= max(point.error, ACTIVE_SET.good_enough * tolerance) else point


def independent(rows: Rows, y: np.ndarray, active: Active) -> bool:
    """Whether the active rows and the normals of the active balls are linearly independent."""
    clock.check()
    held = np.vstack([_array(rows.matrix[active.side != 0]), _array(rows.ball_normals(y)[active.balls])])
    if held.shape[0] == 0 or held.shape[0] > y.size:
        return held.shape[0] == 0
    triangle = scipy.linalg.qr(held.T, mode="r", pivoting=True, check_finite=False)[0]
    return bool(np.min(abs(np.diag(triangle))) > RANK.pivot)


def basic_multipliers(rows: Rows, at: Local, active: Active) -> tuple[np.ndarray, np.ndarray] | None:
    """The multipliers of active rows and balls that leave the smallest gradient of the Lagrangian; None on failure.

    They come from nonnegative least squares, so those that are not zero belong to independent rows.
    """
    clock.check()
    balls = np.flatnonzero(active.balls)
    inequality = np.flatnonzero((active.side != 0) & ~rows.equality)
    normals = _array(rows.ball_normals(at.y)[balls])
    lengths = np.linalg.norm(normals, axis=1)
    signed = _array(rows.matrix[inequality])  # which is nobody else's; rows can be many, so they are not copied again
    signed *= active.side[inequality, None]
    columns = (np.vstack([signed, normals / lengths[:, None]]) if balls.size else signed).T
    equality = _array(rows.matrix[rows.equality]).T
    target = -at.gradient
    orthogonal, triangle, order = scipy.linalg.qr(equality, mode="economic", pivoting=True)
    rank = int(np.sum(abs(np.diag(triangle)) > RANK.pivot))
    orthogonal = orthogonal[:, :rank]
    projected = columns - orthogonal @ (orthogonal.T @ columns) if rank else columns
    # What an equality row already spans would only be rounding noise for the least squares.
    useful = np.flatnonzero(np.linalg.norm(projected, axis=0) > RANK.remainder)
    weights = np.zeros(columns.shape[1])
    if useful.size:  # scipy's nnls crashes the interpreter on a matrix without columns
        independent_of_equality = projected if useful.size == projected.shape[1] else projected[:, useful]
        solved = _nonnegative(independent_of_equality, target - orthogonal @ (orthogonal.T @ target))
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


def vertex_multipliers(rows: Rows, at: Local, active: Active) -> np.ndarray | None:
    """What `basic_multipliers` finds, for many sparse rows and without balls: a vertex of a linear program has it.

    The gradient of the Lagrangian that is left counts by the sum of its entries. Of the vectors that leave the least
    the vertex has the least sum, weighed by the digits of the slacks: where rows depend on each other, the tightest of
    them get the multipliers.
    """
    held = np.flatnonzero(active.side)
    sign = np.where(rows.equality[held], 1, active.side[held])
    columns = sparse.csc_matrix(sparse.diags_array(sign.astype(float)) @ rows.matrix[held]).T
    size, equality = at.y.size, rows.equality[held]
    slack = np.minimum(*(abs(side) for side in rows.slack(at.y)))[held]
    digits = 1 - np.log10(np.clip(slack, SIMPLEX.least_slack, 1.0)) / np.log10(SIMPLEX.least_slack)
    answer = linprog(
        np.concatenate([np.where(equality, 0.0, SIMPLEX.sparing * (digits + 0.01)), np.ones(2 * size)]),
        A_eq=sparse.hstack([columns, sparse.eye_array(size), -sparse.eye_array(size)], format="csc"),
        b_eq=-at.gradient,
        bounds=[(None if free else 0.0, None) for free in equality] + [(0.0, None)] * (2 * size),
        method="highs",
    )
    if answer.status != 0:
        return None
    multipliers = np.zeros(len(active.side))
    found = answer.x[: held.size]
    multipliers[held] = np.where(equality, found, sign * np.maximum(found, 0.0))  # not even negative by rounding
    return multipliers


def _nonnegative(matrix: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Solve a nonnegative least-squares problem; None on failure.

    Plain least squares, from which columns with negative weights are dropped, come first: mostly they satisfy the
    optimality conditions, at a fraction of the cost.
    """
    used = np.arange(matrix.shape[1])
    while 0 < used.size <= len(right):
        clock.check()
        orthogonal, triangle = scipy.linalg.qr(matrix[:, used], mode="economic", check_finite=False)
        if scipy.linalg.lapack.dtrcon(triangle)[0] < RANK.singular_triangle:
            break
        weights = np.zeros(matrix.shape[1])
        weights[used] = scipy.linalg.solve_triangular(triangle, orthogonal.T @ right, check_finite=False)
        if np.min(weights) >= 0:
            if np.max(matrix.T @ (right - matrix @ weights)) <= RANK.zero_slope * np.linalg.norm(right):
                return weights
            break
        used = used[weights[used] > RANK.zero_weight * np.max(weights)]
    if len(right) > DENSE.basic_multipliers:
        return None
    try:
        return scipy.optimize.nnls(matrix, right, maxiter=100 + 10 * matrix.shape[1])[0]
    except RuntimeError:
        return None


def _array(matrix: Any) -> np.ndarray:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
