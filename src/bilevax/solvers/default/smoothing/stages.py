"""Descent on a smoothed Phi while the smoothing shrinks, whatever does the smoothing.

An *oracle* returns a smoothed objective with its gradient at any x, whether the lower level is feasible there or not.
There are two: `central_path`, which factorises, and `first_order`, which only applies the problem's operators.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from bilevax._support.division import positive
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import SMOOTHING
from bilevax.solvers.diary import Diary


@dataclasses.dataclass(frozen=True)
class SmoothPoint:
    """The smoothed objective at x with its gradient.

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


class Oracle(Protocol):
    """A smoothed objective; its ``smoothing`` is any dataclass with a field ``kappa``, the price of infeasibility."""

    def begin(self) -> SmoothPoint | None:
        """Return the first point, at no price yet."""
        ...

    def evaluate(self, x: np.ndarray, smoothing: Any, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the point at x, started from a near one; None where it cannot be computed."""
        ...

    def price(self, point: SmoothPoint) -> float:
        """Return a price for leaving the feasible set: above the rows' typical marginal value."""
        ...

    def tighten(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point at the same x with ten times less smoothing."""
        ...

    def advance(self, point: SmoothPoint, stiff: SmoothPoint) -> tuple[SmoothPoint, Any]:
        """Return where the next stage starts and its smoothing, given the last point and its tightened twin."""
        ...

    def refit(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point with its smoothing brought back to the stage's own size, or None where it fits."""
        ...

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point more accurately, after steps from it failed."""
        ...


class Followed(NamedTuple):
    """A point on the way: a step just made, or where a stage has come to, once it ``ended`` with its smoothing done."""

    point: SmoothPoint
    is_step: bool
    ended: bool = False


class Stage(NamedTuple):
    """What a stage came to: the point it ``reached``, and from where and with what smoothing to go on, if at all."""

    reached: SmoothPoint | None
    start: SmoothPoint | None
    smoothing: Any = None
    ended: bool = False
    steps: int = 0


Descent = Callable[[Any, UpperSet, SmoothPoint], Iterator[SmoothPoint]]


def follow(
    oracle: Oracle,
    upper: UpperSet,
    stages: int,
    diary: Diary,
    descent: Descent | None = None,
    patience: float = np.inf,
) -> Iterator[Followed]:
    """Follow the smoothed minimiser while the smoothing shrinks tenfold a stage; each stage is a phase of the diary.

    After a stage of as many steps as there is ``patience`` no more follow: with less smoothing it takes even more.
    """
    stage, ended = diary.once("stage 0", lambda: _first_stage(oracle)), 0
    for number in range(1, 3 * stages + 1):
        if stage.start is None or ended == stages:
            return
        stage = yield from diary.phase(f"stage {number}", _stage(oracle, upper, stage, descent or smooth_descent))
        ended += stage.ended
        if stage.reached is not None:
            yield Followed(stage.reached, is_step=False, ended=stage.ended)
        if stage.steps >= patience:
            return


def _first_stage(oracle: Oracle) -> Stage:
    point = oracle.begin()
    smoothing = None if point is None else dataclasses.replace(point.smoothing, kappa=oracle.price(point))
    return Stage(None, point, smoothing)


def _stage(oracle: Oracle, upper: UpperSet, stage: Stage, descent: Descent) -> Generator[Followed, None, Stage]:
    """Descend with the smoothing at hand, and tell where to go on and with what smoothing."""
    assert stage.start is not None
    point = oracle.evaluate(stage.start.x, stage.smoothing, stage.start)
    if point is None:
        return Stage(None, None)
    steps = 0
    for step in descent(oracle, upper, point):
        yield Followed(step, is_step=True)
        point, steps = step, steps + 1
    stiff = oracle.tighten(point)
    if stiff is None:
        return Stage(point, None)
    if stiff.multiplier.max(initial=0.0) > SMOOTHING.growing * point.multiplier.max(initial=0.0):
        # Multipliers that grow as the softness shrinks tell that the lower level is infeasible at x: kappa was too low.
        kappa = max(SMOOTHING.dearer * point.smoothing.kappa, oracle.price(point))
        return Stage(point, point, dataclasses.replace(point.smoothing, kappa=kappa))
    return Stage(point, *oracle.advance(point, stiff), ended=True, steps=steps)


class History:
    """Limited-memory BFGS pairs."""

    def __init__(self, memory: int = SMOOTHING.memory):
        self.memory = memory
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, step: np.ndarray, change: np.ndarray) -> None:
        """Remember a step and the change of the gradient along it, if it has positive curvature."""
        if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
            self.pairs = [*self.pairs[1 - self.memory :], (step, change)]

    def direction(self, gradient: np.ndarray, normals: np.ndarray) -> np.ndarray:
        """Return the quasi-Newton direction within the face orthogonal to ``normals``."""
        inside = lambda v: v - normals.T @ (normals @ v)
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


def smooth_descent(
    oracle: Oracle, upper: UpperSet, point: SmoothPoint, iterations: int = SMOOTHING.steps
) -> Iterator[SmoothPoint]:
    """Yield points that descend on the smoothed objective, until its projected gradient has fallen twentyfold."""
    history, values = History(), [point.value]
    measure = lambda p: np.linalg.norm(upper.project(p.x - p.gradient) - p.x)
    target = SMOOTHING.fall * max(measure(point), 1e-6 * (1 + np.linalg.norm(point.gradient)))
    for _ in range(SMOOTHING.steps):
        if measure(point) <= target:
            return
        normals = upper.normals(point.x, point.gradient)
        inside = point.gradient - normals.T @ (normals @ point.gradient)
        radius = max(0.1 * np.sqrt(len(point.x)), np.linalg.norm(point.x))
        direction = history.direction(point.gradient, normals)
        if not history.pairs or direction @ inside > -1e-8 * np.linalg.norm(direction) * np.linalg.norm(inside):
            history.pairs.clear()
            direction = -inside * 0.1 * radius / positive(np.linalg.norm(inside))
        direction = direction * min(1.0, radius / positive(np.linalg.norm(direction)))
        found = _search(oracle, upper, point, direction, max(values[-5:]))
        if found is None:
            if not history.pairs:
                return
            history.pairs.clear()
            point = oracle.refine(point)
            continue
        history.add(found.x - point.x, found.gradient - point.gradient)
        stuck = point.value - found.value <= 1e-10 * (1 + abs(point.value)) and len(values) > 5
        point = found
        values.append(point.value)
        yield point
        if stuck:
            return
        refitted = oracle.refit(point)
        if refitted is not None:
            point, values = refitted, [refitted.value]


def _search(
    oracle: Oracle, upper: UpperSet, point: SmoothPoint, direction: np.ndarray, reference: float
) -> SmoothPoint | None:
    """Backtrack along the projected direction until the value falls enough."""
    length, vague = 1.0, 0
    for _ in range(15):
        x = upper.project(point.x + length * direction)
        trial = oracle.evaluate(x, point.smoothing, point)
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
