"""The methods the paper compares with: each against its mathematics in NumPy, and against known answers."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, Objective, Outcome
from bilevax.model.problem import place
from bilevax.problems.quadratic import random_quadratic
from bilevax.solvers.projection import RowSet, project_onto, squared_norm
from known import TEXTBOOK, hinge, linear_rows, slopes, toy, valley
from test_sflcb import CASES, Case


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(float)


# One step against the mathematics.


class Mathematics:
    """A case on flat vectors: gradients, rows, the multipliers' proximal map, and the exact projections by Clarabel."""

    def __init__(self, case: Case):
        self.A, self.B, self.low, self.high = case.A, case.B, case.lower, case.upper
        self.gradients, self.project_x, self.project_y = case.gradients, case.project_x, case.project_y
        self.x, self.y = case.project_x(flat(case.x0)), case.project_y(flat(case.y0))
        self.x_rows = case.problem.x_set.rows(jax.tree.map(np.asarray, case.x0))
        self.y_rows = case.problem.y_set.rows(jax.tree.map(np.asarray, case.y0))
        self.zero = np.zeros(len(self.A))

    def h(self, x, y):
        return self.B @ x + self.A @ y

    def prox(self, w, step):
        """The proximal map of ``step support`` by Moreau's rule."""
        return w - step * np.clip(w / step, self.low, self.high)

    def cut(self, z, radius):
        signs = np.isfinite(self.low), np.isfinite(self.high)
        return np.clip(z, -radius * signs[0], radius * signs[1])

    def project_pair(self, x, y):
        rows = sp.block_array([[sp.csr_matrix(self.B), self.A], [self.x_rows.matrix, None], [None, self.y_rows.matrix]])
        low = np.r_[self.low, self.x_rows.lower, self.y_rows.lower]
        high = np.r_[self.high, self.x_rows.upper, self.y_rows.upper]
        return np.split(nearest(np.r_[x, y], rows, low, high), [len(x)])

    def project_lower(self, y):
        rows = sp.vstack([self.A, self.y_rows.matrix])
        return nearest(y, rows, np.r_[self.low, self.y_rows.lower], np.r_[self.high, self.y_rows.upper])


def nearest(point, matrix, lower, upper, balls=()):
    distance = Objective(
        value=lambda v: 0.5 * float((v - point) @ (v - point)),
        gradient=lambda v: v - point,
        hessian=lambda v: sp.eye(len(point), format="csc"),
    )
    answer = minimise(distance, Constraints(sp.csr_matrix(matrix), lower, upper, balls), np.zeros(len(point)))
    assert answer.outcome is Outcome.OPTIMAL
    return answer.y


def blocc(m: Mathematics, steps, gamma, eta, T, T_y, eta_1g, eta_2g, eta_1F, eta_2F, beta):
    x, y_g, y_F, mu_g, mu_F = m.x, m.y, m.y, m.zero, m.zero

    def max_min(y, mu, weights, eta_1, eta_2):
        before = mu
        for _ in range(T):
            half = mu + beta * (mu - before)
            for _ in range(T_y):
                _, f_y, _, g_y = m.gradients(x, y)
                y = m.project_y(y - eta_1 * (weights[0] * f_y + weights[1] * g_y + m.A.T @ half))
            before, mu = mu, m.prox(half + eta_2 * m.h(x, y), eta_2)
        return y, mu

    for _ in range(steps):
        y_g, mu_g = max_min(y_g, mu_g, (0.0, 1.0), eta_1g, eta_2g)
        y_F, mu_F = max_min(y_F, mu_F, (1.0, gamma), eta_1F, eta_2F)
        f_x, _, g_x, _ = m.gradients(x, y_F)
        g_x_at_g = m.gradients(x, y_g)[2]
        x = m.project_x(x - eta * (f_x + gamma * g_x + m.B.T @ mu_F - gamma * (g_x_at_g + m.B.T @ mu_g)))
    return {"x": x, "y_g": y_g, "mu_g": mu_g, "y_F": y_F, "mu_F": mu_F}


def lv_hba(m: Mathematics, steps, alpha, beta, eta, gamma1, gamma2, c0, p, r):
    x, y = m.project_pair(m.x, m.y)
    theta, lam, z = y, m.zero, m.zero
    for k in range(steps):
        c = c0 * (k + 1) ** p
        g_y = m.gradients(x, theta)[3]
        theta, lam = (
            m.project_y(theta - eta * (g_y + m.A.T @ lam + (theta - y) / gamma1)),
            m.prox(lam + eta * (m.h(x, theta) - (lam - z) / gamma2), eta),
        )
        f_x, f_y, g_x, g_y = m.gradients(x, y)
        d_x = f_x / c + g_x - m.gradients(x, theta)[2] - m.B.T @ lam
        d_y = f_y / c + g_y - (y - theta) / gamma1
        x, y = m.project_pair(x - alpha * d_x, y - alpha * d_y)
        z = m.cut(z + beta * (lam - z) / gamma2, r)
    return {"x": x, "y": y, "z": z, "theta": theta, "lam": lam}


def bic_gaffa(m: Mathematics, steps, alpha, beta, eta, gamma1, gamma2, c0, p, R):
    x, y, theta, z = m.x, m.y, m.y, m.zero
    for k in range(steps):
        c = c0 * (k + 1) ** p
        g_y = m.gradients(x, theta)[3]
        theta = m.project_y(theta - eta * (g_y + m.A.T @ z + (theta - y) / gamma1))
        lam = m.prox(z + gamma2 * m.h(x, y), gamma2)
        f_x, f_y, g_x, g_y = m.gradients(x, y)
        d_x = f_x / c + g_x + m.B.T @ lam - m.gradients(x, theta)[2] - m.B.T @ z
        d_y = f_y / c + g_y + m.A.T @ lam - (y - theta) / gamma1
        d_z = -m.h(x, theta) + (lam - z) / gamma2
        z = np.clip(m.prox(z - beta * d_z, beta), -R, R)
        x, y = m.project_x(x - alpha * d_x), m.project_y(y - alpha * d_y)
    return {"x": x, "y": y, "z": z, "theta": theta}


def projected_penalty(m: Mathematics, steps, sigma, xi, eta, M):
    x = m.x
    y = z = m.project_lower(m.y)
    for _ in range(steps):
        for _ in range(M):
            _, f_y, _, g_y = m.gradients(x, y)
            y = m.project_lower(y - eta * (sigma * f_y + g_y))
            z = m.project_lower(z - eta * m.gradients(x, z)[3])
        f_x, _, g_x, _ = m.gradients(x, y)
        x = m.project_x(x - xi * (f_x + (g_x - m.gradients(x, z)[2]) / sigma))
    return {"x": x, "y": y, "z": z}


# Numbers for which every term counts: bounds on z that bind, extrapolation, a growing penalty.
TRANSCRIBED = {
    "BLOCC": (
        blocc,
        {"gamma": 7.0, "eta": 0.02, "T": 3, "T_y": 2, "eta_1g": 0.11, "eta_2g": 0.3, "eta_1F": 0.013, "eta_2F": 1.1}
        | {"beta": 0.4},
    ),
    "LVHBA": (
        lv_hba,
        {"alpha": 0.04, "beta": 0.3, "eta": 0.1, "gamma1": 0.7, "gamma2": 0.9, "c0": 3.0, "p": 0.3, "r": 0.02},
    ),
    "BiCGAFFA": (
        bic_gaffa,
        {"alpha": 0.04, "beta": 0.1, "eta": 0.1, "gamma1": 0.7, "gamma2": 0.9, "c0": 3.0, "p": 0.3, "R": 0.03},
    ),
    "ProjectedPenalty": (projected_penalty, {"sigma": 0.2, "xi": 0.03, "eta": 0.1, "M": 2}),
}


def uncoupled(case: Case) -> Case:
    """The case with B = 0."""
    old = case.problem
    rows = bx.LinearCoupling(case.A, lower=case.lower, upper=case.upper)
    problem = bx.BilevelProblem(old.upper, old.lower, rows, old.x_set, old.y_set, data=old.data)
    return dataclasses.replace(case, problem=problem, B=np.zeros_like(case.B))


@functools.cache
def transcribed_case(method: str) -> Case:
    """All kinds of rows, and boxes that bind."""
    case = CASES["mixed rows, boxes"]()
    return uncoupled(case) if method == "ProjectedPenalty" else case


@pytest.mark.parametrize("method", TRANSCRIBED)
def test_six_steps_agree_with_the_mathematics(method):
    transcription, parameters = TRANSCRIBED[method]
    case = transcribed_case(method)
    expected = transcription(Mathematics(case), 6, **parameters)
    with jax.enable_x64(True):
        solver = place(getattr(bx, method)(**parameters), np.float64)
        problem = place(case.problem, np.float64)
        step = jax.jit(lambda state: solver.step(problem, state))
        x, y = jnp.asarray(case.x0), jnp.asarray(case.y0)
        state = jax.jit(lambda: solver.init(problem, problem.x_set.project(x), problem.y_set.project(y)))()
        for _ in range(6):
            state = step(state)
    # The projections are exact to 1e-10 (1 + |rows|) in the rows; everything else agrees to rounding.
    allowed = 1e-7 if method in ("LVHBA", "ProjectedPenalty") else 1e-11
    for name, wanted in expected.items():
        np.testing.assert_allclose(flat(getattr(state, name)), wanted, rtol=0.0, atol=allowed, err_msg=name)


@pytest.mark.parametrize("method", TRANSCRIBED)
def test_every_parameter_matters(method):
    """The comparison above could not tell parameters apart if they acted on nothing."""
    transcription, parameters = TRANSCRIBED[method]
    mathematics = Mathematics(transcribed_case(method))
    base = np.concatenate(list(transcription(mathematics, 6, **parameters).values()))
    for name, value in parameters.items():
        other = value + 1 if isinstance(value, int) else 1.1 * value
        changed = np.concatenate(list(transcription(mathematics, 6, **{**parameters, name: other}).values()))
        assert np.abs(changed - base).max() > 1e-5, name


def test_a_step_of_gam_is_the_gradient_by_the_kkt_system():
    problem, _ = random_quadratic(seed=3, n_equalities=1)
    x = np.array([0.3, -0.2, 0.1])
    data = problem.data
    with jax.enable_x64(True):
        lower = bx.solve_lower_level(problem, x)
    A, B = np.asarray(linear_rows(problem).A.matrix), np.asarray(linear_rows(problem).B.matrix)
    held = np.abs(lower.multipliers) > 1e-6
    assert held.sum() > 0
    with jax.enable_x64(True):
        slopes_of_f = jax.grad(problem.upper_value, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(lower.y))
    f_x, f_y = map(np.asarray, slopes_of_f)
    system = np.block([[data["H"], A[held].T], [A[held], np.zeros((held.sum(), held.sum()))]])
    response = np.linalg.solve(system, -np.vstack([data["C"], B[held]]))[: len(lower.y)]
    gradient = f_x + response.T @ f_y
    found = bx.solve(problem, x, solver=bx.GAM(alpha=0.01, eps=1e-6, line_search=False), max_steps=1)
    assert found.stats["steps"] == 1
    np.testing.assert_allclose(found.x, x - 0.01 * gradient, atol=1e-9)


def test_gam_takes_the_least_element_of_the_hull():
    """At (0, 0.5) the gradients are (-1, 3) and (2, 3): their hull's least element is (0, 3)."""
    found = bx.solve(
        valley(slopes([-1.0, 2.0], [3.0, 1.0])),
        np.array([0.0, 0.5]),
        solver=bx.GAM(alpha=0.05, line_search=False),
        max_steps=1,
    )
    np.testing.assert_allclose(found.x, [0.0, 0.35], atol=1e-9)


def test_gam_beyond_ten_weak_rows_draws_assignments():
    """y*(x) = max(x, 0) in 12 variables at the kink of all: 0 is in the hull of all 2^12 gradients."""
    problem = bx.BilevelProblem(
        lambda x, y: 3 * jnp.sum(y) - jnp.sum(x),
        lambda x, y: jnp.sum((y - x) ** 2),
        y_set=bx.NonNegative(),
        y_like=np.zeros(12),
    )
    found = bx.solve(problem, np.zeros(12), solver=bx.GAM(), rtol=1e-2)
    assert found.success
    assert found.stats["steps"] == 1
    np.testing.assert_array_equal(found.x, 0.0)


# The projection.


@pytest.mark.parametrize("sets", ["boxes", "simplex and ball", "free"])
def test_projection_agrees_with_clarabel(sets):
    random = np.random.default_rng(7)
    n, m = 5, 6
    x_set, y_set = {
        "boxes": (bx.Box(-0.5, 0.5), bx.Box(-0.4, np.inf)),
        "simplex and ball": (bx.Simplex(), bx.Ball(0.9)),
        "free": (bx.Free(), bx.Free()),
    }[sets]
    A, B = random.standard_normal((7, m)), random.standard_normal((7, n))
    inside = B @ np.full(n, 0.2)
    lower = inside + np.array([-np.inf, 0.0, -0.1, -0.2, -np.inf, -np.inf, -0.3])  # a free row, an equality, ranges
    upper = inside + np.array([0.1, 0.0, 0.1, np.inf, np.inf, 0.2, 0.3])
    A[6], B[6], lower[6], upper[6] = A[1], B[1], lower[1], upper[1]  # the equality twice: A is not of full rank
    problem = bx.BilevelProblem(
        lambda x, y: jnp.zeros(()), lambda x, y: jnp.zeros(()), bx.LinearCoupling(A, B, lower, upper)
    )
    like = (np.zeros(n), np.zeros(m))
    parts = x_set.rows(like[0]), y_set.rows(like[1])
    matrix = sp.vstack([np.hstack([B, A]), sp.block_diag([part.matrix for part in parts])])
    low = np.concatenate([lower, *(part.lower for part in parts)])
    high = np.concatenate([upper, *(part.upper for part in parts)])
    balls = tuple(dataclasses.replace(ball, index=ball.index + n) for ball in parts[1].balls)
    with jax.enable_x64(True):
        placed = place(problem, np.float64)
        rows = RowSet(
            placed,
            rows=lambda point: placed.rows(*point),
            adjoint=lambda w: (placed.adjoint_x(*like, w), placed.adjoint_y(*like, w)),
            project=lambda point: (x_set.project(point[0]), y_set.project(point[1])),
        )
        norm = squared_norm(rows, like)
        exact_norm = np.linalg.norm(np.hstack([B, A]), 2) ** 2
        assert exact_norm <= norm <= 1.11 * exact_norm
        project = jax.jit(lambda point, w: project_onto(rows, point, w, norm))
        multipliers = (jnp.zeros(7),)
        for scale in (1.0, 1.0, 10.0):
            point = tuple(scale * random.standard_normal(size) for size in (n, m))
            found, multipliers = project(tuple(map(jnp.asarray, point)), multipliers)
            image = B @ found[0] + A @ found[1]
            assert np.all(image <= upper + 1e-8)
            assert np.all(image >= lower - 1e-8)
            expected = nearest(np.concatenate(point), matrix, low, high, balls)
            np.testing.assert_allclose(flat(found), expected, atol=1e-7)


def test_lv_hba_stays_within_the_rows():
    problem, _ = random_quadratic(seed=4, n_equalities=1)
    rows = linear_rows(problem)
    excess = []

    def look(progress):
        image = np.asarray(rows.A.matrix) @ progress.y + np.asarray(rows.B.matrix) @ progress.x
        excess.append(np.maximum(image - rows.upper, rows.lower - image).max())

    bx.solve(problem, np.ones(3), solver=bx.LVHBA(), max_steps=1000, callback=look)
    assert len(excess) >= 3
    assert max(excess) <= 1e-8


# Known answers.


@dataclasses.dataclass(frozen=True)
class Known:
    """A problem, a start, and the x that the methods should approach."""

    problem: bx.BilevelProblem
    x0: Any
    x: Any
    y0: Any = None


def _quadratic(kind: str) -> Known:
    """Random quadratics; all coupled ones share one compiled program."""
    problem, _ = random_quadratic(
        seed=5 if kind == "uncoupled" else 3, coupled=kind != "uncoupled", n_equalities=int(kind == "equality")
    )
    if kind == "range":
        rows = linear_rows(problem)
        narrow = bx.LinearCoupling(rows.A, rows.B, lower=rows.upper - 0.2, upper=rows.upper)
        problem = bx.BilevelProblem(problem.upper, problem.lower, narrow, data=problem.data)
    reference = bx.solve(problem, np.zeros(3))
    assert reference.success
    return Known(problem, np.zeros(3), reference.x)


def _textbook(name: str) -> Known:
    record = next(record for record in TEXTBOOK if record.name == name)
    x, y = jax.tree.map(np.asarray, (record.x, record.y), is_leaf=lambda leaf: isinstance(leaf, list))
    return Known(record.problem, jax.tree.map(lambda leaf: leaf + 0.3, x), x, y)


@functools.cache
def known(name: str) -> Known:
    if name == "toy":
        return Known(toy(), 0.7, 0.98622483)
    kind, _, quadratic = name.partition(" ")
    return _quadratic(kind) if quadratic == "quadratic" else _textbook(name)


COUPLED = ["toy", "inequality quadratic", "equality quadratic", "range quadratic"]
COUPLED += ["kink", "pytrees"]
UNCOUPLED = ["uncoupled quadratic", "row active", "kink"]

#: A penalty, and twice that penalty, with steps that converge for both.
PENALISED = {
    "BLOCC": [
        bx.BLOCC(gamma=gamma, eta=0.02, eta_1g=0.1, eta_2g=0.1, eta_1F=0.1 / gamma, eta_2F=0.1 * gamma)
        for gamma in (20.0, 40.0)
    ],
    "LVHBA": [bx.LVHBA(p=0.0, c0=c0) for c0 in (25.0, 50.0)],
    "BiCGAFFA": [bx.BiCGAFFA(p=0.0, c0=c0) for c0 in (25.0, 50.0)],
    "ProjectedPenalty": [bx.ProjectedPenalty(sigma=sigma, xi=0.02) for sigma in (0.05, 0.025)],
}
TABLE = [(method, name) for method in ("BLOCC", "LVHBA", "BiCGAFFA") for name in COUPLED]
TABLE += [("ProjectedPenalty", name) for name in UNCOUPLED]


def distance(a: Any, b: Any) -> float:
    return float(np.abs(flat(a) - flat(b)).max())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), TABLE)
def test_penalty_methods_reach_what_their_penalty_allows(method, name):
    """The answer is off by the order of 1 / penalty: 0.05 at most at the larger one, and half of that at the smaller.

    Where the penalty is exact (the toy but for BiC-GAFFA, strictly active rows) it is the answer to 1e-5 at either.
    """
    case = known(name)
    solutions = [
        bx.solve(case.problem, case.x0, y0=case.y0, solver=solver, max_steps=1_000_000) for solver in PENALISED[method]
    ]
    for solution, solver in zip(solutions, PENALISED[method], strict=True):
        assert solution.status in (bx.Status.CONVERGED, bx.Status.ALMOST_SOLVED)  # the stopping test held
        if method in ("BLOCC", "ProjectedPenalty"):  # the exact gradient of Phi_delta, by an independent method
            delta = float(solver.delta)
            slope = bx.reformulation.penalised(case.problem, solution.x, delta, solution.y).gradient
            projected = case.problem.x_set.project(jax.tree.map(lambda x, g: x - g, solution.x, slope))
            assert distance(projected, solution.x) <= 1e-5
    coarse, fine = (distance(solution.x, case.x) for solution in solutions)
    if coarse <= 1e-5:
        assert fine <= 1e-5
        assert solutions[1].success
    else:
        assert coarse <= 0.05
        assert 0.4 * coarse <= fine <= 0.6 * coarse


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COUPLED[1:], "uncoupled quadratic", "row active", "row slack", "equality"])
def test_gam_with_line_search_converges(name):
    """Second-order information and exact evaluations: certified to rtol, whatever the rows; x to 1e-5."""
    case = known(name)
    solution = bx.solve(case.problem, case.x0, y0=case.y0, solver=bx.GAM())
    assert solution.success
    assert distance(solution.x, case.x) <= 1e-5
    assert np.all(np.diff(solution.history["upper"]) <= 1e-12)


@pytest.mark.parametrize("name", ["toy", "row slack", "equality"])
def test_gam_with_a_fixed_step(name):
    """Linear convergence where Phi is smooth and alpha is below 2 / curvature."""
    case = known(name)
    solution = bx.solve(case.problem, case.x0, solver=bx.GAM(alpha=0.05, line_search=False))
    assert solution.success
    assert distance(solution.x, case.x) <= 1e-5


def test_growing_penalty_reduces_the_bias():
    """With p = 0.3 the penalty has grown to 10 * 200_001^0.3 = 390, and the answers are 10 times closer than at 25."""
    case = known("kink")
    for solver in (bx.LVHBA(), bx.BiCGAFFA()):
        solution = bx.solve(case.problem, case.x0, solver=solver, max_steps=200_000)
        assert solution.history["penalty"][-1] == pytest.approx(10 * 200_001**0.3)
        assert distance(solution.x, case.x) <= 0.005


@pytest.mark.slow
def test_accelerated_triple_loop_of_blocc_agrees_with_the_double_loop():
    case = known("inequality quadratic")
    double = PENALISED["BLOCC"][0]
    triple = bx.BLOCC(20.0, 0.02, T=10, T_y=5, eta_1g=0.1, eta_2g=0.1, eta_1F=0.005, eta_2F=2.0, beta=0.5)
    answers = [bx.solve(case.problem, case.x0, solver=solver) for solver in (double, triple)]
    assert distance(answers[0].x, answers[1].x) <= 1e-5
    assert answers[1].stats["steps"] < 20_000


# What every solver has to do.

SOLVERS = {"BLOCC": bx.BLOCC, "LVHBA": bx.LVHBA, "BiCGAFFA": bx.BiCGAFFA, "ProjectedPenalty": bx.ProjectedPenalty}


@pytest.mark.parametrize("method", SOLVERS)
def test_new_numbers_compile_nothing(method, compilations):
    problem = hinge(slopes(-1.0, 3.0))
    solver, parameters = SOLVERS[method], TRANSCRIBED[method][1]
    bx.solve(problem, 0.7, solver=solver(), max_steps=20)
    with compilations() as count:
        bx.solve(problem, 0.6, solver=solver(**parameters), max_steps=40, rtol=1e-5)
    assert count[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", SOLVERS)
def test_single_precision_and_batches(method):
    """The default precision of JAX, several starts in one program."""
    problem = hinge(slopes(-1.0, 3.0))
    go = jax.jit(jax.vmap(lambda x0: bx.run(problem, x0, solver=SOLVERS[method](), max_steps=10_000)))
    found = go(jnp.array([0.4, -0.4], jnp.float32))
    assert found.x.dtype == jnp.float32
    assert not np.any(found.diverged)
    # Both come to the same point, off the kink at 0 by the bias of a penalty of 10 or more.
    assert np.ptp(found.x) <= 1e-3
    assert np.abs(found.x).max() <= 0.2


def test_without_rows():
    """y*(x) = x over the box: the projection has nothing to do."""
    problem = bx.BilevelProblem(
        lambda x, y: (x - 2) ** 2 + y**2, lambda x, y: (y - x) ** 2, y_set=bx.Box(-3.0, 3.0), y_like=0.0
    )
    for solver in (PENALISED["LVHBA"][1], bx.GAM()):
        solution = bx.solve(problem, 0.3, solver=solver, max_steps=200_000)
        assert abs(solution.x - 1.0) <= 0.03, solver


def test_projected_penalty_refuses_rows_that_move_with_x():
    coupled = toy()
    affine = bx.BilevelProblem(coupled.upper, coupled.lower, bx.AffineCoupling(lambda x, y: y - x, upper=0.0))
    for problem in (coupled, affine):
        with pytest.raises(ValueError, match=r"ProjectedPenalty: expected rows that do not involve x .* Use SFLCB or"):
            bx.solve(problem, 0.7, solver=bx.ProjectedPenalty())
    in_y_alone = bx.BilevelProblem(coupled.upper, coupled.lower, bx.AffineCoupling(lambda x, y: y, upper=1.0))
    bx.ProjectedPenalty().check(in_y_alone, np.zeros((), np.float32), np.zeros((), np.float32))


def test_gam_refuses_what_has_no_gradient():
    problem = bx.BilevelProblem(
        lambda x, y: y[0] + x**2,
        lambda x, y: (y[0] + y[1] - x) ** 2,  # flat along y[0] = -y[1]
        bx.LinearCoupling(A=np.eye(2), lower=-5.0, upper=5.0),
    )
    with pytest.raises(ValueError, match=r"GAM: expected g strongly convex .* Use the default"):
        bx.solve(problem, 0.5, solver=bx.GAM())


def test_gam_where_the_lower_level_is_infeasible():
    """1 <= y <= x has no point for x < 1: a fixed step beyond ends the run at the last feasible x."""
    problem = next(record for record in TEXTBOOK if record.name == "border").problem
    stopped = bx.solve(problem, [1.2], solver=bx.GAM(alpha=0.15, eps=1e-6, line_search=False))
    assert stopped.status is bx.Status.STALLED
    assert stopped.certificate.lower_feasible
    assert stopped.stats["steps"] <= 3
    nowhere = bx.solve(problem, [0.0], solver=bx.GAM())
    assert nowhere.status is bx.Status.LOWER_INFEASIBLE


def test_gam_in_multistart():
    found = bx.multistart(toy(), np.array([0.2, 0.9, 2.1]), solver=bx.GAM(alpha=0.05))
    assert found.best.success
    np.testing.assert_allclose(found.best.x, 0.98622483, atol=1e-5)


@pytest.mark.parametrize(
    ("solver", "change", "expected"),
    [
        (bx.BLOCC, {"gamma": 0.0}, "a number > 0 for gamma, got 0.0"),
        (bx.BLOCC, {"T": 2.5}, "a whole number >= 1 for T, got 2.5"),
        (bx.BLOCC, {"T_y": 0}, "a whole number >= 1 for T_y, got 0"),
        (bx.BLOCC, {"beta": -0.1}, "a number >= 0 for beta, got -0.1"),
        (bx.LVHBA, {"gamma1": np.nan}, "a number > 0 for gamma1, got nan"),
        (bx.LVHBA, {"p": 0.5}, "a number >= 0 and < 1/2 for p, got 0.5"),
        (bx.BiCGAFFA, {"R": [1.0, 2.0]}, r"a number > 0 for R, got \[1.0, 2.0\]"),
        (bx.BiCGAFFA, {"c0": "large"}, "a number > 0 for c0, got large"),
        (bx.ProjectedPenalty, {"M": np.inf}, "a whole number >= 1 for M, got inf"),
        (bx.ProjectedPenalty, {"sigma": -1.0}, "a number > 0 for sigma, got -1.0"),
        (bx.GAM, {"shrink": 1.0}, "a number > 0 and < 1 for shrink, got 1.0"),
        (bx.GAM, {"eps": 0.0}, "a number > 0 for eps, got 0.0"),
        (bx.GAM, {"line_search": 1}, "True or False for line_search, got 1"),
    ],
)
def test_wrong_parameters(solver, change, expected):
    with pytest.raises(ValueError, match=f"{solver.__name__}: expected {expected}"):
        solver(**change)


def test_the_papers_parameters():
    settings = lambda solver: {field.name: getattr(solver, field.name) for field in dataclasses.fields(solver)}
    ones = lambda names, value: dict.fromkeys(names.split(), value)
    blocc = {"gamma": 12, "eta": 0.01, "T": 20, "T_y": 20, "eta_1g": 0.001, "eta_1F": 1e-5, "beta": 0}
    assert settings(bx.BLOCC.paper_svm()) == blocc | ones("eta_2g eta_2F", 1e-4)
    bic_gaffa = {"p": 0.3, "gamma1": 10, "gamma2": 0.01, "eta": 0.01, "alpha": 0.001, "beta": 0.001, "c0": 10, "R": 10}
    assert settings(bx.BiCGAFFA.paper_svm()) == bic_gaffa
    given = {"alpha": 0.01, "gamma1": 0.1, "gamma2": 0.1, "eta": 0.001}
    assert settings(bx.LVHBA.paper_svm()).items() >= given.items()
    gam = bx.GAM.paper_svm()
    assert (gam.alpha, gam.eps, gam.line_search) == (0.05, 0.005, False)
    steps = "eta_x eta_y eta_z eta_u eta_v"
    for solver, delta, rho, eta in (
        (bx.SFLCB.paper_svm(), 0.01, 0.01, 1e-3),
        (bx.SFLCB.paper_network3(), 0.1, 1000, 3e-4),
        (bx.SFLCB.paper_network9(), 0.25, 50, 3e-5),
    ):
        assert settings(solver) == {"delta": delta} | ones("rho1 rho2", rho) | ones(steps, eta)
