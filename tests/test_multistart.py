"""Many starts, one ranked list."""

import dataclasses
import time

import numpy as np
import pytest

import bilevax as bx
from bilevax.driver.multistart import Multistart, _ranked
from bilevax.problems import textbook
from bilevax.problems.toy import LOCAL_MINIMA, toy


def test_toy_finds_all_four_minima_ranked_by_certified_value():
    found = bx.multistart(toy(), np.linspace(0.05, 2.95, 16))
    assert sorted(float(solution.x) for solution in found) == pytest.approx(sorted(LOCAL_MINIMA), abs=1e-6)
    values = [solution.value for solution in found]
    assert values == sorted(values)
    assert found.best.value == values[0]
    assert all(solution.success for solution in found)
    assert len(found.answer_of) == len(found.statuses) == 16
    assert "4 distinct answers from 16 starts" in str(found)
    assert found._repr_html_().count("<tr>") == 5


def test_compiled_solver_runs_all_starts_in_one_program():
    found = bx.multistart(toy(), np.array([0.1, 1.0, 1.02]), solver=bx.SFLCB(), max_steps=20_000)
    assert len(found) == 2
    assert found.answer_of[1] == found.answer_of[2] == 0
    assert found.best.success


def test_drawn_starts_repeat_and_lie_in_the_box():
    problem = bx.BilevelProblem(
        lambda x, y: np.float64(0) + (x[0] - 1) ** 2 + (x[1] + 2) ** 2 + (y[0] - x[0]) ** 2,
        lambda x, y: (y[0] - x[0]) ** 2,
        x_set=bx.Box(np.array([-3.0, -3.0]), np.array([3.0, 3.0])),
    )
    first, again = bx.multistart(problem, 5, key=3), bx.multistart(problem, 5, key=3)
    assert first.best.x == pytest.approx([1.0, -2.0], abs=1e-6)
    assert [solution.value for solution in first] == [solution.value for solution in again]


@pytest.mark.parametrize("starts", [0, np.float64(1.0), np.zeros(0)])
def test_starts_that_are_none(starts):
    with pytest.raises(ValueError, match="starts: expected"):
        bx.multistart(toy(), starts)


def test_shape_of_x_unknown():
    problem = bx.BilevelProblem(lambda x, y: x**2, lambda x, y: (y - x) ** 2, y_like=np.zeros(()))
    with pytest.raises(ValueError, match="shape of x is unknown"):
        bx.multistart(problem, 3)


def test_answers_are_ranked_by_proven_value_and_show_their_status():
    """A proven 5 that is not proven stationary is worth more than a success of 7, and less than nothing unproven."""
    success = bx.solve(toy(), 0.98)

    def answer(value, status, **certificate):
        judged = dataclasses.replace(success.certificate, value=value, **certificate)
        return dataclasses.replace(
            success, value=value, status=status, success=status is bx.Status.CONVERGED, certificate=judged
        )

    stalled = answer(5.0, bx.Status.STALLED, stationarity=1.0)
    outside = answer(1.0, bx.Status.STALLED, x_infeasibility=1e-3)
    unsolved = answer(np.nan, bx.Status.TIME_LIMIT, failure=bx.Status.TIME_LIMIT)
    twin = answer(5.0 + 1e-9, bx.Status.CONVERGED)
    seven = answer(7.0, bx.Status.CONVERGED)
    assert _ranked([seven, unsolved, outside, stalled]) == [3, 0, 2, 1]
    assert _ranked([stalled, seven, twin]) == [2, 0, 1]
    found = Multistart((stalled, seven), np.array([1, 0, 1]))
    assert found.best is stalled
    assert [line.split()[:2] for line in str(found).splitlines()[1:]] == [["5", "stalled"], ["7", "converged"]]


@pytest.mark.parametrize("solver", [None, bx.SFLCB()], ids=["default", "SFLCB"])
def test_a_time_limit_is_reported_as_such(solver):
    began = time.monotonic()
    found = bx.multistart(
        toy(), np.array([0.1, 1.0]), solver=solver, rtol=0.0, atol=0.0, max_steps=10**9, time_limit=1e-3
    )
    assert time.monotonic() - began < 30
    assert bx.Status.TIME_LIMIT in found.statuses
    assert bx.Status.MAX_STEPS not in found.statuses


def test_time_limit_leaves_later_starts_out():
    found = bx.multistart(toy(), np.linspace(0.05, 2.95, 2000), time_limit=1.0)
    assert 1 <= len(found.answer_of) < 2000


def test_a_global_optimum_that_no_start_leads_to_is_among_the_answers():
    known = textbook.load("Bard1988Ex1")
    found = bx.multistart(known.problem, np.asarray(known.x0)[None], y0=known.y0)
    assert found.best.value == pytest.approx(17.0, abs=1e-5)
    assert found.best.proof.proven
    assert found.answer_of.shape == (1,)
