"""Work in other processes and on other machines: any executor of `concurrent.futures` does it.

What travels goes by cloudpickle, so functions may be lambdas and closures. Results come as they are done, each with its
key: whoever puts them in order has the same answer, however many workers there are and whichever ends first.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

Key = TypeVar("Key")

_RESTARTS = 3  # of a local pool whose workers die


def chosen_executor(executor: Any, workers: Any) -> Any:
    """Return the executor, or how many processes to use, or None; raise ValueError for anything else."""
    if executor is not None and workers is not None:
        raise ValueError("executor, workers: expected one of them, got both.")
    if workers is not None and not (isinstance(workers, int) and workers >= 1):
        raise ValueError(f"workers: expected a whole number >= 1, got {workers!r}.")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ValueError(f"executor: expected an executor of concurrent.futures, got {type(executor).__name__}.")
    return workers if executor is None else executor


def dask_executor(address: str | None) -> Any:
    """Return the executor of a Dask cluster, None without an address; raise ValueError where no cluster or Dask is."""
    if address is None:
        return None
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("dask: expected Dask to be installed; pip install distributed cloudpickle.") from error
    try:
        return Client(address, timeout=10).get_executor()
    except OSError as error:
        raise ValueError(f"dask: expected a scheduler at {address}: {error}.") from error


def opened(executor: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context with an executor for several calls of `as_they_come`: for a number, processes that start now."""
    return _Pool(executor) if isinstance(executor, int) else contextlib.nullcontext(executor)


def size_of(executor: Any) -> int:
    """Return how many workers an executor has for certain."""
    return executor.workers if isinstance(executor, _Pool) else 1


def as_they_come(
    executor: Any,
    function: Callable[..., Any],
    keys: Iterable[Key],
    arguments: Callable[[Key], tuple],
    ends: float = np.inf,
) -> Iterator[tuple[Key, Any]]:
    """Yield for each key what the function returned for its arguments, or the exception with which it was lost.

    Parameters
    ----------
    executor
        Of `concurrent.futures`, what `opened` gave, or how many processes of this machine to use.
    function, arguments
        The function, which the workers have to be able to import, and from a key its arguments when it is begun.
    ends
        By `time.monotonic`, when nobody waits any more: keys without a result are then left out.
    """
    with opened(executor) as pool:
        waiting, failures = list(keys), 0
        while waiting:
            futures, broken = {}, False
            try:
                futures.update((pool.submit(function, *arguments(key)), key) for key in waiting)
                timeout = ends - time.monotonic() if np.isfinite(ends) else None
                for future in concurrent.futures.as_completed(futures, timeout):
                    key, error = futures[future], future.exception()
                    if isinstance(error, concurrent.futures.BrokenExecutor):
                        raise error
                    waiting.remove(key)
                    yield key, future.result() if error is None else error
            except TimeoutError:
                return
            except concurrent.futures.BrokenExecutor:
                broken = True
            finally:
                for future in futures:
                    future.cancel()
            if not broken:
                return
            failures += 1
            if not isinstance(pool, _Pool) or failures > _RESTARTS:
                yield from ((key, RuntimeError("the pool is broken")) for key in waiting)
                return
            # One of those at work took its worker along: the first of those still waiting is the likely one.
            pool.forget()
            yield waiting.pop(0), RuntimeError("its process died")


class _Pool(contextlib.AbstractContextManager):
    """Processes of this machine, others where one dies."""

    def __init__(self, workers: int):
        self.workers = workers
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> "_Pool":
        for _ in range(self.workers):  # they get ready while others are still thinking about what to do
            self.submit(_nothing)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        """Do what comes next with other processes."""
        self._pool = None

    def submit(self, function: Callable, *arguments: Any) -> concurrent.futures.Future:
        """Run a function in one of the processes."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # JAX has threads, which do not survive a fork
            self._pool = concurrent.futures.ProcessPoolExecutor(self.workers, context, _begin, (_shared_folder(),))
        return self._pool.submit(function, *arguments)


def _shared_folder() -> str | None:
    """Return where processes share compiled programs; None where JAX is told to keep none.

    That is the folder JAX was told, or one that lives as long as this process.
    """
    if not jax.config.values["jax_enable_compilation_cache"]:
        return None
    return jax.config.values["jax_compilation_cache_dir"] or _temporary_folder().name


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="bilevax-compiled-", ignore_cleanup_errors=True)


def _begin(folder: str | None) -> None:
    """Share compiled programs with other processes, however fast they were compiled."""
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _nothing() -> None:
    """Do nothing: who does that has begun."""


def pickled(tree: Any) -> bytes:
    """Return anything in the form in which it travels."""
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError(
            "executor, workers: problems travel by cloudpickle; install it by pip install 'bilevax[parallel]'."
        ) from error
    return cloudpickle.dumps(tree)


@functools.lru_cache(maxsize=4)
def unpickled(payload: bytes) -> Any:
    """Return what travelled, once: what is compiled for a problem's functions then serves all that is done with it."""
    import cloudpickle

    return cloudpickle.loads(payload)
