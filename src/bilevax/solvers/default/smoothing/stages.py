"""Descent on a smoothed Phi while the smoothing shrinks, whatever does the smoothing.

An *oracle* returns a smoothed objective with its gradient at any x, whether the lower level is feasible there or not.
There are two: `central_path`, which factorises, and `first_order`, which only applies the problem's operators.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import Objective, SmoothPoint, quasi_newton, slope
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


class Followed(NamedTuple):
    """A point on the way: where a stage begins, a step just made, or where it ``ended`` with its smoothing done."""

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

    After as many steps as there is ``patience`` no stage follows: with less smoothing it takes even more of them.
    """
    stage, ended, steps = diary.once("stage 0", lambda: _first_stage(oracle)), 0, 0
    for number in range(1, 3 * stages + 1):
        if stage.start is None or ended == stages:
            return
        stage = yield from diary.phase(f"stage {number}", _stage(oracle, upper, stage, descent or smooth_descent))
        ended, steps = ended + stage.ended, steps + stage.steps
        if stage.reached is not None:
            yield Followed(stage.reached, is_step=False, ended=stage.ended)
        if steps >= patience:
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
    yield Followed(point, is_step=False)
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


def smooth_descent(oracle: Oracle, upper: UpperSet, point: SmoothPoint) -> Iterator[SmoothPoint]:
    """Yield points that descend on the smoothed objective, until its projected gradient has fallen twentyfold."""
    target = SMOOTHING.fall * max(slope(upper, point), 1e-6 * (1 + float(np.linalg.norm(point.gradient))))
    arrived = lambda p: slope(upper, p) <= target
    yield from quasi_newton(oracle, upper, point, arrived, SMOOTHING.steps, SMOOTHING.worth)
