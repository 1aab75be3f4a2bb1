"""What keeps a small problem fast: objectives by their numbers, NumPy where nothing is compiled, names on demand."""

import gc
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax._support import memory
from bilevax.app.cli import compiled
from bilevax.exact import phi
from bilevax.exact.lower import objective_at, solve_flat
from bilevax.model.analysis import Program, trace
from bilevax.model.analysis.host import HostFunction
from bilevax.model.compressed_rows import (
    beside,
    by_columns,
    entries_of,
    joint_matrix,
    on_top,
    picked,
    row_largest,
    row_squares,
)
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import Variable
from bilevax.model.scales import Scales

M = np.random.default_rng(3).standard_normal((3, 2))

QUADRATICS = {
    "products": lambda x, y: y @ (M @ x) + (M @ x) @ (M @ x) + 0.5 * jnp.sum(y**2) - 3.0,
    "squares": lambda x, y: (x[0] - 1e3) ** 2 + (y[0] - 2 * x[1]) ** 2 / 4 + jnp.square(y[2]) + 5.0,
    "sums": lambda x, y: jnp.sum(jnp.outer(x, y)) + jnp.mean(jnp.concatenate([x, y]) ** 2) - jnp.sum(-y[::-1] * y),
    "places": lambda x, y: y[jnp.array([0, 2])] @ x + jnp.where(jnp.array([True, False, True]), y, 2 * y) @ y,
    "linear": lambda x, y: 2 * x[0] - y[1] + 7.0,
    "constant": lambda x, y: jnp.zeros(()) * x[0] + 4.0,
}


def flat_problem(upper, lower=None) -> FlatProblem:
    problem = bx.BilevelProblem(upper, upper if lower is None else lower, y_like=np.zeros(3))
    return FlatProblem(problem, np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("name", QUADRATICS)
def test_numbers_of_a_quadratic_are_its_derivatives_in_any_units(name):
    fn, random = QUADRATICS[name], np.random.default_rng(0)
    scales = Scales(np.array([2.0, 0.5]), np.array([4.0, 1.0, 0.25]), np.ones(0), upper=8.0, lower=0.5)
    flat = flat_problem(fn).in_units(scales)
    x, y = random.standard_normal(2), random.standard_normal(3)

    def written(z):
        return 8.0 * fn(z[:2] * scales.x, z[2:] * scales.y)

    with jax.enable_x64(True):
        z = jnp.concatenate([x, y])
        value, gradient, hessian = (np.asarray(of(z)) for of in (written, jax.grad(written), jax.hessian(written)))
    quadratic = flat.quadratics["upper"]
    assert quadratic is not None
    found = flat.value_and_gradients("upper", x, y)
    assert found[0] == pytest.approx(float(value), rel=1e-14)
    np.testing.assert_allclose(np.concatenate(found[1:]), gradient, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(flat.upper_hessian(x, y).toarray(), hessian, rtol=1e-13, atol=1e-13)
    parts: list[tuple[Variable, slice]] = [("x", slice(2)), ("y", slice(2, None))]
    for of, rows in parts:
        for by, columns in parts:
            expected = hessian[rows, columns]
            np.testing.assert_allclose(flat.hessian("upper", of, by, x, y).toarray(), expected, rtol=1e-13, atol=1e-13)
            directions = np.eye(expected.shape[1])
            products = flat.products("upper", of, by, x, y)(directions)
            np.testing.assert_allclose(products, expected.T, rtol=1e-13, atol=1e-13)


def test_a_small_value_of_a_square_keeps_its_digits():
    flat = flat_problem(lambda x, y: (x[0] - 1e3) ** 2 + jnp.sum(y**2))
    assert flat.quadratics["upper"] is not None
    off = np.nextafter(1e3, 2e3) - 1e3
    assert flat.value("upper", np.array([1e3 + off, 0.0]), np.zeros(3)) == off**2  # expanded, it would be rounding


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: jnp.sum(x * y[:2] ** 2),
        lambda x, y: jnp.sum(jnp.exp(x)) + jnp.sum(y**2),
        lambda x, y: jnp.sum(jnp.abs(y)) + x[0],
        lambda x, y: x[0] / y[0],
    ],
)
def test_other_functions_are_left_to_jax(fn):
    assert flat_problem(fn).quadratics["upper"] is None


@pytest.mark.parametrize(
    "fn",
    [
        *QUADRATICS.values(),
        lambda x, y: jnp.exp(2 - y[0]) / (2 + jnp.cos(6 * x[0])) + 0.5 * jnp.log((4 * x[1] - 2) ** 2 + 1),
        lambda x, y: jnp.sum(jnp.maximum(y, 0.0)) + jnp.max(M @ x) + x[0] ** 3 - jnp.linalg.norm(y),
        lambda x, y: jnp.einsum("i,ij,j->", y, M, x) + jnp.sum(jnp.cumsum(y)) + y[1] ** -2,
    ],
)
def test_numpy_evaluates_what_jax_does(fn):
    random = np.random.default_rng(1)
    x, y = random.standard_normal(2), random.standard_normal(3)
    with jax.enable_x64(True):
        expected = float(fn(jnp.asarray(x), jnp.asarray(y)))
    assert float(HostFunction(Program(trace(fn, 2, 3)))(x, y)) == pytest.approx(expected, rel=1e-14)


def test_a_small_quadratic_problem_compiles_nothing(compilations):
    data = np.random.default_rng(5).standard_normal(2)
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.sum((x - 1) ** 2) + jnp.sum(y),
        lower=lambda x, y, shift=data: jnp.sum((y - x - shift) ** 2),
        coupling=bx.LinearCoupling(A=np.eye(2), B=-np.eye(2), upper=np.ones(2)),
        x_set=bx.Box(-2.0, 2.0),
    )
    with compilations() as count:
        assert bx.solve(problem, np.zeros(2)).success
    assert count[0] == 0


def test_one_objective_that_is_no_quadratic_takes_two_programs(compilations):
    def upper(x, y):
        return jnp.exp(2 - y) / (2 + jnp.cos(6 * x)) + 0.5 * jnp.log((4 * x - 2) ** 2 + 1)

    rows = bx.LinearCoupling(A=1.0, B=-1.0, upper=0.0)
    problem = bx.BilevelProblem(upper, lambda x, y: (y - 2 * x) ** 2, rows, x_set=bx.Box(0.0, 3.0))
    with compilations() as count:
        assert bx.solve(problem, 0.7).success
    assert count[0] == 2  # its value with its gradients, and its second derivatives
    with compilations() as count:
        bx.solve(problem, 2.5)
    assert count[0] == 0


def test_what_was_found_out_is_forgotten_with_its_problem():
    flat = flat_problem(QUADRATICS["squares"])
    assert flat.quadratics["upper"] is not None
    known = id(flat.problem)
    assert known in memory._FOUND
    del flat
    gc.collect()
    assert known not in memory._FOUND


def test_the_package_loads_what_is_used():
    code = (
        "import sys, bilevax as bx; assert 'jax' not in sys.modules; bx.Box; "
        "assert 'bilevax.driver' not in sys.modules; assert 'lineax' not in sys.modules; "
        "assert set(bx.__all__) <= set(dir(bx)); assert all(hasattr(bx, name) for name in bx.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        bx.nothing  # noqa: B018


@pytest.mark.parametrize(("enabled", "folder", "kept"), [(True, None, True), (False, None, False), (True, "a", False)])
def test_the_command_keeps_compiled_programs_unless_told_otherwise(monkeypatch, tmp_path, enabled, folder, kept):
    settings = {"jax_enable_compilation_cache": enabled, "jax_compilation_cache_dir": folder}
    config = types.SimpleNamespace(values=settings, update=settings.__setitem__)
    monkeypatch.setattr(compiled, "jax", types.SimpleNamespace(config=config))
    monkeypatch.setattr(compiled.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.keep_compiled()
    assert settings["jax_compilation_cache_dir"] == (str(tmp_path / "bilevax" / "compiled") if kept else folder)
    assert Path(compiled.cache_folder()).is_relative_to(tmp_path)


def test_rows_put_together_are_those_of_scipy():
    random = np.random.default_rng(2)
    parts = [sp.random(rows, 4, 0.4, format="csr", random_state=rows) for rows in (3, 0, 2)]
    stacked = sp.vstack(parts, format="csr")
    np.testing.assert_array_equal(on_top(parts).toarray(), stacked.toarray())
    np.testing.assert_array_equal(by_columns(stacked.toarray()).toarray(), stacked.toarray())
    assert by_columns(stacked.toarray()).has_sorted_indices
    for matrix in (stacked, stacked.tocsc(), stacked.toarray()):
        row, column, data = entries_of(matrix)
        np.testing.assert_array_equal(sp.coo_matrix((data, (row, column)), stacked.shape).toarray(), stacked.toarray())
    np.testing.assert_allclose(row_squares(stacked), np.sum(stacked.toarray() ** 2, axis=1))
    index, sign = np.array([4, 0, 0]), np.array([1.0, -1.0, 2.0])
    np.testing.assert_array_equal(picked(stacked, index, sign).toarray(), sign[:, None] * stacked.toarray()[index])
    assert picked(stacked, index[:0], sign[:0]).shape == (0, 4)
    np.testing.assert_array_equal(beside(stacked, stacked).toarray(), np.hstack(2 * [stacked.toarray()]))
    weights = random.uniform(size=4)
    np.testing.assert_allclose(row_largest(stacked, weights), np.abs(stacked.toarray() * weights).max(axis=1))
    for copies in (1, 60):  # as an array, and as a sparse matrix
        B, A, of_x = (sp.csr_matrix(np.kron(np.eye(copies), random.standard_normal((2, n)))) for n in (1, 3, 1))
        of_y = sp.csr_matrix((1, 3 * copies))
        whole = sp.block_array([[B, A], [of_x, None], [None, of_y]], format="csr")
        np.testing.assert_array_equal(joint_matrix(B, A, of_x, of_y).toarray(), whole.toarray())


def test_numbers_of_a_small_problem_are_computed_once_for_its_units():
    def flat():
        return FlatProblem(problem, np.zeros(2), problem.y_like)

    problem = bx.BilevelProblem(QUADRATICS["products"], QUADRATICS["squares"], x_set=bx.Box(-1, 1), y_like=np.zeros(3))
    units = Scales(np.array([2.0, 0.5]), np.array([4.0, 1.0, 0.25]), np.ones(0), upper=8.0, lower=0.5)
    here, there = flat().in_units(units), flat().in_units(units)
    for name in ("rows", "x_rows", "y_rows", "quadratics", "lower_quadratic", "row_groups"):
        assert getattr(here, name) is getattr(there, name)
        assert getattr(here, name) is not getattr(flat(), name)
    for power in range(1, 5):  # other units take the place of those that were asked for first
        flat().in_units(Scales(2.0**power * units.x, units.y, units.rows))
    assert flat().in_units(units).x_rows is not here.x_rows
    np.testing.assert_array_equal(flat().in_units(units).x_rows.lower, here.x_rows.lower)
    problem = bx.BilevelProblem(lambda x, y: x @ x, lambda x, y: y @ y, x_set=bx.Box(-1, 1), y_like=np.zeros(500))
    assert flat().row_groups is not flat().row_groups  # as large as the data: it goes with its flat problem


def test_a_proof_and_its_certificate_solve_the_lower_level_once(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return solve_flat(*arguments)

    monkeypatch.setattr(phi, "solve_flat", counted)
    problem = bx.BilevelProblem(
        lambda x, y: (x - 3) ** 2 + (y - 2) ** 2,
        lambda x, y: (y - 5) ** 2,
        bx.LinearCoupling(A=[[-2.0], [1.0]], B=[[1.0], [-2.0]], upper=[1.0, 2.0]),
        x_set=bx.Box(0.0, 8.0),
    )
    solution = bx.solve(problem, 4.0)
    assert solution.proof is not None
    at_answer = [x for flat, x, *_ in calls if np.allclose(flat.x_tree(x), solution.x)]
    assert len(at_answer) == 1
    again = bx.certify(problem, solution.x)
    assert (again.value, again.stationarity) == (solution.value, solution.certificate.stationarity)


def test_value_and_gradient_of_the_lower_level_are_one_evaluation(monkeypatch):
    flat, calls = flat_problem(lambda x, y: jnp.exp(x[0]) + jnp.sum(jnp.cosh(y))), []
    found = FlatProblem.value_and_gradients
    monkeypatch.setattr(FlatProblem, "value_and_gradients", lambda self, *at: calls.append(at) or found(self, *at))
    for penalty, evaluations in ((0.0, 1), (0.5, 2)):
        calls.clear()
        objective, y = objective_at(flat, np.ones(2), penalty), np.array([0.1, 0.2, 0.3])
        assert objective.value(y) == pytest.approx((1 + penalty) * (np.e + np.cosh(y).sum()))
        np.testing.assert_allclose(objective.gradient(y), (1 + penalty) * np.sinh(y))
        assert len(calls) == evaluations
        np.testing.assert_allclose(objective.gradient(y + 1), (1 + penalty) * np.sinh(y + 1))
