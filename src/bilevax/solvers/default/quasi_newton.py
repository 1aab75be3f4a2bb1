"""Limited-memory BFGS with projections onto X, for any objective that comes with its gradient.

The quasi-Newton direction lives in the face of X that steepest descent would not leave; the end of a step is projected
onto X, so that many bounds may become active at once.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from bilevax._support.division import positive
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import SMOOTHING


@dataclasses.dataclass(frozen=True)
class SmoothPoint:
    """An objective at x with its gradient.

    ``multiplier`` are those of the rows, ``error`` estimates how far the gradient is from exact, and ``accurate`` tells
    whether that is near enough to judge a step by; ``state`` lets the oracle that made the point go on from it.
    """

    x: np.ndarray
    y: np.ndarray
    multiplier: np.ndarray
    value: float
    gradient: np.ndarray
    smoothing: Any
    state: Any = None
    error: float = 0.0
    accurate: bool = True


class Objective(Protocol):
    """What can be minimised."""

    def evaluate(self, x: np.ndarray, smoothing: Any, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the point at x, started from a near one; None where it cannot be computed."""
        ...

    def refit(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point with its smoothing brought back to the stage's own size, or None where it fits."""
        ...

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point more accurately, after steps from it failed."""
        ...


class History:
    """Limited-memory BFGS pairs, those of an earlier descent first."""

    def __init__(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]] = (), memory: int = SMOOTHING.memory):
        self.memory = memory
        self.pairs = list(pairs)

    def add(self, step: np.ndarray, change: np.ndarray) -> None:
        """Remember a step and the change of the gradient along it, if it has positive curvature."""
        if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
            self.pairs = [*self.pairs[1 - self.memory :], (step, change)]

    def scale(self, first: float) -> float:
        """Return the step length of steepest descent that the last pair suggests, or the first one."""
        if not self.pairs:
            return first
        step, change = self.pairs[-1]
        return float(step @ step / (step @ change))

    def direction(self, gradient: np.ndarray, inside: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the quasi-Newton direction within a face, onto which ``inside`` projects."""
        pairs = [(inside(step), inside(change)) for step, change in self.pairs]
        pairs = [(s, c) for s, c in pairs if s @ c > 1e-14 * np.linalg.norm(s) * np.linalg.norm(c) + 1e-300]
        q = inside(gradient)
        weights = []
        for step, change in reversed(pairs):
            weights.append(step @ q / (step @ change))
            q = q - weights[-1] * change
        if pairs:
            step, change = pairs[-1]
            q = q * (step @ change) / (change @ change)
        for (step, change), weight in zip(pairs, reversed(weights), strict=True):
            q = q + (weight - change @ q / (step @ change)) * step
        return -inside(q)


def slope(upper: UpperSet, point: SmoothPoint) -> float:
    """Return how long the gradient is, as far as X lets x follow it."""
    return float(np.linalg.norm(upper.project(point.x - point.gradient) - point.x))


@dataclasses.dataclass(frozen=True)
class Trail:
    """A descent as far as it has come: all that its next step depends on.

    ``pairs`` are those of `History`, ``values`` the objective's since the smoothing last changed, and ``stuck`` tells
    that the last step gained next to nothing.
    """

    point: SmoothPoint
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...]
    values: tuple[float, ...]
    stuck: bool


def trail(point: SmoothPoint, pairs: tuple[tuple[np.ndarray, np.ndarray], ...] = ()) -> Trail:
    """Return the beginning of a descent; the ``pairs`` of an earlier one lead its first steps."""
    return Trail(point, pairs, (point.value,), stuck=False)


def quasi_newton(
    objective: Objective,
    upper: UpperSet,
    point: SmoothPoint,
    arrived: Callable[[SmoothPoint], bool],
    steps: int,
    worth: float,
) -> Iterator[SmoothPoint]:
    """Yield points that descend until one has ``arrived``, or a step gains less than it is ``worth``, relative."""
    for gone in trails(objective, upper, trail(point), arrived, steps, worth):
        yield gone.point


def trails(
    objective: Objective,
    upper: UpperSet,
    gone: Trail,
    arrived: Callable[[SmoothPoint], bool],
    steps: int,
    worth: float,
) -> Iterator[Trail]:
    """Yield the trail after each step; see `quasi_newton`."""
    for _ in range(steps):
        farther = go_on(objective, upper, gone, arrived, worth)
        if farther is None:
            return
        gone = farther
        yield gone


def go_on(
    objective: Objective, upper: UpperSet, gone: Trail, arrived: Callable[[SmoothPoint], bool], worth: float
) -> Trail | None:
    """Return the trail one step longer, None where it ends; see `quasi_newton`."""
    if gone.stuck:
        return None
    point, history, values = gone.point, History(gone.pairs), gone.values
    refitted = objective.refit(point) if len(values) > 1 else None
    if refitted is not None:
        point, values = refitted, (refitted.value,)
    while not arrived(point):
        found = _search(objective, point, _path(upper, point, history), max(values[-5:]))
        if found is not None:
            history.add(found.x - point.x, found.gradient - point.gradient)
            stuck = point.value - found.value <= worth * (1 + abs(point.value)) and len(values) > 5
            return Trail(found, tuple(history.pairs), (*values, found.value), stuck)
        if not history.pairs:
            return None
        history.pairs.clear()
        point = objective.refine(point)
    return None


def _path(upper: UpperSet, point: SmoothPoint, history: History) -> Callable[[float], np.ndarray]:
    """Return the path of a line search, by the share of a step that is gone; all of it is in X."""
    x, gradient = point.x, point.gradient
    inside = upper.face(x, gradient)
    along = inside(gradient)
    radius = max(0.1 * np.sqrt(len(x)), np.linalg.norm(x))
    direction = history.direction(gradient, inside)
    if not history.pairs or direction @ along > -1e-8 * np.linalg.norm(direction) * np.linalg.norm(along):
        history.pairs.clear()
        direction = -along * 0.1 * radius / positive(np.linalg.norm(along))
    direction = direction * min(1.0, radius / positive(np.linalg.norm(direction)))
    if upper.is_box:
        return lambda length: upper.project(x + length * direction)
    # Elsewhere a bound that is met moves other entries, too, perhaps uphill: then steepest descent leads the way.
    end = upper.project(x + direction) - x
    if gradient @ end > -1e-3 * np.linalg.norm(end) * np.linalg.norm(along):
        end = upper.project(x - history.scale(0.1 * radius / positive(np.linalg.norm(gradient))) * gradient) - x
    return lambda length: x + length * end


def _search(
    objective: Objective,
    point: SmoothPoint,
    path: Callable[[float], np.ndarray],
    reference: float,
) -> SmoothPoint | None:
    """Backtrack along a path until the value falls enough."""
    length, vague = 1.0, 0
    for _ in range(15):
        x = path(length)
        trial = objective.evaluate(x, point.smoothing, point)
        vague += trial is not None and not trial.accurate
        if vague > SMOOTHING.vague:
            return None  # each of them has spent all the work it was allowed
        decrease = float(point.gradient @ (x - point.x))
        if trial is not None and trial.accurate:
            # What an inexact gradient leaves open must not stop a step, nor excuse one that goes uphill.
            doubt = min(trial.error * float(np.linalg.norm(x - point.x)), 0.3 * abs(decrease))
            if trial.value <= reference + 1e-4 * decrease + 1e-12 * abs(reference) + doubt:
                return trial
            curvature = trial.value - point.value - decrease
        else:
            curvature = np.inf
        length *= np.clip(-decrease / (2 * curvature), 0.1, 0.5) if 0 < curvature < np.inf else 0.25
    return None
