"""Upper rows: what the leader has to satisfy at (x, y*(x)), in search and certificate."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx


def upper(x, y, data):
    return jnp.sum((x - data["x"]) ** 2) + jnp.sum((y - data["y"]) ** 2)


def lower(x, y, data):
    return 0.5 * y @ data["Q"] @ y + data["c"] @ y + y @ (data["C"] @ x)


def follower(rows, scale=1.0, **parts):
    """y = x in two dimensions; the leader wants x = y = (2, 2), in units of its own."""
    data = {"x": 2 * scale * np.ones(2), "y": 2 * scale * np.ones(2), "Q": np.eye(2), "c": np.zeros(2), "C": -np.eye(2)}
    return bx.BilevelProblem(upper, lower, upper_rows=rows, data=data, y_like=np.zeros(2), **parts)


def row(sign=1.0, unit=1.0, **bounds):
    """``sign * unit * (x0 + y1)``."""
    return bx.LinearCoupling(A=sign * unit * np.array([[0.0, 1.0]]), B=sign * unit * np.array([[1.0, 0.0]]), **bounds)


@pytest.mark.parametrize(
    ("rows", "multiplier"),
    [
        (row(upper=2.0), 4.0),
        (row(sign=-1.0, lower=-2.0), -4.0),
        (row(unit=1e6, upper=2e6), 4e-6),
        (row(unit=1e-5, lower=2e-5, upper=2e-5), 4e5),
        (bx.AffineCoupling(lambda x, y, data: x[0] + y[1], upper=2.0), 4.0),
        (bx.ConvexCoupling(lambda x, y, data: (x[0] + y[1]) ** 2, upper=4.0), 1.0),
    ],
    ids=["upper side", "lower side", "large unit", "equality in a small unit", "function", "smooth"],
)
def test_one_active_row(rows, multiplier):
    # x0 and x1 = y1 are held at a sum of 2 by a multiplier of 4: the gradient of Phi is 4 (x - 2).
    solution = bx.solve(follower(rows), np.zeros(2))
    assert solution.success, solution.message
    np.testing.assert_allclose(solution.x, [1.0, 1.0], atol=1e-6)
    assert solution.value == pytest.approx(4.0, abs=1e-6)
    certificate = solution.certificate
    assert certificate.upper_infeasibility <= 1e-8
    np.testing.assert_allclose(np.ravel(certificate.upper_multipliers), [multiplier], rtol=1e-5)


def test_rows_that_do_not_matter_change_nothing():
    solution = bx.solve(follower((row(upper=10.0), row(lower=-10.0))), np.zeros(2))
    assert solution.success
    np.testing.assert_allclose(solution.x, [2.0, 2.0], atol=1e-7)
    assert [float(part[0]) for part in solution.certificate.upper_multipliers] == [0.0, 0.0]


def test_a_point_that_is_stationary_without_the_rows_is_not_with_them():
    problem = follower(row(upper=2.0))
    outside = bx.certify(problem, np.array([2.0, 2.0]))
    assert outside.failure is bx.Status.UPPER_INFEASIBLE
    assert not outside.confirms(1e-6)
    on_the_row = bx.certify(problem, np.array([0.5, 1.5]))  # satisfied, but it descends along the row
    assert on_the_row.failure is None
    assert on_the_row.stationarity > 1e-2
    assert bx.certify(problem, np.array([1.0, 1.0])).confirms(1e-6)


def test_rows_that_no_x_satisfies():
    solution = bx.solve(follower(row(lower=100.0), x_set=bx.Box(0.0, 3.0)), np.ones(2))
    assert solution.status is bx.Status.UPPER_INFEASIBLE
    assert not solution.success
    assert solution.certificate.upper_infeasibility > 1e-2


def test_the_leader_chooses_among_minimisers_that_the_rows_allow():
    # The follower does not care about y1; the leader wants it large, and the row holds it down.
    problem = bx.BilevelProblem(
        lambda x, y: (x - 1.0) ** 2 - y[1],
        lambda x, y: (y[0] - x) ** 2,
        y_set=bx.Box(0.0, 5.0),
        upper_rows=bx.LinearCoupling(A=[[0.0, 1.0]], B=[[1.0]], upper=3.0),
    )
    solution = bx.solve(problem, 0.0, y0=np.zeros(2))
    assert solution.success, solution.message
    # Along the row f is (x - 1)^2 - (3 - x).
    assert float(solution.x) == pytest.approx(0.5, abs=1e-6)
    assert solution.value == pytest.approx(-2.25, abs=1e-6)


def test_a_kink_at_an_active_upper_row():
    # y = max(x, 0): the leader wants y at -1 and x at 2, and may not let y fall below 0.5.
    problem = bx.BilevelProblem(
        lambda x, y: (y + 1.0) ** 2 + 0.1 * (x - 2.0) ** 2,
        lambda x, y: (y - x) ** 2,
        y_set=bx.NonNegative(),
        upper_rows=bx.LinearCoupling(A=1.0, lower=0.5),
        x_set=bx.Box(-3.0, 3.0),
    )
    solution = bx.solve(problem, -2.0)
    assert solution.success, solution.message
    assert float(solution.x) == pytest.approx(0.5, abs=1e-6)


def test_resumed_bit_for_bit(tmp_path):
    problem, path = follower(row(upper=2.0)), tmp_path / "run"
    whole = bx.solve(problem, np.zeros(2), solver=bx.Default())
    bx.solve(problem, np.zeros(2), checkpoint=path, max_steps=12)
    resumed = bx.solve(problem, np.zeros(2), resume=path)
    np.testing.assert_array_equal(resumed.x, whole.x)


def test_units_of_the_variables():
    scale = 1e4
    solution = bx.solve(follower(row(upper=2.0 * scale), scale=scale), np.zeros(2))
    assert solution.success, solution.message
    np.testing.assert_allclose(np.asarray(solution.x) / scale, [1.0, 1.0], atol=1e-6)


def test_others_refuse_upper_rows_and_convex_rows():
    sflcb = bx.SFLCB(delta=0.1, eta_x=0.1, eta_y=0.1, eta_z=0.1, eta_u=0.1, eta_v=0.1)
    with pytest.raises(ValueError, match="SFLCB: expected a problem without upper_rows"):
        bx.solve(follower(row(upper=2.0)), np.zeros(2), solver=sflcb)
    convex = follower(None, coupling=bx.ConvexCoupling(lambda x, y, data: y @ y, upper=1.0))
    with pytest.raises(ValueError, match="SFLCB: expected rows that are affine"):
        bx.solve(convex, np.zeros(2), solver=sflcb)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x <= 1", "upper_rows: expected a LinearCoupling"),
        (bx.LinearCoupling(A=np.ones((1, 3))), r"upper_rows: A has 3 columns"),
        ((bx.AffineCoupling(lambda x, y, data: x[0] * y[0]),), r"upper_rows\[0\]: expected a function that is affine"),
        (bx.ConvexCoupling(lambda x, y, data: np.sqrt(y)), "upper_rows: a function of NumPy was called"),
    ],
)
def test_rows_that_do_not_fit(rows, message):
    with pytest.raises(ValueError, match=message):
        bx.solve(follower(rows), np.zeros(2))


def test_an_upper_row_with_a_kink_is_named():
    problem = follower(bx.ConvexCoupling(lambda x, y, data: jnp.abs(x[0] - 1.0) + y[1], upper=2.0))
    solution = bx.solve(problem, np.zeros(2))
    assert solution.status is bx.Status.NOT_SMOOTH
    assert "an upper row has a kink" in solution.message
