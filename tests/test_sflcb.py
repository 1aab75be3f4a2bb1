import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from known import TOY_MINIMA, toy

PARAMETERS = {
    "delta": 0.13,
    "rho1": 0.9,
    "rho2": 1.7,
    "eta_x": 0.021,
    "eta_y": 0.034,
    "eta_z": 0.045,
    "eta_u": 0.27,
    "eta_v": 0.38,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem twice: for bilevax, and as arrays and gradients for the NumPy loop on flat vectors."""

    problem: bx.BilevelProblem
    x0: Any
    y0: Any
    A: np.ndarray
    B: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    gradients: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    project_x: Callable[[np.ndarray], np.ndarray] = lambda x: x
    project_y: Callable[[np.ndarray], np.ndarray] = lambda y: y


def algorithm_1(case: Case, steps: int, delta, rho1, rho2, eta_x, eta_y, eta_z, eta_u, eta_v):
    """The paper's Algorithm 1 as printed: y' = (y, alpha), z' = (z, beta), the slacks in the units of the rows."""
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(float)
    x = case.project_x(flat(case.x0))
    y = case.project_y(flat(case.y0))
    h = lambda x, y: case.B @ x + case.A @ y
    clip = lambda s: np.clip(s, case.lower, case.upper)
    z = y.copy()
    alpha = clip(h(x, y))
    beta = alpha.copy()
    u, v = np.zeros(len(alpha)), np.zeros(len(alpha))
    for _ in range(steps):
        u = u + eta_u * (h(x, y) - alpha)
        v = v + eta_v * (h(x, z) - beta)
        f_x, f_y, g_x, g_y = case.gradients(x, y)
        _, _, g_x_at_z, g_z = case.gradients(x, z)
        k_x = delta * f_x + g_x - g_x_at_z
        k_x = k_x + case.B.T @ u - case.B.T @ v
        k_x = k_x + rho1 * case.B.T @ (h(x, y) - alpha) - rho2 * case.B.T @ (h(x, z) - beta)
        k_y = delta * f_y + g_y + case.A.T @ u + rho1 * case.A.T @ (h(x, y) - alpha)
        k_alpha = -u - rho1 * (h(x, y) - alpha)
        k_z = -g_z - case.A.T @ v - rho2 * case.A.T @ (h(x, z) - beta)
        k_beta = v + rho2 * (h(x, z) - beta)
        x, y, alpha, z, beta = (
            case.project_x(x - eta_x * k_x),
            case.project_y(y - eta_y * k_y),
            clip(alpha - eta_y * k_alpha),
            case.project_y(z + eta_z * k_z),
            clip(beta + eta_z * k_beta),
        )
    return x, y, z, alpha, beta, u, v


def wave(x, y, data):
    return jnp.sum((x - data["a"]) ** 2) + jnp.sum(jnp.sin(y)) + x @ y[:3]


def bowl(x, y, data):
    return 0.5 * y @ (data["H"] @ y) + y @ (data["R"] @ x + data["b"]) + jnp.sum(jnp.cosh(0.1 * y))


def quadratic(rows, x_set=None, y_set=None, project_x=lambda x: x, project_y=lambda y: y, seed=0) -> Case:
    """f and g quadratic with mixed terms, plus a wave in f; ``rows`` picks the kinds of row."""
    random = np.random.default_rng(seed)
    n, m, k = 3, 4, 5
    H = random.standard_normal((m, m))
    H = H @ H.T / m + np.eye(m)
    R, a, b = random.standard_normal((m, n)), random.standard_normal(n), random.standard_normal(m)
    A, B = 0.3 * random.standard_normal((k, m)), 0.3 * random.standard_normal((k, n))
    center = random.standard_normal(k)
    lower, upper = {
        "upper": (np.full(k, -np.inf), center),
        "lower": (center, np.full(k, np.inf)),
        "equality": (np.r_[center[:2], np.full(3, -np.inf)], np.r_[center[:2], np.full(3, np.inf)]),
        "range": (center - 0.3, center + 0.3),
        "mixed": (
            np.array([-np.inf, center[1], center[2] - 0.2, -np.inf, center[4]]),
            np.array([center[0], center[1], center[2] + 0.2, np.inf, np.inf]),
        ),
    }[rows]
    problem = bx.BilevelProblem(
        wave,
        bowl,
        coupling=bx.LinearCoupling(A=A, B=B, lower=lower, upper=upper),
        x_set=x_set,
        y_set=y_set,
        data={"a": a, "b": b, "H": H, "R": R},
    )

    def gradients(x, y):
        f_y = np.cos(y) + np.r_[x, 0.0]
        return 2 * (x - a) + y[:3], f_y, R.T @ y, H @ y + R @ x + b + 0.1 * np.sinh(0.1 * y)

    x0, y0 = random.standard_normal(n), random.standard_normal(m)
    return Case(problem, x0, y0, A, B, lower, upper, gradients, project_x, project_y)


def simplex(point: np.ndarray) -> np.ndarray:
    ordered = np.sort(point)[::-1]
    shifts = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    return np.maximum(point - shifts[np.flatnonzero(ordered > shifts)[-1]], 0)


def trees() -> Case:
    """x a dict, y a tuple, three couplings of all kinds; the flat order is that of JAX: keys sorted, then the tuple."""
    A = np.zeros((5, 5))
    B = np.zeros((5, 3))
    random = np.random.default_rng(4)
    dense = random.standard_normal((2, 2, 2))  # rows (2, 2) of w, contracted with w[1] in R^2
    A[:4, 1:3] = dense.reshape(4, 2)
    A[:4, 0] = 1.0
    B[:4, 0] = np.arange(4.0)
    A[4], B[4] = [0.0, 0.0, 1.0, -1.0, 2.0], [0.0, 1.0, 1.0]
    lower = np.r_[np.full(4, -0.5), 0.2]
    upper = np.r_[np.full(4, 0.5), 0.2]

    def rows(x, y):
        first, (second, _) = y
        return {"w": jnp.einsum("ijk,k->ij", dense, second) + first + jnp.arange(4.0).reshape(2, 2) * x["p"] + 7.0}

    problem = bx.BilevelProblem(
        upper=lambda x, y: x["p"] ** 2 + jnp.sum(x["q"] * y[1][1]) + jnp.sum(y[1][0] ** 2),
        lower=lambda x, y: y[0] ** 2 + jnp.sum((y[1][0] - x["q"]) ** 2) + jnp.sum(y[1][1] ** 2) * 1.5 + x["p"] * y[0],
        coupling=[
            bx.AffineCoupling(rows, lower={"w": 6.5}, upper=7.5),
            bx.LinearCoupling(A=A[4:], B=B[4:], lower=0.2, upper=0.2),
        ],
        x_set=bx.Product({"p": bx.Box(-0.1, 0.1), "q": bx.Simplex()}),
        y_set=bx.Box(-1.0, 1.0),
    )

    def gradients(x, y):
        p, q, first, second, third = x[0], x[1:], y[0], y[1:3], y[3:]
        f_x = np.r_[2 * p, third]
        f_y = np.r_[0.0, 2 * second, q]
        g_x = np.r_[first, -2 * (second - q)]
        g_y = np.r_[2 * first + p, 2 * (second - q), 3 * third]
        return f_x, f_y, g_x, g_y

    return Case(
        problem,
        {"p": 0.05, "q": np.array([0.3, 0.7])},
        (0.1, (np.array([0.2, -0.3]), np.array([0.4, 0.5]))),
        A,
        B,
        lower,
        upper,
        gradients,
        lambda x: np.r_[np.clip(x[0], -0.1, 0.1), simplex(x[1:])],
        lambda y: np.clip(y, -1.0, 1.0),
    )


def clip(low, high):
    return lambda point: np.clip(point, low, high)


CASES = {
    "upper rows": lambda: quadratic("upper"),
    "lower rows": lambda: quadratic("lower", seed=1),
    "equality and free rows": lambda: quadratic("equality", seed=2),
    "range rows": lambda: quadratic("range", seed=3),
    "mixed rows, boxes": lambda: quadratic(
        "mixed", bx.Box(-0.4, 0.4), bx.Box(-0.6, np.inf), clip(-0.4, 0.4), clip(-0.6, np.inf), seed=4
    ),
    "pytrees": trees,
}


@pytest.mark.slow
def test_a_large_matrix_makes_the_same_steps(monkeypatch):
    monkeypatch.setattr("bilevax.model.operators._LARGE", 0)
    monkeypatch.setattr("bilevax.model.operators._BLOCK", 2 * 8 * 4)  # of five rows two, two and one
    case = CASES["mixed rows, boxes"]()
    expected = algorithm_1(case, 50, **PARAMETERS)
    arguments = {"y0": case.y0, "solver": bx.SFLCB(**PARAMETERS), "max_steps": 50, "rtol": 0.0, "atol": 0.0}
    with jax.enable_x64(True):
        found = bx.run(case.problem, case.x0, **arguments)
    for name, leaf, wanted in zip(found.state._fields, jax.tree.leaves(found.state), expected, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_fifty_steps_agree_with_algorithm_1(kind):
    case = CASES[kind]()
    expected = algorithm_1(case, 50, **PARAMETERS)
    with jax.enable_x64(True):
        found = bx.run(
            case.problem, case.x0, y0=case.y0, solver=bx.SFLCB(**PARAMETERS), max_steps=50, rtol=0.0, atol=0.0
        )
    assert int(found.steps) == 50
    offset = 7.0 if kind == "pytrees" else 0.0  # the tree's first rows carry a constant
    for name, wanted in zip(("x", "y", "z", "s_y", "s_z", "u", "v"), expected, strict=True):
        actual = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(getattr(found.state, name))])
        if name in ("s_y", "s_z") and offset:
            actual[:4] -= offset
        assert actual.dtype == np.float64
        np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-10, err_msg=name)


def test_every_parameter_matters():
    """The comparison above could not tell parameters apart if they acted on nothing."""
    case = CASES["mixed rows, boxes"]()
    base = np.concatenate(algorithm_1(case, 50, **PARAMETERS))
    for name in PARAMETERS:
        changed = np.concatenate(algorithm_1(case, 50, **{**PARAMETERS, name: 1.1 * PARAMETERS[name]}))
        assert np.abs(changed - base).max() > 1e-4, name


def test_start_point_without_y0():
    """solve starts at z0 = y0 = y*(x0), slacks at the projection of the rows, u0 = v0 = 0."""
    case = CASES["mixed rows, boxes"]()
    solution = bx.solve(case.problem, case.x0, solver=bx.SFLCB(**PARAMETERS), max_steps=0)
    exact = bx.certify(case.problem, np.clip(case.x0, -0.4, 0.4)).y
    state = solution.state
    np.testing.assert_allclose(state.x, np.clip(case.x0, -0.4, 0.4), atol=1e-12)
    np.testing.assert_allclose(state.y, exact, atol=1e-9)
    np.testing.assert_array_equal(state.z, state.y)
    np.testing.assert_allclose(
        state.s_y[0], np.clip(case.B @ state.x + case.A @ state.y, case.lower, case.upper), atol=1e-12
    )
    np.testing.assert_array_equal(state.s_z[0], state.s_y[0])
    assert not np.any(state.u[0])
    assert not np.any(state.v[0])


def test_toy_200_starts_in_one_program(compilations):
    problem, solver = toy(), bx.SFLCB()  # the defaults are the paper's parameters
    with jax.enable_x64(True):
        batched = jax.jit(jax.vmap(lambda x0: bx.run(problem, x0, solver=solver, max_steps=10_000)))
        starts = jnp.linspace(0.0, 3.0, 200)
        backwards = starts[::-1]
        found = batched(starts)
        with compilations() as count:
            again = batched(backwards)
    assert count[0] == 0
    assert found.x.dtype == np.float64
    distance = np.abs(np.asarray(found.x)[:, None] - TOY_MINIMA).min(axis=1)
    assert distance.max() <= 1e-6
    assert len(set(np.abs(np.asarray(found.x)[:, None] - TOY_MINIMA).argmin(axis=1))) == 4
    assert not np.any(found.diverged)
    np.testing.assert_allclose(again.x[::-1], found.x, atol=1e-12)


def test_batched_run_equals_single_runs():
    problem, solver = toy(), bx.SFLCB()
    with jax.enable_x64(True):
        starts = jnp.array([0.2, 1.4, 2.9])
        together = jax.vmap(lambda x0: bx.run(problem, x0, solver=solver, max_steps=250, rtol=0.0, atol=0.0))(starts)
        for index, start in enumerate(starts):
            alone = bx.run(problem, start, solver=solver, max_steps=250, rtol=0.0, atol=0.0)
            np.testing.assert_allclose(together.x[index], alone.x, rtol=1e-13)
            assert int(together.steps[index]) == int(alone.steps) == 250


def test_residuals_are_small_where_it_converged():
    solution = bx.solve(toy(), 0.7, solver=bx.SFLCB(delta=0.05, eta_u=0.1, eta_v=0.1), rtol=1e-9, atol=0.0)
    last = {name: values[-1] for name, values in solution.history.items()}
    for name in ("rows_y", "rows_z", "stationarity_y", "stationarity_z", "complementarity_y", "complementarity_z"):
        assert last[name] <= 1e-8, name
    assert last["gradient"] <= 1e-8
    # Independent of the solver's own numbers: y solves the penalised lower level, z the lower level, at x.
    x, state = solution.state.x, solution.state
    assert state.z == pytest.approx(x, abs=1e-7)
    assert state.v[0] == pytest.approx(2 * x, abs=1e-6)  # 2 (y - 2 x) + v = 0 at y = x
    assert state.y == pytest.approx(x, abs=1e-7)
    f_y = -np.exp(2 - x) / (2 + np.cos(6 * x))
    assert state.u[0] == pytest.approx(2 * x - 0.05 * f_y, abs=1e-6)


def test_a_loop_of_steps_computes_the_forces_once():
    """What the rows pull with leaves the loop, so that XLA stores it and need not keep old slacks in copies."""
    random = np.random.default_rng(3)
    A = random.standard_normal((7, 3))
    coupling = bx.LinearCoupling(A=A, B=-np.eye(7), upper=0.0)
    problem = bx.BilevelProblem(lambda x, y: x @ x + jnp.sum(y), lambda x, y: 0.5 * y @ y, coupling)
    solver = bx.SFLCB(**PARAMETERS)
    with jax.enable_x64(True):
        first = jax.jit(lambda x, y: solver.init(problem, x, y))(np.ones(7), np.full(3, 0.5))
        program = jax.jit(lambda state: solver.steps(problem, state, 4)).lower(first).compile()
        step = jax.jit(lambda state: solver.step(problem, state))
        before = step(step(step(first)))
        after = step(before)
        found, ((force_y,), (force_z,)) = program(first)
    before, after, found = jax.device_get((before, after, found))
    acting = lambda y, slack, new, rho: new + rho * (A @ y - before.x - slack)
    np.testing.assert_allclose(force_y, acting(before.y, before.s_y[0], after.u[0], solver.rho1), rtol=1e-12)
    np.testing.assert_allclose(force_z, acting(before.z, before.s_z[0], after.v[0], solver.rho2), rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), found, after)
    text = program.as_text()
    body = text.split(f"\n%{re.search(r'body=%([^,]*),', text)[1]} ")[1].split("\n}")[0]  # type: ignore[index]
    assert "dot(" in body
    assert "copy(" not in body


def test_huge_steps_are_reported_as_divergence():
    problem = toy(x_set=bx.Free())
    solver = bx.SFLCB(eta_x=50.0, eta_y=50.0, eta_z=50.0, eta_u=50.0, eta_v=50.0)
    solution = bx.solve(problem, 0.7, solver=solver, max_steps=5000)
    assert solution.status is bx.Status.DIVERGED
    assert not solution.success
    assert "step sizes" in solution.message
    for leaf in jax.tree.leaves((solution.x, solution.state)):
        assert np.isfinite(leaf).all()
    with pytest.raises(RuntimeError, match="diverged"):
        bx.solve(problem, 0.7, solver=solver, max_steps=5000, throw=True)
    with jax.enable_x64(True):
        result = bx.run(problem, 0.7, solver=solver, max_steps=5000)
    assert bool(result.diverged)
    assert not bool(result.converged)
    assert np.isfinite(result.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, "delta"),
        ({"eta_x": -1.0}, "eta_x"),
        ({"eta_u": np.nan}, "eta_u"),
        ({"rho1": -0.1}, "rho1"),
        ({"delta": np.inf}, "delta"),
        ({"eta_z": [0.1, 0.2]}, "eta_z"),
        ({"eta_v": "small"}, "eta_v"),
    ],
)
def test_wrong_parameters(change, message):
    with pytest.raises(ValueError, match=f"SFLCB: expected a number .* for {message}, got"):
        bx.SFLCB(**change)


def test_rho_may_be_zero():
    assert bx.SFLCB(rho1=0.0, rho2=0).rho1 == 0.0
