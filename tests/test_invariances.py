"""Ways of writing the same problem: `certify` must not see a difference."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import bilevax as bx

N, M, K = 3, 4, 5


def upper(x, y, data):
    return 0.5 * jnp.sum((y - data["target"]) ** 2) + 0.5 * jnp.sum((x - data["center"]) ** 2) + jnp.sum(jnp.sin(y))


def lower(x, y, data):
    return 0.5 * y @ (data["H"] @ y) + y @ (data["R"] @ x)


def random_problem(seed):
    """Numbers of a problem, and a point: generic, on a kink, or on the border of feasibility."""
    random = np.random.default_rng(seed)
    root = random.standard_normal((M, M))
    data = {
        "H": root @ root.T / M + np.eye(M),
        "R": random.standard_normal((M, N)),
        "target": 2 * random.standard_normal(M),
        "center": random.standard_normal(N),
    }
    A, B, x = random.standard_normal((K, M)), random.standard_normal((K, N)), random.standard_normal(N)
    inside = B @ x + A @ random.standard_normal(M)
    width = random.uniform(0, 0.5, K)
    low, high = np.where(random.random(K) < 0.5, -np.inf, inside - width), inside + random.uniform(0, 0.5, K)
    low[0] = high[0] = inside[0]
    kind = ("generic", "kink", "border")[seed % 3]
    if kind == "kink":  # a row that the minimiser of the others just touches
        touched = bx.certify(build(data, A[:4], B[:4], low[:4], high[:4]), x)
        y, active = touched.y, np.append(np.asarray(touched.multipliers) != 0, True)
        # A row that almost depends on others has a multiplier that is rounding, much enlarged: no kink to speak of.
        assume(np.linalg.svd(A[active], compute_uv=False).min() >= 1e-2)
        low[4], high[4] = -np.inf, B[4] @ x + A[4] @ y
    if kind == "border":  # two rows that leave y no room across A[1]
        A[2], B[2] = -A[1], random.standard_normal(N)
        high[1], low[1], low[2] = inside[1], -np.inf, -np.inf
        high[2] = B[2] @ x - (high[1] - B[1] @ x)
    return data, A, B, low, high, x


def build(data, A, B, low, high):
    return bx.BilevelProblem(
        upper, lower, bx.LinearCoupling(A, B, lower=low, upper=high), y_like=np.zeros(M), data=data
    )


def assert_same(found, expected, x_order: Any = slice(None), y_order: Any = slice(None)):
    assert found.failure is expected.failure is None
    assert found.value == pytest.approx(expected.value, rel=1e-7, abs=1e-7)
    np.testing.assert_allclose(found.y, np.asarray(expected.y)[y_order], atol=1e-7)
    assert found.stationarity == pytest.approx(expected.stationarity, rel=1e-5, abs=1e-6)
    assert found.strict_complementarity == expected.strict_complementarity
    assert found.lower_unique == expected.lower_unique
    assert (found.hypergradient is None) == (expected.hypergradient is None)
    if expected.hypergradient is not None:
        np.testing.assert_allclose(found.hypergradient, np.asarray(expected.hypergradient)[x_order], atol=1e-6)


@functools.cache
def as_written(seed):
    """The numbers of a problem and its certificate, which every other way of writing it has to repeat."""
    numbers = random_problem(seed)
    return numbers, bx.certify(build(*numbers[:-1]), numbers[-1])


seeds = st.integers(0, 59)


@pytest.mark.slow
@given(seed=seeds)
def test_scaling_rows_by_numbers_of_either_sign(seed):
    (data, A, B, low, high, x), expected = as_written(seed)
    random = np.random.default_rng(seed)
    factor = random.choice([-1.0, 1.0], K) * 10.0 ** random.uniform(-3, 3, K)
    sides = np.sort([low * factor, high * factor], axis=0)
    scaled = bx.certify(build(data, A * factor[:, None], B * factor[:, None], *sides), x)
    assert_same(scaled, expected)
    if expected.licq:
        np.testing.assert_allclose(scaled.multipliers * factor, expected.multipliers, atol=1e-6)


@pytest.mark.slow
@given(seed=seeds)
def test_permuting_variables_and_rows_of_which_some_are_repeated(seed):
    (data, A, B, low, high, x), expected = as_written(seed)
    random = np.random.default_rng(seed)
    p, q, r = random.permutation(N), random.permutation(M), random.permutation(np.r_[:K, random.integers(0, K, 3)])
    permuted = {
        "H": data["H"][q][:, q],
        "R": data["R"][q][:, p],
        "target": data["target"][q],
        "center": data["center"][p],
    }
    found = bx.certify(build(permuted, A[r][:, q], B[r][:, p], low[r], high[r]), x[p])
    assert_same(found, expected, p, q)


@pytest.mark.slow
@given(seed=seeds)
def test_splitting_an_equality_into_two_inequalities(seed):
    (data, A, B, low, high, x), expected = as_written(seed)
    rows = np.r_[np.arange(K), 0]
    one_sided_low, one_sided_high = low[rows].copy(), high[rows].copy()
    one_sided_low[0], one_sided_high[-1] = -np.inf, np.inf
    assert_same(bx.certify(build(data, A[rows], B[rows], one_sided_low, one_sided_high), x), expected)


@pytest.mark.slow
@given(seed=seeds)
def test_y_bounds_as_rows_or_as_a_set(seed):
    data, A, B, low, high, x = random_problem(3 * (seed // 3))
    bound = 0.6
    rows = np.vstack([A, np.eye(M)]), np.vstack([B, np.zeros((M, N))])
    bounds = np.r_[low, np.full(M, -bound)], np.r_[high, np.full(M, bound)]
    as_rows = bx.certify(build(data, *rows, *bounds), x)
    as_set = bx.certify(
        bx.BilevelProblem(
            upper, lower, bx.LinearCoupling(A, B, lower=low, upper=high), y_set=bx.Box(-bound, bound), data=data
        ),
        x,
    )
    assert as_rows.lower_feasible == as_set.lower_feasible
    if as_rows.lower_feasible:
        assert_same(as_set, as_rows)


def test_the_three_kinds_of_point_occur():
    certificates = [as_written(seed)[1] for seed in (0, 1, 2)]
    assert certificates[0].hypergradient is not None
    assert not certificates[1].strict_complementarity
    assert not certificates[2].licq
    assert all(certificate.failure is None for certificate in certificates)
