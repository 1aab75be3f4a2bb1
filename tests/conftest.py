"""Shared fixtures: a count of compilations, and proof that no test leaves JAX's settings changed."""

import contextlib
import os
import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator

# As many processes as cores run the tests: more threads for the linear algebra of each would wait for each other.
# NumPy and SciPy look at this when they are first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest
from hypothesis import settings

# Most of the time of the tests is XLA compiling small programs, and its older code generator for fused loops compiles
# them in about half the time. It has to be chosen before JAX starts; `XLA_FLAGS= make test` leaves the choice to XLA.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# What one process of a run has compiled, the others need not: both workers, and the processes that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="bilevax-tests-", ignore_cleanup_errors=True)  # until the run ends
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # JAX, imported already, has looked at these variables.
    jax.config.update("jax_compilation_cache_dir", _CACHE.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")

_QUICK = pathlib.Path(__file__).with_name("quick.txt")
_QUICK_SECONDS = 60.0  # of one core
_SPENT: defaultdict[str, float] = defaultdict(float)
_COMPILED: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run only the tests that tests/quick.txt names")
    parser.addoption("--choose-quick", action="store_true", help="write the fastest tests of this run to quick.txt")


def _function(test: str) -> str:
    """Return the name of a test without its parameters."""
    return test.partition("[")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        names = set(_QUICK.read_text().split())
        config.hook.pytest_deselected(items=[item for item in items if _function(item.nodeid) not in names])
        items[:] = [item for item in items if _function(item.nodeid) in names]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A test that failed, or was skipped here, is never quick.
    _SPENT[_function(report.nodeid)] += report.duration if report.passed else _QUICK_SECONDS


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Choose the tests that take least time, as many of them as fit into the time for all."""
    if session.config.getoption("--choose-quick") and not hasattr(session.config, "workerinput"):
        chosen, total = [], 0.0
        for name, seconds in sorted(_SPENT.items(), key=lambda entry: entry[1]):
            if (total := total + seconds) <= _QUICK_SECONDS:
                chosen.append(name)
        _QUICK.write_text("".join(f"{name}\n" for name in sorted(chosen)))


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
