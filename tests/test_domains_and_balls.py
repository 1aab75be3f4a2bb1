"""Lower levels with logarithms, roots and inverses, and balls as lower sets: certified from any start, without y0."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.scipy.special import xlogy

import bilevax as bx
from bilevax.model.flat import FlatProblem, equilibrated

ENTROPIES = {
    "plain": lambda y: jnp.sum(y * jnp.log(y)),
    "guarded": lambda y: jnp.sum(jnp.where(y > 0, y * jnp.log(jnp.where(y > 0, y, 1.0)), 0.0)),
    "xlogy": lambda y: jnp.sum(xlogy(y, y)),
}

# Objectives whose numbers are data: problems of one shape share what is compiled.


def fitted(x, y, data):
    """An upper objective that draws y to some place."""
    return jnp.sum((data["rows"] @ y - data["goal"]) ** 2) + 0.1 * jnp.sum((x - data["centre"]) ** 2)


def place(random, n_x, n_y):
    """The data of `fitted`."""
    return {
        "rows": random.standard_normal((3, n_y)),
        "goal": random.standard_normal(3),
        "centre": random.standard_normal(n_x),
    }


def priced(function):
    """A lower objective: a function of y, and prices of y that depend on x."""
    return lambda x, y, data: function(y) + y @ (data["costs"] @ x)


LOWER = {name: priced(lambda y, entropy=entropy: 0.2 * entropy(y)) for name, entropy in ENTROPIES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_entropy_on_a_simplex_from_every_start(size):
    problem = bx.BilevelProblem(
        lambda x, y: (y[0] - 0.3) ** 2 + 0.1 * (x - 0.2) ** 2,
        lambda x, y: 0.5 * jnp.sum(y * jnp.log(y)) - 2 * x * y[0],
        x_set=bx.Box(-2.0, 2.0),
        y_set=bx.Simplex(),
        y_like=np.zeros(size),
    )
    values = []
    for x0 in np.linspace(-2, 2, 9):
        solution = bx.solve(problem, x0)
        assert solution.success, solution.message
        values.append(solution.value)
    assert values == pytest.approx([values[0]] * 9, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("entropy", ENTROPIES)
@pytest.mark.parametrize(("seed", "n_x", "n_y"), [(0, 1, 2), (1, 3, 6), (2, 3, 6), (3, 3, 6)])
def test_random_entropies_are_certified(seed, n_x, n_y, entropy):
    """Also where x pushes so hard that shares of 1e-30 and less are left."""
    random = np.random.default_rng(seed)
    data = {"costs": random.standard_normal((n_y, n_x)) * random.choice([1.0, 3.0, 10.0])} | place(random, n_x, n_y)
    sets = {"x_set": bx.Box(-2.0, 2.0), "y_set": bx.Simplex(), "y_like": np.zeros(n_y)}
    solution = bx.solve(bx.BilevelProblem(fitted, LOWER[entropy], data=data, **sets), random.uniform(-2, 2, n_x))
    assert solution.success, solution.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lower", "sets"),
    [
        (lambda y: -jnp.sum(jnp.log(y)), {}),
        (lambda y: -jnp.sum(jnp.sqrt(y)), {"y_set": bx.NonNegative()}),
        (lambda y: jnp.sum(1 / y), {"y_set": bx.NonNegative()}),
        (lambda y: jnp.sum(y * jnp.log(y)), {"y_set": bx.Box(0.0, 0.6)}),
        (lambda y: -jnp.sum(jnp.log(1 - y**2)), {}),
        (lambda y: -jnp.sum(jnp.log(y)), {"coupling": bx.LinearCoupling(np.ones((1, 4)), np.ones((1, 2)), upper=2.0)}),
    ],
    ids=["log", "root", "inverse", "entropy in a box", "log of a square", "log under a row"],
)
def test_functions_with_a_domain_need_no_start(lower, sets):
    random = np.random.default_rng(1)
    data = {"costs": random.standard_normal((4, 2))} | place(random, 2, 4)
    penalised = priced(lambda y: lower(y) + 0.1 * jnp.sum(y**2))
    problem = bx.BilevelProblem(fitted, penalised, x_set=bx.Box(-1.0, 1.0), y_like=np.zeros(4), data=data, **sets)
    for x0 in random.uniform(-1, 1, (3, 2)):
        solution = bx.solve(problem, x0)
        assert solution.success, solution.message


@pytest.mark.slow
@pytest.mark.parametrize("entropy", ENTROPIES)
def test_inverse_optimal_transport(entropy):
    """Ten sources, ten sinks; one of the twenty marginals follows from the others."""
    random, size = np.random.default_rng(0), 10
    costs, truth = random.uniform(0, 1, (5, size, size)), random.uniform(0.2, 1.8, 5)
    sources, sinks = random.dirichlet(np.full(size, 5.0)), random.dirichlet(np.full(size, 5.0))
    kernel, left, right = np.exp(-np.tensordot(truth, costs, 1) / 0.1), np.ones(size), np.ones(size)
    for _ in range(2000):
        right = sinks / (kernel.T @ left)
        left = sources / (kernel @ right)
    seen = left[:, None] * kernel * right * (1 + 0.05 * random.standard_normal((size, size)))
    marginals, totals = (
        sp.vstack([sp.kron(sp.eye(size), np.ones((1, size))), sp.kron(np.ones((1, size)), sp.eye(size))], format="csr"),
        np.concatenate([sources, sinks]),
    )
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((y - seen) ** 2),
        lambda x, y: jnp.sum(jnp.tensordot(x, costs, 1) * y) + 0.1 * ENTROPIES[entropy](y),
        coupling=bx.LinearCoupling(A=marginals, B=sp.csr_matrix((2 * size, 5)), lower=totals, upper=totals),
        x_set=bx.Box(0.0, 2.0),
        y_set=bx.NonNegative(),
        y_like=np.zeros((size, size)),
    )
    solution = bx.solve(problem, np.ones(5))
    assert solution.success, solution.message
    assert solution.x == pytest.approx(truth, abs=0.2)


def quadratic(x, y, data):
    return 0.5 * y @ (data["matrix"] @ y) + y @ (data["costs"] @ x)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_balls_as_lower_sets_are_certified(seed):
    random = np.random.default_rng(seed)
    n_x, n_y = (1, 2) if seed < 2 else (3, 5)
    factor, costs = random.standard_normal((n_y, n_y)), random.standard_normal((n_y, n_x))
    matrix, centre = factor @ factor.T + 0.3 * np.eye(n_y), 0.3 * random.standard_normal(n_y)
    rows = random.standard_normal((2, n_y))
    coupling = bx.LinearCoupling(rows, 0.3 * random.standard_normal((2, n_x)), upper=0.5 + rows @ centre)
    problem = bx.BilevelProblem(
        fitted,
        quadratic,
        coupling=coupling if seed % 2 else None,
        x_set=bx.Box(-2.0, 2.0),
        y_set=bx.Ball(random.choice([0.2, 0.5, 1.0, 3.0]), centre),
        y_like=np.zeros(n_y),
        data={"matrix": matrix, "costs": costs} | place(random, n_x, n_y),
    )
    solution = bx.solve(problem, random.uniform(-2, 2, n_x))
    assert solution.success, solution.message


def test_two_balls_and_a_box():
    random = np.random.default_rng(0)
    costs, data = random.standard_normal((6, 2)), place(random, 2, 6)
    join = lambda y: jnp.concatenate([y["a"], y["b"], y["c"]])
    problem = bx.BilevelProblem(
        lambda x, y: fitted(x, join(y), data),
        lambda x, y: jnp.sum((join(y) - costs @ x) ** 2),
        x_set=bx.Box(-2.0, 2.0),
        y_set=bx.Product({"a": bx.Ball(0.5), "b": bx.Ball(1.0, 0.2), "c": bx.Box(-0.3, 0.3)}),
        y_like={"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)},
    )
    for x0 in random.uniform(-2, 2, (3, 2)):
        assert bx.solve(problem, x0).success


def beyond(x, y, along):
    return -2 * (along @ y) + 0.7 * x


def towards(x, y, along):
    return jnp.sum((y - along * x) ** 2)


@pytest.mark.parametrize("seed", range(4))
def test_an_optimum_where_the_ball_becomes_active(seed):
    """Phi falls until y meets the ball and rises from there on: a kink, met exactly."""
    random = np.random.default_rng(seed)
    along = random.standard_normal(3)
    along /= np.linalg.norm(along)
    sets = {"x_set": bx.Box(0.0, 4.0), "y_set": bx.Ball(1.0), "y_like": np.zeros(3)}
    problem = bx.BilevelProblem(beyond, towards, data=along, **sets)
    solution = bx.solve(problem, random.uniform(0, 4))
    assert solution.success, solution.message
    assert solution.x == pytest.approx(1.0, abs=1e-8)


def test_second_derivatives_are_right_entry_by_entry():
    """A share of 1e-30 has a second derivative of 1e30: it must not hide that another one has changed."""
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum(y), lambda x, y: jnp.sum(y * jnp.log(y)) - x * y[0], y_like=np.zeros(500)
    )
    flat = FlatProblem(problem, np.zeros(()), np.zeros(500))
    y = np.full(500, 0.5)
    y[0] = 1e-30
    for share in (0.5, 0.25):
        y[1] = share
        assert flat.hessian("lower", "y", "y", np.zeros(1), y).diagonal() == pytest.approx(1 / y, rel=1e-12)


def test_natural_units_do_not_depend_on_how_near_a_border_y_is():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((y - 0.1) ** 2) + x**2,
        lambda x, y: jnp.sum(y * jnp.log(y)) - x * y[0],
        y_set=bx.Simplex(),
        y_like=np.zeros(3),
    )
    flat = FlatProblem(problem, np.zeros(()), np.zeros(3))
    units = [equilibrated(flat, np.ones(()), y).scales.upper for y in (None, np.array([1e-30, 1e-40, 1.0]))]
    assert 0.1 <= units[0] / units[1] <= 10


def drawn(x, y, data):
    return jnp.sum(y**2) + 0.3 * jnp.sum((x - data["goal"]) ** 2)


def answering(x, y, data):
    return jnp.sum((y - data["costs"] @ x) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_ball_as_upper_set_is_met_to_the_last_digits(seed):
    random = np.random.default_rng(seed)
    n_x, n_y = (2, 1) if seed == 0 else (4, 3)
    problem = bx.BilevelProblem(
        drawn,
        answering,
        coupling=bx.LinearCoupling(
            random.standard_normal((2, n_y)), random.standard_normal((2, n_x)), upper=random.uniform(0.1, 1.5, 2)
        ),
        x_set=bx.Ball(random.choice([0.3, 1.0])),
        y_like=np.zeros(n_y),
        data={"costs": random.standard_normal((n_y, n_x)), "goal": 2 * random.standard_normal(n_x)},
    )
    solution = bx.solve(problem, np.zeros(n_x))
    assert solution.success, solution.message
    assert solution.certificate.stationarity <= 1e-9
