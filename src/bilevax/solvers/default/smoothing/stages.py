"""Descent on a smoothed Phi while the smoothing shrinks, whatever does the smoothing.

An *oracle* returns a smoothed objective with its gradient at any x, whether the lower level is feasible there or not.
There are two: `central_path`, which factorises, and `first_order`, which only applies the problem's operators.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import (
    Objective,
    SmoothPoint,
    Trail,
    go_on,
    quasi_newton,
    slope,
    trail,
    trails,
)
from bilevax.solvers.default.settings import SMOOTHING
from bilevax.solvers.diary import Diary


class Oracle(Objective, Protocol):
    """A smoothed objective; its ``smoothing`` is any dataclass with a field ``kappa``, the price of infeasibility."""

    def begin(self) -> SmoothPoint | None:
        """Return the first point, at no price yet."""
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


class Remembering(Oracle, Protocol):
    """An oracle that knows the steps and changes of the gradient of the stage before."""

    pairs: tuple[tuple[np.ndarray, np.ndarray], ...]


class Followed(NamedTuple):
    """A point on the way, and what happened there.

    A *step* is seen when it is made, and not again when a diary tells of it. Between phases of the diary the descent
    *pauses*: where a stage begins and after each step, if steps are phases, and where a stage has *reached* its end. It
    is *done* once less smoothing is known to agree: until then it may have to be repeated at a higher price of
    infeasibility. Who has seen enough goes no further.
    """

    point: SmoothPoint
    event: Literal["step", "pauses", "reached", "done"]


class Reached(NamedTuple):
    """Where a stage has come to, None where there is no smoothed objective, and after how many ``steps``."""

    point: SmoothPoint | None
    steps: int


class Stage(NamedTuple):
    """From where and with what smoothing a stage starts, if at all, and whether the one before is ``done``."""

    start: SmoothPoint | None
    smoothing: Any = None
    done: bool = False


Descent = Callable[[Any, UpperSet, SmoothPoint], Iterator[SmoothPoint]]


def follow(
    oracle: Oracle,
    upper: UpperSet,
    stages: int,
    diary: Diary,
    descent: Descent | None = None,
    patience: float = np.inf,
) -> Iterator[Followed]:
    """Follow the smoothed minimiser while the smoothing shrinks tenfold a stage.

    Each stage is a phase of the diary; without a ``descent``, that of `quasi_newton` is made, each step a phase. After
    as many steps as there is ``patience`` no stage follows: with less smoothing it takes even more of them.
    """
    stage, done, steps = diary.once("stage 0", lambda: _first_stage(oracle)), 0, 0
    for number in range(1, 3 * stages + 1):
        if stage.start is None or done == stages or steps >= patience:
            return
        if descent is None:
            reached = yield from _step_by_step(oracle, upper, stage, diary, f"stage {number}")
        else:
            reached = yield from diary.phase(f"stage {number}", _descend(oracle, upper, stage, descent))
        point, steps = reached.point, steps + reached.steps
        if point is None:
            return
        yield Followed(point, "reached")
        stage = diary.once(f"after stage {number}", functools.partial(_next_stage, oracle, point))
        if stage.done:
            done += 1
            yield Followed(point, "done")


def _first_stage(oracle: Oracle) -> Stage:
    point = oracle.begin()
    smoothing = None if point is None else dataclasses.replace(point.smoothing, kappa=oracle.price(point))
    return Stage(point, smoothing)


def _descend(oracle: Oracle, upper: UpperSet, stage: Stage, descent: Descent) -> Generator[Followed, None, Reached]:
    """Descend with the smoothing at hand."""
    assert stage.start is not None
    point, steps = oracle.evaluate(stage.start.x, stage.smoothing, stage.start), 0
    if point is not None:
        for step in descent(oracle, upper, point):
            yield Followed(step, "step")
            point, steps = step, steps + 1
    return Reached(point, steps)


def _step_by_step(
    oracle: Oracle, upper: UpperSet, stage: Stage, diary: Diary, name: str
) -> Generator[Followed, None, Reached]:
    """Descend with the smoothing at hand, a phase of the diary a step."""
    start = stage.start
    assert start is not None
    point, steps = diary.once(name, lambda: oracle.evaluate(start.x, stage.smoothing, start)), 0
    if point is None:
        return Reached(None, steps)
    arrived, gone = _arrived(upper, point), trail(point)
    while True:
        yield Followed(gone.point, "pauses")
        if steps == SMOOTHING.steps:
            break
        steps += 1
        farther = yield from diary.phase(f"{name}, step {steps}", _one_step(oracle, upper, gone, arrived))
        if farther is None:
            break
        gone = farther
    return Reached(gone.point, steps)


def _one_step(
    oracle: Oracle, upper: UpperSet, gone: Trail, arrived: Callable[[SmoothPoint], bool]
) -> Generator[Followed, None, Trail | None]:
    farther = go_on(oracle, upper, gone, arrived, SMOOTHING.worth)
    if farther is not None:
        yield Followed(farther.point, "step")
    return farther


def _next_stage(oracle: Oracle, point: SmoothPoint) -> Stage:
    """Tell where to go on after a stage, and with what smoothing."""
    stiff = oracle.tighten(point)
    if stiff is None:
        return Stage(None)
    if stiff.multiplier.max(initial=0.0) > SMOOTHING.growing * point.multiplier.max(initial=0.0):
        # Multipliers that grow as the softness shrinks tell that the lower level is infeasible at x: kappa was too low.
        kappa = max(SMOOTHING.dearer * point.smoothing.kappa, oracle.price(point))
        return Stage(point, dataclasses.replace(point.smoothing, kappa=kappa))
    return Stage(*oracle.advance(point, stiff), done=True)


def smooth_descent(oracle: Oracle, upper: UpperSet, point: SmoothPoint) -> Iterator[SmoothPoint]:
    """Yield points that descend on the smoothed objective, until its projected gradient has fallen twentyfold."""
    yield from quasi_newton(oracle, upper, point, _arrived(upper, point), SMOOTHING.steps, SMOOTHING.worth)


def remembering_descent(oracle: Remembering, upper: UpperSet, point: SmoothPoint) -> Iterator[SmoothPoint]:
    """Yield the same with the pairs of the stage before: without them a first step is three times too long."""
    begun, arrived = trail(point, oracle.pairs), _arrived(upper, point)
    for gone in trails(oracle, upper, begun, arrived, SMOOTHING.steps, SMOOTHING.worth):
        oracle.pairs = gone.pairs
        yield gone.point


def _arrived(upper: UpperSet, point: SmoothPoint) -> Callable[[SmoothPoint], bool]:
    """Return whether a point has come to the end of a stage that began at another."""
    target = SMOOTHING.fall * max(slope(upper, point), 1e-6 * (1 + float(np.linalg.norm(point.gradient))))
    return lambda p: slope(upper, p) <= target
