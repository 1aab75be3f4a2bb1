"""Phi(x) exactly: the minimisers of the lower level at x, what f is over them, and how well that is known.

Whether there is one minimiser, and how well it is known, is found out by *tilting* the lower level. Let y(c) minimise
``g(x, .) + c' y`` over the feasible set. Every minimiser y* of g then satisfies

    c' y(c)  <=  c' y*  <=  c' y(-c),

as the optimality of y* for g, added to that of y(c) and y(-c) for the tilted g, shows. So a small c brackets all
minimisers in its direction. If the bracket closes as c shrinks there is one minimiser in that direction, and the
bracket bounds how far the computed one may be from it. If it stays open there are several. If the tilted lower level
has no minimiser, then a small change of the data leaves g without one, unless g is constant along whole `lines`: then
only tilts across them tell anything.

A tilt along ``grad_y f`` tells how well f is known, one along a random direction how well y is. A Hessian at one point
could prove neither, unless it is the same everywhere.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax._support.clock import OutOfTime
from bilevax.convex.minimise import minimise
from bilevax.convex.nearby import Nearby
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.exact.curved import solve_curved
from bilevax.exact.face import extreme
from bilevax.exact.joint_newton import joint_newton, suits_joint_newton
from bilevax.exact.lines import constant_along, lines_of_g
from bilevax.exact.lower import constraints_at, in_user_units, objective_at, solve_flat
from bilevax.exact.response import responses
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.spread import error_by_curvature, value_spread
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem
from bilevax.model.row_functions import coupling_of


class Phi(NamedTuple):
    """The lower level at x, solved exactly, and f over its minimisers; in the units of the flat problem.

    Attributes
    ----------
    lower
        The minimiser that counts (the leader's best, or worst, as the problem says), with its multipliers.
    value
        f there; NaN where the lower level has no proven minimiser, inf where it is infeasible.
    low, high
        The least and the largest f over the minimisers.
    error
        How far ``value`` may be off, since y is known only so well.
    unique
        Whether the minimiser is known to be the only one.
    """

    lower: ConvexSolution
    value: float
    low: float
    high: float
    error: float
    unique: bool

    @property
    def solved(self) -> bool:
        """Whether the lower level has a proven minimiser."""
        return proven(self.lower)


def proven(lower: ConvexSolution) -> bool:
    """Return whether a lower-level answer is proven to be a minimiser.

    On the border of feasibility `minimise` may not reach its own tolerance; the certificate's larger one is enough.
    """
    accurate = lower.residual <= EXACT_TOLERANCES.lower
    return lower.outcome is Outcome.OPTIMAL or (lower.outcome is Outcome.INACCURATE and accurate)


def evaluate(flat: FlatProblem, x: np.ndarray, start: np.ndarray | None = None, *, thorough: bool = True) -> Phi:
    """Evaluate Phi at x.

    Parameters
    ----------
    flat, x
        The problem and the point.
    start
        Where the lower level's minimisation begins.
    thorough
        Whether to look for other minimisers by tilting. If not, the one that is found counts; those of a quadratic g,
        which take no tilting, are looked for in any case.
    """
    if flat.problem.curved:
        return _curved_phi(flat, x, start, thorough)
    return evaluate_at(flat, x, solve_flat(flat, x, start), thorough)


def _curved_phi(user: FlatProblem, x: np.ndarray, start: np.ndarray | None, thorough: bool) -> Phi:
    """Return Phi of a problem with rows that are not affine, in the user's units.

    The tangent problem at the answer has all minimisers of the lower level, and perhaps others, which violate its rows.
    """
    answer = solve_curved(user, x, start)
    flat = answer.tangent
    phi = evaluate_at(flat, x / flat.scales.x, answer.lower, thorough)
    if not phi.solved:
        return phi
    lower, unit = in_user_units(flat, phi.lower), flat.scales.upper
    if answer.error > EXACT_TOLERANCES.lower:
        lower = dataclasses.replace(lower, outcome=Outcome.INACCURATE, infeasibility=answer.error)
    rows = coupling_of(user.problem, *user.shapes)
    values = rows.values(x, lower.y)
    beyond = np.maximum(values - rows.upper, rows.lower - values).max(initial=0.0)
    allowed = beyond <= EXACT_TOLERANCES.lower * (1 + np.abs(values).max(initial=0.0))
    error = phi.error / unit if allowed else np.inf
    return Phi(lower, phi.value / unit, phi.low / unit, phi.high / unit, error, phi.unique)


class CurvedSurroundings:
    """Phi at many points around one where the lower level is solved, for rows that are not affine.

    Points and values are in the units of the tangent problem there.
    """

    def __init__(self, user: FlatProblem, tangent: FlatProblem, lower: ConvexSolution):
        self._user, self._tangent, self._start = user, tangent, lower.y * tangent.scales.y

    def expect(self, points: list[np.ndarray]) -> None:
        """Prepare for nothing: such rows are solved one after the other."""

    def evaluate(self, x: np.ndarray) -> Phi:
        """Evaluate Phi at another x."""
        scales = self._tangent.scales
        phi = evaluate(self._user, x * scales.x, self._start, thorough=False)
        value, low, high, error = (part * scales.upper for part in (phi.value, phi.low, phi.high, phi.error))
        return Phi(dataclasses.replace(phi.lower, y=phi.lower.y / scales.y), value, low, high, error, phi.unique)


class Surroundings:
    """Phi at many points around one where the lower level is solved; other minimisers are not looked for by tilting."""

    def __init__(self, flat: FlatProblem, x: np.ndarray, lower: ConvexSolution):
        self._flat, self._x, self._lower = flat, x, lower
        self._responses = responses(flat, x, lower)
        self._expected: dict[bytes, ConvexSolution | None] = {}

    @functools.cached_property
    def _nearby(self) -> Nearby:
        return Nearby(constraints_at(self._flat, self._x), self._lower)

    def expect(self, points: list[np.ndarray]) -> None:
        """Prepare for the evaluation at these points: all at once take less than one after the other."""
        if not points:
            return
        if self._responses is not None:
            answers = self._responses.at(np.array(points))
        elif suits_joint_newton(self._flat, self._lower):
            answers = joint_newton(self._flat, self._nearby, points)
        else:
            return
        self._expected = {point.tobytes(): answer for point, answer in zip(points, answers, strict=True)}

    def evaluate(self, x: np.ndarray) -> Phi:
        """Evaluate Phi at another x."""
        flat = self._flat
        lower = self._expected.get(x.tobytes())
        if lower is None:
            lower = self._nearby.minimise(objective_at(flat, x), constraints_at(flat, x))
        return evaluate_at(flat, x, lower, thorough=False)


def evaluate_at(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, thorough: bool = True) -> Phi:
    """Return Phi at x, given the lower level there."""
    if not proven(lower):
        value = np.inf if lower.outcome is Outcome.INFEASIBLE else np.nan
        return Phi(lower, value, value, value, np.inf, False)
    value = flat.value("upper", x, lower.y)
    if flat.lower_is_quadratic and lower.unique:
        return Phi(lower, value, value, value, 0.0, True)
    try:
        return _over_minimisers(flat, x, lower, value, thorough)
    except OutOfTime:  # f at a minimiser is known, not what it is at others
        return Phi(lower, value, -np.inf, np.inf, np.inf, False)


def _over_minimisers(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, value: float, thorough: bool) -> Phi:
    """Return Phi where there may be other minimisers than the one that was found, with its value."""
    if flat.lower_is_quadratic:
        return _over_face(flat, x, lower)
    if not thorough:
        return Phi(lower, value, value, value, 0.0, lower.unique)
    if flat.n_y > EXACT_SETTINGS.most_bracketed:
        spread = value_spread(flat, x, lower)
        return Phi(lower, value, value - spread, value + spread, spread, lower.unique)
    if flat.n_y > EXACT_SETTINGS.few_bracketed and not lower.unique:
        error = error_by_curvature(flat, x, lower)
        if error is not None and error <= EXACT_TOLERANCES.known_value * EXACT_TOLERANCES.value * (1 + abs(value)):
            return Phi(lower, value, value, value, error, False)
    return _bracketed(flat, x, lower, value)


def _bracketed(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, value: float) -> Phi:
    """Return Phi where tilting has to tell whether the minimiser is the only one, and how well it is known."""
    f_y, random = flat.gradients("upper", x, lower.y)[1], np.random.default_rng(0).standard_normal(flat.n_y)
    tilts = [f_y, random] if np.any(f_y) else [random]
    bracket = functools.partial(_bracket, flat, x, Nearby(constraints_at(flat, x), lower), value)
    brackets, lines = [bracket(tilt) for tilt in tilts], None
    if None in brackets:  # g may be constant along lines, and have minimisers all the same
        lines = lines_of_g(flat, x, lower.y)
        across = [tilt - lines @ (lines.T @ tilt) for tilt in tilts] if lines.size else []
        same = constant_along(flat, "upper", x, lower.y, lines)
        brackets = [bracket(tilt) for tilt in (across if same else across[-1:])]
        if not brackets or None in brackets:
            return Phi(dataclasses.replace(lower, outcome=Outcome.UNBOUNDED), np.nan, np.nan, np.nan, np.inf, False)
        if not same:
            return _penalised(flat, x, lower)
    found = [each for each in brackets if each is not None]
    error, closed = max(each.error for each in found), lines is None and all(each.closed for each in found)
    if closed or error <= EXACT_TOLERANCES.value * (1 + abs(value)):
        return Phi(lower, value, value, value, error, closed)
    return _penalised(flat, x, lower)


class _Bracket(NamedTuple):
    """How far f moves between the ends of a bracket, and whether the bracket closes."""

    error: float
    closed: bool


def _bracket(flat: FlatProblem, x: np.ndarray, nearby: Nearby, value: float, direction: np.ndarray) -> _Bracket | None:
    """Bracket the minimisers in a direction, by smaller and smaller tilts; None where a tilted g has no minimiser."""
    tolerances = EXACT_TOLERANCES
    before = width = moved = np.inf
    for size in tolerances.tilts:
        tilt = size * direction / np.abs(direction).max()
        ends = [_tilted(flat, x, nearby, sign * tilt) for sign in (1.0, -1.0)]
        if any(end.outcome is Outcome.UNBOUNDED for end in ends):
            return None
        if not all(end.outcome is Outcome.OPTIMAL for end in ends):
            break  # the bracket of the tilt before is the one that counts
        before, width = width, float(np.abs(ends[1].y - ends[0].y).max())
        moved = max(abs(flat.value("upper", x, end.y) - value) for end in ends)
        known = moved <= tolerances.known_value * tolerances.value * (1 + abs(value))
        if (known and width <= tolerances.closed_bracket) or width > tolerances.closing_bracket * before:
            break
    closing = tolerances.closing_bracket * before if np.isfinite(before) else 0.0
    return _Bracket(moved, width <= max(tolerances.closed_bracket, closing))


def _tilted(flat: FlatProblem, x: np.ndarray, nearby: Nearby, tilt: np.ndarray) -> ConvexSolution:
    """Solve the lower level with a linear function added to g."""
    g = objective_at(flat, x)
    tilted = Objective(lambda y: g.value(y) + float(tilt @ y), lambda y: g.gradient(y) + tilt, g.hessian)
    tolerance = EXACT_TOLERANCES.tilt_residual * float(np.abs(tilt).max())
    return nearby.minimise(tilted, constraints_at(flat, x), tolerance)


def _penalised(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Phi:
    """Return Phi where g has several minimisers and is not quadratic: those of ``g + weight f`` for a small weight."""
    sign, here = _sign(flat), flat.value("upper", x, lower.y)
    ends, fine, smallest = {}, EXACT_TOLERANCES.tilt_residual, EXACT_TOLERANCES.penalty
    for side in (sign, -sign):
        near, nearer = (
            minimise(objective_at(flat, x, side * weight), constraints_at(flat, x), lower.y, tolerance=fine * weight)
            for weight in (10 * smallest, smallest)
        )
        if not near.outcome is nearer.outcome is Outcome.OPTIMAL:
            ends[side] = None
            continue
        values = [flat.value("upper", x, end.y) for end in (near, nearer)]
        # Next to a flat minimum the error falls as a root of the weight: the fifth for y^6, the ninth for y^10.
        ends[side] = nearer, values[1], EXACT_TOLERANCES.flat_error * abs(values[1] - values[0])
    if ends[sign] is None:
        return Phi(lower, here, -np.inf, np.inf, np.inf, False)
    chosen, value, error = ends[sign]
    other = sign * np.inf if ends[-sign] is None else ends[-sign][1]
    if error > EXACT_TOLERANCES.value * (1 + abs(value)):  # too uncertain: the minimiser of g that is known counts
        low, high = min(value, other) - error, max(value, other) + error
        return Phi(lower, here, low, high, max(high - here, here - low), False)
    lower = dataclasses.replace(lower, y=chosen.y, multipliers=chosen.multipliers, unique=False)
    return Phi(lower, value, min(value, other), max(value, other), error, False)


def _sign(flat: FlatProblem) -> float:
    """Return 1 where the best f over the minimisers counts, -1 where the worst does."""
    return 1.0 if flat.problem.choice == "optimistic" else -1.0


def _over_face(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Phi:
    """Return Phi where g is a quadratic with several minimisers.

    Given one minimiser y and any one of its multiplier vectors, all minimisers are the feasible z with ``H z = H y`` on
    which the rows with a multiplier stay active: a polyhedron, over which f is minimised (or maximised) exactly.
    """
    sign, face = _sign(flat), _minimisers(flat, x, lower)
    if (allowed := _within_upper_rows(flat, x, lower, face)) is not None:
        lower, face = allowed
    here = flat.value("upper", x, lower.y)
    low, high = (extreme(flat, x, face, lower.y, side) for side in (sign, -sign))
    if low is None:
        return Phi(lower, here, -np.inf, np.inf, np.inf, False)
    value = flat.value("upper", x, low)
    other = sign * np.inf if high is None else flat.value("upper", x, high)
    chosen = dataclasses.replace(lower, y=low, unique=False)
    return Phi(chosen, value, min(value, other), max(value, other), 0.0, False)


def _minimisers(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Constraints:
    """Return the set of all minimisers of a quadratic g, as rows."""
    rows = constraints_at(flat, x)
    hessian = sp.csr_matrix(flat.hessian("lower", "y", "y", x, lower.y))
    hessian = hessian[np.flatnonzero(np.diff(hessian.indptr))]
    image = rows.matrix @ lower.y
    size = np.abs(flat.gradients("lower", x, lower.y)[1]).max(initial=0.0)
    lengths = np.sqrt(np.asarray(rows.matrix.multiply(rows.matrix).sum(axis=1)).ravel())
    held = np.abs(lower.multipliers) * lengths > EXACT_TOLERANCES.face_multiplier * size
    level = hessian @ lower.y
    return dataclasses.replace(
        rows,
        matrix=sp.vstack([rows.matrix, hessian], format="csr"),
        lower=np.concatenate([np.where(held, image, np.minimum(rows.lower, image)), level]),
        upper=np.concatenate([np.where(held, image, np.maximum(rows.upper, image)), level]),
        relaxable=0,
    )


def _within_upper_rows(
    flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, face: Constraints
) -> tuple[ConvexSolution, Constraints] | None:
    """Return a minimiser of g that satisfies the upper rows, and the set of all of them; None where none is found.

    A leader who counts on the best minimiser counts on the best of those that the upper rows allow; one who fears the
    worst cannot choose.
    """
    rows = upper_rows_at(flat, x, lower.y)
    if not len(rows.value) or flat.problem.choice != "optimistic":
        return None
    shift = rows.value - rows.y @ lower.y
    both = dataclasses.replace(
        face,
        matrix=sp.vstack([face.matrix, rows.y], format="csr"),
        lower=np.concatenate([face.lower, rows.lower - shift]),
        upper=np.concatenate([face.upper, rows.upper - shift]),
    )
    identity = sp.csc_matrix(sp.eye(flat.n_y))
    near = Objective(lambda y: 0.5 * float((y - lower.y) @ (y - lower.y)), lambda y: y - lower.y, lambda y: identity)
    nearest = minimise(near, both, lower.y)
    return (dataclasses.replace(lower, y=nearest.y), both) if proven(nearest) else None
