"""Many starts in other processes and on a cluster: the same answers, whatever becomes of the workers."""

import concurrent.futures
import os
import subprocess
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from attack.runner import Task, run_case, run_on
from bilevax._support.elsewhere import as_they_come, opened
from bilevax.solvers.default import Default
from test_docs import script

STARTS = np.array([0.1, 0.7, 1.4, 2.2, 2.9])


def toy(kink=6.0):
    """The paper's toy, its objectives closures of this call."""
    return bx.BilevelProblem(
        upper=lambda x, y: jnp.exp(2 - y) / (2 + jnp.cos(kink * x)) + 0.5 * jnp.log((4 * x - 2) ** 2 + 1),
        lower=lambda x, y: (y - 2 * x) ** 2,
        coupling=bx.LinearCoupling(A=1.0, B=-1.0, upper=0.0),
        x_set=bx.Box(0.0, 3.0),
    )


class Fragile(Default):
    """The default, in a process that dies of starts above 2.5."""

    def search(self, flat, x0, *arguments, **options):
        if x0[0] > 2.5:
            os._exit(1)
        yield from super().search(flat, x0, *arguments, **options)


def assert_same(found, expected):
    assert [solution.value for solution in found] == [solution.value for solution in expected]
    assert [str(solution.status) for solution in found] == [str(solution.status) for solution in expected]
    np.testing.assert_array_equal(found.answer_of, expected.answer_of)


@pytest.mark.slow
def test_processes_find_what_one_finds():
    problem = toy()
    assert_same(bx.multistart(problem, STARTS, workers=2), bx.multistart(problem, STARTS))


class Remembering(concurrent.futures.ThreadPoolExecutor):
    """An executor that knows what it was asked to do."""

    asked: ClassVar[list[str]] = []

    def submit(self, function, /, *arguments, **options):
        self.asked.append(function.__name__)
        return super().submit(function, *arguments, **options)


def test_any_executor_will_do_searches_and_certificates():
    problem = toy()
    with Remembering(1) as executor:
        found = bx.multistart(problem, STARTS, executor=executor)
    assert_same(found, bx.multistart(problem, STARTS))
    assert executor.asked == ["_searched"] * len(STARTS) + ["_certified"] * len(found)


def compiled_programs(number):
    """Return how many programs were found in the cache, and how many were not, when this one was needed."""
    told = []
    jax.monitoring.register_event_listener(lambda event, **_: told.append(event.rpartition("/")[2]))
    jax.jit(lambda x: jnp.sin(x) + number)(1.0)
    return told.count("cache_hits"), told.count("cache_misses")


@pytest.fixture(scope="module")
def pool():
    """One process of this machine, another where it dies."""
    with opened(1) as pool:
        yield pool


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_start_along_and_the_next_has_its_programs(pool):
    number = np.random.default_rng().uniform()  # which no run before this one has seen
    programs = lambda: next(as_they_come(pool, compiled_programs, ["any"], lambda _: (number,)))[1]
    assert programs() == (0, 1)
    with pytest.warns(UserWarning, match="was lost with its worker"):
        found = bx.multistart(toy(), STARTS, solver=Fragile(), executor=pool)
    assert found.answer_of.tolist().count(-1) == 1
    assert found.answer_of[-1] == -1
    assert len(found.statuses) == len(STARTS) - 1
    assert programs() == (1, 0)


def test_an_error_of_a_start_is_a_warning_and_the_others_count():
    class Failing(Default):
        def search(self, flat, x0, *arguments, **options):
            if x0[0] > 2.5:
                raise ArithmeticError("not today")
            yield from super().search(flat, x0, *arguments, **options)

    with concurrent.futures.ThreadPoolExecutor(1) as executor, pytest.warns(UserWarning, match="not today"):
        found = bx.multistart(toy(), STARTS, solver=Failing(), executor=executor)
    assert found.answer_of[-1] == -1
    assert found.best.success


@pytest.mark.slow
def test_a_dask_cluster_with_a_worker_killed_and_the_script_of_the_page(tmp_path):
    distributed = pytest.importorskip("distributed")
    problem, dead = toy(), tmp_path / "dead"
    expected = bx.multistart(problem, STARTS)
    with (
        distributed.LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        executor.submit(lambda: dead.exists() or (dead.touch(), os._exit(1)))  # its tasks are given to others
        assert_same(bx.multistart(problem, STARTS, executor=executor), expected)
        assert dead.exists()
        path = tmp_path / "starts.py"
        path.write_text(script("parallel.md", "starts.py").replace("problem, 32,", "problem, 6,"))
        command = [sys.executable, str(path), cluster.scheduler_address]
        told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert told.stdout == f"{bx.multistart(problem, 6)}\n", told.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: expected a whole number >= 1, got 0"),
        ({"executor": "pool"}, "executor: expected an executor of concurrent.futures, got str"),
        ({"workers": 2, "executor": object()}, "executor, workers: expected one of them"),
    ],
)
def test_what_is_no_executor(options, message):
    with pytest.raises(ValueError, match=message):
        bx.multistart(toy(), STARTS, **options)


class Deadly(Default):
    """A method that takes its process along."""

    def search(self, *arguments, **options):
        os._exit(1)


@pytest.mark.slow
def test_methods_are_compared_by_processes_as_by_one(pool):
    solvers = {"default": Default(), "steps": bx.SFLCB(), "deadly": Deadly()}
    found = bx.compare(toy(), 0.7, solvers, points=3, max_steps=200, executor=pool)
    alone = bx.compare(toy(), 0.7, {name: solvers[name] for name in ("default", "steps")}, points=3, max_steps=200)
    untimed = lambda row: {key: value for key, value in row.items() if key != "seconds"}
    assert [untimed(row) for row in found.rows()[:2]] == [untimed(row) for row in alone.rows()]
    assert found["deadly"].failed
    assert "died" in found["deadly"].refusal


class Losing(concurrent.futures.ThreadPoolExecutor):
    """An executor that loses the case of number 1."""

    def submit(self, function, /, *arguments, **options):
        if arguments[-1] != 1:
            return super().submit(function, *arguments, **options)
        future = concurrent.futures.Future()
        future.set_exception(ConnectionError("gone"))
        return future


def test_cases_of_the_attack_go_to_an_executor_and_lost_ones_are_errors():
    with Losing(1) as executor:
        results = {result.index: result for result in run_on(executor, [Task("table-2", 0, (0, 1))])}
    assert results[0].outcome == run_case("table-2", 0, 0).outcome
    assert results[1].outcome == "error"
    assert "gone" in results[1].words
