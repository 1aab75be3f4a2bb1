"""Global bounds of functions that are no quadratics: from the jaxpr to a factorable program, and by SCIP."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import bilevax as bx
from bilevax.model.analysis import Program, trace
from bilevax.proof import others, scip
from bilevax.proof.building import Unsupported
from bilevax.proof.forms import Factorable, Form
from bilevax.proof.translation import translated

M = np.array([[1.0, 0.0, -2.0], [0.5, 1.5, 0.0]])


def elementary(x, y):
    """Every operation that has a translation, each where it is defined."""
    products = jnp.exp(-y @ (M @ x)) + (x[0] - y[1]) ** 3 + x[2] ** -2 + jnp.cumsum(x)[1] * y[0]
    roots = jnp.sqrt(3 + x[1] ** 4) / (2 + y[1] ** 2) + jnp.log(1 + y[0] ** 2) + (1 + y[0] ** 2) ** 1.5
    kinks = jnp.maximum(x[0], y[0]) + jnp.abs(x[1]) - jnp.minimum(x[2], 0.3)
    steps = jax.nn.sigmoid(x[2]) * jnp.tanh(y[1]) + jnp.logaddexp(x[0], y[1]) + jnp.expm1(y[0]) + jnp.log1p(x[1] ** 2)
    return products + roots + kinks + steps + jnp.sin(x[0]) * jnp.cos(y[1]) + (2 + y[1] ** 2) ** x[0]


def stated(fn, n_x=3, n_y=2):
    program = Factorable()
    x, y = (program.variables(np.full(n, -np.inf), np.full(n, np.inf)) for n in (n_x, n_y))
    return program, np.atleast_1d(translated(Program(trace(fn, n_x, n_y)), x, y, program))


def smooth(x, y):
    return jnp.exp(y @ (M @ x)) + jnp.log(1 + y[0] ** 2) / (2 + jnp.exp(y[1])) + (x[0] - y[1]) ** 4


@pytest.mark.parametrize("fn", [elementary, smooth, jax.grad(smooth, argnums=1)])
def test_a_translated_function_has_the_same_values(fn):
    program, forms = stated(fn)
    random = np.random.default_rng(0)
    for _ in range(5):
        x, y = random.normal(size=3), random.normal(size=2)
        with jax.enable_x64(True):
            expected = np.atleast_1d(fn(x, y))
        np.testing.assert_allclose(program.evaluate(np.concatenate([x, y]), forms), expected, rtol=1e-10)


def test_bounds_of_defined_variables_contain_their_values():
    program, _ = stated(elementary)
    every, random = [Form(program, {(k,): 1.0}) for k in range(len(program.lower))], np.random.default_rng(1)
    for _ in range(20):
        point = program.evaluate(random.normal(size=5), np.array(every, object))
        assert (np.array(program.lower) <= point).all()
        assert (point <= np.array(program.upper)).all()


def test_an_operation_without_translation_is_named():
    with pytest.raises(Unsupported, match="'floor' is no operation that a global solver knows"):
        stated(lambda x, y: jnp.floor(x[0]) + y[0])


needs_scip = pytest.mark.skipif(not scip.available(), reason="the extra global is not installed")


def toll() -> bx.BilevelProblem:
    """A road with a toll x and one of cost 3 without: the traveller takes the former up to x = 3, and pays x."""
    return bx.BilevelProblem(
        upper=lambda x, y: -x[0] * y[0],
        lower=lambda x, y: x[0] * y[0] + 3 * y[1],
        coupling=bx.LinearCoupling(A=np.ones((1, 2)), lower=1.0, upper=1.0),
        x_set=bx.NonNegative(),
        y_set=bx.NonNegative(),
    )


@needs_scip
def test_a_product_of_toll_and_flow_is_proven_by_scip():
    proof = bx.prove(toll(), np.ones(1))
    assert proof.proven
    assert proof.upper_bound == pytest.approx(-3.0, abs=1e-6)
    assert proof.lower_bound <= -3.0 + 1e-6
    assert "SCIP" in proof.message


def test_without_scip_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(scip, "available", lambda: False)
    proof = bx.prove(toll(), np.ones(1))
    assert proof.status is bx.ProofStatus.UNSUPPORTED
    assert "bilevax[global]" in proof.message


def waves(upper_rows=None) -> bx.BilevelProblem:
    """Phi(x) = exp(-y) + 0.4 sin(4 x) with exp(y) + y = x, y up to 1: two valleys in [-3, 3]."""
    return bx.BilevelProblem(
        upper=lambda x, y: jnp.exp(-y[0]) + 0.4 * jnp.sin(4 * x[0]) + 0.1 * x[0] ** 2,
        lower=lambda x, y: jnp.exp(y[0]) + 0.5 * y[0] ** 2 - x[0] * y[0],
        x_set=bx.Box(np.array([-3.0]), np.array([3.0])),
        y_set=bx.Box(np.array([-5.0]), np.array([1.0])),
        upper_rows=upper_rows,
    )


def least(phi, low, high, points=2001) -> float:
    """Return the least value of a function of one number: by a grid, and around its best point."""
    grid = np.linspace(low, high, points)
    best = grid[np.argmin([phi(x) for x in grid])]
    step = (high - low) / (points - 1)
    return minimize_scalar(phi, bounds=(max(best - step, low), min(best + step, high)), method="bounded").fun


def answer(slope, low, high) -> float:
    """Return where an increasing slope changes its sign, within bounds."""
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 0.5 * (low + high)


def wave(x: float) -> float:
    y = answer(lambda y: np.exp(y) + y - x, -5.0, 1.0)
    return np.exp(-y) + 0.4 * np.sin(4 * x) + 0.1 * x**2


@pytest.mark.slow
@needs_scip
def test_exponentials_and_sines_are_proven_by_scip():
    proof, best = bx.prove(waves(), np.zeros(1)), least(wave, -3.0, 3.0)
    assert proof.proven, proof
    assert proof.solution is not None
    assert proof.solution.success
    assert proof.lower_bound <= best + 1e-6
    assert proof.upper_bound == pytest.approx(best, abs=1e-6)


@pytest.mark.slow
@needs_scip
@pytest.mark.parametrize("upper", [1.0, 0.0])
def test_rows_that_curve_in_y_need_no_constraint_qualification(upper):
    """y is nearest to x in the ball y^2 <= 1; for y^2 <= 0 no multipliers exist but at x = 0, and y is 0."""
    problem = bx.BilevelProblem(
        upper=lambda x, y: (x[0] - 2) ** 2 + (y[0] + 1) ** 2 + x[0] * y[0],
        lower=lambda x, y: (y[0] - x[0]) ** 2,
        coupling=bx.ConvexCoupling(lambda x, y: y**2, upper=upper),
        x_set=bx.Box(np.array([-3.0]), np.array([3.0])),
        y_like=np.zeros(1),
    )
    phi = lambda x: (x - 2) ** 2 + (np.clip(x, -upper, upper) + 1) ** 2 + x * np.clip(x, -upper, upper)
    proof, best = bx.prove(problem, np.zeros(1)), least(phi, -3.0, 3.0)
    assert proof.lower_bound <= best + 1e-6
    assert proof.lower_bound > -np.inf
    assert proof.upper_bound >= best - 1e-6
    assert proof.proven == (upper > 0) or proof.upper_bound == pytest.approx(best, abs=1e-4)


@pytest.mark.slow
@needs_scip
def test_a_leader_with_rows_that_are_not_affine():
    problem = waves(upper_rows=bx.ConvexCoupling(lambda x, y: x * y - 0.2))
    phi = lambda x: wave(x) if x * answer(lambda y: np.exp(y) + y - x, -5.0, 1.0) <= 0.2 else np.inf
    proof, best = bx.prove(problem, np.zeros(1)), least(phi, -3.0, 3.0, 20001)
    assert proof.proven, proof
    assert proof.upper_bound == pytest.approx(best, abs=2e-4)
    assert proof.lower_bound <= best + 1e-6


@pytest.mark.slow
@needs_scip
def test_conditions_that_need_not_hold_are_not_asked_for():
    """At x = 0 the lower level is the point y = 0, where the slope of y log y is infinite: no multiplier exists."""
    problem = bx.BilevelProblem(
        upper=lambda x, y: x[0] ** 2 - y[0] ** 3,
        lower=lambda x, y: y[0] * jnp.log(y[0]),
        coupling=bx.LinearCoupling(A=np.ones((1, 1)), B=-np.ones((1, 1)), upper=0.0),
        x_set=bx.Box(np.zeros(1), np.ones(1)),
        y_set=bx.NonNegative(),
    )
    proof = bx.prove(problem, np.ones(1))
    assert proof.lower_bound <= 0.0
    assert not proof.proven
    assert "defined" in proof.message


@needs_scip
def test_a_lower_level_that_is_not_proven_to_be_convex_is_refused():
    problem = waves()
    other = bx.BilevelProblem(problem.upper, lambda x, y: jnp.sin(y[0]) * x[0], None, problem.x_set, problem.y_set)
    proof = bx.prove(other, np.zeros(1))
    assert proof.status is bx.ProofStatus.UNSUPPORTED
    assert "convex" in proof.message


@needs_scip
def test_a_bound_above_the_exact_value_of_a_point_is_dropped(monkeypatch):
    told = scip.scip_bounds
    monkeypatch.setattr(others.scip, "scip_bounds", lambda *given: told(*given)._replace(lower=1e3))
    proof = bx.prove(waves(), np.zeros(1))
    assert not proof.proven
    assert proof.lower_bound == -np.inf
    assert "dropped" in proof.message


@needs_scip
def test_where_scip_fails_its_words_are_told(monkeypatch):
    import pyscipopt

    class Broken(pyscipopt.Model):
        def optimize(self):
            raise Exception("SCIP: error in LP solver!")

    monkeypatch.setattr(pyscipopt, "Model", Broken)
    proof = bx.prove(waves(), np.zeros(1))
    assert proof.status is bx.ProofStatus.UNSETTLED
    assert proof.lower_bound == -np.inf
    assert "error in LP solver" in proof.message


@pytest.mark.slow
@needs_scip
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_of_f_do_not_matter(factor):
    plain = waves()
    problem = bx.BilevelProblem(lambda x, y: factor * plain.upper(x, y), plain.lower, None, plain.x_set, plain.y_set)
    proof, best = bx.prove(problem, np.zeros(1)), factor * least(wave, -3.0, 3.0)
    assert proof.proven
    assert proof.lower_bound == pytest.approx(best, rel=2e-4)
    assert proof.upper_bound == pytest.approx(best, rel=1e-6)
