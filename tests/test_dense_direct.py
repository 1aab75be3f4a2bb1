"""The dense direct path: quadratic programs by their rows, second derivatives, and large dense problems as a whole."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.model.flat import FlatProblem
from bilevax.problems.quadratic import random_quadratic
from bilevax.solvers.default.lower import dense_algebra
from bilevax.solvers.default.lower.central import CentralLower
from bilevax.solvers.default.lower.path_in_rows import central_in_rows
from bilevax.solvers.default.pieces.dense import DenseTrust, dense_pieces
from bilevax.solvers.default.pieces.descent import Step, exact_descent
from bilevax.solvers.default.pieces.point import ExactPoint, Units
from bilevax.solvers.default.programs.box import box_program
from bilevax.solvers.default.programs.convexify import convex_model
from bilevax.solvers.default.programs.quadratic import solve_by_rows, solve_qp
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import SIZES


def _program(seed, size=20, count=40, equalities=0):
    random = np.random.default_rng(seed)
    root = random.standard_normal((size, size))
    matrix = random.standard_normal((count, size))
    inside = matrix @ random.standard_normal(size)
    lower = inside - random.uniform(0.0, 1.0, count)
    upper = inside + random.uniform(0.0, 1.0, count)
    lower[count // 2 :] = -np.inf
    lower[:equalities] = upper[:equalities] = inside[:equalities]
    return root @ root.T + 0.1 * np.eye(size), 10 * random.standard_normal(size), matrix, lower, upper


@pytest.mark.parametrize("equalities", [0, 3])
@pytest.mark.parametrize("seed", range(8))
def test_programs_by_their_rows_agree_with_clarabel(seed, equalities):
    hessian, gradient, matrix, lower, upper = _program(seed, equalities=equalities)
    found = solve_by_rows(hessian, gradient, matrix, lower, upper)
    expected = solve_qp(sp.csc_matrix(hessian), gradient, sp.csr_matrix(matrix), lower, upper)
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_tiny_programs_are_solved_as_exactly_as_others():
    # Near the end of a descent everything is tiny: a row that gives way by 1e-11 would be all there is.
    hessian, gradient, matrix, lower, upper = _program(1)
    whole = solve_by_rows(hessian, gradient, matrix, lower, upper)
    tiny = solve_by_rows(hessian, 1e-13 * gradient, matrix, 1e-13 * lower, 1e-13 * upper)
    assert whole is not None
    assert tiny is not None
    np.testing.assert_allclose(1e13 * tiny, whole, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_a_box_with_a_few_rows_is_solved_by_their_prices(seed):
    hessian, gradient, matrix, lower, upper = _program(seed, size=40, count=6)
    lower, upper = np.minimum(lower, -0.1), np.maximum(upper, 0.1)
    if seed % 2:
        lower[0] = upper[0] = 0.0
    low, high = -np.linspace(0.1, 2.0, 40), np.full(40, 1.0)
    found = box_program(gradient, hessian, low, high, (matrix, lower, upper))
    everything = np.vstack([matrix, np.eye(40)]), np.append(lower, low), np.append(upper, high)
    expected = solve_qp(hessian, gradient, *everything)
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_programs_without_an_answer_by_rows_are_left_to_others():
    _, gradient, matrix, lower, upper = _program(0)
    assert solve_by_rows(np.zeros((20, 20)), gradient, matrix, lower, upper) is None
    lower[0], upper[1], matrix[1] = 1.0, 0.0, matrix[0]  # above 1 and below 0
    assert solve_by_rows(np.eye(20), gradient, matrix, lower, upper) is None


def _flat(upper):
    problem, _ = random_quadratic(12, 20, 10, upper=upper, with_theta_bar=False)
    random = np.random.default_rng(0)
    return FlatProblem(problem, np.zeros(12), np.zeros(20)), random.standard_normal(12), random.standard_normal(20)


@pytest.mark.parametrize("upper", ["quadratic", "nonconvex"])
def test_curvature_is_that_of_the_point_asked_for(upper):
    flat, x, y = _flat(upper)
    random = np.random.default_rng(1)
    for _ in range(3):
        x, y, weight = x + random.standard_normal(12), y + random.standard_normal(20), random.standard_normal(20)
        direction = random.standard_normal(32)
        small = 1e-6 * direction
        gradient = lambda sign, x=x, y=y, step=small: np.concatenate(
            flat.gradients("upper", x + sign * step[:12], y + sign * step[12:])
        )
        expected = (gradient(1) - gradient(-1)) / 2e-6  # g is quadratic: it adds nothing
        np.testing.assert_allclose(flat.curvature(x, y, weight, direction[None])[0], expected, rtol=1e-6, atol=1e-6)
    assert flat.lagrangian_varies == (upper == "nonconvex")


def test_reduction_in_the_space_of_the_rows_equals_that_by_directions(monkeypatch):
    flat, x, _ = _flat("quadratic")
    pieces = dense_pieces(flat, UpperSet(flat.x_rows), x, np.zeros(20))
    point = pieces.evaluate(x, np.zeros(20))
    assert point is not None
    active = np.flatnonzero(point.multiplier > 1e-9)
    assert len(active) >= 3
    model = pieces.model(point, pieces.trust(point, 1e-6))
    by_directions = model.reduce(active[1:], active[:1])
    monkeypatch.setattr("bilevax.solvers.default.pieces.dense.SIZES", dataclasses.replace(SIZES, directions=0))
    by_rows = model.reduce(active[1:], active[:1])
    np.testing.assert_allclose(by_rows.hessian, by_directions.hessian, rtol=1e-9, atol=1e-9)


def test_unproven_derivatives_are_those_of_quadratics_only():
    flat, x, y = _flat("quadratic")
    first = flat.lower_derivatives(x, y)
    again = flat.lower_derivatives(2 * x, 3 * y, proven=False)
    np.testing.assert_allclose(again.gradient, flat.lower_derivatives(2 * x, 3 * y).gradient)
    assert again.hessian is first.hessian
    bent = bx.BilevelProblem(
        lambda x, y: jnp.sum(x * y),
        lambda x, y: jnp.sum(jnp.cosh(y - x)),
    )
    flat = FlatProblem(bent, np.zeros(2), np.zeros(2))
    for y in (np.zeros(2), np.ones(2), 2 * np.ones(2)):
        flat.lower_derivatives(np.zeros(2), y)
    found = flat.lower_derivatives(np.zeros(2), 3 * np.ones(2), proven=False)
    np.testing.assert_allclose(found.hessian.toarray(), np.cosh(3) * np.eye(2))


def test_full_quadratics_of_many_variables_are_known_by_their_numbers(monkeypatch):
    """By products of NumPy with unit vectors, nothing compiled; what is no matrix of the data stays sparse."""
    monkeypatch.setattr("bilevax.model.flat.padded", None)
    problem, _ = random_quadratic(150, 300, 20, upper="quadratic", with_theta_bar=False)
    flat, data = FlatProblem(problem, np.zeros(150), np.zeros(300)), problem.data
    upper, lower = flat.quadratics["upper"], flat.quadratics["lower"]
    assert upper is not None
    assert lower is not None
    np.testing.assert_allclose(upper.curvature, data["Q"].T @ (data["w"][:, None] * data["Q"]), atol=1e-13)
    np.testing.assert_allclose(upper.linear, -data["Q"].T @ (data["w"] * data["t"]), atol=1e-13)
    np.testing.assert_allclose(lower.block("y", "y"), data["H"], atol=1e-12)
    np.testing.assert_allclose(lower.block("y", "x"), data["C"], atol=1e-13)
    assert not lower.block("x", "x").any()
    thin = bx.BilevelProblem(lambda x, y: jnp.sum(y**2), lambda x, y: jnp.sum((y - x[0]) ** 2), y_like=np.zeros(500))
    assert FlatProblem(thin, np.zeros(1), np.zeros(500)).quadratics["upper"] is None


@pytest.mark.parametrize("equalities", [0, 5])
def test_central_points_in_the_space_of_the_rows_are_those_of_the_variables(equalities, monkeypatch):
    problem, _ = random_quadratic(30, 60, 40, upper="quadratic", n_equalities=equalities, box=3.0, with_theta_bar=False)
    random = np.random.default_rng(0)
    x, far = 0.02 * random.standard_normal(30), 0.5 * random.standard_normal(30)
    points = []
    for most in (SIZES.directions, 10):
        monkeypatch.setattr(dense_algebra, "SIZES", dataclasses.replace(SIZES, directions=most))
        flat = FlatProblem(problem, np.zeros(30), np.zeros(60))
        algebra = dense_pieces(flat, UpperSet(flat.x_rows), x, np.zeros(60)).algebra
        lower = CentralLower(flat, algebra.rows, algebra)
        first = lower.solve(x, 1e-3, 1e-4, lower.start(x, np.zeros(60)))
        assert first is not None
        points.append([first, lower.solve(far, 1e-3, 1e-4, first)])
    for one, other in zip(*points, strict=True):  # products are met to 1e-3
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(one.y, other.y, rtol=2e-3, atol=1e-4)
        np.testing.assert_allclose(one.multiplier, other.multiplier, rtol=1e-2, atol=1e-3)


def test_a_start_with_small_products_does_not_follow_the_boundary():
    """From a start that is central at another x, with next to no barrier, steps would be cut to almost nothing."""
    random, count = np.random.default_rng(0), 60
    root = random.standard_normal((count, count))
    compliance = root @ root.T / count + 0.1 * np.eye(count)
    factorised = []

    def solver(give):
        factorised.append(give)
        return lambda right: np.linalg.solve(compliance + np.diag(give), right)

    ends, soft, start = [], np.full(count, 1e-9), (np.ones(count), np.ones(count))
    for free in (random.standard_normal(count), random.standard_normal(count)):
        factorised.clear()
        start = central_in_rows(compliance, free, solver, 0, soft, 1e-7, start)
        assert start is not None
        multiplier, slack = start
        np.testing.assert_allclose(multiplier * slack, 1e-7, rtol=2e-3)
        np.testing.assert_allclose(free - compliance @ multiplier + slack, soft * multiplier, atol=1e-9)
        ends.append(len(factorised))
    assert max(ends) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("size", [120, 1100])
def test_large_dense_problems_are_certified(size):
    # 1100 variables of y: more than the certificate's least squares with signs would take.
    problem, _ = random_quadratic(30, size, 60, upper="quadratic", condition=100.0, with_theta_bar=False)
    solution = bx.solve(problem, np.random.default_rng(0).standard_normal(30))
    assert solution.success, solution.message
    assert solution.certificate.lower_unique


def test_curvature_that_only_held_variables_could_follow_does_not_change_that_of_the_others():
    hessian = np.array([[2.0, 1.0, 1.0], [1.0, 3.0, 0.5], [1.0, 0.5, -4.0]])
    model = convex_model(hessian, np.array([False, False, True]))
    np.testing.assert_array_equal(model[:2, :2], hessian[:2, :2])
    assert np.linalg.eigvalsh(model)[0] > 0
    definite = hessian + 10 * np.eye(3)
    np.testing.assert_array_equal(convex_model(definite, np.array([False, False, True])), definite)


def test_near_a_minimiser_on_bounds_where_phi_curves_down_steps_converge_quadratically():
    """Along the bounds Phi is convex, across them it is not: the steps are those of Newton's method on the bounds."""
    random = np.random.default_rng(0)
    turned = np.linalg.qr(random.standard_normal((12, 12)))[0]
    problem = bx.BilevelProblem(
        lambda x, y, q: jnp.sum(jnp.cosh(y - 0.3)) - 2.0 * jnp.sum((q @ x) ** 2) + 4.2 * jnp.sum(x[:6] ** 2),
        lambda x, y, q: 0.5 * jnp.sum((y - x) ** 2),
        bx.LinearCoupling(A=np.ones((1, 12)), upper=100.0),
        x_set=bx.Box(-1.0, 1.0),
        data=turned,
    )
    solution = bx.solve(problem, np.full(12, 0.5), solver=bx.Default())
    assert solution.success
    assert np.sum(solution.history["phase"] == "exact descent") <= 20


def test_where_g_had_to_be_lifted_the_end_is_without_the_lift():
    # An elastic net whose weights are differences: no curvature along their sums. The lift shifts answers by 1e-6.
    random, features, weights = np.random.default_rng(6), 6, np.array([2, -1, 0, 0, 0.5, 0])
    draw = lambda count: (rows := random.standard_normal((count, features)), rows @ weights)
    noise = lambda: 0.5 * random.standard_normal(40)
    (inside, exact), (outside, truth) = draw(40), draw(40)
    measured, judged = exact + noise(), truth + noise()
    net = bx.BilevelProblem(
        lambda x, y: jnp.mean((outside @ (y[:features] - y[features:]) - judged) ** 2),
        lambda x, y: (
            jnp.mean((inside @ (y[:features] - y[features:]) - measured) ** 2) / 2
            + jnp.exp(x[1]) / 2 * jnp.sum((y[:features] - y[features:]) ** 2)
        ),
        bx.LinearCoupling(A=np.ones((1, 2 * features)), B=[[-1.0, 0.0]], upper=0.0),
        x_set=bx.Box([0.1, -8.0], [8.0, 3.0]),
        y_set=bx.NonNegative(),
    )
    solution = bx.solve(net, [2.0, -2.0])
    assert solution.success, solution.message


def test_dependent_rows_pass_their_multipliers_on_before_a_descent_ends():
    # More rows are active than there are y: another multiplier vector has another row open, and Phi falls there.
    random = np.random.default_rng(3)

    def drawn(size):
        labels = np.where(random.random(size) < 0.15, 1.0, -1.0)
        labels[:2] = 1.0, -1.0
        return bx.datasets.Dataset(random.standard_normal((size, 2)) + labels[:, None] / np.sqrt(2), labels)

    solution = bx.solve(bx.problems.svm(drawn(14), drawn(10), flat=True), np.full(14, 3.0))
    assert solution.success, solution.message
    assert solution.value <= 16.1027853


class _Slow:
    """Pieces of x squared, each of whose steps goes a twentieth of the way."""

    resolution, lands_anywhere = 1e-14, True
    units = staticmethod(lambda point: Units(1.0, 1.0))
    trust = staticmethod(lambda point, rtol: DenseTrust(1.0, 1.0))
    readings = staticmethod(lambda point: [(point, np.zeros(0, np.int8))])
    other_readings = staticmethod(lambda point, promises: [])
    arrive = staticmethod(lambda step: step.end)
    polished = staticmethod(lambda point, trust: None)

    def model(self, point, trust):
        """Return itself, at the point."""
        self.point = point
        return self

    def solve(self, sides):
        """Return the step."""
        x = self.point.x
        end = _at(0.95 * x)
        return Step(end, sides, self.point.value - end.value, float(0.05 * x[0]), float(x[0]))


def _at(x):
    return ExactPoint(x, np.zeros(0), np.zeros(0), np.zeros(0), float(x @ x))


def test_a_descent_goes_on_as_long_as_it_gains():
    steps = list(exact_descent(_Slow(), _at(np.ones(1)), 1e-6))
    assert len(steps) > 200
    assert steps[-1][1]
    assert steps[-1][0].x[0] < 1e-5
