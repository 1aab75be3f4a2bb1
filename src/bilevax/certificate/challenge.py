"""The challenge: an attempt to refute x by exact values of Phi at points around it.

Stationarity is measured by derivatives and active rows at one point. The challenge evaluates Phi itself: along the
steepest descent of each known piece of Phi, along coordinates and along random directions, at several distances. A
point at which Phi is smaller by more than the measured slope and radius allow refutes x, whatever the derivatives say.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree
from scipy.optimize import nnls

from bilevax._support import clock
from bilevax._support.clock import in_time
from bilevax.certificate.settings import CHALLENGE
from bilevax.certificate.stationarity import Stationarity
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.convex.nearby import Nearby
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.exact.phi import Phi, evaluate
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.problem import BilevelProblem
from bilevax.model.row_functions import upper_rows_of
from bilevax.model.set_rows import SetRows


class Descent(NamedTuple):
    """A point next to x with a smaller Phi, in the units of the flat problem."""

    x: np.ndarray
    value: float


class Challenge(NamedTuple):
    """How many points were tried, and the one that refutes x, if any did."""

    tried: int
    descent: Descent | None


class Neighbourhood(Protocol):
    """Phi at points around one."""

    def expect(self, points: list[np.ndarray]) -> None:
        """Prepare for the evaluation at these points."""
        ...

    def evaluate(self, x: np.ndarray) -> Phi:
        """Evaluate Phi at another x."""
        ...


def challenge(flat: FlatProblem, x: np.ndarray, here: Phi, quality: Stationarity, around: Neighbourhood) -> Challenge:
    """Look for a point around x whose Phi is smaller than the stationarity measured at x allows.

    There is none, anywhere, where f is convex in (x, y) and x is stationary whether y is optimal or not. Points that
    violate an upper row do not count.
    """
    rows = upper_rows_of(flat.problem, *flat.shapes)
    if quality.relaxed and flat.upper_is_convex and rows.affine:
        return Challenge(0, None)
    tried, lowest, size = 0, None, 1 + abs(here.value)
    allowed = here.error + TOLERANCES.value_rounding * size + quality.scale * quality.radius
    measured = TOLERANCES.slope_factor * min(quality.value, TOLERANCES.no_slope)
    slope = quality.scale * max(TOLERANCES.no_slope, measured)
    most = max(CHALLENGE.fewest_points, CHALLENGE.work // (flat.n_x + flat.n_y + flat.rows.A.shape[0]))
    around_x = itertools.islice(_trials(flat, x, quality), most)
    trials = [trial for trial in around_x if np.abs(trial - x).max(initial=0.0) > TOLERANCES.other_point]
    in_time(lambda: around.expect(trials))
    for trial in trials:
        distance = np.abs(trial - x).max(initial=0.0)
        if clock.remaining() <= 0:
            break
        there = in_time(functools.partial(around.evaluate, trial))
        if there is None:
            break  # out of time: what was found before counts
        tried += 1
        if not there.solved or (rows.count and upper_rows_at(flat, trial, there.lower.y).violation > 0):
            continue
        if there.value + there.error < here.value - allowed - slope * distance and (
            lowest is None or there.value < lowest.value
        ):
            lowest = Descent(trial, there.value)
    return Challenge(tried, lowest)


def _trials(flat: FlatProblem, x: np.ndarray, quality: Stationarity) -> Iterator[np.ndarray]:
    """Yield points of X around x."""
    inside = _projection(flat.x_rows, x)
    random = np.random.default_rng(0)
    for gradient in _steepest(quality.pieces):
        for distance in TOLERANCES.steepest_distances:
            yield inside(x - distance * gradient / np.abs(gradient).max())
    count = len(x)
    most, few = CHALLENGE.coordinates, count <= CHALLENGE.few_coordinates
    chosen = np.arange(count) if count <= most else random.choice(count, most, replace=False)
    for entry in chosen:
        for distance in TOLERANCES.coordinate_distances if few else (TOLERANCES.coordinate_distance,):
            for sign in (1.0, -1.0):
                trial = x.copy()
                trial[entry] += sign * distance
                yield inside(trial)
    for _ in range(CHALLENGE.random_directions if count > 1 else 0):
        direction = random.standard_normal(count)
        direction /= np.abs(direction).max()
        for distance in TOLERANCES.random_distances:
            for sign in (1.0, -1.0):
                yield inside(x + sign * distance * direction)


def _steepest(pieces: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return gradients to descend along: those of pieces, and their shortest convex combination.

    All pieces descend against the latter. Where f is infinite, so may they be: they lead nowhere then.
    """
    pieces = tuple(gradient for gradient in pieces if np.isfinite(gradient).all())
    if len(pieces) > 1:
        # That the weights add up to 1 is one more equation of the least squares, with a large weight.
        system = np.vstack([np.array(pieces).T, np.full(len(pieces), CHALLENGE.sum_weight)])
        weights = nnls(system, np.r_[np.zeros(len(pieces[0])), CHALLENGE.sum_weight])[0]
        pieces = (weights @ np.array(pieces), *pieces)
    return [gradient for gradient in pieces[: CHALLENGE.pieces + 1] if np.any(gradient)]


def _projection(rows: SetRows, x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the projection onto X, for points around x."""
    if not rows.balls and np.all(np.diff(rows.matrix.indptr) == 1):
        bounds = rows.intervals()
        return lambda v: np.clip(v, *bounds)
    constraints = Constraints(rows.matrix, rows.lower, rows.upper, rows.balls)
    identity = sp.csc_matrix(sp.eye(len(x)))
    itself = ConvexSolution(x, np.zeros(len(rows.lower)), np.zeros(len(rows.balls)), Outcome.OPTIMAL)
    nearby = Nearby(constraints, itself)
    small = not rows.balls and rows.matrix.shape[0] * len(x) <= CHALLENGE.dense_entries
    matrix = rows.matrix.toarray() if small else None

    def nearest(v: np.ndarray) -> np.ndarray:
        found = v if rows.violation(v) <= TOLERANCES.on_x_set else None
        if found is None and matrix is not None:
            found = _onto_violated_rows(rows, matrix, v)
        if found is not None:
            return found
        distance = Objective(lambda z: 0.5 * float((z - v) @ (z - v)), lambda z: z - v, lambda z: identity)
        return nearby.minimise(distance, constraints).y

    return nearest


def _onto_violated_rows(rows: SetRows, matrix: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """Return the point nearest to v that satisfies the rows violated by v as equations; None if it is not in X.

    ``matrix`` is that of the rows, as an array.
    """
    point, violated = v, np.zeros(len(matrix), bool)
    for _ in range(CHALLENGE.projection_rounds):
        image = matrix @ point
        violated |= (image < rows.lower) | (image > rows.upper)
        side = np.clip(matrix[violated] @ v, rows.lower[violated], rows.upper[violated])
        point = v + np.linalg.lstsq(matrix[violated], side - matrix[violated] @ v, rcond=None)[0]
        if rows.violation(point) <= TOLERANCES.on_x_set:
            return point
    return None


def falls_forever(problem: BilevelProblem, x: PyTree, y: PyTree, start: PyTree) -> bool:
    """Return whether Phi seems to fall without end on the ray from ``start`` through x.

    Phi is evaluated at distances that grow tenfold, and has to fall from each to the next by at least half of the fall
    before. The falls of a function that levels off become smaller than that.
    """
    flat = equilibrated(FlatProblem(problem, x, y), x, y)
    point, guess = flat.x_flat(x), flat.y_flat(y)
    direction = point - flat.x_flat(start)
    length, inside = np.abs(direction).max(initial=0.0), _projection(flat.x_rows, point)
    if not (np.isfinite(length) and length > 0):
        return False
    values, last = [], guess
    for distance in (0.0, *TOLERANCES.ray_distances):
        trial = point + distance * direction / length
        if np.abs(inside(trial) - trial).max() > TOLERANCES.on_ray * (1 + distance):
            return False
        there = evaluate(flat, trial, last, thorough=False)
        if not there.solved:
            return False
        last = there.lower.y
        values.append(there.value)
    falls = -np.diff(values)
    return bool(np.all(falls > 0) and np.all(falls[1:] >= TOLERANCES.ray_fall * falls[:-1]))
