"""A user's own code, in a process of either precision, before and after every public call."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax
from bilevax._support.precision import float64

USER = """
import sys, tempfile, warnings
import jax, jax.numpy as jnp, numpy as np
import matplotlib; matplotlib.use("Agg")
import bilevax as bx
from bilevax.app import plot
from bilevax.paper import reformulation
from bilevax.exact.hyperobjective import Hyperobjective
warnings.filterwarnings("error", message=".*float64.*")  # a truncation that nobody asked for

random = np.random.default_rng(0)
Q = np.eye(3) + 0.1 * random.standard_normal((3, 3))  # NumPy in float64, as it comes
W = random.standard_normal((2, 3))
mapped = np.memmap(tempfile.NamedTemporaryFile(), dtype=float, shape=(3,), mode="w+")
mapped[:] = 0.1, 0.2, 0.3
device = jnp.asarray(random.standard_normal(3))  # JAX in the precision of the process
order = np.argsort(mapped)

@jax.jit
def own(x):
    return jnp.sum(jnp.sin(W @ x) ** 2) + jnp.sum(jnp.sort(W, axis=1)[:, 0] * x[0])

def upper(x, y):
    terms = jnp.sum((Q @ x - mapped) ** 2) + jnp.linalg.norm(jnp.concatenate([x, np.ones(2)])) + own(x)
    terms += jnp.where(device > 0, y, 2 * y).sum() + jax.lax.cond(x[0] > 9, lambda: W[0, 0], lambda: jnp.sum(W[1] * x))
    return terms + jnp.sum((y - Q[0]) ** 2) + jax.scipy.special.logsumexp(W @ y)

def lower(x, y):
    steps = jax.lax.fori_loop(0, 2, lambda _, total: total + jnp.sum(mapped[order] * y), 0.0 * y[0])
    mixed = jnp.einsum("i,ij,j", y, Q @ Q.T, y) + jnp.sum(jax.nn.softplus(W @ (y - x))) + steps
    return mixed + 0.5 * jnp.sum(jax.vmap(lambda row: (row @ y - x[0]) ** 2)(W))

problem = bx.BilevelProblem(upper, lower, bx.LinearCoupling(A=np.eye(3), B=-np.eye(3), upper=0.5),
                            x_set=bx.Box(-1.0, 1.0), y_set=bx.Box(-2.0, 2.0))
x0 = np.array([0.3, -0.2, 0.1])

def values(x, y):
    pair = jnp.asarray(x), jnp.asarray(y)
    assert pair[0].dtype == pair[1].dtype == wide
    found = {"Q": Q @ pair[0], "sort": jnp.sort(mapped), "own": own(pair[0]), "norm": jnp.linalg.norm(Q),
             "where": jnp.where(Q > 0, Q, 0), "einsum": jnp.einsum("ij,j->i", W, pair[0])}
    for function in (upper, lower):
        name = function.__name__
        found[name] = function(*pair)
        found[name + " of NumPy"] = function(np.asarray(x), np.asarray(y))
        found[name + " jit"] = jax.jit(function)(*pair)
        found[name + " grad"] = jax.grad(function)(*pair)
        found[name + " jit grad"] = jax.jit(jax.grad(function, argnums=1))(*pair)
    for name, value in found.items():
        assert value.dtype == wide, (name, value.dtype)
    return found

def same(before, after):
    for name in before:
        np.testing.assert_array_equal(np.asarray(before[name]), np.asarray(after[name]), err_msg=name)

def svc():
    from bilevax.sklearn import BilevelSVC
    features = random.standard_normal((24, 2))
    BilevelSVC(max_steps=3).fit(features, (features[:, 0] > 0).astype(int))

def draw(path=None):
    plot.convergence(bx.solve(problem, x0)), plot.hyperobjective(problem, x0, -x0, samples=3)

def reform():
    found = reformulation.penalised(problem, x0, 0.01)
    assert np.isfinite(values(found.gradient, found.y)["upper"]) and np.isfinite(values(found.u, found.v)["lower"])

CALLS = {
    "solve": lambda: bx.solve(problem, x0),
    "first-order": lambda: bx.solve(problem, x0, solver=bx.Default(variant="first-order"), max_steps=20),
    "SFLCB": lambda: bx.solve(problem, x0, solver=bx.SFLCB(), max_steps=200),
    "GAM": lambda: bx.solve(problem, x0, solver=bx.GAM(), max_steps=3),
    "certify": lambda: bx.certify(problem, x0, delta=0.01),
    "solve_lower_level": lambda: bx.solve_lower_level(problem, x0),
    "run": lambda: bx.run(problem, x0, solver=bx.SFLCB(), max_steps=200),
    "multistart": lambda: bx.multistart(problem, 2, solver=bx.SFLCB(), max_steps=200),
    "compare": lambda: bx.compare(problem, x0, {"default": bx.Default(), "SFLCB": bx.SFLCB()}, max_steps=200, points=2),
    "reformulation": reform,
    "hyperobjective": lambda: Hyperobjective(problem, x0)(x0),
    "plot": draw,
    "svc": svc,
}
wide = jnp.result_type(float)
assert (wide == np.float64) == (sys.argv[1] == "double")
before = values(x0, x0) if sys.argv[2] == "warm" else None
for name in sys.argv[3:]:
    answer = CALLS[name]()
    answer = answer.best if name == "multistart" else answer
    after = values(x0, x0)
    before = after if before is None else before
    same(before, after)
    if hasattr(answer, "y"):  # what comes back is the user's to compute with
        x = getattr(answer, "x", x0)
        assert all(np.isfinite(value).all() for value in values(x, answer.y).values())
        assert jnp.asarray(getattr(answer, "multipliers", x0)).dtype == wide
        upper(x, answer.y), jax.grad(lower)(jnp.asarray(x), answer.y), own(x)
if sys.argv[2] == "warm" and "certify" in sys.argv:
    # The constants that float32 had compiled were not used in their rounded form.
    exact = bx.certify(bx.BilevelProblem(lambda x, y: jnp.sum(Q @ x) + y, lambda x, y: (y - x[0]) ** 2), x0, 0.0)
    assert abs(exact.value - (np.sum(Q @ x0) + x0[0])) <= 1e-14, exact.value
"""


def run_user_code(*arguments: str, double: bool = False) -> None:
    program = [sys.executable, "-c", USER, "double" if double else "single", *arguments]
    source = str(pathlib.Path(bilevax.__file__).parents[1])
    environment = {"JAX_ENABLE_X64": "1" if double else "0", "PATH": "", "HOME": "/tmp", "PYTHONPATH": source}
    compiling = {name: value for name, value in os.environ.items() if name.startswith(("XLA_", "JAX_", "OPENBLAS_"))}
    done = subprocess.run(program, env=compiling | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_users_functions_are_the_same_after_each_call():
    run_user_code(
        "warm", *["certify", "solve_lower_level", "run", "SFLCB", "GAM", "compare", "reformulation", "plot", "solve"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("calls", ["solve", "run certify", "hyperobjective svc multistart first-order"])
def test_a_users_functions_work_when_first_called_after_a_solve(calls):
    run_user_code("cold", *calls.split())


@pytest.mark.slow
def test_the_same_in_a_process_of_double_precision():
    run_user_code("warm", "run", "certify", "solve", double=True)


TRACES = {
    "eval_shape": lambda f, x: jax.eval_shape(f, x),
    "make_jaxpr": lambda f, x: jax.make_jaxpr(f)(x),
    "lower": lambda f, x: jax.jit(f).lower(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "cond": lambda f, x: jax.lax.cond(x[0] > 0, f, f, x),
    "scan": lambda f, x: jax.lax.scan(lambda carry, _: (f(carry), None), x, None, length=2),
    "grad": lambda f, x: jax.jit(jax.grad(lambda x: f(x).sum()))(x),
    "jacfwd of vmap": lambda f, x: jax.jacfwd(jax.vmap(f))(jnp.stack([x, x])),
}


@pytest.mark.parametrize("name", TRACES)
def test_no_trace_of_a_constant_outlives_the_context(name):
    """In either direction, for arrays that functions close over, compiled ones too."""
    array = np.random.default_rng(0).uniform(size=(3, 3))
    compiled = jax.jit(lambda x: array @ x)
    function = lambda x: array @ x + compiled(x)
    with float64():
        TRACES[name](function, jnp.ones(3))
    single = array @ jnp.ones(3)
    assert single.dtype == compiled(jnp.ones(3)).dtype == jnp.sin(array).dtype == np.float32
    with float64():
        assert jnp.array_equal(jax.jit(lambda x: array @ x)(jnp.eye(3)), array)
    assert jnp.array_equal(array @ jnp.ones(3), single)


def test_there_is_one_way_to_ask_for_double_precision():
    sources = pathlib.Path(bilevax.__file__).parent.rglob("*.py")
    users = [path.name for path in sources if re.search(r"\benable_x64\(", path.read_text())]
    assert users == ["precision.py"]
