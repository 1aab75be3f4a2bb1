"""The textbook problems against the shared library's records, and at their best known answers."""

import jax
import numpy as np
import pytest

import bilevax as bx
from bilevax.model.problem import place
from bilevax.problems import textbook
from known import PROBLEMS, judge

RECORDS = {record["name"]: record for record in judge.records(base_only=False)} if judge else {}
every_problem = pytest.mark.parametrize("name", textbook.names())


def test_there_are_many_and_each_is_itself():
    assert len(textbook.names()) >= 25
    assert len(set(textbook.names())) == len(textbook.names())
    for name in textbook.names():
        assert textbook.load(name).name == name
        assert textbook.load(name).problem is textbook.load(name).problem


@every_problem
def test_agrees_with_its_record(name):
    if not RECORDS:
        pytest.skip(f"no problem library at {PROBLEMS}; set BILEVAX_PROBLEMS")
    entry, record = textbook.load(name), RECORDS[name]
    theirs, x0, y0 = judge.build(record, bx, jax.numpy)
    np.testing.assert_array_equal(entry.x0, x0)
    np.testing.assert_array_equal(entry.y0, y0)
    np.testing.assert_allclose(entry.best_x, record["best"]["x"], atol=1e-11)
    np.testing.assert_allclose(entry.best_y, record["best"]["y"], atol=1e-11)
    assert entry.best_value == pytest.approx(record["best"]["F"], abs=1e-8)
    assert entry.strongly_convex == (record["properties"]["lower_class"] == "strongly_convex")
    random = np.random.default_rng(0)
    points = [(entry.best_x, entry.best_y)]
    points += [(5 * random.standard_normal(len(x0)), 5 * random.standard_normal(len(y0))) for _ in range(5)]
    with jax.enable_x64(True):
        ours, theirs = (place(problem, np.float64) for problem in (entry.problem, theirs))
        for x, y in points:
            for level in ("upper_value", "lower_value"):
                value = getattr(ours, level)(x, y)
                np.testing.assert_allclose(value, getattr(theirs, level)(x, y), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(_rows(ours, x, y), _rows(theirs, x, y), rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(ours.x_set.project(x), theirs.x_set.project(x), atol=1e-9)
            np.testing.assert_allclose(ours.y_set.project(y), theirs.y_set.project(y), atol=1e-9)


def _rows(problem: bx.BilevelProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the values of all rows beside their bounds; both come in the record's order."""
    rows = problem.rows(x, y)
    return np.array([np.concatenate([np.zeros(0), *part]) for part in (rows, *problem.row_bounds(rows))])


@pytest.mark.slow
@every_problem
def test_the_best_answer_is_certified(name):
    entry = textbook.load(name)
    certificate = bx.certify(entry.problem, entry.best_x)
    assert certificate.value == pytest.approx(entry.best_value, rel=1e-7, abs=1e-7)
    np.testing.assert_allclose(certificate.y, entry.best_y, atol=2e-5)
    assert certificate.lower_feasible
    assert certificate.x_infeasibility <= 1e-9
    assert certificate.stationarity <= 1e-6


def test_one_is_solved_from_its_start():
    entry = textbook.load("Yezza1996Ex41")
    solution = bx.solve(entry.problem, entry.x0, y0=entry.y0)
    assert solution.success, solution.message
    assert solution.value == pytest.approx(entry.best_value, abs=1e-6)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"expected one of Bard1988Ex1, .*, got 'Bard1988'"):
        textbook.load("Bard1988")


@pytest.mark.slow
@every_problem
def test_the_best_answer_is_proven_to_be_global(name):
    known = textbook.load(name)
    proof = bx.prove(known.problem, known.x0, gap=1e-6)
    margin = 1e-6 * max(1.0, abs(known.best_value))
    assert proof.proven
    assert known.best_value - 2 * margin <= proof.lower_bound <= known.best_value + margin
