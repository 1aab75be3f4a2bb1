"""Problems next to a solved one: the same answers as from anywhere else, and no quadratic program on the way."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from bilevax.convex import curvature
from bilevax.convex.full_systems import FullSystems
from bilevax.convex.minimise import minimise, solution_at
from bilevax.convex.nearby import Nearby
from bilevax.convex.optimality import Local, measure, scaled_rows
from bilevax.convex.problem import Ball, Constraints, Objective, Outcome
from bilevax.convex.saddle_point import solve_saddle_point


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


@pytest.mark.parametrize("seed", range(4))
def test_ways_of_equal_costs_are_exchanged_without_a_quadratic_program(seed, monkeypatch):
    # Flows have costs and no curvature: with other capacities others are zero, some of them only after a few steps.
    random, pairs, ways, links = np.random.default_rng(seed), 40, 6, 30
    cost = np.concatenate([random.uniform(1, 2, pairs * ways), np.full(pairs, -3.0)])
    curved = sp.csc_matrix(sp.diags(np.repeat([0.0, 1.0], [pairs * ways, pairs])))
    objective = Objective(
        lambda y: float(cost @ y + 0.5 * y @ (curved @ y)), lambda y: cost + curved @ y, lambda y: curved
    )
    served = sp.hstack([sp.kron(sp.eye(pairs), np.ones((1, ways))), -sp.eye(pairs)])
    load = sp.random(links, pairs * ways, 0.1, random_state=seed, data_rvs=np.ones)
    matrix = sp.vstack([served, sp.hstack([load, sp.csr_matrix((links, pairs))]), sp.eye(len(cost))], format="csr")
    lower = np.concatenate([np.zeros(pairs), np.full(links, -np.inf), np.zeros(len(cost))])
    sides = lambda capacity: np.concatenate([np.zeros(pairs), capacity, np.full(len(cost), np.inf)])
    rows = lambda capacity: Constraints(matrix, lower, sides(capacity), relaxable=pairs + links)
    nearby = Nearby(rows(np.full(links, 2.0)), minimise(objective, rows(np.full(links, 2.0))))
    monkeypatch.setattr("bilevax.convex.nearby.minimise", None)
    for _ in range(10):
        there = rows(2.0 + 0.03 * random.standard_normal(links))
        found, expected = nearby.minimise(objective, there), minimise(objective, there)
        assert found.outcome is Outcome.OPTIMAL
        assert objective.value(found.y) == pytest.approx(objective.value(expected.y), abs=1e-9)


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


def test_a_full_hessian_is_factorised_once_whatever_rows_are_held(monkeypatch):
    random = np.random.default_rng(0)
    size, count = 200, 60
    root = random.standard_normal((size, size))
    hessian = sp.csc_matrix(root @ root.T + size * np.eye(size))
    rows = sp.csr_matrix(random.standard_normal((count, size)))
    systems = FullSystems(rows)
    right = random.standard_normal(size)
    factorised = []
    factorise = curvature.own_units
    monkeypatch.setattr(curvature, "own_units", lambda matrix: factorised.append(matrix) or factorise(matrix))
    for held in (np.arange(0), np.arange(5), np.arange(3, 40)):
        side = random.standard_normal(held.size)
        answer = systems.solve(hessian, held, right, side)
        assert answer is not None
        expected = solve_saddle_point(hessian, rows[held], np.full(held.size, -1), right, side)
        for part, other in zip(answer, expected, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-9, atol=1e-11)
    assert len(factorised) == 1
    twice = np.array([0, 0])  # dependent rows are left to least squares
    assert systems.solve(hessian, twice, right, np.ones(2)) is None


@pytest.mark.parametrize(
    ("product", "error", "sharp"), [(1e-15, 1e-7, True), (3e-14, 3e-14, True), (3e-14, 1e-7, False)]
)
def test_rounding_of_long_rows_does_not_hide_which_rows_are_active(product, error, sharp):
    """The product of multiplier and slack may be more than 1e-14 by rounding alone, if one of them is nothing else."""
    constraints = Constraints(sp.csr_matrix(np.eye(2)), np.zeros(2), np.ones(2))
    rows, half = (
        scaled_rows(constraints, 0.0)[0],
        Objective(lambda y: float(y @ y), lambda y: 2 * y, lambda y: sp.csc_matrix(2 * np.eye(2))),
    )
    point = measure(Local(half, np.zeros(2)), rows, np.zeros(2), np.zeros(0))
    point = dataclasses.replace(point, residuals=(0.0, 0.0, product), error=error)
    assert solution_at(constraints, rows, np.zeros(2), point, Outcome.OPTIMAL, 0).sharp == sharp


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_many_separable_variables_are_minimised_without_a_quadratic_program(shift):
    # Neighbours limit each other: none, some or all of the rows are active, as `shift` says.
    size, random = 1500, np.random.default_rng(0)
    matrix = sp.diags([np.full(size - 1, -0.2), np.ones(size), np.full(size - 1, -0.2)], [-1, 0, 1], format="csr")
    curvature, wish = random.uniform(1.0, 2.0, size), shift * random.uniform(0.0, 2.0, size)
    hessian = sp.csc_matrix(sp.diags(curvature))
    objective = Objective(
        lambda y: float(0.5 * curvature @ (y - wish) ** 2), lambda y: curvature * (y - wish), lambda y: hessian
    )
    constraints = Constraints(matrix, np.full(size, -np.inf), np.full(size, 0.25), relaxable=size)
    found, expected = minimise(objective, constraints, wish), minimise(objective, constraints)
    assert found.iterations == 0 < expected.iterations
    assert found.outcome is expected.outcome is Outcome.OPTIMAL
    assert (shift == 0.0) == (np.count_nonzero(found.multipliers) == 0)
    assert found.unique
    assert found.sharp
    np.testing.assert_allclose(found.y, expected.y, atol=1e-10)
    np.testing.assert_allclose(found.multipliers, expected.multipliers, atol=1e-9)
