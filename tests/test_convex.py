"""The exact convex solver: known answers, independent solvers, degenerate inputs, invariances, and a large network."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sparse
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

import bilevax
from bilevax.convex.basic_multipliers import rows_within
from bilevax.convex.minimise import minimise, smallest_relaxation
from bilevax.convex.optimality import Local, measure, scaled_rows
from bilevax.convex.problem import Ball, Constraints, ConvexSolution, Objective, Outcome
from bilevax.convex.saddle_point import solve_saddle_point
from bilevax.exact.lower import constraints_at, objective_at
from bilevax.model.flat import FlatProblem
from shared_data import INSIDE

INF = np.inf


def quadratic(matrix, linear) -> Objective:
    matrix, linear = np.atleast_2d(np.asarray(matrix, float)), np.asarray(linear, float)
    return Objective(
        lambda y: float(0.5 * y @ matrix @ y + linear @ y),
        lambda y: matrix @ y + linear,
        lambda y: sparse.csc_matrix(matrix),
    )


def separable(value, first, second) -> Objective:
    return Objective(lambda y: float(np.sum(value(y))), first, lambda y: sparse.diags(second(y)).tocsc())


def rows(matrix, lower: Any = -INF, upper: Any = INF, *, relaxable=None, balls=()) -> Constraints:
    matrix = sparse.csr_matrix(np.atleast_2d(np.asarray(matrix, float)))
    size = matrix.shape[0]
    lower, upper = (np.broadcast_to(np.asarray(side, float), size).copy() for side in (lower, upper))
    return Constraints(matrix, lower, upper, tuple(balls), size if relaxable is None else relaxable)


def no_rows(size) -> Constraints:
    return Constraints(sparse.csr_matrix((0, size)), np.zeros(0), np.zeros(0))


def assert_optimal(objective, constraints, solution: ConvexSolution, tolerance=1e-9):
    """Recompute the optimality conditions from scratch; share nothing with the solver."""
    assert solution.outcome is Outcome.OPTIMAL, solution
    y, u = solution.y, solution.multipliers
    gradient, activity = objective.gradient(y), constraints.matrix @ y
    force = gradient + constraints.matrix.T @ u
    for ball, multiplier in zip(constraints.balls, solution.ball_multipliers, strict=True):
        force[ball.index] += multiplier * (y[ball.index] - ball.center)
        distance = np.linalg.norm(y[ball.index] - ball.center)
        assert multiplier >= 0
        assert distance <= ball.radius * (1 + tolerance) + tolerance
        assert multiplier * (ball.radius - distance) <= 10 * tolerance * (1 + abs(gradient).max())
    scale = 1 + abs(gradient).max()
    assert abs(force).max() <= tolerance * scale
    norms = np.sqrt(constraints.matrix.multiply(constraints.matrix).sum(axis=1).A1)
    for i in range(len(u)):
        slacks = {1: constraints.upper[i] - activity[i], -1: activity[i] - constraints.lower[i], 0: 0.0}
        room = tolerance * (norms[i] + abs(activity[i])) * 2
        assert min(slacks[1], slacks[-1]) >= -room
        assert abs(u[i]) * abs(slacks[int(np.sign(u[i]))] if u[i] else 0.0) <= tolerance * scale * (1 + abs(y).max())


# ---------------------------------------------------------------- known answers


def test_projection_on_a_half_plane_has_the_known_multiplier():
    solution = minimise(quadratic(np.eye(2), [-1, -2]), rows([[1, 1]], upper=1))
    np.testing.assert_allclose(solution.y, [0, 1], atol=1e-12)
    np.testing.assert_allclose(solution.multipliers, [1], atol=1e-12)
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.unique
    assert solution.iterations == 1
    assert solution.residual <= 1e-12


@pytest.mark.parametrize(("lower", "upper", "y", "multiplier"), [(2, INF, 2, -1), (-INF, 0.5, 0.5, 0.5), (3, 3, 3, -2)])
def test_multiplier_signs_follow_the_active_side(lower, upper, y, multiplier):
    solution = minimise(quadratic([[1]], [-1]), rows([[1]], lower, upper))
    assert solution.y[0] == pytest.approx(y, abs=1e-12)
    assert solution.multipliers[0] == pytest.approx(multiplier, abs=1e-11)


def test_ball_and_row_have_the_known_multipliers():
    ball = Ball(np.array([0, 1]), np.zeros(2), 1.0)
    solution = minimise(quadratic(np.eye(2), [-3, -4]), rows([[1, 1]], upper=10, balls=[ball]))
    np.testing.assert_allclose(solution.y, [0.6, 0.8], atol=1e-12)
    np.testing.assert_allclose(solution.ball_multipliers, [4], atol=1e-11)
    linear = quadratic(np.zeros((2, 2)), [-3, -4])
    constraints = rows([[1, 0]], upper=0.1, balls=[ball])
    solution = minimise(linear, constraints)
    height = np.sqrt(0.99)
    np.testing.assert_allclose(solution.y, [0.1, height], atol=1e-11)
    np.testing.assert_allclose(solution.ball_multipliers, [4 / height], atol=1e-10)
    np.testing.assert_allclose(solution.multipliers, [3 - 0.4 / height], atol=1e-10)
    assert solution.unique


def test_entropy_on_the_simplex_is_softmax_even_from_a_start_outside_the_domain():
    cost = np.array([0.0, 1.0, -2.0, 5.0])
    objective = separable(
        lambda y: y * np.log(y) + cost * y,
        lambda y: np.log(y) + 1 + cost,
        lambda y: 1 / y,
    )
    constraints = rows(np.vstack([np.ones(4), np.eye(4)]), [1, 0, 0, 0, 0], [1, INF, INF, INF, INF])
    for start in (None, -np.ones(4), np.full(4, 0.25)):
        solution = minimise(objective, constraints, start)
        np.testing.assert_allclose(solution.y, np.exp(-cost) / np.exp(-cost).sum(), rtol=1e-9)
        assert solution.outcome is Outcome.OPTIMAL


# ---------------------------------------------------------------- degenerate inputs


def test_no_rows():
    solution = minimise(quadratic(np.diag([1.0, 4.0]), [-1, -2]), no_rows(2))
    np.testing.assert_allclose(solution.y, [1, 0.5], atol=1e-12)
    assert solution.multipliers.shape == (0,)


def test_rows_that_never_bind_and_rows_of_zeros():
    constraints = rows([[1, 1], [0, 0], [1, 0]], [-INF, 0, -INF], [INF, 0, 0.5])
    solution = minimise(quadratic(np.eye(2), [-1, -1]), constraints)
    np.testing.assert_allclose(solution.y, [0.5, 1], atol=1e-12)
    np.testing.assert_allclose(solution.multipliers, [0, 0, 0.5], atol=1e-12)


@pytest.mark.parametrize(("relaxable", "expected"), [(2, 1.0), (1, INF)])
def test_impossible_row_of_zeros(relaxable, expected):
    solution = minimise(quadratic([[1]], [0]), rows([[1], [0]], [-INF, 1], [5, INF], relaxable=relaxable))
    assert solution.outcome is Outcome.INFEASIBLE
    assert solution.relaxation == pytest.approx(expected, abs=1e-9)


def test_duplicated_rows_give_basic_multipliers():
    constraints = rows([[1, 1]] * 4 + [[2, 2]], upper=[1, 1, 1, 1, 2])
    objective = quadratic(np.eye(2), [-3, -3])
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    assert np.count_nonzero(solution.multipliers) == 1
    assert constraints.matrix.T @ solution.multipliers == pytest.approx([2.5, 2.5], abs=1e-11)


def test_split_equality_keeps_multipliers_finite():
    objective = quadratic(np.eye(2), [-1, -5])
    constraints = rows([[1, 2], [-1, -2], [1, 0]], upper=[1, -1, 0])
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    whole = minimise(objective, rows([[1, 2], [1, 0]], [1, -INF], [1, 0]))
    np.testing.assert_allclose(solution.y, whole.y, atol=1e-11)
    assert solution.multipliers[0] - solution.multipliers[1] == pytest.approx(whole.multipliers[0], abs=1e-9)
    assert abs(solution.multipliers).max() < 10


def test_feasible_set_of_one_point_with_more_active_rows_than_variables():
    angles = np.linspace(0, 2 * np.pi, 7, endpoint=False)
    constraints = rows(np.column_stack([np.cos(angles), np.sin(angles)]), upper=0)
    objective = quadratic(np.eye(2), [-1, -2])
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    np.testing.assert_allclose(solution.y, 0, atol=1e-9)
    assert np.count_nonzero(solution.multipliers) <= 2
    assert abs(solution.multipliers).max() < 10


def test_fixed_variables():
    objective = quadratic(np.array([[2.0, 1.0], [1.0, 2.0]]), [0, 0])
    solution = minimise(objective, rows(np.eye(2), [3, -INF], [3, INF], relaxable=0))
    np.testing.assert_allclose(solution.y, [3, -1.5], atol=1e-12)
    np.testing.assert_allclose(solution.multipliers, [-4.5, 0], atol=1e-11)


def test_linear_objective_reports_uniqueness_honestly():
    corner = minimise(quadratic(np.zeros((2, 2)), [-1, -2]), rows(np.eye(2), 0, 1))
    np.testing.assert_allclose(corner.y, [1, 1], atol=1e-12)
    assert corner.unique
    edge = minimise(quadratic(np.zeros((2, 2)), [-1, 0]), rows(np.eye(2), 0, 1))
    assert edge.outcome is Outcome.OPTIMAL
    assert not edge.unique


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows([[1, np.nan]], upper=0),
        lambda: rows([[1, 1]], upper=np.nan),
        lambda: rows([[1, 1]], lower=INF),
        lambda: rows([[1, 1]], relaxable=2),
        lambda: rows([[1, 1]], balls=[Ball(np.array([0]), np.zeros(1), 0.0)]),
        lambda: minimise(quadratic(np.eye(2), [0, 0]), no_rows(2), np.zeros(3)),
    ],
)
def test_mistakes_are_value_errors(make):
    with pytest.raises(ValueError, match=r"expected|finite|relaxable|ball"):
        make()


# ---------------------------------------------------------------- feasibility


def test_infeasible_rows_report_the_exact_relaxation():
    constraints = rows([[1], [1]], [-INF, 1], [0, INF])
    assert smallest_relaxation(constraints)[0] == pytest.approx(0.5, abs=1e-12)
    solution = minimise(quadratic([[1]], [0]), constraints)
    assert solution.outcome is Outcome.INFEASIBLE
    assert solution.relaxation == pytest.approx(0.5, abs=1e-12)
    assert solution.y == pytest.approx([0.5])


def test_only_relaxable_rows_are_relaxed():
    constraints = rows([[1, 1], [1, 0], [0, 1]], [3, 0, 0], [INF, 1, 1], relaxable=1)
    assert smallest_relaxation(constraints)[0] == pytest.approx(1.0, abs=1e-12)
    hard = rows([[1, 0], [1, 0]], [1, -INF], [INF, 0], relaxable=0)
    assert minimise(quadratic(np.eye(2), [0, 0]), hard).relaxation == INF


def test_relaxation_with_a_ball():
    ball = Ball(np.array([0, 1]), np.zeros(2), 1.0)
    relaxation, point = smallest_relaxation(rows([[1, 1]], lower=2, balls=[ball]))
    assert relaxation == pytest.approx(2 - np.sqrt(2), abs=1e-8)
    np.testing.assert_allclose(point, np.sqrt([0.5, 0.5]), atol=1e-4)


@pytest.mark.parametrize("gap", [0.0, 1e-14, 1e-12, 1e-10, 3e-9])
def test_border_of_feasibility_is_optimal_with_finite_multipliers(gap):
    constraints = rows([[1, 1], [1, 1], [1, 0]], [-INF, 1 + gap, 0], [1, INF, INF])
    objective = quadratic(np.eye(2), [-2, -1])
    solution = minimise(objective, constraints)
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.relaxation <= 1e-8
    np.testing.assert_allclose(solution.y, [1, 0], atol=1e-8)
    assert abs(solution.multipliers).max() < 10


def test_a_small_row_is_not_forgiven_because_another_is_large():
    constraints = rows([[1e-5, 0], [1e-5, 0], [0, 1]], [1e-5, -INF, -INF], [INF, 0, 1e4])
    assert minimise(quadratic(np.eye(2), [0, 0]), constraints).outcome is Outcome.INFEASIBLE


# ---------------------------------------------------------------- unbounded, not convex


def test_unbounded():
    assert minimise(quadratic(np.zeros((2, 2)), [-1, 0]), rows([[1, 1]], upper=1)).outcome is Outcome.UNBOUNDED
    assert minimise(quadratic(np.diag([1.0, 0.0]), [0, 1]), no_rows(2)).outcome is Outcome.UNBOUNDED
    falling = separable(
        lambda y: np.sqrt(1 + y**2) - 2 * y,
        lambda y: y / np.sqrt(1 + y**2) - 2,
        lambda y: (1 + y**2) ** -1.5,
    )
    assert minimise(falling, rows([[1.0]], lower=0)).outcome is Outcome.UNBOUNDED


def test_tiny_curvature_is_not_called_unbounded():
    solution = minimise(quadratic([[1e-8]], [-1]), rows([[1.0]], lower=0))
    assert solution.outcome is not Outcome.UNBOUNDED
    assert solution.y[0] == pytest.approx(1e8, rel=1e-6)


def test_not_convex():
    assert minimise(quadratic(-np.eye(2), [0, 0]), rows(np.eye(2), -1, 1)).outcome is Outcome.NOT_CONVEX
    large = sparse.diags(np.append(np.ones(700), -1.0)) + sparse.diags([0.1] * 700, 1) + sparse.diags([0.1] * 700, -1)
    objective = Objective(lambda y: float(0.5 * y @ (large @ y)), lambda y: large @ y, lambda y: large.tocsc())
    assert minimise(objective, rows(np.eye(701), -1, 1)).outcome is Outcome.NOT_CONVEX
    # Convex at the start, not where the descent leads.
    cubic = separable(lambda y: -(y**3) / 6 - 0.1 * y, lambda y: -(y**2) / 2 - 0.1, lambda y: -y)
    assert minimise(cubic, rows([[1.0]], -2, 1), np.array([-1.0])).outcome is Outcome.NOT_CONVEX


# ---------------------------------------------------------------- against independent solvers


def log_sum_exp(matrix) -> Objective:
    def weights(y):
        z = np.exp(matrix @ y - np.max(matrix @ y))
        return z / z.sum()

    return Objective(
        lambda y: float(scipy.special.logsumexp(matrix @ y) + 0.005 * y @ y),
        lambda y: matrix.T @ weights(y) + 0.01 * y,
        lambda y: sparse.csc_matrix(
            matrix.T @ (np.diag(weights(y)) - np.outer(weights(y), weights(y))) @ matrix + 0.01 * np.eye(y.size)
        ),
    )


def random_objective(kind, size, rng) -> Objective:
    if kind == "quadratic":
        basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
        matrix = basis @ np.diag(np.geomspace(1e-2, 1e2, size)) @ basis.T
        return quadratic((matrix + matrix.T) / 2, rng.normal(size=size))
    if kind == "log-sum-exp":
        return log_sum_exp(rng.integers(-2, 3, (size + 2, size)).astype(float))
    target = rng.normal(size=size)
    if kind == "sqrt":
        return separable(
            lambda y: np.sqrt(1 + (y - target) ** 2),
            lambda y: (y - target) / np.sqrt(1 + (y - target) ** 2),
            lambda y: (1 + (y - target) ** 2) ** -1.5,
        )
    return separable(lambda y: np.exp(y) - target * y, lambda y: np.exp(y) - target, np.exp)


@pytest.mark.parametrize("kind", ["quadratic", "log-sum-exp", "sqrt", "exp"])
@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_slsqp(kind, seed):
    rng = np.random.default_rng(seed)
    size, number = 4, 5
    objective = random_objective(kind, size, rng)
    matrix = np.vstack([rng.normal(size=(number, size)), np.eye(size)])
    inside = rng.normal(size=size)
    width = np.append(rng.uniform(0, 1, number), np.full(size, 3.0))
    width[0] = 0.0
    constraints = rows(matrix, matrix @ inside - width, matrix @ inside + width)
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    other = scipy.optimize.minimize(
        objective.value,
        inside,
        jac=objective.gradient,
        method="SLSQP",
        constraints=[
            {"type": "eq", "fun": lambda y: matrix[:1] @ (y - inside)},
            {"type": "ineq", "fun": lambda y: matrix[1:] @ (y - inside) + width[1:]},
            {"type": "ineq", "fun": lambda y: width[1:] - matrix[1:] @ (y - inside)},
        ],
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert objective.value(solution.y) <= other.fun + 1e-7 * (1 + abs(other.fun))
    if other.success:
        assert objective.value(solution.y) == pytest.approx(other.fun, abs=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_degenerate_integer_problems_satisfy_the_optimality_conditions(seed):
    rng = np.random.default_rng(seed)
    size, number = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    factor = rng.integers(-2, 3, (size, rng.integers(0, size + 1))).astype(float)
    objective = quadratic(factor @ factor.T, rng.integers(-4, 5, size))
    matrix = np.vstack([rng.integers(-2, 3, (number, size)), np.eye(size)]).astype(float)
    inside = rng.integers(-2, 3, size).astype(float)
    below, above = rng.integers(0, 3, (2, number + size))
    constraints = rows(matrix, matrix @ inside - below, matrix @ inside + above, relaxable=int(number))
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    assert solution.relaxation <= 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_linear_objectives_agree_with_highs(seed):
    rng = np.random.default_rng(seed)
    cost, matrix = rng.integers(-5, 6, 6).astype(float), rng.integers(-3, 4, (8, 6)).astype(float)
    constraints = rows(np.vstack([matrix, np.eye(6)]), [-INF] * 8 + [0.0] * 6, [4.0] * 8 + [5.0] * 6)
    solution = minimise(quadratic(np.zeros((6, 6)), cost), constraints)
    other = scipy.optimize.linprog(cost, matrix, np.full(8, 4.0), bounds=(0, 5))
    assert cost @ solution.y == pytest.approx(other.fun, abs=1e-9)
    assert_optimal(quadratic(np.zeros((6, 6)), cost), constraints, solution)


# ---------------------------------------------------------------- conditioning and invariances


def reference_problem(seed=3):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    matrix = basis @ np.diag(np.geomspace(1e-2, 1e2, 8)) @ basis.T
    wall = np.vstack([rng.normal(size=(6, 8)), np.eye(8)])
    lower = np.append(np.full(6, -INF), np.full(8, -1.0))
    upper = np.append(rng.uniform(0, 0.2, 6), np.full(8, 1.0))
    lower[0] = upper[0]
    return (matrix + matrix.T) / 2, 3 * rng.normal(size=8), wall, lower, upper


@pytest.mark.parametrize("seed", range(5))
def test_condition_number_and_row_scaling_do_not_change_the_answer(seed):
    matrix, linear, wall, lower, upper = reference_problem(seed)
    objective = quadratic(matrix, linear)
    plain = minimise(objective, rows(wall, lower, upper))
    assert_optimal(objective, rows(wall, lower, upper), plain)
    scale = 10.0 ** np.random.default_rng(seed).uniform(-4, 4, len(lower))
    scaled = minimise(objective, rows(scale[:, None] * wall, scale * lower, scale * upper))
    assert scaled.outcome is Outcome.OPTIMAL
    np.testing.assert_allclose(scaled.y, plain.y, atol=1e-9)
    np.testing.assert_allclose(scaled.multipliers * scale, plain.multipliers, atol=1e-8)


def test_permuting_variables_and_rows_permutes_the_answer():
    matrix, linear, wall, lower, upper = reference_problem()
    plain = minimise(quadratic(matrix, linear), rows(wall, lower, upper))
    rng = np.random.default_rng(0)
    columns, order = rng.permutation(8), rng.permutation(len(lower))
    moved = minimise(
        quadratic(matrix[np.ix_(columns, columns)], linear[columns]),
        rows(wall[np.ix_(order, columns)], lower[order], upper[order]),
    )
    np.testing.assert_allclose(moved.y, plain.y[columns], atol=1e-10)
    np.testing.assert_allclose(moved.multipliers, plain.multipliers[order], atol=1e-9)


def test_splitting_the_equality_does_not_change_the_answer():
    matrix, linear, wall, lower, upper = reference_problem()
    plain = minimise(quadratic(matrix, linear), rows(wall, lower, upper))
    split = minimise(
        quadratic(matrix, linear),
        rows(np.vstack([wall, wall[0]]), np.append([-INF], np.append(lower[1:], lower[0])), np.append(upper, INF)),
    )
    np.testing.assert_allclose(split.y, plain.y, atol=1e-10)
    assert split.multipliers[0] + split.multipliers[-1] == pytest.approx(plain.multipliers[0], abs=1e-8)


def test_the_start_does_not_change_the_answer():
    rng = np.random.default_rng(1)
    objective = log_sum_exp(rng.integers(-2, 3, (7, 5)).astype(float))
    constraints = rows(np.vstack([rng.normal(size=(2, 5)), np.eye(5)]), -1, 1)
    answers = [minimise(objective, constraints, start).y for start in (None, 100 * rng.normal(size=5), np.ones(5))]
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-8)
    np.testing.assert_allclose(answers[2], answers[0], atol=1e-8)


# ---------------------------------------------------------------- starts at and near the solution


def assert_same_from_nearby(objective, constraints, solution: ConvexSolution):
    """Re-solve from the solution and from near it: same point, residuals as small."""
    rng = np.random.default_rng(0)
    size = 1 + abs(solution.y).max()
    for noise in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):
        again = minimise(objective, constraints, solution.y + noise * rng.normal(size=solution.y.size))
        assert again.outcome is Outcome.OPTIMAL, (noise, again)
        assert again.residual <= 1e-9
        if solution.unique:
            assert again.unique
            np.testing.assert_allclose(again.y, solution.y, rtol=0, atol=1e-8 * size)
        else:
            assert objective.value(again.y) == pytest.approx(objective.value(solution.y), abs=1e-8 * size)


@pytest.mark.parametrize("seed", range(40))
def test_weakly_active_rows_do_not_disturb_a_start_at_the_solution(seed):
    """A quarter of the rows touch the known minimiser with multiplier 0; without gradient in every other problem."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 30))
    factor = rng.normal(size=(size, size))
    matrix, wall, inside = (
        factor @ factor.T + 0.1 * np.eye(size),
        rng.normal(size=(2 * size, size)),
        rng.normal(size=size),
    )
    kind = rng.random(2 * size)
    multipliers = np.where(kind < 0.25, rng.uniform(0, 2, 2 * size), 0.0) * (seed % 2)
    constraints = rows(wall, upper=wall @ inside + np.where(kind < 0.5, 0.0, rng.uniform(0, 1, 2 * size)))
    objective = quadratic(matrix, -matrix @ inside - wall.T @ multipliers)
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    np.testing.assert_allclose(solution.y, inside, atol=1e-9)
    assert_same_from_nearby(objective, constraints, solution)


def test_many_variables_and_rows_that_depend_on_each_other_are_settled_at_the_start():
    """y_2i + y_2i+1 <= 1 stands there three times: an interior point gives each of them a part of the multiplier."""
    pairs = sparse.kron(sparse.eye(600), np.ones((1, 2)), format="csr")
    sums = sparse.kron(sparse.eye(300), np.ones((1, 4)), format="csr")
    matrix = sparse.vstack([sums, pairs, 2 * pairs], format="csr")
    sides = np.repeat([2.0, 1.0, 2.0], [300, 600, 600])
    constraints = Constraints(sparse.csr_matrix(matrix), np.full(1500, -INF), sides, (), 1500)
    objective = separable(lambda y: 0.5 * (y - 2) ** 2, lambda y: y - 2, np.ones_like)
    solution = minimise(objective, constraints, np.full(1200, 0.5) + 1e-12)
    assert_optimal(objective, constraints, solution)
    assert solution.iterations == 0
    np.testing.assert_allclose(solution.y, 0.5, rtol=0, atol=1e-12)
    assert np.count_nonzero(solution.multipliers) <= 600


def test_a_row_is_not_held_on_a_side_that_it_does_not_have():
    above, below = scaled_rows(rows(np.eye(2), upper=[1.0, INF], lower=[-INF, -1.0]), 0.0)[0], np.array([-5.0, 5.0])
    np.testing.assert_array_equal(rows_within(above, below, 1e-6).side, [0, 0])
    np.testing.assert_array_equal(rows_within(above, np.array([1.0, -1.0]), 1e-6).side, [1, -1])


@pytest.mark.parametrize("gap", [0.0, 1e-9, -1e-9, 1e-7, -1e-7, 1e-5])
def test_almost_weakly_active_rows_are_decided(gap):
    """Multiplier and slack both tiny: their product says optimal long before y is accurate."""
    constraints = rows([[1, 0], [1, 1], [1, -1]], upper=[1 + gap, 2, 0])
    objective = quadratic(np.eye(2), [-1, -1])
    solution = minimise(objective, constraints)
    other = scipy.optimize.minimize(
        objective.value, [0, 0], jac=objective.gradient, method="SLSQP", options={"ftol": 1e-16},
        constraints={"type": "ineq", "fun": lambda y: constraints.upper - constraints.matrix @ y},
    )  # fmt: skip
    expected = [1, 1] if gap >= 0 else [1 + gap, 1]
    np.testing.assert_allclose(other.x, expected, atol=1e-6)
    np.testing.assert_allclose(solution.y, expected, rtol=0, atol=1e-11)
    assert_same_from_nearby(objective, constraints, solution)


def test_exact_vertex_among_almost_coinciding_rows():
    """Two rows bound the same variable at almost the same place (Bard1988Ex2 near its optimum)."""
    matrix = [[0.4, 0.7], [0.6, 0.3], [0, 1]]
    objective = quadratic(2 * np.eye(2), [-70.0, -4.0])
    for shift in np.random.default_rng(0).normal(size=40) * 10.0 ** -np.tile([6, 7, 8, 9], 10):
        constraints = rows(matrix, [-INF, -INF, 0], [11.0857, 11.0857 * 1.5 + shift, INF])
        solution = minimise(objective, constraints)
        assert_optimal(objective, constraints, solution)
        expected = min(11.0857 / 0.4, (11.0857 * 1.5 + shift) / 0.6)
        np.testing.assert_allclose(solution.y, [expected, 0], rtol=0, atol=1e-11)
        assert_same_from_nearby(objective, constraints, solution)


@pytest.mark.parametrize("kind", ["quadratic", "log-sum-exp", "sqrt", "exp"])
@pytest.mark.parametrize("balls", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_starts_near_the_solution_of_random_problems(kind, balls, seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 7))
    objective = random_objective(kind, size, rng)
    matrix = np.vstack([rng.integers(-2, 3, (4, size)), np.eye(size)]).astype(float)
    inside, width = rng.normal(size=size), np.append(rng.uniform(0, 1, 4), np.full(size, 2.0))
    width[rng.integers(0, 4)] = 0.0
    walls = [Ball(np.arange(2), inside[:2] + 0.1, 0.5)] if balls else []
    constraints = rows(matrix, matrix @ inside - width, matrix @ inside + width, balls=walls)
    solution = minimise(objective, constraints)
    assert_optimal(objective, constraints, solution)
    assert_same_from_nearby(objective, constraints, solution)


def test_a_misleading_start_does_not_lose_the_answer():
    """From far away the Hessian of this function underflows; without a start it is easy."""
    objective = separable(lambda y: np.sqrt(1 + y**2), lambda y: y / np.sqrt(1 + y**2), lambda y: (1 + y**2) ** -1.5)
    for start in (1e3, 1e8, 1e120, np.nan, INF):
        solution = minimise(objective, rows([[1.0]], lower=-1), np.array([start]))
        assert solution.outcome is Outcome.OPTIMAL
        assert solution.y[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_public_problems_from_their_solutions():
    folder = Path(os.environ.get("BILEVAX_PROBLEMS", Path(__file__).parents[2] / "shared" / "problems"))
    if not (folder / "judge.py").exists():
        pytest.skip(f"{folder} is missing; set BILEVAX_PROBLEMS to the folder with the problems")
    specification = importlib.util.spec_from_file_location("judge", folder / "judge.py")
    assert specification is not None
    assert specification.loader is not None
    judge = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(judge)
    for record in judge.records():
        flat = FlatProblem(*judge.build(record, bilevax, jnp))
        points = [np.array(record["best"]["x"], float)]
        if record["name"] == "Outrata1990Ex1b":
            points.append(np.array([0.27883915, 0.47481171]))
        for x in points:
            objective, constraints = objective_at(flat, x), constraints_at(flat, x)
            solution = minimise(objective, constraints)
            assert solution.outcome is Outcome.OPTIMAL, record["name"]
            assert_same_from_nearby(objective, constraints, solution)
            best = np.array(record["best"]["y"], float)
            assert minimise(objective, constraints, best).outcome is Outcome.OPTIMAL, record["name"]


# ---------------------------------------------------------------- networks


def network_problem(name, capacity=None) -> tuple[Objective, Constraints, np.ndarray]:
    """Lower level of the network design problem: shares of the OD pairs first, then link flows per OD pair."""
    record = json.loads((INSIDE / "networks" / f"{name}.json").read_text())
    links, pairs = record["links"], record["od"]
    if capacity is None:
        capacity = np.array(record["x_start"])
    nodes = 1 + max(max(link["i"], link["j"]) for link in links)
    incidence = np.zeros((nodes, len(links)))
    for k, link in enumerate(links):
        incidence[link["i"], k] += 1
        incidence[link["j"], k] -= 1
    used = np.flatnonzero(np.any(incidence != 0, axis=1))
    position = {int(node): k for k, node in enumerate(used)}
    supply = sparse.lil_matrix((len(used) * len(pairs), len(pairs)))
    for k, pair in enumerate(pairs):
        supply[k * len(used) + position[pair["o"]], k] = -1
        supply[k * len(used) + position[pair["d"]], k] = 1
    weight = np.array([pair["w"] for pair in pairs])
    shares, size = len(pairs), len(pairs) * (1 + len(links))
    conservation = sparse.hstack([supply, sparse.kron(sparse.eye(shares), sparse.csr_matrix(incidence[used]))])
    loads = sparse.hstack(
        [sparse.csr_matrix((len(links), shares)), sparse.kron(weight[None, :], sparse.eye(len(links)))]
    )
    balance = np.zeros(conservation.shape[0])
    floor = np.append(np.full(shares, 1e-6), np.zeros(size - shares))
    ceiling = np.append(np.full(shares, 1 - 1e-6), np.ones(size - shares))
    constraints = Constraints(
        sparse.csr_matrix(sparse.vstack([conservation, loads, sparse.eye(size)])),
        np.concatenate([balance, np.full(len(links), -INF), floor]),
        np.concatenate([balance, np.broadcast_to(capacity, len(links)), ceiling]),
        relaxable=len(balance) + len(links),
    )
    time = np.array([link["t"] for link in links])
    linear = np.append([-pair["w"] * pair["t_ext"] for pair in pairs], np.kron(weight, time))

    def value(y):
        s = y[:shares]
        return float(linear @ y + weight @ (s * np.log(s) + (1 - s) * np.log1p(-s)))

    def gradient(y):
        s = y[:shares]
        return linear + np.append(weight * (np.log(s) - np.log1p(-s)), np.zeros(size - shares))

    def hessian(y):
        s = y[:shares]
        return sparse.diags(np.append(weight / (s * (1 - s)), np.zeros(size - shares))).tocsc()

    start = np.append(np.full(shares, 0.5), np.zeros(size - shares))
    return Objective(value, gradient, hessian), constraints, start


def test_three_node_network_is_the_logit_when_roads_are_wide():
    objective, constraints, start = network_problem("paper3", 1e3)
    solution = minimise(objective, constraints, start)
    assert_optimal(objective, constraints, solution)
    # Wide roads: the share of a pair is the logit of its external time minus its shortest path.
    assert solution.y[:6].max() == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-9)


@pytest.mark.parametrize("capacity", [1e-3, 0.3, 30.0])
def test_nine_node_network(capacity):
    objective, constraints, start = network_problem("paper9", capacity)
    solution = minimise(objective, constraints, start)
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.residual <= 1e-9


def test_closed_network_is_infeasible():
    objective, constraints, start = network_problem("paper9", 0.0)
    solution = minimise(objective, constraints, start)
    assert solution.outcome is Outcome.INFEASIBLE
    assert 0 < solution.relaxation <= 1e-6


@pytest.mark.slow
def test_seville_size():
    objective, constraints, start = network_problem("seville", 0.001)
    assert start.size == 49128
    solution = minimise(objective, constraints, start)
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.residual <= 1e-9


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_entropy_on_a_simplex_to_the_smallest_share(seed, guarded):
    """The minimiser is a softmax; shares of 1e-30 are found as exactly as others, whatever is said of 0 log 0."""
    random = np.random.default_rng(seed)
    size, weight = int(random.integers(2, 10)), 10 ** random.uniform(-1.5, 0)
    cost = random.standard_normal(size) * 10 ** random.uniform(-1, 0.7)
    at_zero = lambda y, value, otherwise: np.where(y == 0, value, otherwise) if guarded else otherwise
    objective = separable(
        lambda y: at_zero(y, 0.0, weight * y * np.log(y)) + cost * y,
        lambda y: at_zero(y, 0.0, weight * (np.log(y) + 1)) + cost,
        lambda y: at_zero(y, 0.0, weight / y),
    )
    simplex = rows(np.vstack([np.ones(size), np.eye(size)]), np.r_[1.0, np.zeros(size)], np.r_[1.0, np.full(size, INF)])
    solution = minimise(objective, simplex)
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.unique
    assert np.log(solution.y) == pytest.approx(scipy.special.log_softmax(-cost / weight), abs=1e-8)


@pytest.mark.parametrize(
    ("value", "first", "second"),
    [
        (lambda y: y * np.log(y), lambda y: np.log(y) + 1, lambda y: 1 / y),
        (lambda y: -np.log(y), lambda y: -1 / y, lambda y: 1 / y**2),
        (lambda y: -np.sqrt(y), lambda y: -0.5 / np.sqrt(y), lambda y: 0.25 * y**-1.5),
        (lambda y: 1 / y, lambda y: -1 / y**2, lambda y: 2 / y**3),
    ],
    ids=["entropy", "log", "root", "inverse"],
)
@pytest.mark.parametrize("seed", range(5))
def test_functions_with_a_domain_under_rows(value, first, second, seed):
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 8))
    cost, factor = 10 * random.standard_normal(size), random.standard_normal((size, size))
    matrix, above = factor @ factor.T, random.standard_normal((3, size))
    objective = Objective(
        lambda y: float(np.sum(value(y)) + cost @ y + 0.5 * y @ matrix @ y),
        lambda y: first(y) + cost + matrix @ y,
        lambda y: sparse.csc_matrix(np.diag(second(y)) + matrix),
    )
    constraints = rows(
        np.vstack([np.eye(size), above]),
        np.r_[np.zeros(size), np.full(3, -INF)],
        np.r_[np.full(size, INF), above.sum(axis=1) * 0.3 + random.uniform(0, 0.5, 3)],
    )
    assert_optimal(objective, constraints, minimise(objective, constraints), 1e-8)


def test_a_sum_under_the_logarithm_leaves_its_parts_their_bounds():
    """log(a + b) is infinite at a = b = 0 only: a = 0 is a bound like any other, and active."""
    objective = Objective(
        lambda y: float(-np.log(y.sum()) + 2 * y[0] + y[1]),
        lambda y: -1 / y.sum() + np.array([2.0, 1.0]),
        lambda y: sparse.csc_matrix(np.full((2, 2), 1 / y.sum() ** 2)),
    )
    solution = minimise(objective, rows(np.eye(2), 0.0))
    assert_optimal(objective, rows(np.eye(2), 0.0), solution)
    assert solution.y == pytest.approx([0.0, 1.0], abs=1e-9)


@pytest.mark.parametrize("power", [4, 6, 8])
@pytest.mark.parametrize("start", [None, 5.0, 0.3001])
def test_flat_minima_are_found_exactly(power, start):
    """Newton's method only crawls towards the minimum of (y - x)^6, where gradient and curvature vanish together."""
    off = lambda y: y - 0.3
    objective = separable(
        lambda y: off(y) ** power,
        lambda y: power * off(y) ** (power - 1),
        lambda y: power * (power - 1) * off(y) ** (power - 2),
    )
    solution = minimise(objective, no_rows(1), None if start is None else np.array([start]))
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.y == pytest.approx([0.3], abs=1e-9)


def test_a_steep_variable_hides_nothing_of_another():
    """At y = (0, -0.4) the second entry is off by 0.4, however hard the first one is pressed against its bound."""
    objective = quadratic(np.diag([1.0, 2.0]), [1e5, -0.8])
    scaled = scaled_rows(rows(np.eye(2), [0.0, -INF], [INF, 0.0]), 0.0)[0]
    point = measure(Local(objective, np.array([0.0, -0.4])), scaled, np.array([-1e5, 0.0]), np.zeros(0))
    assert point.residuals[0] > 0.1
    solution = minimise(objective, rows(np.eye(2), [0.0, -INF], [INF, 0.0]))
    assert solution.y == pytest.approx([0.0, 0.0], abs=1e-12)
    assert solution.multipliers == pytest.approx([-1e5, 0.8], rel=1e-9)


@pytest.mark.parametrize(
    "objective",
    [
        separable(np.exp, np.exp, np.exp),
        separable(
            lambda y: np.logaddexp(0, -y),
            lambda y: -scipy.special.expit(-y),
            lambda y: scipy.special.expit(-y) * scipy.special.expit(y),
        ),
    ],
    ids=["exponential", "softplus"],
)
def test_an_infimum_that_is_not_attained_is_no_minimum(objective):
    assert minimise(objective, no_rows(2)).outcome is Outcome.UNBOUNDED


def test_an_exponential_with_a_bound_has_a_minimum():
    solution = minimise(separable(np.exp, np.exp, np.exp), rows(np.eye(2), -20.0))
    assert solution.outcome is Outcome.OPTIMAL
    assert solution.y == pytest.approx([-20.0, -20.0])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_cost_of_rounding_size_next_to_a_tie_is_seen(sign):
    cost = np.array([sign * 2e-13, 1.0, -0.7])
    objective = Objective(lambda y: float(cost @ y), lambda y: cost, lambda y: sparse.csc_matrix((3, 3)))
    box = Constraints(sparse.csr_matrix(sparse.eye(3)), np.zeros(3), np.array([0.8, 1.0, 0.6]))
    found = minimise(objective, box)
    assert found.outcome is Outcome.OPTIMAL
    np.testing.assert_allclose(found.y, [0.0 if sign > 0 else 0.8, 0.0, 0.6], atol=1e-9)


def test_newton_steps_with_dependent_rows_and_flat_directions_have_a_solution():
    random = np.random.default_rng(0)
    some = sparse.random(300, 3000, 0.01, random_state=0, format="csr")
    matrix = sparse.csr_matrix(sparse.vstack([some, some[:50], 1e-3 * some[50:100]]))
    curvature = np.where(np.arange(3000) < 2500, 0.0, 10.0 ** random.uniform(-6, 6, 3000))
    hessian, move, multipliers = sparse.csc_matrix(sparse.diags(curvature)), *map(random.standard_normal, (3000, 400))
    right_y, right_rows = hessian @ move + matrix.T @ multipliers, matrix @ move
    found = solve_saddle_point(hessian, matrix, np.full(400, -1), right_y, right_rows)
    assert np.abs(hessian @ found[0] + matrix.T @ found[1] - right_y).max() <= 1e-8
    assert np.abs(matrix @ found[0] - right_rows).max() <= 1e-12
