"""Searches in other processes and on other machines: any executor of `concurrent.futures` does the work.

Problems travel by cloudpickle, so objectives may be lambdas and closures. What comes back are endings, in the order of
the starts, however many workers there are and whichever ends first.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support.clock import deadline, in_time
from bilevax._support.precision import float64
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Limits, Start
from bilevax.driver.checkpoints import Files
from bilevax.driver.ending import Ending, nothing_later
from bilevax.driver.search import search
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, validate
from bilevax.solvers.base import HostSolver

_RESTARTS = 3  # of a local pool whose workers die


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
    payload = _pickled((problem, _on_host(y0), solver, watch.limits))
    tasks = {index: _on_host(point) for index, point in enumerate(points)}
    found: dict[int, Found] = {}
    opened = _Pool(executor) if isinstance(executor, int) else contextlib.nullcontext(executor)
    try:
        with opened as pool:
            for index, result in _as_they_come(pool, payload, tasks, watch):
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
    return [_watched(found[index], watch) if index in found else None for index in tasks]


def _watched(found: Found, watch: Watch) -> tuple[Ending, Watch]:
    """Return an ending with a watch that has seen it."""
    seen = Watch(watch.began, watch.limits)
    seen.ended, seen.records = found.ended, found.records
    return found.ending, seen


def _as_they_come(
    pool: Any, payload: bytes, tasks: dict[int, PyTree], watch: Watch
) -> Iterator[tuple[int, Found | BaseException]]:
    """Yield each start's result, or the error with which it was lost, as they come."""
    waiting, failures = dict(tasks), 0
    while waiting:
        left = watch.ends - time.monotonic()
        futures = {pool.submit(_searched, payload, point, left): index for index, point in waiting.items()}
        broken = False
        try:
            timeout = left + watch.grace if np.isfinite(left) else None
            for future in concurrent.futures.as_completed(futures, timeout):
                index, error = futures[future], future.exception()
                broken = isinstance(error, concurrent.futures.BrokenExecutor)
                if broken:
                    break
                del waiting[index]
                yield index, future.result() if error is None else error
        except TimeoutError:
            return
        finally:
            for future in futures:
                future.cancel()
        if not broken:
            return
        failures += 1
        if not isinstance(pool, _Pool) or failures > _RESTARTS:
            yield from ((index, RuntimeError("the pool is broken")) for index in waiting)
            return
        # One of the starts at work took its worker along: the first of those still waiting is the likely one.
        index = next(iter(waiting))
        del waiting[index]
        yield index, RuntimeError("its process died")
        pool.renew()


class _Pool(contextlib.AbstractContextManager):
    """Processes of this machine, each with one thread of BLAS, renewed where one dies."""

    def __init__(self, workers: int):
        self._workers = workers

    def __enter__(self) -> "_Pool":
        self.renew()
        return self

    def __exit__(self, *_: Any) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def renew(self) -> None:
        """Begin with new processes."""
        context = multiprocessing.get_context("spawn")  # JAX has threads, which do not survive a fork
        cache = jax.config.values["jax_compilation_cache_dir"]
        self._pool = concurrent.futures.ProcessPoolExecutor(self._workers, context, _begin, (cache,))

    def submit(self, function: Callable, *arguments: Any) -> concurrent.futures.Future:
        """Run a function in one of the processes."""
        return self._pool.submit(function, *arguments)


def _begin(cache: str | None) -> None:
    """Share the compiled programs of the process that began this one."""
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _pickled(tree: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError(
            "executor, workers: problems travel by cloudpickle; install it by pip install 'bilevax[parallel]'."
        ) from error
    return cloudpickle.dumps(tree)


@functools.lru_cache(maxsize=4)
def _unpickled(payload: bytes) -> tuple[BilevelProblem, PyTree, HostSolver, Limits]:
    """Return what travelled, once for each problem: what is compiled for its functions then serves all starts."""
    import cloudpickle

    return cloudpickle.loads(payload)


def _searched(payload: bytes, point: PyTree, left: float) -> Found:
    """Search from one start, in this process."""
    problem, y0, solver, limits = _unpickled(payload)
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
