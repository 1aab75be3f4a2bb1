"""Exact descent on the pieces of Phi: a trust-region method that knows the kinks.

From an exact point, a step of x with what follows of y and the multipliers minimises a quadratic model of f under the
linearised KKT conditions of a piece of Phi. Constraints that are biactive there may in the model have slack and a
multiplier at once, a relaxation of complementarity: it promises at least what the pieces that meet at x promise. Where
the model uses that, the step branches. The exact value of Phi decides whether a step is taken.

How a step is computed and brought back to an exact point is the business of the linear algebra: see `DensePieces` and
`SparsePieces`.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from bilevax._support.division import positive
from bilevax.solvers.default.pieces.point import ACTIVE, BIACTIVE, INACTIVE, ExactPoint, Units, torn
from bilevax.solvers.default.settings import EXACT


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the model, on the piece with these ``sides``: where it leads, and what it promises.

    ``end`` has the multipliers and slacks that follow to first order; ``length`` is the largest change of an entry of
    x. ``slope`` is the predicted decrease per length of x, relative to the size of the gradient.
    """

    end: ExactPoint
    sides: np.ndarray
    predicted: float
    length: float
    slope: float


class Trust(Protocol):
    """How far the model is trusted."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to try after failures."""
        ...

    @property
    def crawling(self) -> bool:
        """Whether a step that gains next to nothing is a sign of the end, not of too much caution."""
        ...

    def after_success(self, length: float, gain: float, share: float) -> "Trust":
        """Return the trust after a step of that length was taken.

        It gained so much, relative to 1 + |f|, and that share of what was predicted.
        """
        ...

    def after_failure(self, length: float) -> "Trust":
        """Return the trust after a step of that length failed."""
        ...


class Pieces(Protocol):
    """The pieces of Phi around exact points, by one kind of linear algebra.

    ``resolution`` is the relative decrease of f that its programs can tell. ``lands_anywhere`` says whether the end of
    any step can be made exact, whichever piece it is on.
    """

    resolution: float
    lands_anywhere: bool

    def units(self, point: ExactPoint) -> Units:
        """Return what multipliers and slacks are measured in."""
        ...

    def trust(self, point: ExactPoint, rtol: float) -> Any:
        """Return the trust to begin with."""
        ...

    def readings(self, point: ExactPoint) -> Iterable[tuple[ExactPoint, np.ndarray]]:
        """Yield the point with the sides of its constraints, in each way in which they can be read."""
        ...

    def other_readings(self, point: ExactPoint, promises: "Promises") -> Iterable[tuple[ExactPoint, np.ndarray]]:
        """Yield the same x and y with other multipliers, where they are not unique.

        ``promises`` tells whether the model sees descent where constraints have certain sides; None if it cannot tell.
        """
        ...

    def model(self, point: ExactPoint, trust: Any) -> Any:
        """Return the model of f around a point: its ``solve(sides)`` returns a `Step` or None."""
        ...

    def arrive(self, step: Step) -> ExactPoint | None:
        """Return the exact point at the end of a step, or next to it."""
        ...

    def polished(self, point: ExactPoint, trust: Any) -> ExactPoint | None:
        """Return the point as accurately as can be, at the end of a descent; None where nothing is left to do."""
        ...


Promises = Callable[[ExactPoint, np.ndarray], bool | None]


def exact_descent(
    pieces: Pieces, point: ExactPoint, rtol: float, below: float = np.inf
) -> Iterator[tuple[ExactPoint, bool, float | None]]:
    """Yield exact points that descend on Phi; the flag is true at the end, once no model sees descent left.

    The number is the slope that the last model saw, at the point it was made for; None before the first step.

    It ends before, once the next step does not promise a value ``below`` that of another descent.
    """
    trust, slope, crawled = pieces.trust(point, rtol), np.inf, 0
    seen_slope = None
    idle, lowest = 0, -EXACT.far * (1 + abs(point.value))  # steps since one gained something that may have an end
    while idle < EXACT.iterations:
        idle += 1
        size = 1 + abs(point.value)
        rounding, worth = pieces.resolution * size, EXACT.worth * rtol * size
        last_look = crawled == EXACT.crawl
        seen = _look(pieces, point, trust, rtol, [] if last_look else pieces.readings(point))
        if seen.step is None and seen.settled:
            # A step that f cannot tell is no reason to leave out the multipliers that are still to come.
            least = worth if last_look else rounding
            promises = functools.partial(_promises, pieces, trust, rtol, least)
            others = _look(pieces, point, trust, rtol, pieces.other_readings(point, promises), least)
            # Where points are exact whatever their multipliers, a program without an answer changes nothing.
            seen = seen if others.step is None and pieces.lands_anywhere else others
        step, trial = seen.step, seen.trial
        seen_slope = seen_slope if step is None else step.slope
        # Steps that f is too coarse to tell are worth taking while the slope falls; then it is rounding, too.
        finished = seen.settled if step is None else step.predicted <= rounding and step.slope > 0.5 * slope
        if finished and step is not None and not last_look:
            crawled = EXACT.crawl  # with these multipliers: the others are still to come
            continue
        if finished or (last_look and step is None):
            break
        if step is not None and point.value - step.predicted > below:
            return
        if step is None or trial is None or not point.value - trial.value >= EXACT.poor * step.predicted - rounding:
            trust, slope = trust.after_failure(np.inf if step is None else step.length), np.inf
            finished = step is not None and step.predicted <= rounding
            if finished or trust.exhausted:
                break
            yield point, False, seen_slope
            continue
        gain = point.value - trial.value
        slope = step.slope if step.predicted <= rounding else np.inf
        crawled = crawled + trust.crawling if gain <= worth and not last_look else 0
        idle = 0 if gain > worth and trial.value > lowest else idle
        trust = trust.after_success(step.length, gain / size, gain / positive(step.predicted))
        before, point = point, trial
        small = step.predicted <= 1e-2 * rtol**2 * size
        done = small and step.length <= rtol * (1 + np.abs(before.x).max(initial=0.0)) and step.slope <= 0.1 * rtol
        if done:  # on these multipliers: the others are looked at once more
            crawled = EXACT.crawl
        yield point, False, seen_slope
    else:
        return
    polished = pieces.polished(point, trust)
    yield point if polished is None else polished, finished, seen_slope


@dataclasses.dataclass(frozen=True)
class _Look:
    """The step that is worth taking, or the first that disappointed, and the exact point it leads to.

    ``settled`` tells whether all programs were solved: without a step, no descent is left then.
    """

    step: Step | None
    trial: ExactPoint | None
    settled: bool


def _look(
    pieces: Pieces,
    point: ExactPoint,
    trust: Any,
    rtol: float,
    readings: Iterable[tuple[ExactPoint, np.ndarray]],
    least: float = 0.0,
) -> _Look:
    """Look for a step from each reading of a point until one is worth taking; it has to promise more than ``least``."""
    size, settled, disappointed = 1 + abs(point.value), True, None
    visible = functools.partial(_visible, pieces, point, rtol, least)
    for start, sides in readings:
        for step in _steps(pieces, start, sides, trust, visible):
            if step is None:
                settled = False
                continue
            trial = pieces.arrive(step)
            if trial is not None and point.value - trial.value >= EXACT.good * step.predicted - _ROUNDING * size:
                return _Look(step, trial, settled)
            if disappointed is None and not torn(step.end, pieces.units(start), step.sides).any():
                disappointed = _Look(step, trial, settled)
    return _Look(None, None, settled) if disappointed is None else disappointed


def _visible(pieces: Pieces, point: ExactPoint, rtol: float, least: float, step: Step) -> bool:
    """Return whether a step promises more than ``least``, and something that can be told from nothing."""
    resolution = pieces.resolution * (1 + abs(point.value))
    # Where Phi bends much, a slope may be left to see although the decrease along it is not.
    steep = step.predicted > 1e-4 * resolution and step.slope > 1e-3 * rtol
    steep = steep and step.length > _ROUNDING_OF_X * (1 + np.abs(point.x).max(initial=0.0))
    return step.predicted > least and (step.predicted > resolution or steep)


def _promises(
    pieces: Pieces, trust: Any, rtol: float, least: float, point: ExactPoint, sides: np.ndarray
) -> bool | None:
    """Return whether the model sees descent with these sides; None if it has no answer."""
    step = pieces.model(point, trust).solve(sides)
    return None if step is None else _visible(pieces, point, rtol, least, step)


_ROUNDING = 1e-14  # the relative decrease of f that its value cannot tell
_ROUNDING_OF_X = 1e-15  # the length of a step, relative, that x cannot tell: its slope is rounding, too


def _steps(
    pieces: Pieces, point: ExactPoint, sides: np.ndarray, trust: Any, visible: Callable[[Step], bool]
) -> Iterator[Step | None]:
    """Yield the steps of the pieces that meet at a point, those worth a trial first; None where one is missing.

    Steps that leave complementarity are among them where their ends can be made exact all the same.
    """
    model, units = pieces.model(point, trust), pieces.units(point)
    many = EXACT.programs // 5 if np.count_nonzero(sides == BIACTIVE) > EXACT.few_biactive else EXACT.programs
    enough = many if pieces.lands_anywhere else EXACT.sparse_programs
    branches, order = [(-np.inf, 0, sides)], itertools.count(1)  # what they promise at most, negative; the best first
    held: list[Step] = []  # steps of single pieces that promise little of what all of them together promise
    seen, promise, found = set(), None, False
    # Many biactive constraints have too many branches: where a step was found, it or a shorter one is good enough.
    while branches and len(seen) < (enough if found else EXACT.programs):
        _, _, tried = heapq.heappop(branches)
        if tried.tobytes() in seen:
            continue
        seen.add(tried.tobytes())
        step = model.solve(tried)
        if step is None:
            yield None
            continue
        promise = step.predicted if promise is None else promise
        if not visible(step):
            continue
        both = torn(step.end, units, tried)
        if both.any():
            if pieces.lands_anywhere:
                found = True
                yield step
            for branch in _branches(step, units, both):
                heapq.heappush(branches, (-step.predicted, next(order), branch))
        else:
            found = True
            if branches and step.predicted < EXACT.enough * promise:
                held.append(step)
            else:
                yield step
    yield from sorted(held, key=lambda step: -step.predicted)


def _branches(step: Step, units: Units, both: np.ndarray) -> list[np.ndarray]:
    """Return other sides for constraints that have ``both`` slack and multiplier at the end of a step.

    All of them on the sides they lean to, or the worst of them alone on the other side. If few are biactive, it is also
    alone on the side it leans to: then no piece is left out.
    """
    leans = step.end.multiplier / units.multiplier > step.end.slack / units.slack
    leaning = np.where(leans, ACTIVE, INACTIVE).astype(np.int8)
    against, along = step.sides.copy(), np.where(both > 0, leaning, step.sides)
    worst = int(np.argmax(both))
    against[worst] = -leaning[worst]
    if np.count_nonzero(step.sides == BIACTIVE) > EXACT.few_biactive:
        return [along, against]
    alone = step.sides.copy()
    alone[worst] = leaning[worst]
    return [along, against, alone]
