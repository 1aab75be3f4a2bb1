"""Searches and certificates in other processes and on other machines; what comes back is in the order of the starts."""

import dataclasses
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support.clock import deadline, in_time
from bilevax._support.elsewhere import as_they_come, pickled, size_of, unpickled
from bilevax._support.precision import float64
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Start
from bilevax.driver.checkpoints import Files
from bilevax.driver.ending import Ending, nothing_later
from bilevax.driver.search import search
from bilevax.driver.verdict import certified
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, validate
from bilevax.solvers.base import Solver


class Found(NamedTuple):
    """What a search from one start came to, as it travels back."""

    ending: Ending
    ended: Status | None
    records: list[dict[str, Any]]


class Elsewhere:
    """An executor with the problem that its workers search.

    Parameters
    ----------
    executor
        As `bilevax._support.elsewhere.opened` gives it.
    problem, y0, solver
        What is searched, and how.
    watch
        Whose limits hold for all starts together; its live line tells how many are done.
    """

    def __init__(self, executor: Any, problem: BilevelProblem, y0: PyTree, solver: Solver, watch: Watch):
        self._executor, self._watch = executor, watch
        self._interrupted = False
        self._payload = pickled((problem, _on_host(y0), solver, watch.limits))

    def search(self, points: list[PyTree]) -> list[tuple[Ending, Watch] | None]:
        """Search from all starts, and return how each ended; None for starts that were lost or not reached."""
        watch, indices = self._watch, range(len(points))
        task = lambda index: (self._payload, _on_host(points[index]), watch.ends - time.monotonic())
        found: dict[int, Found] = {}
        try:
            for index, result in as_they_come(self._executor, _searched, indices, task, watch.ends + watch.grace):
                if isinstance(result, Found):
                    found[index] = result
                else:
                    warnings.warn(f"start {index} was lost with its worker: {result!r}", stacklevel=5)
                if watch.show:
                    best = min((each.records[-1].get("best", np.inf) for each in found.values()), default=np.inf)
                    watch.look(len(found), None, None, {"starts": f"{len(found)}/{len(points)}", "best": best})
                    watch.ended = None
        except KeyboardInterrupt:
            if not found:
                raise
            self._interrupted = True  # and so may the workers be
        watch.close()
        return [_watched(found[index], watch) if index in found else None for index in indices]

    def certify(self, endings: list[Ending]) -> list[tuple[Ending, Certificate] | None]:
        """Certify all endings, each in its share of the time there is; None for those that were lost."""
        ends, turns = self._watch.last_call, np.ceil(len(endings) / size_of(self._executor))
        task = lambda index: (self._payload, _travelling(endings[index]), (ends - time.monotonic()) / turns)
        judged: list[tuple[Ending, Certificate] | None] = [None] * len(endings)
        if self._interrupted:
            return judged
        late = ends + self._watch.grace
        for index, result in as_they_come(self._executor, _certified, range(len(endings)), task, late):
            if not isinstance(result, BaseException):
                ending, certificate = result
                judged[index] = ending._replace(state=endings[index].state), certificate
        return judged


def _watched(found: Found, watch: Watch) -> tuple[Ending, Watch]:
    """Return an ending with a watch that has seen it."""
    seen = Watch(watch.began, watch.limits)
    seen.ended, seen.records = found.ended, found.records
    return found.ending, seen


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _travelling(ending: Ending) -> Ending:
    """Return an ending without what stays behind: the state of its solver, and the way to a later point."""
    return ending._replace(x=_on_host(ending.x), y=_on_host(ending.y), state=None, later=nothing_later)


def _searched(payload: bytes, point: PyTree, left: float) -> Found:
    """Search from one start, in this process."""
    problem, y0, solver, limits = unpickled(payload)
    limits = dataclasses.replace(limits, time_limit=None if np.isinf(left) else max(left, 1e-3))
    watch = Watch(time.monotonic(), limits)
    with float64():
        x, y_like, y = validate(problem, point, y0)
        flat = FlatProblem(problem, x, y_like)
        ending = search(flat, solver, Start(x, y_like, y), watch, Files())
        with deadline(watch.last_call):
            later = in_time(ending.later) if ending.exact else None
    ending = ending if later is None else ending._replace(x=later[0], y=later[1])
    return Found(_travelling(ending), watch.ended, watch.records)


def _certified(payload: bytes, ending: Ending, left: float) -> tuple[Ending, Certificate]:
    """Certify one ending, in this process."""
    problem, _, solver, _ = unpickled(payload)
    with float64(), deadline(time.monotonic() + left):
        ending, certificate = certified(FlatProblem(problem, ending.x, ending.y), solver, ending)
    return _travelling(ending), certificate
