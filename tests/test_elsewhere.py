"""Many starts in other processes and on a cluster: the same answers, whatever becomes of the workers."""

import concurrent.futures
import os

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.solvers.default import Default

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


def test_any_executor_will_do():
    problem = toy()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        assert_same(bx.multistart(problem, STARTS, executor=executor), bx.multistart(problem, STARTS))


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_start_along_and_no_other():
    with pytest.warns(UserWarning, match="was lost with its worker"):
        found = bx.multistart(toy(), STARTS, solver=Fragile(), workers=1)
    assert found.answer_of.tolist().count(-1) == 1
    assert found.answer_of[-1] == -1
    assert len(found.statuses) == len(STARTS) - 1


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
def test_a_dask_cluster_with_a_worker_killed():
    distributed = pytest.importorskip("distributed")
    problem = toy()
    expected = bx.multistart(problem, STARTS)
    with (
        distributed.LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        executor.submit(os._exit, 1)  # a worker dies; its tasks are given to others
        assert_same(bx.multistart(problem, STARTS, executor=executor), expected)


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
