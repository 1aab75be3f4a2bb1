"""Large quadratics: what is computed once, in the space of x and the multipliers, is what the general ways compute."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax._support.full import as_array
from bilevax.certificate.stationarity import strong
from bilevax.exact import response, sensitivity
from bilevax.exact.active_rows import Margin, active_rows, unit_rows
from bilevax.exact.kink import Kinks
from bilevax.exact.phi import evaluate
from bilevax.exact.sensitivity import solve_kkt
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.model import quadratic
from bilevax.model.analysis.jets.components import Unsupported
from bilevax.model.analysis.program import Program
from bilevax.model.analysis.quadratic_form import quadratic_form
from bilevax.model.analysis.tracing import trace
from bilevax.model.flat import FlatProblem
from bilevax.model.scales import Scales
from bilevax.problems.quadratic import quadratic_problem
from bilevax.solvers.default.direct import densely
from bilevax.solvers.default.lower import central, path_in_rows
from bilevax.solvers.default.pieces.dense import DenseTrust
from bilevax.solvers.default.pieces.point import ACTIVE, INACTIVE, classify
from bilevax.solvers.default.programs import high_point
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import CENTRAL
from bilevax.solvers.default.smoothing.central_path import CentralPath
from bilevax.solvers.default.smoothing.row_path import RowPath
from bilevax.solvers.diary import Diary
from known import present

_N_X, _N_Y, _ROWS = 140, 280, 140


@functools.cache
def _problem(n_equalities: int = 0) -> bx.BilevelProblem:
    return quadratic_problem(_N_X, _N_Y, _ROWS, upper="quadratic", condition=100.0, seed=1, n_equalities=n_equalities)


def _flat(n_equalities: int = 0) -> FlatProblem:
    return FlatProblem(_problem(n_equalities), np.zeros(_N_X), np.zeros(_N_Y))


def _search(n_equalities: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    flat = _flat(n_equalities)
    x, y = np.random.default_rng(0).standard_normal(_N_X), np.zeros(_N_Y)
    return densely(flat, UpperSet(flat.x_rows), x, y, Diary()), x, y


_M = np.random.default_rng(3).standard_normal((7, 5))
_FORMS = {
    "residuals": lambda x, y: 0.5 * jnp.ones(7) @ (_M @ jnp.concatenate([x, y]) - 1.0) ** 2,
    "negative weights": lambda x, y: -jnp.sum((_M @ jnp.concatenate([x, y])) ** 2 / 3) + x[0],
    "mixed weights": lambda x, y: jnp.array([1.0, -2, 3, 0, 1, 1, 1]) @ (_M[:, :3] @ y - _M[:, 0]) ** 2,
    "bilinear": lambda x, y: 0.5 * y @ (_M[:3, :3] @ y) + y @ (_M[:3, 3:] @ x + 2.0) - jnp.sum(x),
    "parts": lambda x, y: jnp.sum(x * (y[1:] - 2 * y[:2])) + jnp.sum(jnp.concatenate([y, 3 * x])[1:4] ** 2),
    "a product of values": lambda x, y: jnp.sum(_M[:, :2] @ x) * (y[0] - 1.0) + (_M[:2, :3] @ y) @ (_M[2:4, :2] @ x),
}


@pytest.mark.parametrize("name", _FORMS)
def test_a_quadratic_is_known_by_its_operations(name):
    linear, curvature = quadratic_form(Program(trace(_FORMS[name], 2, 3)))
    gradient = lambda x, y: jnp.concatenate(quadratic.jax.grad(_FORMS[name], argnums=(0, 1))(x, y))
    numbers = quadratic.gradient_numbers(gradient, 2, 3)
    assert numbers is not None
    np.testing.assert_allclose(linear, numbers[0], atol=1e-13)
    np.testing.assert_allclose(curvature, numbers[1], atol=1e-13)


@pytest.mark.parametrize(
    "function", [lambda x, y: jnp.sum(x) * jnp.sum(y) * y[0], lambda x, y: jnp.sum(jnp.cos(y)), lambda x, y: y[::2] @ x]
)
def test_other_operations_are_left_to_derivatives(function):
    with pytest.raises(Unsupported):
        quadratic_form(Program(trace(function, 2, 3)))


@pytest.mark.parametrize("n_equalities", [0, 10])
def test_steps_in_the_space_of_the_constraints_are_those_of_the_general_program(n_equalities, monkeypatch):
    direct, x, y = _search(n_equalities)
    pieces = direct.pieces
    point = pieces.evaluate(x, y)
    sides = classify(point, pieces.units(point), pieces.rows.inequality, 1e-10)
    sides[np.flatnonzero(sides == INACTIVE)[:3]] = 0  # as at a kink
    assert np.count_nonzero(sides == ACTIVE) > n_equalities
    model = pieces.model(point, DenseTrust(1e3, 1.0))
    step = model._in_row_space(sides, np.flatnonzero(sides == ACTIVE))
    assert step is not None
    monkeypatch.setattr(pieces, "row_steps", lambda: None)
    expected = model.solve(sides)
    assert step.predicted == pytest.approx(expected.predicted, rel=1e-8)
    for part in ("x", "y", "multiplier", "slack"):
        np.testing.assert_allclose(getattr(step.end, part), getattr(expected.end, part), atol=1e-8)
    assert step.slope == pytest.approx(expected.slope, rel=1e-6)


def test_the_smoothed_objective_is_that_of_the_central_path(monkeypatch):
    for module in (central, path_in_rows):
        monkeypatch.setattr(module, "CENTRAL", dataclasses.replace(CENTRAL, products=1e-9))
    direct, x, y = _search()
    start = direct.pieces.evaluate(x, y)
    path: Any = direct.path(start)
    assert isinstance(path, RowPath)
    plain: Any = CentralPath(path.lower, path.start, path.first)
    one, other = present(path.begin()), present(plain.begin())
    nearby = x + 0.01 * np.random.default_rng(5).standard_normal(_N_X)
    for a, b in (
        (one, other),
        (present(path.evaluate(nearby, one.smoothing, one)), present(plain.evaluate(nearby, one.smoothing, other))),
    ):
        assert a.value == pytest.approx(b.value, rel=1e-7)
        np.testing.assert_allclose(a.gradient, b.gradient, atol=1e-7 * np.abs(b.gradient).max())
        np.testing.assert_allclose(a.y, b.y, atol=1e-7)
    assert path.evaluate(one.x, one.smoothing, one) is one


def test_the_relaxation_of_a_large_quadratic_is_found_in_one_step(monkeypatch):
    flat = _flat()
    x, y = np.zeros(_N_X), np.zeros(_N_Y)
    found: Any = high_point._of_large_quadratic(flat, x, y)
    monkeypatch.setattr(high_point, "_of_large_quadratic", lambda *arguments: None)
    expected: Any = high_point.high_point_relaxation(flat, x, y)
    assert found.bound
    assert expected.bound
    assert found.value == pytest.approx(expected.value, rel=1e-10)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-7)


def test_a_certificate_has_one_factor_for_all_points_around(monkeypatch):
    flat = _flat()
    x = np.random.default_rng(0).standard_normal(_N_X)
    here = evaluate(flat, x)
    few = dataclasses.replace(EXACT_SETTINGS, dense_response=100)
    monkeypatch.setattr(response, "EXACT_SETTINGS", few)
    known = response.responses(flat, x, here.lower)
    assert known is not None
    assert known.large is not None
    points = x + np.array([[0.1]]) * np.random.default_rng(7).standard_normal((1, _N_X))
    for point, found in zip(points, known.at(points), strict=True):
        assert found is not None
        expected = evaluate(flat, point).lower
        np.testing.assert_allclose(found.y, expected.y, atol=1e-8)
        np.testing.assert_allclose(found.multipliers, expected.multipliers, atol=1e-7)


def test_kkt_systems_share_the_factor_of_a_full_hessian(monkeypatch):
    random = np.random.default_rng(2)
    root = random.standard_normal((200, 200))
    hessian, rows = sp.csc_matrix(root @ root.T + np.eye(200)), sp.csr_matrix(random.standard_normal((40, 200)))
    right = random.standard_normal((240, 3))
    monkeypatch.setattr(sensitivity, "_full_system", None)  # no other way is taken
    whole = np.block([[hessian.toarray(), rows.toarray().T], [rows.toarray(), np.zeros((40, 40))]])
    found = solve_kkt(hessian, rows, right)
    assert found is not None
    np.testing.assert_allclose(found, np.linalg.solve(whole, right), rtol=1e-8, atol=1e-10)
    monkeypatch.undo()
    twice = sp.csr_matrix(sp.vstack([rows, rows[:1]]))  # dependent rows need another
    assert solve_kkt(hessian, twice, np.append(right[:, 0], right[200, 0])) is not None


def test_a_full_hessian_is_eliminated_however_many_rows_are_active(monkeypatch):
    """A program with the Hessian in it would take many times its memory."""
    monkeypatch.setattr(strong, "EXACT_SETTINGS", dataclasses.replace(EXACT_SETTINGS, dense_entries=1))
    monkeypatch.setattr(strong, "_sparse", None)
    flat, x = _flat(), np.random.default_rng(0).standard_normal(_N_X)
    lower = evaluate(flat, x).lower
    point, active = (
        sensitivity.derivatives(flat, x, lower),
        active_rows(flat, x, lower, unit_rows(flat, x, lower), Margin(1e-9, 1e-9)),
    )
    none = np.zeros(len(active.weak), bool)
    assert strong.strong_system(Kinks(point, active), none, none, True).hessian.size == 0


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csc_matrix])
def test_a_full_matrix_is_an_array_already(make):
    full, some = np.arange(1.0, 7.0).reshape(2, 3), np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    array, matrix = as_array(make(full)), make(full)
    np.testing.assert_array_equal(array, full)
    assert np.shares_memory(as_array(matrix), matrix.data)
    assert not array.flags.writeable
    np.testing.assert_array_equal(as_array(make(some)), some)


def test_a_large_quadratic_in_other_units_needs_no_matrix_for_its_gradients():
    random, size = np.random.default_rng(0), _N_X + _N_Y
    curvature, linear = random.standard_normal((size, size)), random.standard_normal(size)
    user = quadratic.JointQuadratic(_N_X, lambda x, y: 0.0, linear, curvature + curvature.T)
    scales = Scales(np.exp2(random.integers(-3, 4, _N_X)), np.exp2(random.integers(-3, 4, _N_Y)), np.ones(1))
    unit, both = 0.25, np.concatenate([scales.x, scales.y])
    scaled = user.in_units(scales, unit)
    point = random.standard_normal(size)
    without = np.concatenate(scaled.gradients(point[:_N_X], point[_N_X:]))
    part = scaled.part("y", "x").toarray()
    assert "curvature" not in vars(scaled)
    np.testing.assert_array_equal(scaled.curvature, unit * both[:, None] * user.curvature * both)
    np.testing.assert_array_equal(part, scaled.block("y", "x"))
    np.testing.assert_allclose(without, np.concatenate(scaled.gradients(point[:_N_X], point[_N_X:])), rtol=1e-14)
