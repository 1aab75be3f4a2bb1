"""Shared fixtures: a count of compilations, and proof that no test leaves JAX's settings changed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")

_COMPILED: list[str] = []


def _record(event: str, duration: float, **_: Any) -> None:
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
