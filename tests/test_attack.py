"""The attack's judge can say both right and wrong, and a slice of the attack finds nothing wrong."""

import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize

from attack.families import FAMILIES
from attack.families.table import closed_form, row
from attack.judge import judge
from attack.judge.descent import DISTANCES, find_descent
from attack.judge.enumeration import standard
from attack.judge.followers import BallQuadratic, Leader, Quadratic
from attack.judge.global_optimum import complaint
from attack.model import Ball, Box, Claim, Expect, Problem, Rows, free
from attack.report import complaints, passed, table
from attack.runner import Result, plan, run_case
from attack.subject import build, ones
from known import present

# All kinds of cases, few of each: what has to hold of every seed is asked of these in every test run.
SLICE = [
    *(("units-x", 1), ("units-y", 3), ("units-xy-together", 3), ("units-all", 0), ("units-all", 1)),
    *((f"table-{line}", 2) for line in (1, 2, 4, 5, 6, 7, 8, 9)),
    *((name, 1) for name in ("table-2", "table-6-hinge", "power-4", "table-7", "nonconvex-waves", "nonsmooth")),
    *((name, 0) for name in ("qp-integer", "kink-optimum", "border", "lp-ties", "ball-x", "wrong-point-others")),
    *((name, 0) for name in ("proof-qp", "proof-qp-integer", "proof-lp-ties", "proof-half-infeasible")),
    *((name, 1) for name in ("proof-functions", "proof-bent-rows")),
    *((name, 0) for name in ("near-optimum", "no-minimiser-softplus", "unbounded-phi", "lower-unbounded", "entropy")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "index"), SLICE)
def test_no_success_is_wrong(family, index):
    result = run_case(family, 0, index)
    assert result.outcome not in ("wrong", "error"), complaints([result], 0)


def test_bounds_beyond_the_optimum_are_complained_about():
    assert complaint(1.0, 0.9999, 1.0, True) == ""
    assert "above" in complaint(1.0, 1.1, 1.2, False)
    assert "below" in complaint(1.0, 0.5, 0.9, False)
    assert "called proven" in complaint(1.0, 1.0, 1.1, True)
    assert "there is none" in complaint(np.inf, 0.0, 1.0, False)


def kinked() -> Problem:
    """y = min(x, 1 - x), f = 0.1 x^2 - y: the example of docs/certificates.md, its minimum a kink at 0.5."""
    upper = lambda xp, x, y, d: 0.1 * x[0] ** 2 - y[0]
    lower = lambda xp, x, y, d: (y[0] - x[0]) ** 2
    rows = row([1.0], [1.0], high=1.0)
    limits = standard(1, rows, None)
    follower = Quadratic(np.array([[2.0]]), np.array([[-2.0]]), np.zeros(1), limits)
    return Problem(upper, lower, {}, Box(np.zeros(1), np.full(1, 3.0)), free(1), np.zeros(1), follower, rows)


def claim(problem: Problem, *x: float) -> Claim:
    """The truth about a point, as a claim."""
    point = np.array(x)
    y = problem.follower.respond(problem.x_set.project(point), 1e-6)
    assert y is not None
    return Claim(point, y, problem.f(point, y))


@pytest.mark.parametrize("shift", [0.0, 1e-8, -1e-8, 1e-7, -1e-7, 1e-6])
def test_a_kink_is_a_minimum(shift):
    assert judge(kinked(), claim(kinked(), 0.5 + shift)).right


@pytest.mark.parametrize("x", [0.0, 0.45, 0.499, 0.501, 0.7, 3.0])
def test_beside_the_kink_it_descends(x):
    verdict = judge(kinked(), claim(kinked(), x))
    assert not verdict.right
    assert "descends" in verdict.reason


def test_each_part_of_a_claim_is_looked_at():
    problem, right = kinked(), claim(kinked(), 0.5)
    for wrong, word in (
        (right._replace(value=right.value + 1e-4), "value"),
        (right._replace(y=right.y + 1e-3), "y is infeasible"),
        (right._replace(y=right.y - 1e-2), "y is not optimal"),
        (right._replace(x=np.array([-0.1])), "outside X"),
        (right._replace(value=np.nan), "not finite"),
    ):
        verdict = judge(problem, wrong)
        assert not verdict.right
        assert word in verdict.reason


@pytest.mark.parametrize(
    ("phi", "descends"),
    [
        (lambda x: x @ x, False),
        (lambda x: -(x @ x), False),  # a smooth maximum is stationary
        (lambda x: x[0] ** 2 - x[1] ** 2, False),
        (lambda x: np.abs(x).sum(), False),
        (lambda x: np.abs(x - 1e-6).sum(), False),  # as near to the kink as rtol allows
        (lambda x: 0.5 * abs(x[0]) + 1e-3 * x[0] + x[1] ** 2, False),
        (lambda x: abs(x[0]) if abs(x[0]) < 1e-4 else 2e-4 - abs(x[0]), False),  # behind a barrier
        (lambda x: np.inf if x[0] > 0 else -x[0], False),  # a border of feasibility
        (lambda x: x[0] ** 3 + x[1] ** 2, False),
        (lambda x: 1e-3 * x[0] + x @ x, True),
        (lambda x: np.abs(x).sum() - 1.1 * x[0], True),
        (lambda x: -abs(x[0]), True),  # a kink that is a maximum
        (lambda x: abs(x[0] - x[1]) + 0.1 * (x[0] + x[1]), True),  # a narrow valley: neither coordinate descends
        (lambda x: 30 * abs(x[0] - 0.37 * x[1]) + 0.1 * (x[0] + x[1]), True),  # a steep one
        (lambda x: -max(x[0], 0.0), True),
    ],
)
def test_descent_is_of_first_order(phi, descends):
    random = np.random.default_rng(0)
    found = find_descent(lambda p: -phi(p), np.zeros(2), free(2), np.ones(2), random)
    assert (found is not None) == descends


def test_distances_are_small():
    assert DISTANCES[0] == 1e-2
    assert DISTANCES[-1] < 2e-6


@pytest.mark.parametrize("seed", range(6))
def test_enumeration_agrees_with_slsqp(seed):
    case = FAMILIES["qp"].draw(seed, 0)
    problem = case.problem
    x, rows = case.problem.x0, case.problem.rows
    assert rows is not None
    y = problem.follower.respond(x, 1e-9)
    limits = standard(x.size, rows, problem.y_set)
    b, _ = limits.at(x)
    start = np.zeros(problem.y_set.size) if y is None else y + 0.1
    options = {"ftol": 1e-14, "maxiter": 500}
    found = minimize(
        lambda y: problem.g(x, y),
        start,
        constraints={"type": "ineq", "fun": lambda y: b - limits.A @ y},
        method="SLSQP",
        options=options,
    )
    assert (y is None) == (not found.success)
    if y is not None:
        np.testing.assert_allclose(y, found.x, atol=1e-5)


def test_ties_are_broken_in_the_leaders_favour():
    limits = standard(1, None, Box(np.zeros(2), np.ones(2)))
    for goal, best in ((0.3, 0.3), (2.0, 1.0), (-1.0, 0.0)):  # y1 costs nothing, the leader wants it at goal
        leader = Leader(np.diag([0.0, 1.0]), lambda x, goal=goal: np.array([0.0, -goal]))
        follower = Quadratic(np.zeros((2, 2)), np.zeros((2, 1)), np.array([-1.0, 0.0]), limits, leader)
        np.testing.assert_allclose(present(follower.respond(np.zeros(1), 1e-9)), [1.0, best], atol=1e-12)


def test_infeasible_lower_levels_have_no_answer():
    rows = Rows(np.array([[1.0], [-1.0]]), np.array([[0.0], [1.0]]), np.full(2, -np.inf), np.zeros(2))  # x <= y <= 0
    follower = Quadratic(np.eye(1), np.zeros((1, 1)), np.zeros(1), standard(1, rows, None))
    assert follower.respond(np.array([1e-3]), 1e-6) is None
    assert follower.respond(np.array([1e-8]), 1e-6) is not None
    assert follower.respond(np.array([1e-8]), 1e-9) is None


def test_ball_by_the_secular_equation():
    ball = Ball(1.0, np.zeros(2))
    follower = BallQuadratic(np.eye(2), -np.eye(2), np.zeros(2), ball.radius, ball.center)
    np.testing.assert_allclose(present(follower.respond(np.array([3.0, 4.0]), 1e-9)), [0.6, 0.8], atol=1e-14)
    np.testing.assert_allclose(present(follower.respond(np.array([0.3, 0.4]), 1e-9)), [0.3, 0.4], atol=1e-14)


def test_the_table_is_refuted():
    """What was once called a success, in the words of issue 12."""
    for name in ("table-1", "table-2"):
        case = FAMILIES[name].draw(0, 2)
        assert case.point is not None
        assert "descends" in judge(case.problem, claim(case.problem, *case.point)).reason
    absolute = FAMILIES["table-4"].draw(0, 0).problem
    absolute.data.update(k=1.0, a=0.0, b=1.0)
    wanted = closed_form(absolute.upper, absolute.lower, absolute.data, lambda x: [x[0], -1.0, 1.0])
    assert not judge(wanted, Claim(np.ones(1), np.zeros(1), 1.0)).right
    assert judge(wanted, Claim(np.full(1, 0.5), np.full(1, 0.5), 0.5)).right
    assert FAMILIES["table-5"].draw(0, 0).expect is Expect.REFUSAL
    sixth = FAMILIES["table-7"].draw(0, 0).problem
    sixth.data.update(k=1.0, s=1.0, w=0.0, b=0.0)
    assert "value" in judge(sixth, Claim(np.full(1, -3.0), np.full(1, -3.00097), -3.00097)).reason
    assert judge(sixth, Claim(np.full(1, -3.0), np.full(1, -3.0), -3.0)).right


def test_tolls_have_one_value():
    """One road with a toll costs 2 + x, the other 7: at x = 5 the traveller takes the leader's."""
    tolls = FAMILIES["table-9"].draw(0, 0).problem
    demand = row([1.0, 1.0], [0.0], 1.0, 1.0)
    y_set = Box(np.zeros(2), np.ones(2))
    leader = Leader(np.zeros((2, 2)), lambda x: np.r_[-x, 0.0])
    costs, tolled = np.array([2.0, 7.0]), np.array([[1.0], [0.0]])
    follower = Quadratic(np.zeros((2, 2)), tolled, costs, standard(1, demand, y_set), leader)
    problem = Problem(
        tolls.upper,
        tolls.lower,
        {"cost": costs},
        Box(np.zeros(1), np.full(1, 20.0)),
        y_set,
        np.ones(1),
        follower,
        demand,
    )
    at = lambda x, share, value: judge(problem, Claim(np.array([x]), np.array([share, 1 - share]), value))
    assert at(5.0, 1.0, -5.0).right
    assert at(5.0 - 1e-9, 1.0, -5.0).right
    assert at(5.0 + 1e-9, 1.0, -5.0).right
    assert not at(5.0, 0.5, -2.5).right
    assert not at(4.0, 1.0, -4.0).right


@pytest.mark.parametrize("family", list(FAMILIES))
def test_cases_are_drawn_again_alike(family):
    first, second = (FAMILIES[family].draw(3, 1) for _ in range(2))
    np.testing.assert_array_equal(first.problem.x0, second.problem.x0)
    y = np.full(first.problem.y_set.size, 0.3)
    assert first.problem.f(first.problem.x0, y) == second.problem.f(second.problem.x0, y)
    assert first.problem.g(first.problem.x0, y) == second.problem.g(second.problem.x0, y)


@pytest.mark.parametrize("mode", ["x", "y", "all"])
def test_units_do_not_change_the_problem(mode):
    case = FAMILIES[f"units-{mode}"].draw(0, 0)
    assert case.units is not None
    problem, units = case.problem, case.units
    stated = build(case)
    x, y = problem.x0, np.linspace(0.2, 0.4, problem.y_set.size)
    assert float(stated.upper_value(x / units.x, y / units.y)) == pytest.approx(units.f * problem.f(x, y), rel=1e-4)
    assert float(stated.lower_value(x / units.x, y / units.y)) == pytest.approx(units.g * problem.g(x, y), rel=1e-4)
    plain = dataclasses.replace(case, units=None)
    assert (ones(plain).x == 1).all()


def test_plan_and_report():
    tasks = plan(["a", "b", "c"], 5, 7)
    assert [len(task.indices) for task in tasks] == [3, 2, 2]
    right = Result("qp", 0, "right", True, True, 1.0)
    missed = dataclasses.replace(right, outcome="missed", success=False, index=1, words="stalled")
    wrong = dataclasses.replace(right, outcome="wrong", index=2, words="value")
    assert passed([right] * 50 + [missed])
    assert not passed([right] * 20 + [missed])
    assert not passed([right] * 500 + [wrong])
    assert table([right, missed, wrong]).splitlines()[-1].split()[:5] == ["total", "3", "2", "1", "1"]
    assert complaints([missed, wrong], 4)[0].startswith("wrong     make attack FAMILY=qp SEED=4 CASE=2")
