"""Global bounds: never above the optimum, closed where they can be, and refused by name elsewhere."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

import bilevax as bx
from attack.judge.global_optimum import Quadratics, least_value
from bilevax.app.cli import app
from bilevax.proof import scip
from bilevax.proof.blocks import block_variables
from bilevax.proof.incumbents import Incumbent
from bilevax.proof.least_distance import Contradiction, NotConvex, reduce
from bilevax.proof.program import AffineRows, LowerGradient, complementarity_program
from bilevax.proof.relaxation import Relaxation
from bilevax.proof.tree import Tree


def draw(seed: int, kind: str) -> Quadratics:
    """A random problem: ``kind`` says whether f or g is linear in some directions, and whether x is bounded."""
    random = np.random.default_rng(seed)
    n, m, k = (int(size) for size in random.integers(1, (4, 4, 6)))

    def half(size: int, rank: int) -> np.ndarray:
        root = random.standard_normal((size, rank))
        return root @ root.T

    whole = kind == "integer"
    normal = lambda *shape: np.round(random.standard_normal(shape) * 1.5) if whole else random.standard_normal(shape)
    Q = np.zeros((m, m)) if kind == "linear" else half(m, 1 if kind == "ties" else m + 1)
    W = np.zeros((n + m, n + m)) if kind == "linear" else half(n + m, 2 if kind == "flat" else n + m + 1)
    A, B = normal(k, m), normal(k, n)
    inside = A @ normal(m)
    high = inside + random.uniform(0.1, 2, k)
    low = np.where(random.random(k) < 0.4, inside - random.uniform(0.1, 2, k), -np.inf)
    if random.random() < 0.3:
        low[0] = high[0]
    # Bounds on y for some: without any a linear g would rarely have a minimiser.
    A, B = np.vstack([A, np.eye(m)]), np.vstack([B, np.zeros((m, n))])
    bounded = kind in ("linear", "ties") or random.random() < 0.3
    reach = np.full(m, 3.0 if bounded else np.inf)
    of_x = 4.0 if kind != "unbounded" else np.inf
    box = np.hstack([np.eye(n), np.zeros((n, m))]), np.full(n, -of_x), np.full(n, of_x)
    upper_row = normal(1, n + m), np.array([-np.inf]), random.uniform(0.5, 2, 1)
    if kind == "upper":
        box = np.vstack([box[0], upper_row[0]]), np.r_[box[1], upper_row[1]], np.r_[box[2], upper_row[2]]
    low, high = np.r_[low, -reach], np.r_[high, reach]
    return Quadratics(W, normal(n + m), Q, normal(m, n), normal(m), A, B, low, high, box)


def program_of(p: Quadratics):
    n = p.R.shape[1]
    follower = AffineRows(p.B, p.A, p.low, p.high)
    matrix, low, high = p.leader
    leader = AffineRows(matrix[:, :n], matrix[:, n:], low, high)
    return complementarity_program((p.W, p.w, 0.0), LowerGradient(p.c, p.R, p.Q), follower, leader)


def planted(p: Quadratics, gap: float = 1e-6) -> Tree:
    program = program_of(p)

    def value(z: np.ndarray) -> Incumbent:
        x, y, multipliers = program.parts(z)
        both = np.concatenate([x, y])
        return Incumbent(float(0.5 * both @ p.W @ both + p.w @ both), x, y, multipliers)

    return Tree(program, reduce(program), value, lambda value: gap * (1 + abs(value)))


def search(p: Quadratics, gap: float = 1e-6) -> Tree:
    tree = planted(p, gap)
    for _ in tree.search():
        pass
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "integer", "flat", "ties", "linear", "unbounded", "upper"])
def test_bounds_close_at_the_optimum_that_enumeration_finds(kind):
    closed = 0
    for seed in range(6):
        problem = draw(seed, kind)
        best = least_value(problem)
        try:
            tree = search(problem)
        except Contradiction:
            assert best == np.inf
            closed += 1
            continue
        assert tree.lower_bound <= best + 1e-6 * (1 + abs(best)), (seed, tree.lower_bound, best)
        if np.isfinite(best):
            closed += tree.lower_bound >= best - 1e-5 * (1 + abs(best))
            assert tree.upper >= best - 1e-6 * (1 + abs(best)), (seed, tree.upper, best)
        else:
            closed += tree.lower_bound == best
    assert closed == 6


def test_any_multipliers_give_a_bound_and_a_solver_that_lies_does_no_harm():
    problem = draw(3, "plain")
    program = program_of(problem)
    relaxation = Relaxation(reduce(program))
    best, random = least_value(problem), np.random.default_rng(0)
    reduced = relaxation.program
    for _ in range(50):
        bound, _ = relaxation.dual_bound(random.standard_normal(len(reduced.rows)), reduced.lower, reduced.upper)
        assert bound <= best


def test_a_false_certificate_of_emptiness_is_not_believed():
    reduced = reduce(program_of(draw(3, "plain")))
    relaxation, random = Relaxation(reduced), np.random.default_rng(0)
    for _ in range(50):
        ray = random.standard_normal(len(reduced.rows))
        assert not relaxation.proves_empty(ray, reduced.lower, reduced.upper)


def test_what_curves_down_is_refused():
    problem = draw(3, "plain")
    with pytest.raises(NotConvex):
        reduce(program_of(problem._replace(W=-problem.W)))


def two_valleys(lower=lambda x, y: (y[0] - x[0]) ** 2, **options) -> bx.BilevelProblem:
    """Phi has a local minimum at x = -1 with value 1, and the global one at x = 2: y follows x only upwards."""
    return bx.BilevelProblem(
        upper=lambda x, y: (x[0] + 1) ** 2 + 4 * (y[0] - 2) ** 2 - 15,
        lower=lower,
        x_set=bx.Box(np.array([-3.0]), np.array([3.0])),
        y_set=bx.Box(np.array([0.0]), np.array([5.0])),
        **options,
    )


def test_a_proof_finds_the_global_optimum_from_a_local_one():
    local = bx.solve(two_valleys(), np.array([-1.0]), solver=bx.Default())
    proof = bx.prove(two_valleys(), local)
    assert proof.proven
    assert proof.status is bx.ProofStatus.PROVEN
    assert proof.solution is not None
    assert proof.solution.success
    assert proof.solution.x[0] == pytest.approx(1.4, abs=1e-7)
    assert proof.lower_bound <= proof.upper_bound == pytest.approx(-7.8, abs=1e-9)
    assert proof.gap <= 1e-4
    assert list(proof.history) == ["time", "nodes", "lower_bound", "upper_bound"]
    assert "Proven" in str(proof)
    assert "Proof" in proof._repr_html_()


def test_without_a_solution_the_set_tells_the_structure_of_x():
    proof = bx.prove(two_valleys())
    assert proof.proven
    assert proof.upper_bound == pytest.approx(-7.8, abs=1e-9)
    free = bx.BilevelProblem(upper=lambda x, y: (x - y) ** 2, lower=lambda x, y: (y - x - 1) ** 2, y_like=0.0)
    with pytest.raises(ValueError, match="solution: expected a Solution or a point x"):
        bx.prove(free)
    assert bx.prove(free, 0.5).proven


def test_what_is_outside_the_class_is_refused_by_name():
    curved = bx.BilevelProblem(
        upper=lambda x, y: jax.scipy.special.erf(x - y),
        lower=lambda x, y: (y - x) ** 2,
        x_set=bx.Box(-1.0, 1.0),
        y_like=0.0,
    )
    proof = bx.prove(curved, 0.0)
    assert proof.status is bx.ProofStatus.UNSUPPORTED
    assert "f is not" in proof.message or "'erf' is no operation" in proof.message
    assert proof.lower_bound == -np.inf
    assert not proof.proven


def test_a_proof_that_is_stopped_has_bounds_that_hold():
    proof = bx.prove(two_valleys(), np.array([-1.0]), time_limit=1e-6)
    assert proof.status is bx.ProofStatus.TIME_LIMIT
    assert proof.lower_bound <= -7.8 <= proof.upper_bound + 1e-9
    assert not proof.proven


def test_an_infeasible_problem_is_proven_to_be_one():
    rows = bx.LinearCoupling(A=np.eye(1), B=np.ones((1, 1)), upper=np.array([-20.0]))
    proof = bx.prove(two_valleys(coupling=rows), np.array([0.0]))
    assert proof.status is bx.ProofStatus.INFEASIBLE
    assert proof.lower_bound == np.inf
    assert proof.solution is None


def test_solve_returns_a_proven_optimum_where_the_problem_is_small():
    start = np.array([-1.0])
    solution = bx.solve(two_valleys(), start)
    assert solution.success
    assert solution.proof.proven
    assert solution.proof.lower_bound == pytest.approx(solution.value, rel=1e-6)
    assert solution.value == pytest.approx(-7.8, abs=1e-9)
    assert list(solution.history["phase"]) == ["proof"]
    assert "Proof" in str(solution)
    searched = bx.solve(two_valleys(), start, solver=bx.Default())
    assert searched.proof is None


def test_a_cube_of_x_alone_in_g_leaves_its_gradient_affine():
    proof = bx.prove(two_valleys(lower=lambda x, y: (y[0] - x[0]) ** 2 + x[0] ** 3))
    assert proof.proven
    assert proof.upper_bound == pytest.approx(-7.8, abs=1e-9)


FILE = """
import bilevax as bx, numpy as np
problem = bx.BilevelProblem(
    upper=lambda x, y: (x[0] + 1) ** 2 + 4 * (y[0] - 2) ** 2 - 15,
    lower=lambda x, y: (y[0] - x[0]) ** 2,
    x_set=bx.Box(np.array([-3.0]), np.array([3.0])),
    y_set=bx.Box(np.array([0.0]), np.array([5.0])),
)
x0 = np.array([-1.0])
"""


def test_the_command_prints_the_bounds_and_writes_them_on_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "valleys.py").write_text(FILE)
    shown = CliRunner().invoke(app, ["prove", "valleys.py", "--report", "page.html"])
    assert shown.exit_code == 0, shown.output
    assert "proven" in shown.output
    page = (tmp_path / "page.html").read_text()
    assert "<h3>Proof</h3>" in page
    assert "The global bounds closing" in page
    said = json.loads(CliRunner().invoke(app, ["prove", "valleys.py", "--json"]).stdout)
    assert said["proven"]
    assert said["lower_bound"] <= said["upper_bound"] == pytest.approx(-7.8)
    assert said["solution"]["success"]


def test_the_high_point_relaxation_proves_a_convex_f_that_the_lower_level_agrees_with(monkeypatch):
    monkeypatch.setattr(scip, "available", lambda: False)
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.exp(-y[0]) + 0.5 * x @ x,
        lower=lambda x, y: y @ y,
        coupling=bx.LinearCoupling(A=np.ones((1, 1)), B=-np.eye(1), lower=np.array([1.0]), upper=np.array([2.0])),
    )
    best = minimize_scalar(lambda x: np.exp(-max(1 + x, min(0.0, 2 + x))) + 0.5 * x**2).fun
    relaxed = minimize_scalar(lambda x: np.exp(-2 - x) + 0.5 * x**2).fun
    proof = bx.prove(problem, np.zeros(1))
    assert proof.status is bx.ProofStatus.RELAXED
    assert proof.lower_bound == pytest.approx(relaxed, rel=1e-7)
    assert proof.lower_bound <= best <= proof.upper_bound + 1e-8
    agreeing = bx.BilevelProblem(problem.upper, lambda x, y: (y[0] - 9) ** 2, problem.coupling)
    proof = bx.prove(agreeing, np.zeros(1))
    assert proof.proven
    assert proof.lower_bound <= relaxed + 1e-9


def apart() -> bx.BilevelProblem:
    """Fifteen problems with two valleys in one: a single tree would have to combine the sides of all of them."""
    weights = np.linspace(1.0, 2.0, 15)
    return bx.BilevelProblem(
        upper=lambda x, y: jnp.sum(weights * ((x + 1) ** 2 + 4 * (y - 2) ** 2 - 15)),
        lower=lambda x, y: jnp.sum((y - x) ** 2),
        x_set=bx.Box(np.full(15, -3.0), np.full(15, 3.0)),
        y_set=bx.Box(np.zeros(15), np.full(15, 5.0)),
    )


def test_a_problem_that_falls_apart_is_proven_block_by_block():
    proof = bx.prove(apart())
    assert proof.proven
    assert proof.nodes <= 15 * 10
    assert proof.upper_bound == pytest.approx(-7.8 * np.linspace(1.0, 2.0, 15).sum(), abs=1e-7)


def test_a_pair_keeps_a_row_and_its_multiplier_together():
    """A linear lower level: its conditions hold multipliers alone, which only pairs connect with y."""
    problem = draw(1, "linear")
    program = program_of(problem)
    for variables in block_variables(program):
        rows = program.matrix[:, variables] != 0
        for row, force in zip(program.pair_row, program.pair_force, strict=True):
            assert rows[row].any() == rows[force].any()


def test_tolls_that_lead_to_the_best_flow_of_all_are_found_at_once(monkeypatch):
    """The high-point relaxation tells the flow, not the tolls; without them it is not the travellers' answer."""
    monkeypatch.setattr(scip, "available", lambda: False)
    monkeypatch.setattr(bx.driver.prove, "solve", None)  # nobody is asked for help
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.exp(-y[0]) + jnp.exp(y[1]),
        lower=lambda x, y: (y[0] - 0.1) ** 2 + (y[1] - 0.5) ** 2 + x @ y,
        x_set=bx.Box(np.full(2, -5.0), np.full(2, 5.0)),
        y_set=bx.Box(np.zeros(2), np.ones(2)),
    )
    proof = bx.prove(problem, np.zeros(2))
    assert proof.proven, proof
    assert proof.upper_bound == pytest.approx(np.exp(-1.0) + 1.0, abs=1e-9)
