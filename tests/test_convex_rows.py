"""Rows of the lower level that are not affine: tangent problems, in search and certificate."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx


def reach(x, y):
    return jnp.sum((y - jnp.array([0.6, 0.8])) ** 2) + (x @ x - 4.0) ** 2


def along(x, y):
    return -x @ y


def on_the_disc(row=lambda x, y: y @ y - 1.0, g=along, **parts):
    """y = x / |x|, with multiplier |x| / 2; the leader wants y = (0.6, 0.8) and |x| = 2."""
    return bx.BilevelProblem(reach, g, bx.ConvexCoupling(row), y_like=np.zeros(2), **parts)


def test_the_follower_on_a_disc():
    answer = bx.solve_lower_level(on_the_disc(), np.array([3.0, 4.0]))
    np.testing.assert_allclose(answer.y, [0.6, 0.8], atol=1e-10)
    np.testing.assert_allclose(answer.multipliers, 2.5, rtol=1e-8)


@pytest.mark.slow
def test_the_leader_against_a_follower_on_a_disc():
    solution = bx.solve(on_the_disc(), np.array([1.0, -0.5]))
    assert solution.success, solution.message
    np.testing.assert_allclose(solution.x, [1.2, 1.6], atol=1e-4)  # f is flat: its square root counts
    np.testing.assert_allclose(solution.y, [0.6, 0.8], atol=1e-5)
    assert solution.certificate.lower_convexity == "proven"


@pytest.mark.slow
def test_a_matrix_that_depends_on_x():
    # Outrata (1990), example 2d; the value is that of the literature.
    rows = lambda x, y: jnp.stack([(-0.333 + 0.1 * x) * y[0] + y[1] - x, y[0] + (-0.333 - 0.1 * x) * y[1] - 2.0])
    problem = bx.BilevelProblem(
        lambda x, y: 0.5 * (y[0] - 3.0) ** 2 + 0.5 * (y[1] - 4.0) ** 2,
        lambda x, y: 0.5 * (y @ y) - (3.0 + 1.333 * x) * y[0] - x * y[1],
        bx.ConvexCoupling(rows),
        bx.Box(0.0, np.inf),
        bx.NonNegative(),
    )
    solution = bx.solve(problem, 1.0, y0=np.zeros(2))
    assert solution.success, solution.message
    assert solution.value == pytest.approx(0.8485054, abs=1e-6)


@pytest.mark.slow
def test_the_search_goes_as_far_whatever_the_unit_of_f():
    small = lambda x, y: 1e-6 * (reach(x, y) + jnp.sum(x))
    problem = bx.BilevelProblem(small, along, bx.ConvexCoupling(lambda x, y: y @ y - 1.0), y_like=np.zeros(2))
    solution = bx.solve(problem, np.array([1.0, -0.5]))
    assert solution.success
    assert solution.stats["steps"] <= 30  # 66 without looking where the steps lead


def test_certified_on_the_disc_and_not_next_to_its_answer():
    problem = on_the_disc()
    assert bx.certify(problem, np.array([1.2, 1.6])).confirms(1e-6)
    near = bx.certify(problem, np.array([1.3, 1.6]))
    assert near.failure is None
    assert near.stationarity > 1e-2


def test_one_row_among_affine_ones():
    # The affine row cuts the disc; the multipliers come back in the order of the couplings.
    rows = (bx.LinearCoupling(A=[[1.0, 0.0]], upper=0.2), bx.ConvexCoupling(lambda x, y: {"disc": y @ y}, upper=1.0))
    problem = bx.BilevelProblem(reach, along, rows, y_like=np.zeros(2))
    answer = bx.solve_lower_level(problem, np.array([3.0, 4.0]))
    np.testing.assert_allclose(answer.y, [0.2, np.sqrt(0.96)], atol=1e-9)
    held, disc = answer.multipliers
    np.testing.assert_allclose(disc["disc"], 4.0 / (2 * np.sqrt(0.96)), rtol=1e-7)
    np.testing.assert_allclose(held, [3.0 - 2 * disc["disc"] * 0.2], rtol=1e-7)


def test_a_row_that_curves_down_is_refuted():
    problem = on_the_disc(row=lambda x, y: 1.0 - y @ y, g=lambda x, y: (y - x) @ (y - x))
    certificate = bx.certify(problem, np.array([0.3, 0.4]), np.array([0.6, 0.8]))
    assert certificate.failure is bx.Status.LOWER_NOT_CONVEX
    assert "row" in certificate.remark


def test_an_infeasible_lower_level():
    rows = (bx.ConvexCoupling(lambda x, y: y @ y, upper=1.0), bx.LinearCoupling(A=[[1.0, 1.0]], lower=2.0))
    problem = bx.BilevelProblem(reach, along, rows, y_like=np.zeros(2))
    certificate = bx.certify(problem, np.array([1.2, 1.6]))
    assert certificate.failure is bx.Status.LOWER_INFEASIBLE
    assert certificate.value == np.inf


@pytest.mark.slow
def test_convex_rows_on_both_levels():
    # Without the upper row x = (1.2, 1.6); it holds x0 below 1, so that y turns with it.
    problem = on_the_disc(upper_rows=bx.ConvexCoupling(lambda x, y: x[0] ** 2, upper=1.0))
    solution = bx.solve(problem, np.array([0.5, 0.5]))
    assert solution.success, solution.message
    x1 = np.linspace(0.5, 2.5, 200_001)
    length = np.hypot(1.0, x1)
    best = ((1 / length - 0.6) ** 2 + (x1 / length - 0.8) ** 2 + (length**2 - 4) ** 2).min()
    assert solution.value == pytest.approx(best, abs=1e-7)
    assert float(solution.x[0]) == pytest.approx(1.0, abs=1e-6)
