"""Searches in other processes and on other machines; what comes back are endings, in the order of the starts."""

import dataclasses
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support.clock import deadline, in_time
from bilevax._support.elsewhere import as_they_come, pickled, unpickled
from bilevax._support.precision import float64
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Start
from bilevax.driver.checkpoints import Files
from bilevax.driver.ending import Ending, nothing_later
from bilevax.driver.search import search
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, validate
from bilevax.solvers.base import HostSolver


class Found(NamedTuple):
    """What a search from one start came to, as it travels back."""

    ending: Ending
    ended: Status | None
    records: list[dict[str, Any]]


def search_everywhere(
    executor: Any,
    problem: BilevelProblem,
    points: list[PyTree],
    y0: PyTree,
    solver: HostSolver,
    watch: Watch,
) -> list[tuple[Ending, Watch] | None]:
    """Search from all starts, and return how each ended; None for starts that were lost or not reached.

    Parameters
    ----------
    executor
        Of `concurrent.futures`, or how many processes of this machine to use.
    watch
        Whose limits hold for all starts together; its live line tells how many are done.
    """
    payload = pickled((problem, _on_host(y0), solver, watch.limits))
    task = lambda index: (payload, _on_host(points[index]), watch.ends - time.monotonic())
    found: dict[int, Found] = {}
    try:
        for index, result in as_they_come(executor, _searched, range(len(points)), task, watch.ends + watch.grace):
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
    watch.close()
    return [_watched(found[index], watch) if index in found else None for index in range(len(points))]


def _watched(found: Found, watch: Watch) -> tuple[Ending, Watch]:
    """Return an ending with a watch that has seen it."""
    seen = Watch(watch.began, watch.limits)
    seen.ended, seen.records = found.ended, found.records
    return found.ending, seen


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


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
    x, y = (ending.x, ending.y) if later is None else later
    return Found(ending._replace(x=_on_host(x), y=_on_host(y), later=nothing_later), watch.ended, watch.records)
