"""Phi where the lower level has several minimisers, one that is hard to know, or none; and the challenge."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from known import present

COSTS = np.array([10.0, 20.0])


def toll(choice: Any = "optimistic"):
    """Two roads for 4.5 travellers: the first costs 10 and a toll x, the second 20. At x = 10 they do not care."""
    return bx.BilevelProblem(
        upper=lambda x, y: -x * y[0],
        lower=lambda x, y: (COSTS[0] + x) * y[0] + COSTS[1] * y[1],
        coupling=bx.LinearCoupling(A=np.ones((1, 2)), lower=4.5, upper=4.5),
        x_set=bx.Box(0.0, 30.0),
        y_set=bx.NonNegative(),
        choice=choice,
    )


@pytest.mark.slow
@pytest.mark.parametrize("y", [None, [4.5, 0.0], [0.0, 4.5], [2.0, 2.5]], ids=str)
@pytest.mark.parametrize(("choice", "value"), [("optimistic", -45.0), ("pessimistic", 0.0)])
def test_ties_have_one_phi_whatever_y_was_given(y, choice, value):
    certificate = bx.certify(toll(choice), 10.0, y=None if y is None else np.array(y))
    assert certificate.value == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(certificate.value_range, (-45.0, 0.0), atol=1e-9)
    assert not certificate.lower_unique
    exact = bx.solve_lower_level(toll(choice), 10.0, start=None if y is None else np.array(y))
    assert -10.0 * exact.y[0] == pytest.approx(value, abs=1e-9)


def test_toll_setting_is_solved_and_confirmed_without_its_y():
    solution = bx.solve(toll(), 1.0)
    assert solution.success
    assert solution.value == pytest.approx(-45.0)
    assert bx.certify(toll(), solution.x).confirms(1e-6)


@pytest.mark.parametrize("x", [9.9, 10.1])
def test_beside_a_tie_there_is_one_minimiser(x):
    certificate = bx.certify(toll(), x)
    assert certificate.lower_unique
    assert not certificate.confirms(1e-6)


def test_choice_is_checked():
    with pytest.raises(ValueError, match="choice: expected one of optimistic, pessimistic, got 'best'"):
        toll("best")


def test_no_minimiser():
    problem = bx.BilevelProblem(lambda x, y: x**2 + y, lambda x, y: jnp.exp(y), x_set=bx.Box(-3.0, 3.0), y_like=0.0)
    assert bx.certify(problem, 0.5).failure is bx.Status.LOWER_UNBOUNDED
    assert not bx.solve(problem, 0.5).success


@pytest.mark.parametrize(
    ("f_along", "g_along", "failure"),
    [
        (lambda y: 0.0, lambda y: 0.0, None),
        (lambda y: (y - 2) ** 2, lambda y: 0.0, None),  # the leader chooses among minimisers without bound
        (lambda y: 0.0, lambda y: 1e-6 * y, bx.Status.LOWER_UNBOUNDED),
        (lambda y: 0.0, lambda y: jnp.exp(-y), bx.Status.LOWER_UNBOUNDED),
    ],
)
def test_minimisers_on_whole_lines_are_minimisers(f_along, g_along, failure):
    problem = bx.BilevelProblem(
        lambda x, y: (y[0] - y[1] - 1) ** 2 + 0.1 * x**2 + f_along(y[1]),
        lambda x, y: jnp.cosh(y[0] - y[1] - x) + g_along(y[1]),
        y_like=np.zeros(2),
    )
    found = bx.certify(problem, 10 / 11)
    assert found.failure is failure
    assert not found.lower_unique
    if failure is None:
        assert found.value == pytest.approx(1 / 11, abs=1e-8)
        differs = np.isinf(found.value_range[1])
        assert differs or found.confirms(1e-6), found.objection(1e-6)


def test_a_flat_bottom_is_not_unique():
    problem = bx.BilevelProblem(
        lambda x, y: x**2 + y,
        lambda x, y: jnp.maximum(0.0, jnp.abs(y - x) - 1) ** 2,
        x_set=bx.Box(-3.0, 3.0),
        y_like=0.0,
    )
    solution = bx.solve(problem, 0.3)
    assert not solution.certificate.lower_unique
    if solution.success:  # the best is y = x - 1, so that Phi = x^2 + x - 1
        assert solution.value == pytest.approx(-1.25, abs=1e-6)


def test_what_is_known_of_a_very_flat_minimum():
    problem = bx.BilevelProblem(lambda x, y: y, lambda x, y: (y - x) ** 6, x_set=bx.Box(-3.0, 3.0), y_like=0.0)
    certificate = bx.certify(problem, -3.0)
    assert certificate.value == pytest.approx(-3.0, abs=1e-9)
    low, high = certificate.value_range
    assert low <= -3.0 <= high
    # g is 1e-18 at y = -2.999: what is claimed must not be more than g can tell.
    assert certificate.value_error > 1e-3
    assert not certificate.confirms(1e-6)


# --- what g is


def test_a_kink_in_g_is_named_with_its_rewriting():
    problem = bx.BilevelProblem(
        lambda x, y: (x - 1) ** 2 + y**2, lambda x, y: jnp.abs(y - x) + y**2 / 2, x_set=bx.Box(-3.0, 3.0), y_like=0.0
    )
    solution = bx.solve(problem, 0.3)
    assert solution.status is bx.Status.NOT_SMOOTH
    assert "abs" in solution.message
    assert "rows" in solution.message


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_smooth_functions_with_branches_inside_are_not_refused(level):
    plain = lambda x, y: (x - 1) ** 2 + y**2
    branching = lambda x, y: jnp.logaddexp(0.0, y - x) + jnp.where(x > 0, x, x) * 0.1 + (y - 1) ** 2 + x**2
    objectives = (branching, plain) if level == "upper" else (plain, branching)
    solution = bx.solve(bx.BilevelProblem(*objectives, x_set=bx.Box(-3.0, 3.0), y_like=0.0), 0.3)
    assert solution.success, solution.message


def test_a_g_that_is_not_convex_elsewhere_is_refuted():
    problem = bx.BilevelProblem(
        lambda x, y: (x - 1) ** 2 + y, lambda x, y: (y**2 - 1) ** 2 + 0.3 * x * y, x_set=bx.Box(-3.0, 3.0), y_like=0.0
    )
    solution = bx.solve(problem, 0.3, y0=0.9)
    assert solution.status is bx.Status.LOWER_NOT_CONVEX
    assert solution.certificate.lower_convexity == "refuted"
    assert "curves down at y" in solution.message


def test_a_quadratic_has_to_be_convex_only_along_its_equality_rows():
    """y0^2 - y1^2 / 2 with y0 = y1: convex on the row, not across it."""
    problem = bx.BilevelProblem(
        lambda x, y: (y[0] - 1) ** 2 + x**2,
        lambda x, y: y[0] ** 2 - y[1] ** 2 / 2 - x * y[0],
        bx.LinearCoupling(A=[[1.0, -1.0]], lower=0.0, upper=0.0),
        x_set=bx.Box(-3.0, 3.0),
    )
    assert bx.certify(problem, 0.5).lower_convexity == "proven"


# --- the challenge


def test_a_point_that_is_not_stationary_in_bad_units_is_refuted():
    size = 1e5
    problem = bx.BilevelProblem(
        lambda x, y: ((x[0] - size) / size) ** 2 - y + x[1] / 2,
        lambda x, y: (y - x[1]) ** 2,
        bx.LinearCoupling(A=1.0, upper=3.0),
        x_set=bx.Box([0.0, -50.0], [2 * size, 50.0]),
    )
    certificate = bx.certify(problem, np.array([size, 2.0]))
    assert not certificate.confirms(1e-6)
    descent = present(certificate.descent)
    assert descent.value < certificate.value
    assert bx.certify(problem, descent.x).value == pytest.approx(descent.value, rel=1e-9)
    assert bx.solve(problem, np.array([size / 2, 2.0])).value == pytest.approx(-1.5, abs=1e-6)


def test_a_smooth_maximum_is_refuted_although_its_gradient_vanishes():
    problem = bx.BilevelProblem(
        lambda x, y: -(x**2) + y**2 / 4, lambda x, y: (y - x) ** 2, x_set=bx.Box(-1.0, 1.0), y_like=0.0
    )
    certificate = bx.certify(problem, 0.0)
    assert certificate.stationarity <= 1e-9
    assert certificate.descent is not None
    assert not certificate.confirms(1e-6)
    assert "smaller Phi" in present(certificate.objection(1e-6))


def test_the_search_goes_on_from_where_its_answer_was_refuted():
    problem = bx.BilevelProblem(
        lambda x, y: -(x**2) + y**2 / 4, lambda x, y: (y - x) ** 2, x_set=bx.Box(-1.0, 1.0), y_like=0.0
    )
    solution = bx.solve(problem, 0.0)
    assert solution.success
    assert abs(solution.x) == pytest.approx(1.0)


def test_a_phi_without_bound_says_so():
    problem = bx.BilevelProblem(
        lambda x, y: -x + y / 2, lambda x, y: (y - x) ** 2, x_set=bx.Box(0.0, np.inf), y_like=0.0
    )
    solution = bx.solve(problem, 1.0)
    assert solution.status is bx.Status.UNBOUNDED
    assert not solution.success


@pytest.mark.parametrize("pinned", [0.0, 1.0])
def test_f_need_be_convex_only_along_the_minimisers(pinned):
    """Their set is -1 <= y0 <= 2 with y1 = 3: y0 y1 is not convex, but it is along them.

    Without a cost of y1 only the rows ``y1 <= 3`` and ``y1 + y2 >= 3``, y2 <= 0, hold it there: none has a multiplier.
    """
    problem = bx.BilevelProblem(
        lambda x, y: (x[0] - 1.0) ** 2 + y[0] * y[1],
        lambda x, y: -pinned * y[1],
        bx.LinearCoupling(np.array([[0.0, 1.0, 1.0]]), lower=3.0),
        y_set=bx.Box(np.array([-1.0, -9.0, -9.0]), np.array([2.0, 3.0, 0.0])),
    )
    certificate = bx.certify(problem, np.ones(1))
    assert certificate.value == pytest.approx(-3.0)
    assert certificate.value_range == pytest.approx((-3.0, 6.0))
    assert certificate.confirms(1e-6)
