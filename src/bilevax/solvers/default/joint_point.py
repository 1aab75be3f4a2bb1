"""Exact points (x, y, multiplier), and the pieces of Phi they lie on.

A point is exact if y and the multipliers satisfy the lower level's KKT conditions at x; then its f is Phi(x). Every
row, and every bound of y, is *active*, *inactive*, or *biactive* where both its multiplier and its slack vanish. On one
piece of Phi each is active or inactive, and the conditions are equations and inequalities without complementarity:

    (grad_y g + A' multiplier)_i  = 0 where no bound of y_i is active, >= 0 at an active lower, <= 0 at an upper bound;
    active rows: equations, multiplier >= 0;  inactive rows: inequalities, multiplier 0.

`restore` brings a point back to its piece by Newton's method, which moves x too: where the feasible set of the lower
level is a single point, y alone cannot satisfy the rows.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax.solvers.default.interior import InteriorLower, InteriorPoint
from bilevax.solvers.default.quadratic_program import UpperSet, nearest_on_rows, solve_sparse_qp

# A row is biactive where its multiplier and its slack are within this of zero, in the units of `multiplier_scale` and
# `slack_scale`.
BIACTIVE_MARGIN = 1e-7
# How far the optimality conditions may be off, relative to the sizes of x and the multipliers.
EXACT = 1e-9
INACTIVE, BIACTIVE, ACTIVE = -1, 0, 1  # the sides of a row or bound


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
    def on_bounds(self) -> np.ndarray:
        """Which entries of y have an active bound."""
        return (self.below == ACTIVE) | (self.above == ACTIVE)


@dataclasses.dataclass(frozen=True)
class JointPoint:
    """x with y and the rows' multipliers; ``reduced`` is grad_y g + A' multiplier, which the bounds of y balance."""

    x: np.ndarray
    y: np.ndarray
    multiplier: np.ndarray
    reduced: np.ndarray
    slack: np.ndarray
    value: float


def point_at(lower: InteriorLower, x: np.ndarray, y: np.ndarray, multiplier: np.ndarray) -> JointPoint:
    """Return the point with what follows from its parts."""
    reduced = lower.flat.gradients("lower", x, y)[1] + lower.A.T @ multiplier
    return JointPoint(x, y, multiplier, reduced, lower.c - lower.A @ y - lower.B @ x, lower.flat.value("upper", x, y))


def classify(lower: InteriorLower, point: JointPoint, margin: float) -> Sides:
    """Return the sides of the bounds, which balance what is left of the gradient, and of the rows."""
    return _sides(lower, point, np.maximum(point.reduced, 0.0), np.maximum(-point.reduced, 0.0), margin)


def _sides(
    lower: InteriorLower, point: JointPoint | InteriorPoint, below: np.ndarray, above: np.ndarray, margin: float
) -> Sides:
    """Return the sides: the larger of multiplier and slack decides, unless both are within the margin."""

    def side(multiplier: np.ndarray, slack: np.ndarray, where: np.ndarray, otherwise: int) -> np.ndarray:
        multiplier, slack = multiplier / lower.multiplier_scale, slack / lower.slack_scale
        decided = np.where(multiplier > slack, ACTIVE, INACTIVE)
        return np.where(where, np.where(np.maximum(multiplier, slack) <= margin, BIACTIVE, decided), otherwise)

    slack_low, slack_high = lower.bound_slacks(point.y)
    return Sides(
        below=side(below, slack_low, lower.has_low, INACTIVE),
        above=side(above, slack_high, lower.has_high, INACTIVE),
        rows=side(point.multiplier, point.slack, lower.inequality, ACTIVE),
    )


def residual(lower: InteriorLower, point: JointPoint) -> float:
    """Return how far the lower level's optimality conditions are from holding, relative to its scales."""
    y, low, high = (v / lower.slack_scale for v in (point.y, lower.low, lower.high))
    off = y - np.clip(y - np.where(lower.fixed, 0.0, point.reduced / lower.multiplier_scale), low, high)
    slack, multiplier = point.slack / lower.slack_scale, point.multiplier / lower.multiplier_scale
    rows = np.where(lower.inequality, np.minimum(slack, multiplier), slack)
    size = 1 + max(np.abs(point.x).max(initial=0.0) / lower.slack_scale, np.abs(multiplier).max(initial=0.0))
    return float(max(np.abs(off).max(initial=0.0), np.abs(rows).max(initial=0.0))) / size


def evaluate_jointly(lower: InteriorLower, upper: UpperSet, x: np.ndarray) -> JointPoint | None:
    """Return an exact point at x, or next to it where the lower level is only just feasible; None where it fails."""
    central = lower.start(x, None)
    unit = lower.multiplier_scale * lower.slack_scale
    for barrier in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-14):
        nearer = lower.solve(
            x, barrier * unit, max(1e-5 * barrier, 1e-13) * lower.slack_scale / lower.multiplier_scale, central
        )
        if nearer is None:
            break
        central = nearer
    if central.barrier > _ROUGH * unit:
        return None
    sides = _sides(lower, central, central.below, central.above, 0.0)
    return restore(lower, upper, point_at(lower, x, central.y, central.multiplier), sides)


_ROUGH = 1e-6  # the largest barrier from which the active rows can be read off


def evaluate_from(
    lower: InteriorLower, upper: UpperSet, x: np.ndarray, y: np.ndarray, multiplier: np.ndarray
) -> JointPoint | None:
    """Return an exact point next to an earlier answer, on its piece; None where that piece has none near."""
    lower.start(x, y)
    guess = point_at(lower, x, y, multiplier)
    return restore(lower, upper, guess, classify(lower, guess, 0.0))


def restore(lower: InteriorLower, upper: UpperSet, guess: JointPoint, sides: Sides) -> JointPoint | None:
    """Return the nearest point of the piece with these sides, by Newton's method; None where it has none near."""
    point, best, before = _on_sides(lower, guess.x, guess.y, guess.multiplier, sides), None, [np.inf, np.inf]
    for _ in range(_MAX_RESTORING):
        miss = residual(lower, point)
        if miss > 0.5 * before[-2]:
            break  # near a solution Newton's method is fast
        best = point if miss <= EXACT else None
        nearer = None if miss <= _FINEST else _nearer(lower, upper, point, sides, 0.5 * miss)
        if nearer is None:
            break
        point = nearer
        before.append(miss)
    return None if best is None else _on_rows(lower, upper, best, sides)


def _nearer(lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides, wanted: float) -> JointPoint | None:
    """Return the point after a step of Newton's method.

    If the residual wanted is met that way, all kinks at hand are kept; otherwise it may leave those it has to.
    """
    flat, piece = lower.flat, conditions(lower, upper, point, sides)
    # Steep entries of y move in the units of their curvature: Newton's method must not overshoot a tiny share.
    steep = flat.hessian("lower", "y", "y", point.x, point.y).diagonal() * lower.slack_scale / lower.multiplier_scale
    weights = np.concatenate([np.full(flat.n_x, 1e8), 1e4 * (1 + steep**2), np.full(len(lower.c), 1e-2)])
    weights, start = weights[piece.moving], piece.start
    arrive = lambda end: _on_sides(lower, upper.project(end.x), end.y, end.multiplier, sides)
    if not upper.rows.balls:
        near = nearest_on_rows(weights, piece.matrix, piece.low, piece.high, start)
        if near is not None and residual(lower, arrived := arrive(piece.end(near))) <= wanted:
            return arrived
    far = solve_sparse_qp(sp.diags(weights, format="csc"), -weights * start, piece.matrix, piece.low, piece.high)
    return None if far is None else arrive(piece.end(far[0]))


_MAX_RESTORING = 10
_FINEST = 1e-12


def _on_sides(lower: InteriorLower, x: np.ndarray, y: np.ndarray, multiplier: np.ndarray, sides: Sides) -> JointPoint:
    """Return the point with entries of y on their active bounds and a multiplier of 0 on inactive rows."""
    y = np.clip(y, lower.low, lower.high)
    y = np.where(sides.below == ACTIVE, lower.low, np.where(sides.above == ACTIVE, lower.high, y))
    positive = np.where(sides.rows == INACTIVE, 0.0, np.maximum(multiplier, 0.0))
    return point_at(lower, x, y, np.where(lower.inequality, positive, multiplier))


def _on_rows(lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides) -> JointPoint:
    """Return the point with its active rows satisfied to the last digit, if it stays within all bounds.

    Where only one y is feasible, a lower level that misses by rounding has none.
    """
    active, free = sides.rows == ACTIVE, ~(sides.on_bounds | lower.fixed)
    if not active.any():
        return point
    matrix = sp.hstack([lower.B[active], lower.A[active][:, free]], format="csr")
    x, y = point.x.copy(), point.y.copy()
    for _ in range(2):
        miss = (lower.c - lower.A @ y - lower.B @ x)[active]
        step = spl.lsmr(matrix, miss, atol=1e-16, btol=1e-16, maxiter=2000)[0]
        x, y[free] = x + step[: len(x)], y[free] + step[len(x) :]
    inside = np.all((y >= lower.low) & (y <= lower.high)) and np.array_equal(upper.project(x), x)
    return point_at(lower, x, y, point.multiplier) if inside else point


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a piece, linearised: ``low <= matrix v <= high``, v = (dx, dy, multiplier / multiplier_scale).

    Without the entries of v that do not move: those of y on an active bound, and the multipliers of inactive rows.
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
        return np.concatenate([np.zeros(flat.n_x + flat.n_y), self.point.multiplier / self.lower.multiplier_scale])[
            self.moving
        ]

    def end(self, v: np.ndarray) -> JointPoint:
        """Return where v leads, with what the conditions say of it."""
        lower, x, y, n_x, n_y = self.lower, self.point.x, self.point.y, self.lower.flat.n_x, self.lower.flat.n_y
        whole = np.zeros(len(self.moving))
        whole[self.moving] = v
        dx, dy, multiplier = whole[:n_x], whole[n_x : n_x + n_y], lower.multiplier_scale * whole[n_x + n_y :]
        reduced = lower.flat.gradients("lower", x, y)[1] + lower.A.T @ multiplier
        reduced += lower.flat.hessian("lower", "y", "x", x, y) @ dx + lower.flat.hessian("lower", "y", "y", x, y) @ dy
        slack = self.point.slack - lower.B @ dx - lower.A @ dy
        return JointPoint(x + dx, y + dy, multiplier, reduced, slack, self.point.value)


def conditions(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, sides: Sides, radius: float = np.inf
) -> Conditions:
    """Return the conditions for steps from a point, x within a radius of it."""
    flat, x, y = lower.flat, point.x, point.y
    n_x, n_y, count = flat.n_x, flat.n_y, len(lower.c)
    gradient_y = flat.gradients("lower", x, y)[1]
    hessian, mixed = flat.hessian("lower", "y", "y", x, y), flat.hessian("lower", "y", "x", x, y)
    steps = upper.rows.around(x)
    eye, none = sp.eye, lambda r, c: sp.csr_matrix((r, c))
    blocks = [
        # grad_y g + H dy + G dx + A' multiplier
        (
            sp.hstack([mixed, hessian, lower.multiplier_scale * lower.A.T]),
            np.where((sides.above != INACTIVE) | lower.fixed, -np.inf, -gradient_y),
            np.where((sides.below != INACTIVE) | lower.fixed, np.inf, -gradient_y),
        ),
        # B dx + A dy against the slack
        (
            sp.hstack([lower.B, lower.A, none(count, count)]),
            np.where(sides.rows == ACTIVE, point.slack, -np.inf),
            np.where(sides.rows == ACTIVE, point.slack, np.maximum(point.slack, 0.0)),
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
    moving = np.concatenate([np.ones(n_x, bool), ~(sides.on_bounds | lower.fixed), sides.rows != INACTIVE])
    matrix = sp.csr_matrix(matrix[:, moving])
    used = (np.isfinite(low) | np.isfinite(high)) & (np.diff(matrix.indptr) > 0)
    low = np.where(high - low <= 1e-15, high, low)
    return Conditions(lower, point, moving, used, matrix[used], low[used], high[used])


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


_MOST, _BENT = 0.8, 2.0  # the part of the way to a bound, where the curvature changes there by this factor
