"""Natural units: other units of x, y, rows, f and g change the scales by just that unit, and no verdict."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bilevax as bx
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.log_factors import factors_of
from bilevax.model.scales import natural_scales

N_X, N_Y, ROWS = 2, 3, 2


def upper(x, y, data):
    x, y = data["x"] * x, data["y"] * y
    return data["f"] * (0.5 * jnp.sum((x - data["center"]) ** 2) + data["weight"] @ y + 0.5 * jnp.sum(y**2))


def lower(x, y, data):
    x, y = data["x"] * x, data["y"] * y
    return data["g"] * (0.5 * y @ (data["H"] @ y) + y @ (data["M"] @ x + data["c"]))


def written(seed, x: Any = 1.0, y: Any = 1.0, rows: Any = 1.0, f=1.0, g=1.0):
    """A random problem in units of x, y, the rows, f and g."""
    random = np.random.default_rng(seed)
    root, A, B = (
        random.standard_normal((N_Y, N_Y)),
        random.standard_normal((ROWS, N_Y)),
        random.standard_normal((ROWS, N_X)),
    )
    x, y, rows = np.broadcast_to(x, N_X), np.broadcast_to(y, N_Y), np.broadcast_to(rows, ROWS)
    data = {
        "H": root @ root.T + np.eye(N_Y),
        "M": random.standard_normal((N_Y, N_X)),
        "c": random.standard_normal(N_Y),
        "center": random.standard_normal(N_X),
        "weight": random.standard_normal(N_Y),
        "x": x,
        "y": y,
        "f": np.array(f),
        "g": np.array(g),
    }
    bound = rows * random.uniform(0.3, 1.5, ROWS)
    coupling = bx.LinearCoupling(A=rows[:, None] * A * y, B=rows[:, None] * B * x, upper=bound)
    return bx.BilevelProblem(upper, lower, coupling, x_set=bx.Box(-2 / x, 2 / x), data=data)


powers = lambda size: st.lists(st.integers(-6, 6), min_size=size, max_size=size).map(lambda p: 10.0 ** np.array(p))


def scaled(problem, x):
    flat = FlatProblem(problem, np.zeros(N_X), np.zeros(N_Y))
    return natural_scales(flat, x, np.zeros(N_Y))


@given(st.integers(0, 50), powers(N_X), powers(N_Y), powers(ROWS), st.integers(-6, 6), st.integers(-6, 6))
def test_scales_follow_the_units(seed, x, y, rows, f, g):
    plain = scaled(written(seed), np.ones(N_X))
    other = scaled(written(seed, x, y, rows, 10.0**f, 10.0**g), 1 / x)
    # Both are rounded to powers of two, x before the rest.
    for found, expected in (
        (other.x * x, plain.x),
        (other.y * y, plain.y),
        (other.rows * rows, plain.rows),
        (other.upper * 10.0**f, plain.upper),
        (other.lower * 10.0**g, plain.lower),
    ):
        assert np.all(np.abs(np.log2(found) - np.log2(expected)) <= 2.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "units",
    [
        {"x": [1e-6, 1e6]},
        {"y": [1e-6, 1.0, 1e6]},
        {"x": 1e-6, "y": 1e-6},
        {"rows": [1e6, 1e-6]},
        {"f": 1e-6, "g": 1e6},
        {"x": [1e4, 1e-3], "y": [1e5, 1e-6, 1e2], "rows": [1e-5, 1e3], "f": 1e6, "g": 1e-6},
    ],
    ids=str,
)
def test_the_answer_is_the_same_in_any_units(seed, units):
    plain = bx.solve(written(seed), np.zeros(N_X))
    other = bx.solve(written(seed, **units), np.zeros(N_X))
    assert plain.success
    assert other.success, other.message
    np.testing.assert_allclose(other.x * np.broadcast_to(units.get("x", 1.0), N_X), plain.x, atol=1e-6)
    np.testing.assert_allclose(other.y * np.broadcast_to(units.get("y", 1.0), N_Y), plain.y, atol=1e-6)
    assert other.value / units.get("f", 1.0) == pytest.approx(plain.value, abs=1e-6)
    of_rows = other.multipliers * np.broadcast_to(units.get("rows", 1.0), ROWS) / units.get("g", 1.0)
    np.testing.assert_allclose(of_rows, plain.multipliers, atol=1e-5)


def test_a_flat_problem_in_other_units_is_the_same_problem():
    problem, random = written(0), np.random.default_rng(0)
    flat = FlatProblem(problem, np.zeros(N_X), np.zeros(N_Y))
    other = equilibrated(
        FlatProblem(written(0, x=1e3, y=[1.0, 1e-4, 1e2], rows=1e5), np.zeros(N_X), np.zeros(N_Y)), np.ones(N_X)
    )
    assert np.any(other.scales.x != 1)
    x, y = random.standard_normal(N_X) / 1e3, random.standard_normal(N_Y) / np.array([1.0, 1e-4, 1e2])
    u, v = other.x_flat(x), other.y_flat(y)
    np.testing.assert_allclose(other.x_tree(u), x)
    np.testing.assert_allclose(other.y_tree(v), y)
    plain = x * 1e3, y * np.array([1.0, 1e-4, 1e2])
    for level in ("upper", "lower"):
        assert other.value(level, u, v) / other.unit(level) == pytest.approx(flat.value(level, *plain))
    inside = other.rows.A @ v + other.rows.B @ u <= other.rows.upper
    assert np.array_equal(inside, flat.rows.A @ plain[1] + flat.rows.B @ plain[0] <= flat.rows.upper)


def test_derivatives_in_other_units_are_those_of_the_scaled_functions():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum(jnp.sin(x)) * y[0] + jnp.exp(y[1] / 3),
        lambda x, y: jnp.sum((y - x[0]) ** 4) + y[0] * y[1] * x[1] + 5 * jnp.sum(y**2),
        y_like=np.zeros(2),
    )
    flat = FlatProblem(problem, np.zeros(2), np.zeros(2))
    scales = flat.scales.__class__(np.array([2.0, 0.25]), np.array([0.5, 8.0]), np.zeros(0), 4.0, 0.125)
    other, random, h = flat.in_units(scales), np.random.default_rng(1), 1e-6
    u, v, w = random.standard_normal((3, 2))
    for level in ("upper", "lower"):
        value, along_x, _ = other.value_and_gradients(level, u, v)
        assert value == other.value(level, u, v)
        for entry in np.eye(2):
            assert along_x @ entry == pytest.approx(
                (other.value(level, u + h * entry, v) - other.value(level, u - h * entry, v)) / (2 * h), abs=1e-6
            )
            change = (other.gradients(level, u, v + h * entry)[1] - other.gradients(level, u, v - h * entry)[1]) / (
                2 * h
            )
            np.testing.assert_allclose(other.hessian(level, "y", "y", u, v) @ entry, change, atol=1e-5)
            change = (other.gradients(level, u + h * entry, v)[1] - other.gradients(level, u - h * entry, v)[1]) / (
                2 * h
            )
            np.testing.assert_allclose(other.hessian(level, "y", "x", u, v) @ entry, change, atol=1e-5)
    both = lambda u, v: (
        np.concatenate(other.gradients("upper", u, v))
        + np.concatenate([other.hessian("lower", "y", "x", u, v).T @ w, other.hessian("lower", "y", "y", u, v) @ w])
    )
    for entry in np.eye(4):
        step = h * entry[:2], h * entry[2:]
        change = (both(u + step[0], v + step[1]) - both(u - step[0], v - step[1])) / (2 * h)
        np.testing.assert_allclose(other.lagrangian_hessian(u, v, w) @ entry, change, atol=1e-4)


@pytest.mark.slow
def test_constants_of_large_quadratics_are_found_in_any_units():
    """With more variables than are probed at once: a small entry off the diagonal counts whatever its units."""
    size, unit = 450, 1e-7
    couple = np.arange(size) / size

    def lower(x, y):
        return unit * (0.5 * jnp.sum(y**2) + 0.5 * jnp.sum(couple * y) ** 2 - jnp.sum(x[0] * y))

    problem = bx.BilevelProblem(lambda x, y: unit * (jnp.sum((y - 1) ** 2) + x[0] ** 2), lower, y_like=np.zeros(size))
    flat = equilibrated(FlatProblem(problem, np.zeros(1), np.zeros(size)), np.zeros(1))
    constants = flat.lower_quadratic
    assert constants is not None
    scales, c = flat.scales, couple
    expected = scales.lower * unit * scales.y[:, None] * (np.eye(size) + np.outer(c, c)) * scales.y
    np.testing.assert_allclose(constants.hessian.toarray(), expected, rtol=1e-12, atol=1e-15)
    x, y = np.array([0.3]), np.linspace(0, 1, size)
    user = FlatProblem(problem, np.zeros(1), np.zeros(size)).gradients("lower", x * scales.x, y * scales.y)[1]
    np.testing.assert_allclose(constants.gradient_at(x, y), scales.lower * scales.y * user, rtol=1e-12)


def test_sums_that_cancel_tell_no_units():
    """Features of mean 0 leave rounding errors beside the curvature along the intercept, which are no numbers."""
    features = np.random.default_rng(0).normal(size=(200, 3))
    labels = np.where(features[:, :1] > 0, 1.0, -1.0)
    rows = labels * np.column_stack([features - features.mean(axis=0), np.ones(200)])
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.sum(y**2),
        lower=lambda x, y: jnp.mean(jax.nn.softplus(5 * (1 - rows @ y))) + jnp.exp(x) * y @ y,
        y_like=np.zeros(4),
    )
    flat = equilibrated(FlatProblem(problem, np.array(-3.0), np.zeros(4)), np.array(-3.0))
    assert np.ptp(np.log2(flat.scales.y)) <= 10
    assert bx.solve_lower_level(problem, -3.0).outcome.name == "OPTIMAL"


@pytest.mark.parametrize("held", [0, 40])
def test_fits_of_many_unknowns_are_least_squares_of_least_norm(held):
    random, count, numbers = np.random.default_rng(0), 1100, 2500
    parts, lengths = [], [numbers - 1200, 600, 400, 200]
    for length, some, same in zip(lengths, (3, 2, 1, 2), (0, 0, 0, 1), strict=True):  # of the last five nothing is told
        arrays = random.integers(0, count - 5, (some, length)).astype(np.int32)
        parts.append([*arrays, *random.integers(0, count - 5, same).tolist()])
    matrix, ends = np.zeros((numbers, count)), np.cumsum([0, *lengths])
    for part, start, end in zip(parts, ends, ends[1:], strict=False):
        for unknowns in part:
            np.add.at(matrix, (np.arange(start, end), unknowns), 1.0)
    strength, target = random.uniform(0.1, 1.0, numbers), random.normal(size=numbers)
    free, factors = np.arange(held, count), factors_of(parts, lengths, count, np.arange(count))
    weighted = strength[:, None] * matrix[:, free]
    expected = np.linalg.lstsq(weighted, strength * target, rcond=1e-12)[0]
    whole = random.normal(size=count)
    np.testing.assert_allclose(factors.times(whole), matrix @ whole, atol=1e-12)
    found = factors.least_squares(strength, target, free, np.zeros(len(free)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
