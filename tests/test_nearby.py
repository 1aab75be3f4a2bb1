"""Problems next to a solved one: the same answers as from anywhere else, and no quadratic program on the way."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from bilevax.convex.minimise import minimise
from bilevax.convex.nearby import Nearby
from bilevax.convex.problem import Ball, Constraints, Objective, Outcome


def quadratic(hessian: np.ndarray, linear: np.ndarray) -> Objective:
    return Objective(
        lambda y: float(linear @ y + 0.5 * y @ hessian @ y),
        lambda y: linear + hessian @ y,
        lambda y: sp.csc_matrix(hessian),
    )


def entropy(cost: np.ndarray) -> Objective:
    return Objective(
        lambda y: float(cost @ y + y @ np.log(y)),
        lambda y: cost + np.log(y) + 1,
        lambda y: sp.csc_matrix(np.diag(1 / y)),
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("distance", [1e-6, 1e-2, 1.0])
def test_answers_are_those_of_minimise(seed, distance):
    # At a distance of 1 other rows are active, and some problems have no feasible point.
    random = np.random.default_rng(seed)
    size, rows = int(random.integers(1, 8)), int(random.integers(1, 12))
    factor, linear = random.standard_normal((size, size)), random.standard_normal(size)
    matrix, middle = random.standard_normal((rows, size)), random.standard_normal(rows)
    matrix[random.random(rows) < 0.2] = 0.0
    lower, upper = np.where(random.random(rows) < 0.5, -np.inf, middle - 0.5), np.maximum(middle, 0.0)
    lower[matrix.any(axis=1) == 0] = -np.inf
    balls = (Ball(np.arange(size), np.zeros(size), 1.5),) if seed % 3 == 0 else ()
    hessian = factor @ factor.T + 0.1 * np.eye(size)
    constraints = Constraints(sp.csr_matrix(matrix), lower, upper, balls, relaxable=rows)
    solved = minimise(quadratic(hessian, linear), constraints)
    if solved.outcome is not Outcome.OPTIMAL:
        pytest.skip("the centre has no feasible point")
    nearby = Nearby(constraints, solved)
    for _ in range(5):
        shift = distance * random.standard_normal(rows)
        other = dataclasses.replace(constraints, lower=lower - shift, upper=upper - shift)
        objective = quadratic(hessian, linear + distance * random.standard_normal(size))
        found, expected = nearby.minimise(objective, other), minimise(objective, other)
        assert found.outcome is expected.outcome
        if expected.outcome is Outcome.OPTIMAL:
            assert found.residual <= 1e-9
            assert found.unique == expected.unique
            assert found.y == pytest.approx(expected.y, abs=1e-8)


def test_entropy_near_its_border_follows_without_a_quadratic_program():
    random = np.random.default_rng(0)
    cost = 30 * random.random(6)  # shares down to 1e-13
    constraints = Constraints(
        sp.csr_matrix(np.vstack([np.ones((1, 6)), np.eye(6)])), np.r_[1.0, np.zeros(6)], np.r_[1.0, np.full(6, np.inf)]
    )
    nearby = Nearby(constraints, minimise(entropy(cost), constraints))
    for size in (1e-6, 1e-2):
        moved = cost + size * random.standard_normal(6)
        found = nearby.minimise(entropy(moved), constraints)
        share = np.exp(-(moved - moved.min()))
        assert (found.outcome, found.iterations) == (Outcome.OPTIMAL, 0)
        assert found.y == pytest.approx(share / share.sum(), rel=1e-8)


def test_bounds_of_the_domain_may_move():
    # log(y - x) + y, y >= x: the border moves with x, so that what was known of it does not hold.
    matrix = sp.csr_matrix(np.eye(1))
    at = lambda x: Objective(
        lambda y: float(y[0] - np.log(y[0] - x)),
        lambda y: 1 - 1 / (y - x),
        lambda y: sp.csc_matrix([[1 / (y[0] - x) ** 2]]),
    )
    rows = lambda x: Constraints(matrix, np.array([x]), np.array([np.inf]))
    nearby = Nearby(rows(0.0), minimise(at(0.0), rows(0.0)))
    for x in (1e-4, 0.5, 3.0):
        found = nearby.minimise(at(x), rows(x))
        assert found.outcome is Outcome.OPTIMAL
        assert found.y == pytest.approx(np.array([x + 1.0]), rel=1e-9)
