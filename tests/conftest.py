"""Shared fixtures: a count of compilations, and proof that no test leaves JAX's settings changed."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

# As many processes as cores run the tests: more threads for the linear algebra of each would wait for each other.
# NumPy and SciPy look at this when they are first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Most of the time of the tests is XLA compiling small programs that run for milliseconds. Its older code generator for
# fused loops compiles them in about half the time, and without LLVM's optimisation they take half of that again. Both
# have to be chosen before JAX starts; `XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 make test` leaves the choice to XLA.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# What one process of a run has compiled, the others need not: both workers, and the processes that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="bilevax-tests-", ignore_cleanup_errors=True)  # until the run ends
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")

_COMPILED: list[str] = []


def _record(event: str, duration_secs: float, **_: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_record)


@pytest.fixture
def compilations() -> Callable[[], contextlib.AbstractContextManager[list[int]]]:
    """A context that counts the programs XLA compiles inside it, in a list of one entry."""

    @contextlib.contextmanager
    def counted() -> Iterator[list[int]]:
        before, count = len(_COMPILED), [-1]
        yield count
        count[0] = len(_COMPILED) - before

    return counted


@pytest.fixture(autouse=True)
def _settings_untouched() -> Iterator[None]:
    before = dict(jax.config.values)
    yield
    assert dict(jax.config.values) == before, "a test changed JAX's global settings"
