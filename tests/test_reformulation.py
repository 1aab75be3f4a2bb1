"""The theorems on the reformulation, measured on problems whose constants are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.paper import reformulation
from bilevax.problems.quadratic import random_quadratic
from bilevax.solvers.sflcb import SFLCBState
from known import present

KINDS = [
    {"upper": "lipschitz", "coupled": True},
    {"upper": "nonconvex", "coupled": True, "n_equalities": 1},
    {"upper": "nonconvex", "coupled": False, "n_rows": 6},
    {"upper": "lipschitz", "coupled": False, "n_rows": 3, "box": 1.0},
]
SEEDS = (0, 1)


def problem_and_point(kind, seed):
    problem, constants = random_quadratic(**kind, seed=seed, with_theta_bar=False)
    # With coupled rows and a box the lower level is feasible near 0 only.
    x = 0.3 * np.random.default_rng(100 + seed).standard_normal(3)
    return problem, constants, x


def structured_problem():
    """Trees for x and y, a range row, an equality row with an offset, and bounds on y."""
    return bx.BilevelProblem(
        upper=lambda x, y: jnp.cos(x["a"]) + jnp.sum((y["p"] - x["b"]) ** 2) + y["q"] * x["a"],
        lower=lambda x, y: jnp.sum((y["p"] - x["b"] * x["a"]) ** 2) + (y["q"] - 2) ** 2 + 0.3 * y["q"] * y["p"][0],
        coupling=[
            bx.AffineCoupling(lambda x, y: y["p"][0] + y["q"] - x["a"] + 0.5, lower=-0.25, upper=0.25),
            bx.AffineCoupling(lambda x, y: {"e": y["p"] @ jnp.ones(2) - x["b"] + 1.0}, lower=0.7, upper=0.7),
        ],
        y_set=bx.Product({"p": bx.Box(-2.0, 2.0), "q": bx.Box(-1.0, 0.4)}),
        y_like={"p": np.zeros(2), "q": np.zeros(())},
    )


STRUCTURED_X = {"a": 0.3, "b": np.array(0.8)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_value_and_solution_lie_within_the_bounds_of_the_theorem(kind, seed):
    problem, constants, x = problem_and_point(kind, seed)
    l_f0, mu_g = present(constants.l_f0), constants.mu_g
    exact = bx.certify(problem, x)
    gaps, distances = [], []
    for delta in (0.4, 0.1, 0.01):  # at most mu_g / (2 l_f1) = 0.5
        point = reformulation.penalised(problem, x, delta)
        gaps.append((exact.value - point.value) / (delta * l_f0**2 / (2 * mu_g)))
        distances.append(np.linalg.norm(point.y - exact.y) / (2 * delta * l_f0 / mu_g))
        np.testing.assert_allclose(point.z, exact.y, atol=1e-9)
    print(f"gap / bound {max(gaps):.3f}, distance / bound {max(distances):.3f}")
    assert min(gaps) >= -1e-10
    assert 0 < max(gaps) <= 1
    # Strong monotonicity proves half of what the theorem claims.
    assert 0 < max(distances) <= 0.5


def test_bounds_of_the_theorem_are_nearly_attained():
    """With f of slope about l_f0 along the softest direction of g: the measured ratios can reach 1 and 1/2."""
    problem = bx.BilevelProblem(lambda x, y: jnp.sqrt(1 + (y - 100) ** 2), lambda x, y: 0.5 * (y - x) ** 2)
    exact = bx.certify(problem, 0.0, 0.0)
    point = reformulation.penalised(problem, 0.0, 0.1, y_like=0.0)
    assert 0.99 <= (exact.value - point.value) / (0.1 / 2) <= 1
    assert 0.495 <= (point.y - exact.y) / (2 * 0.1) <= 0.5


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradient_approaches_the_hypergradient_linearly_in_delta(kind):
    deltas, slopes = np.geomspace(1e-1, 1e-4, 4), []
    for seed in range(3):
        problem, _, x = problem_and_point(kind, seed)
        exact = bx.certify(problem, x)
        points = [reformulation.penalised(problem, x, delta) for delta in deltas]
        active = {tuple(np.abs(m) > 1e-9) for point in points for m in (point.u, point.v)}
        at_bounds = {tuple(np.abs(point.y) > 1 - 1e-9) for point in [*points, exact]} if "box" in kind else {()}
        if len(active) > 1 or len(at_bounds) > 1 or exact.hypergradient is None:
            continue  # the theorem assumes one active set for all penalties up to delta
        errors = [np.linalg.norm(point.gradient - exact.hypergradient) for point in points]
        if max(errors) > 1e-9:  # at a vertex of rows without x the two gradients are the same
            slopes.append(np.polyfit(np.log(deltas), np.log(errors), 1)[0])
    print("slopes", np.round(slopes, 3))
    assert len(slopes) >= 2
    assert all(0.8 <= slope <= 1.2 for slope in slopes)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradient_agrees_with_differences_of_the_value(kind):
    problem, _, x = problem_and_point(kind, 5)
    value = lambda x: reformulation.penalised_value(problem, x, 0.1)
    step = 1e-5 * np.eye(3)
    differences = [(value(x + e) - value(x - e)) / 2e-5 for e in step]
    np.testing.assert_allclose(reformulation.penalised_gradient(problem, x, 0.1), differences, rtol=1e-6, atol=1e-7)


def test_gradient_keeps_the_structure_of_x_and_handles_ranges_equalities_and_bounds():
    problem, step = structured_problem(), 1e-5
    point = reformulation.penalised(problem, STRUCTURED_X, 0.05)
    assert point.gradient["a"].dtype == np.float64
    assert not jax.config.read("jax_enable_x64")
    (range_row, equality_row) = point.v
    assert range_row != 0
    assert equality_row["e"] != 0
    assert point.y["q"] == pytest.approx(0.4)
    for name in ("a", "b"):
        ends = [
            reformulation.penalised_value(problem, STRUCTURED_X | {name: STRUCTURED_X[name] + shift}, 0.05)
            for shift in (-step, step)
        ]
        assert point.gradient[name] == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-6, abs=1e-7)


def test_hypergradient_is_the_limit_of_the_penalised_gradient():
    problem, _, x = problem_and_point(KINDS[0], 0)
    limit = reformulation.penalised_gradient(problem, x, 1e-5)
    np.testing.assert_allclose(present(reformulation.hypergradient(problem, x)), limit, atol=1e-3)


def test_a_point_without_lower_level_solution_is_refused():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum(y),
        lambda x, y: jnp.sum(y**2),
        bx.LinearCoupling(A=[[1.0], [-1.0]], B=[[0.0], [1.0]], upper=0.0),
    )
    with pytest.raises(ValueError, match="no point satisfies"):
        reformulation.penalised_value(problem, np.array([1.0]), 0.1)
    with pytest.raises(ValueError, match="delta: expected a number > 0, got 0"):
        reformulation.penalised_value(problem, np.array([-1.0]), 0)


def random_state(problem, x, seed, solver):
    """A state with all parts random, slacks within their bounds."""
    random = np.random.default_rng(seed)
    with jax.enable_x64(True):
        y_like = problem.y_like if problem.y_like is not None else jax.ShapeDtypeStruct((4,), np.float64)
        noise = lambda like: jax.tree.map(lambda leaf: jnp.asarray(random.standard_normal(np.shape(leaf))), like)
        x = jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), x)
        y, z = (problem.y_set.project(noise(jax.tree.map(lambda leaf: np.zeros(leaf.shape), y_like))) for _ in range(2))
        first, second = solver.init(problem, x, y), solver.init(problem, x, z)
        return SFLCBState(x, y, z, first.s_y, second.s_z, noise(first.u), noise(first.v))


CASES = {
    "coupled": lambda: (random_quadratic(upper="nonconvex", with_theta_bar=False)[0], np.zeros(3)),
    "equality": lambda: (random_quadratic(n_equalities=1, with_theta_bar=False)[0], np.ones(3)),
    "box": lambda: (random_quadratic(n_rows=3, coupled=False, box=1.0, with_theta_bar=False)[0], np.ones(3)),
    "structured": lambda: (structured_problem(), STRUCTURED_X),
}
SOLVER = bx.SFLCB(delta=0.1, rho1=0.3, rho2=0.2, eta_x=0.01, eta_y=0.02, eta_z=0.03, eta_u=0.04, eta_v=0.05)


def add(value, scale, direction):
    return jax.tree.map(lambda a, b: a + scale * b, value, direction)


@eqx.filter_jit
def step_by_gradients(problem, solver, state):
    """Algorithm 1 with the gradient of K: u and v first, the rest from the old point and the new multipliers."""
    gradient = jax.grad(lambda at: reformulation.augmented_lagrangian(problem, solver, at))
    lower, upper = problem.row_bounds(problem.rows(state.x, state.y))
    clip = lambda slack: jax.tree.map(jnp.clip, slack, lower, upper)
    first = gradient(state)
    # K is -v'(h - s) in v, so v ascends along minus its gradient.
    at = state._replace(u=add(state.u, solver.eta_u, first.u), v=add(state.v, -solver.eta_v, first.v))
    slope = gradient(at)
    return at._replace(
        x=problem.x_set.project(add(at.x, -solver.eta_x, slope.x)),
        y=problem.y_set.project(add(at.y, -solver.eta_y, slope.y)),
        z=problem.y_set.project(add(at.z, solver.eta_z, slope.z)),
        s_y=clip(add(at.s_y, -solver.eta_y, slope.s_y)),
        s_z=clip(add(at.s_z, solver.eta_z, slope.s_z)),
    )


@pytest.mark.parametrize("case", CASES)
def test_a_step_follows_the_gradient_of_the_augmented_lagrangian(case):
    problem, x = CASES[case]()
    state = random_state(problem, x, 0, SOLVER)
    with jax.enable_x64(True):
        after = eqx.filter_jit(lambda problem, state: SOLVER.step(problem, state))(problem, state)
        expected = step_by_gradients(problem, SOLVER, state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), after, expected)


@pytest.mark.parametrize("case", CASES)
def test_inner_optimum_is_a_fixed_point_of_projected_gradient_steps(case):
    problem, x = CASES[case]()
    state = reformulation.inner_optimum(problem, SOLVER, random_state(problem, x, 1, SOLVER))
    # Steps in y, z and the slacks alone, and unit-sized: the optimum must not move.
    frozen = eqx.tree_at(lambda s: (s.eta_u, s.eta_v, s.eta_y, s.eta_z), SOLVER, (0.0, 0.0, 1.0, 1.0))
    with jax.enable_x64(True):
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), state)
        after = step_by_gradients(problem, frozen, state)._replace(x=state.x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), after, state)


@pytest.mark.parametrize("case", CASES)
def test_potential_is_made_of_a_minimum_and_a_maximum(case):
    problem, x = CASES[case]()
    state = random_state(problem, x, 2, SOLVER)
    parts = reformulation.potential(problem, SOLVER, state)
    assert parts.value == pytest.approx(parts.lagrangian / 4 + 2 * parts.q - parts.d, rel=1e-14)
    phi = 0.1 * reformulation.penalised_value(problem, x, 0.1)
    # The chain that bounds V from below in the proof of both theorems.
    assert parts.d <= parts.lagrangian
    assert parts.d <= parts.q
    assert phi <= parts.q
    assert parts.value >= 5 / 4 * phi


def test_potential_at_the_exact_saddle_point_is_five_quarters_of_phi():
    problem, x = CASES["coupled"]()
    point = reformulation.penalised(problem, x, 0.1)
    rows = lambda y: (np.asarray(problem.coupling[0].A.matrix @ y + problem.coupling[0].B.matrix @ x),)
    state = SFLCBState(x, point.y, point.z, rows(point.y), rows(point.z), (point.u,), (point.v,))
    parts = reformulation.potential(problem, SOLVER, state)
    assert parts.value == pytest.approx(5 / 4 * 0.1 * point.value, rel=1e-9)


def test_potential_needs_augmentation():
    problem, x = CASES["coupled"]()
    bare = bx.SFLCB(rho1=0.0)
    with pytest.raises(ValueError, match="rho1: expected a number > 0"):
        reformulation.potential(problem, bare, random_state(problem, x, 0, bare))


def test_problems_of_one_shape_share_compiled_code(compilations):
    reformulation.penalised(problem_and_point(KINDS[0], 10)[0], np.zeros(3), 0.1)
    other = problem_and_point(KINDS[0], 11)[0]
    with compilations() as count:
        reformulation.penalised(other, np.ones(3), 0.2)
    assert count == [0]


def test_more_coupled_rows_than_variables_are_refused():
    with pytest.raises(ValueError, match="n_rows: expected at most n_y = 4 coupled rows"):
        random_quadratic(n_rows=5)
