"""Descent on Phi by its exact gradient: answers, sets, equality rows, units, memory, checkpoints."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.model.flat import FlatProblem
from bilevax.solvers.default import settings
from bilevax.solvers.default.hypergradient import descent
from bilevax.solvers.default.hypergradient.choice import phi_of
from bilevax.solvers.default.hypergradient.phi import Lower
from bilevax.solvers.default.hypergradient.program import Rows, Units, phi_program

N, D = 60, 4


def _loss(x, y, data):
    return jnp.mean(jax.nn.softplus(-data["V"] @ (data["unit_y"] * y))) * data["unit_f"]


def _weighted(x, y, data):
    y = data["unit_y"] * y
    return (jnp.mean(data["unit_x"] * x * jax.nn.softplus(-data["T"] @ y)) + 5e-3 * y @ y) * data["unit_g"]


def weights(x_set=None, coupling=None, rows=N, unit_x=1.0, unit_y=1.0, unit_f=1.0, unit_g=1.0):
    """Weights of training rows with wrong labels; a weight, y, f and g in the given units."""
    random = np.random.default_rng(1)
    truth, T, V = random.standard_normal(D), random.standard_normal((rows, D)), random.standard_normal((rows, D))
    flipped = np.where(random.uniform(size=rows) < 0.3, -1.0, 1.0)
    data = {"T": (np.sign(T @ truth) * flipped)[:, None] * T, "V": np.sign(V @ truth + 0.5)[:, None] * V}
    data |= {"unit_x": unit_x, "unit_y": unit_y, "unit_f": unit_f, "unit_g": unit_g}
    x_set = bx.Box(0.0, 1.0 / unit_x) if x_set is None else x_set
    return bx.BilevelProblem(_loss, _weighted, coupling, x_set=x_set, y_like=np.zeros(D), data=data)


def phases(solution):
    return set(solution.history["phase"])


def by_script(problem, x0):
    """Minimise Phi the way a user would: SciPy above, and below Newton's method with the implicit gradient."""
    from scipy.optimize import minimize

    data = problem.data
    gradient = jax.jit(lambda x, y: jax.grad(_weighted, 1)(x, y, data))
    hessian = jax.jit(lambda x, y: jax.hessian(_weighted, 1)(x, y, data))
    upper = jax.jit(lambda y: jax.value_and_grad(_loss, 1)(x0, y, data))
    follows = jax.jit(lambda x, y, p: jax.vjp(lambda x: gradient(x, y), x)[1](p)[0])

    def phi(x):
        y = np.zeros(D)
        for _ in range(20):
            y = y - np.linalg.solve(hessian(x, y), gradient(x, y))
        value, f_y = upper(y)
        return float(value), -np.asarray(follows(x, y, np.linalg.solve(hessian(x, y), f_y)))

    options = {"ftol": 0.0, "gtol": 1e-9}
    return minimize(phi, x0, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(x0), options=options)


def test_answer_is_that_of_a_script_and_certified():
    problem, x0 = weights(), np.full(N, 0.5)
    solution = bx.solve(problem, x0)
    with jax.enable_x64(True):
        assert solution.value == pytest.approx(by_script(problem, x0).fun, abs=1e-9)
    assert solution.success
    assert solution.certificate.stationarity <= 1e-8
    assert phases(solution) == {"start", "hypergradient descent", "answer"}


@pytest.mark.parametrize("unit", ["unit_x", "unit_y", "unit_f", "unit_g"])
@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_units_do_not_matter(unit, size):
    plain, other = bx.solve(weights(), np.full(N, 0.5)), None
    x0 = np.full(N, 0.5 / size if unit == "unit_x" else 0.5)
    other = bx.solve(weights(**{unit: size}), x0)
    assert other.success
    assert other.value == pytest.approx(plain.value * (size if unit == "unit_f" else 1.0), rel=1e-7)
    assert len(other.history["step"]) <= 2 * len(plain.history["step"])


@pytest.mark.parametrize(
    "x_set",
    [
        bx.Simplex(10.0),
        bx.Polyhedron(np.vstack([np.ones(N), np.eye(N)]), np.r_[20.0, np.zeros(N)], np.r_[30.0, np.ones(N)]),
        bx.Ball(2.0, np.full(N, 0.5)),
    ],
    ids=["simplex", "polyhedron", "ball"],
)
def test_any_set_of_weights(x_set):
    solution = bx.solve(weights(x_set), np.full(N, 0.5))
    assert solution.success
    assert "exact descent" not in phases(solution)
    # No feasible direction of a sample descends.
    random, x, gradient = np.random.default_rng(0), np.asarray(solution.x), solution.certificate.hypergradient
    for _ in range(20):
        step = np.asarray(x_set.project(x + 0.1 * random.standard_normal(N))) - x
        assert gradient @ step >= -1e-6 * np.linalg.norm(step)


@pytest.mark.parametrize("moved", [0.0, 1.0], ids=["fixed", "moved by x"])
def test_equality_rows(moved):
    """One equation is as good as one variable less."""
    A, B = np.ones((1, D)), np.zeros((1, N))
    B[0, 0] = moved
    solution = bx.solve(weights(coupling=bx.LinearCoupling(A=A, B=B, lower=1.0, upper=1.0)), np.full(N, 0.5))
    assert solution.success
    assert "exact descent" not in phases(solution)
    assert np.sum(solution.y) + moved * solution.x[0] == pytest.approx(1.0, abs=1e-9)


def test_an_active_inequality_is_no_hindrance():
    """The row holds the coefficients down all the way: Phi is smooth where it matters."""
    solution = bx.solve(weights(coupling=bx.LinearCoupling(A=np.ones((1, D)), upper=-1.0)), np.full(N, 0.5))
    assert solution.success
    assert solution.certificate.strict_complementarity
    assert phases(solution) == {"start", "hypergradient descent", "answer"}


def test_a_descent_that_meets_no_kink_is_finished_by_second_derivatives(monkeypatch):
    few = dataclasses.replace(settings.HYPERGRADIENT, wary_steps=10)
    monkeypatch.setattr(descent, "HYPERGRADIENT", few)
    coupling = bx.LinearCoupling(A=np.ones((1, D)), upper=100.0)
    solution = bx.solve(weights(coupling=coupling), np.full(N, 0.5))
    assert solution.success
    assert phases(solution) == {"start", "hypergradient descent", "exact descent", "answer"}  # no smoothing
    assert solution.value == pytest.approx(bx.solve(weights(), np.full(N, 0.5)).value, abs=1e-9)


def test_small_problems_are_left_to_the_other_phases():
    assert "hypergradient descent" not in phases(bx.solve(weights(rows=8), np.full(8, 0.5)))


def test_nothing_grows_with_the_square_of_x():
    """No intermediate result of the compiled program has more entries than the data, whatever is in its loops."""
    flat = FlatProblem(weights(rows=3000), np.full(3000, 0.5), np.zeros(D))
    function, numbers = flat.functions
    with jax.enable_x64(True):
        units = Units(np.ones(3000), np.ones(D), 1.0, 1.0)
        rows = Rows(np.zeros((0, D)), np.zeros((0, 3000)), np.zeros(0), np.zeros(0, bool))
        guess = Lower(np.zeros(D), np.zeros(0), np.zeros(0, bool))
        jaxpr = jax.make_jaxpr(phi_program(function))(numbers, units, rows, np.full(3000, 0.5), guess)
    assert max(_sizes(jaxpr.jaxpr)) <= 3000 * D


def _sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (np.size(v.aval) if not v.aval.shape else int(np.prod(v.aval.shape)) for v in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _sizes(inner)


def test_new_numbers_of_the_same_shape_compile_nothing():
    bx.solve(weights(), np.full(N, 0.5))
    flat = FlatProblem(weights(), np.full(N, 0.5), np.zeros(D))
    program = getattr(phi_program(flat.functions[0]), "__wrapped__")  # noqa: B009 - jax.jit's own, not typed
    compiled = getattr(program, "_cache_size")  # noqa: B009
    before = compiled()
    assert before
    bx.solve(weights(unit_g=2.0), np.full(N, 0.4))
    assert compiled() == before


def test_goes_on_bit_for_bit(tmp_path):
    problem, x0 = weights(), np.full(N, 0.5)
    whole = bx.solve(problem, x0, checkpoint=tmp_path / "run")
    again = bx.solve(problem, x0, resume=tmp_path / "run")
    stopped = bx.solve(problem, x0, max_steps=10, checkpoint=tmp_path / "stopped")
    resumed = bx.solve(problem, x0, resume=tmp_path / "stopped")
    assert not stopped.success
    assert stopped.value < bx.certify(problem, x0).value
    for other in (again, resumed):
        np.testing.assert_array_equal(other.x, whole.x)


def test_without_a_lower_bound_it_says_so():
    problem = bx.BilevelProblem(
        lambda x, y, data: jnp.sum(x) + _loss(x, y, data),
        lambda x, y, data: _weighted(jax.nn.sigmoid(x), y, data),
        y_like=np.zeros(D),
        data=weights().data,
    )
    assert not bx.solve(problem, np.zeros(N), time_limit=20).success


def test_a_sparse_lower_level_of_many_variables():
    """No row binds at the best prices, which are half of what the goods are worth."""
    goods = 150
    taste, A = np.linspace(1.0, 2.0, goods), sp.eye(goods, format="csr")[::2]
    problem = bx.BilevelProblem(
        lambda x, y, data: -x @ y,
        lambda x, y, data: 0.5 * y @ y + (x - data) @ y,
        bx.LinearCoupling(A=A, upper=5.0),
        x_set=bx.Box(0.0, 10.0),
        y_set=bx.Box(-10.0, 10.0),
        data=taste,
    )
    solution = bx.solve(problem, np.full(goods, 0.7))
    assert solution.success
    assert phases(solution) == {"start", "hypergradient descent", "answer"}
    np.testing.assert_allclose(solution.x, 0.5 * taste, atol=1e-6)


@pytest.mark.parametrize("entropy", [False, True])
def test_with_few_x_only_quadratics_are_descended_on_by_gradients(entropy):
    """Of an entropy one gradient takes many factorisations, and exact descent is done before."""
    bend = (lambda y: jnp.sum(y * jnp.log(y))) if entropy else (lambda y: jnp.sum(y**2))
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.sum((y - 0.3) ** 2) + x[0] ** 2,
        lower=lambda x, y: bend(y) - x[0] * y[0],
        coupling=bx.LinearCoupling(A=sp.eye(1, 240, format="csr"), upper=0.9),
        y_set=bx.Box(1e-3, 1.0),
    )
    flat = FlatProblem(problem, np.ones(1), np.full(240, 0.5))
    assert (phi_of(flat, np.ones(1), np.full(240, 0.5)) is None) == entropy


def test_a_kink_that_ends_the_descent_is_looked_beyond():
    """Phi has a kink at 1, a local minimiser, and a lower minimum without one at 4.08."""
    high = np.full(250, np.inf)
    high[0] = 1.0
    problem = bx.BilevelProblem(
        lambda x, y: 0.5 * jnp.sin(jnp.pi / 2 * (jnp.mean(y[1:]) - 1)) - 0.1 * jnp.mean(y[1:]) - 3 * y[0],
        lambda x, y: 0.5 * jnp.sum((y - x[0]) ** 2),
        x_set=bx.Box(0.0, 6.0),
        y_set=bx.Box(-np.inf, high),
    )
    solution = bx.solve(problem, np.ones(1), solver=bx.Default())
    assert solution.success
    assert phases(solution) == {"start", "hypergradient descent", "answer"}
    assert solution.x[0] == pytest.approx(4.0813, abs=1e-3)
