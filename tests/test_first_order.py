"""The default's first-order variant: the same answers without factorising, and problems too large to factorise."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.driver import verdict
from bilevax.model.flat import FlatProblem
from bilevax.problems.quadratic import random_quadratic
from bilevax.problems.toy import LOCAL_MINIMA, toy
from bilevax.solvers.default.attempts import Attempt, Attempts
from bilevax.solvers.default.first_order import oracle as first_order
from bilevax.solvers.default.first_order import sweeps as first_order_sweeps
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.programs.upper_set import UpperSet
from known import present
from stopwatch import Stopwatch

SOLVER = bx.Default(variant="first-order")


@pytest.mark.parametrize("start", [0.7, 1.5, 2.2, 3.0])
def test_toy_takes_few_sweeps(start):
    solution = bx.solve(toy(), start, solver=SOLVER)
    assert solution.success, solution.message
    assert min(abs(float(solution.x) - minimum) for minimum in LOCAL_MINIMA) <= 1e-6
    assert 0 < solution.stats["sweeps"] <= 60
    assert solution.history["sweeps"][-1] == solution.stats["sweeps"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"n_equalities": 2}, {"box": 1.0}, {"condition": 1e4}], ids=str)
def test_random_quadratics_are_certified(options):
    problem, _ = random_quadratic(3, 6, 4, upper="quadratic", seed=1, with_theta_bar=False, **options)
    solution = bx.solve(problem, np.zeros(3), solver=SOLVER)
    assert solution.success, solution.message


@pytest.mark.slow
def test_ends_once_exact_descents_agree():
    problem, _ = random_quadratic(upper="quadratic")
    solution = bx.solve(problem, np.zeros(3), solver=SOLVER)
    phases, sweeps = list(solution.history["phase"]), solution.history["sweeps"]
    last_smooth = max(index for index, phase in enumerate(phases) if phase == "smooth descent")
    assert phases.index("exact descent") < last_smooth < len(phases) - 2
    assert sweeps[last_smooth] == solution.stats["sweeps"]  # none after the point from which the last one began
    assert solution.value == pytest.approx(np.nanmin(solution.history["best"]), rel=1e-12)


def _attempts(*outcomes):
    """Exact descents that came to values in so many steps, None for none, from points of these slopes."""
    attempts = Attempts(cast(Any, None), 1e-6)
    for value, steps, slope in outcomes:
        answer = None if value is None else ExactPoint(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), value)
        attempts.made.append(Attempt(answer, True, steps, slope))
    return attempts


def test_answers_agree_only_where_the_smooth_descent_has_come_far():
    assert _attempts((2.0, 3, 1.0), (2.0, 3, 0.2)).agree
    assert not _attempts((2.0, 3, 1.0), (2.0, 3, 0.9)).agree
    assert not _attempts((2.0, 3, 1.0), (2.1, 3, 0.2)).agree
    assert not _attempts((2.0, 3, 1.0), (None, 0, 0.2)).agree
    assert not _attempts((2.0, 3, 0.1)).agree
    best = _attempts((2.0, 3, 1.0), (2.1, 3, 0.2), (2.1, 3, 0.2)).best
    assert best is not None
    assert best[0].value == 2.0


def test_exact_descents_take_no_more_work_than_the_smooth_one():
    attempts = _attempts((2.0, 9, 1.0), (2.1, 3, 0.2))
    assert not attempts.affordable(5)
    assert attempts.affordable(6)
    assert _attempts((2.0, 3, 1.0)).settled(2.5)
    assert not _attempts((2.0, 3, 1.0)).settled(1.5)


def test_agrees_with_the_direct_variant():
    problem, _ = random_quadratic(upper="quadratic")
    variants = bx.Default(variant="direct"), SOLVER
    answers = [bx.solve(problem, np.zeros(3), solver=variant) for variant in variants]
    assert all(answer.success for answer in answers)
    assert abs(answers[0].value - answers[1].value) <= 0.05 * (1 + abs(answers[0].value))
    assert "sweeps" not in answers[0].stats


def _oracle(problem, x, y_size):
    flat = FlatProblem(problem, jnp.asarray(x), jax.ShapeDtypeStruct((y_size,), np.float64))
    return first_order.PairOracle(flat, UpperSet(flat.x_rows), x, np.full(y_size, 0.1))


@pytest.mark.slow
def test_gradient_is_that_of_the_value():
    random = np.random.default_rng(0)
    matrix, mixed, target = random.standard_normal((4, 6)), random.standard_normal((6, 3)), random.standard_normal(6)
    problem = bx.BilevelProblem(
        lambda x, y, d: jnp.sum(jnp.log1p((y - d["target"]) ** 2)) + jnp.sum(jnp.cos(x)),
        lambda x, y, d: jnp.sum(jnp.cosh(y)) + y @ (d["mixed"] @ x),
        [
            bx.LinearCoupling(matrix[:2], random.standard_normal((2, 3)), upper=0.1),
            bx.AffineCoupling(lambda x, y, d: d["rows"] @ y - x[:2] + 0.3, lower=-0.2, upper=[0.2, np.inf]),
        ],
        y_set=bx.Box(-0.5, 0.5),
        data={"mixed": mixed, "target": target, "rows": matrix[2:]},
    )
    x = random.standard_normal(3)
    with jax.enable_x64(True):
        oracle = _oracle(problem, x, 6)
        smoothing = first_order.Pair(0.1, 1e-2, 2.0, 0.1)
        warm = oracle.refine(present(oracle.evaluate(x, smoothing, present(oracle.begin()))))

        def accurate(x):
            point = present(oracle.evaluate(x, smoothing, present(warm)))
            return present(oracle._evaluate(x, smoothing, point.state, share=1e-9))

        point = accurate(x)
        for direction in np.eye(3):
            slope = (accurate(x + 1e-4 * direction).value - accurate(x - 1e-4 * direction).value) / 2e-4
            assert slope == pytest.approx(direction @ point.gradient, abs=1e-5 * (1 + np.abs(point.gradient).max()))


@pytest.mark.slow
def test_where_the_upper_objective_is_no_number_sweeps_end_at_once():
    upper = lambda x, y: jnp.sum((x - 0.2) ** 2) + 0 * jnp.sum(y) + 0 * jnp.sum(jnp.sqrt(x - 0.6))
    problem = bx.BilevelProblem(upper, lambda x, y: jnp.sum((y - x) ** 2), y_like=np.zeros(1))
    oracle = _oracle(problem, np.ones(1), 1)
    point = oracle.begin()
    assert point is not None
    oracle.sweeps = 1000  # later than the last look at the step sizes, which would end them, too
    assert oracle.evaluate(np.array([0.5]), point.smoothing, point) is None
    assert oracle.sweeps - 1000 <= first_order.FIRST_ORDER.blind_sweeps


def test_new_numbers_compile_nothing():
    with jax.enable_x64(True):
        counts, sweeps = [], cast(Any, first_order_sweeps.sweep_until_accurate)
        for seed in (0, 1):
            problem, _ = random_quadratic(seed=seed)
            bx.solve(problem, np.zeros(3), solver=SOLVER, rtol=10.0 ** (-6 + seed))
            counts.append(sweeps._cached._cache_size())
    assert counts[0] == counts[1]


def _chain(size):
    """A tracking problem on a long chain: y follows x smoothly, limited from above."""
    bends = sp.diags([np.full(size - 1, -0.2), np.ones(size), np.full(size - 1, -0.2)], [-1, 0, 1])
    spread = sp.csr_matrix((np.ones(size), (np.arange(size), np.arange(size) % 3)), shape=(size, 3))
    group = np.arange(size) % 3
    return bx.BilevelProblem(
        lambda x, y: 0.5 * jnp.mean((y - 0.8) ** 2) + 0.05 * jnp.sum(x**2),
        lambda x, y: 0.5 * jnp.sum((y - x[group]) ** 2),
        bx.LinearCoupling(A=bends, B=-0.1 * spread, upper=0.4),
        x_set=bx.Box(-2.0, 2.0),
    )


@pytest.mark.slow
def test_large_problems_are_not_refused():
    solution = bx.solve(_chain(7000), np.zeros(3), solver=SOLVER)
    small = bx.solve(_chain(300), np.zeros(3), solver=SOLVER)
    assert small.success
    assert solution.stats["sweeps"] > 0
    assert solution.certificate.lower_feasible
    assert solution.value == pytest.approx(small.value, rel=1e-2)


def test_ball_as_lower_set():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((y - jnp.array([0.0, 1.0])) ** 2) + 0.1 * jnp.sum((x - 2.0) ** 2),
        lambda x, y: jnp.sum((y - x) ** 2),
        y_set=bx.Ball(1.0),
        y_like=np.zeros(2),
    )
    solution = bx.solve(problem, np.array([0.3, -0.4]), solver=bx.Default(variant="first-order"))
    assert solution.stats["sweeps"] > 0
    assert solution.success, solution.message


def test_infeasible_start_comes_back():
    # The lower level is feasible only for x >= -0.5; f alone would draw x to -2.
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((x + 2.0) ** 2) + jnp.sum(y**2),
        lambda x, y: jnp.sum((y - 1.0) ** 2),
        bx.LinearCoupling(A=np.array([[1.0], [-1.0]]), B=np.array([[-1.0], [-1.0]]), upper=np.array([0.5, 0.5])),
    )
    solution = bx.solve(problem, np.array([-1.5]), solver=SOLVER)
    assert solution.success, solution.message
    assert solution.x == pytest.approx(np.array([-0.5]), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "links"), [("auto", 15_000), ("first-order", 8_000)])
def test_time_limit_is_kept_within_a_second(variant, links, monkeypatch):
    problem, solver, stopwatch, stopped = _chain(links), bx.Default(variant=variant), Stopwatch(), []

    def certify(*arguments, **options):
        stopped.append(stopwatch.seconds())
        return genuine(*arguments, **options)

    genuine = verdict.certify_flat
    monkeypatch.setattr(verdict, "certify_flat", certify)

    def seconds_until_certified(**options):
        began = stopwatch.seconds()
        return bx.solve(problem, np.zeros(3), solver=solver, **options), stopped[-1] - began

    seconds_until_certified(max_steps=2)  # compiled before the clock counts
    _, unlimited = seconds_until_certified()
    limit = 0.3 * unlimited  # so that it ends a run on a machine of any speed
    solution, taken = seconds_until_certified(time_limit=limit)
    # The certificate of the answer comes after the limit, and is not part of it.
    assert solution.status is bx.Status.TIME_LIMIT
    assert taken <= limit + 1


@pytest.mark.slow
def test_a_look_at_the_clock_changes_nothing(monkeypatch):
    problem, _ = random_quadratic(3, 6, 4, upper="quadratic", seed=1, condition=1e4, with_theta_bar=False)
    whole = bx.solve(problem, np.zeros(3), solver=SOLVER)
    random, looks = np.random.default_rng(0), []

    def impatient(self):
        looks.append(self.sweeps)
        return int(random.integers(1, 9))

    monkeypatch.setattr(first_order.PairOracle, "_patience", impatient)
    watched = bx.solve(problem, np.zeros(3), solver=SOLVER)
    assert len(looks) > 2 * len(set(looks))  # most calls are pauses of one loop
    assert watched.stats["sweeps"] == whole.stats["sweeps"]
    np.testing.assert_array_equal(watched.history["upper"], whole.history["upper"])
    np.testing.assert_array_equal(watched.x, whole.x)


def test_wrong_variant_is_refused():
    with pytest.raises(ValueError, match="first-order"):
        bx.Default(variant="fast")  # type: ignore[arg-type]
