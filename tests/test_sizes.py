"""Large problems: what is eliminated, on which side systems are solved, and what is never stored."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qdldl
import scipy.sparse as sp

import bilevax as bx
from bilevax._support.elimination import split
from bilevax.convex import newton_program, saddle_point
from bilevax.datasets import Dataset
from bilevax.exact import active_rows
from bilevax.exact.sensitivity import solve_kkt
from bilevax.model import compressed_rows, scales
from bilevax.model.flat import FlatProblem
from bilevax.problems import svm
from bilevax.solvers.default.lower import dense_algebra
from bilevax.solvers.default.lower.central import KktPoint
from bilevax.solvers.default.lower.dense_algebra import DenseAlgebra
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.programs import quadratic
from bilevax.solvers.default.programs.complementarity import Product, solve_complementarity
from bilevax.solvers.default.programs.convexify import convexified
from bilevax.solvers.default.programs.elimination import Eliminated
from bilevax.solvers.default.settings import SIZES
from known import present
from stopwatch import Stopwatch
from test_first_order import _chain


def _made_up(rows, features, seed=0):
    """An SVM with noisy labels."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(features)

    def part(count):
        values = random.standard_normal((count, features))
        score = values @ truth / np.sqrt(features) + 0.5 * random.standard_normal(count)
        return Dataset(values, np.where(score >= 0, 1.0, -1.0))

    return svm(part(rows), part(rows // 2))


def _program(local, core, equalities):
    """A program of one local variable a row, bounds on all of them, and rows of the core alone."""
    random = np.random.default_rng(0)
    A = random.standard_normal((local + 5, core))
    root = random.standard_normal((core, core))
    hessian = sp.block_diag([sp.diags(random.uniform(0.5, 2.0, local)), root @ root.T], format="csc")
    mixed = sp.vstack([sp.diags(random.uniform(0.5, 2.0, local)), sp.csr_matrix((5, local))])
    matrix = sp.block_array([[mixed, A], [sp.eye(local), None]], format="csr")
    lower = np.concatenate([random.uniform(-1, 1, local), np.full(5, -3.0), np.full(local, -0.5)])
    upper = np.concatenate([lower[: local + 5] + random.choice([6.0, np.inf], local + 5), np.full(local, np.inf)])
    upper[local - equalities : local] = lower[local - equalities : local]
    return hessian, random.standard_normal(local + core), matrix, lower, upper


@pytest.mark.parametrize("equalities", [0, 7])
def test_local_variables_are_eliminated(equalities, monkeypatch):
    program = _program(1000, 4, equalities)
    parts = split(program[0], program[2])
    assert parts is not None
    assert len(parts.core) == 4
    found = Eliminated(parts, *program).solve()
    assert found is not None
    monkeypatch.setattr(quadratic, "split", lambda hessian, matrix: None)
    np.testing.assert_allclose(found, present(quadratic.solve_qp(*program)), atol=1e-9)


def test_rows_of_one_length_are_eliminated_where_they_are():
    hessian, _, matrix, _, _ = _program(1000, 4, 0)
    matrix = matrix[np.r_[:1000, 1005:2005]]  # without rows of the core alone, which are shorter
    matrix.sort_indices()
    shorter = matrix.copy()
    shorter.data[shorter.indptr[3] + 2] = 0.0
    shorter.eliminate_zeros()
    for rows, shared in ((matrix, True), (shorter, False)):
        parts = present(split(hessian, rows))
        np.testing.assert_array_equal(parts.A, rows[:1000, 1000:].toarray())
        assert np.shares_memory(parts.A, rows.data) == shared


def test_systems_that_do_not_separate_are_left_alone():
    random = np.random.default_rng(0)
    full = sp.csr_matrix(random.standard_normal((1200, 1200)))
    assert split(sp.eye(1200, format="csr"), full) is None
    assert split(sp.eye(100, format="csr"), sp.eye(100, format="csr")) is None


def test_both_sides_of_the_algebra_agree(monkeypatch):
    problem = _made_up(60, 6)
    x, y = np.full(60, 3.0), np.zeros(7)
    flat = FlatProblem(problem, x, problem.y_like)
    rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=False)
    there, multiplier = flat.lower_derivatives(x, y), np.zeros(rows.count)
    random = np.random.default_rng(0)
    give, along = random.uniform(0.1, 1.0, rows.count), (random.standard_normal(7), random.standard_normal(rows.count))
    answers, solved = [], []
    for few in (SIZES.few_rows, 10):
        monkeypatch.setattr(dense_algebra, "SIZES", type(SIZES)(few_rows=few))
        algebra = DenseAlgebra(flat, rows, np.ones(7, bool))
        compliance = algebra.expand(there, y, multiplier).compliance
        assert isinstance(compliance, Product) == (few == 10)
        answers.append(algebra.factorise(KktPoint(there, y, multiplier, give), 1.0, 0.0).solve(*along))
        free = rows.values(np.full(60, 0.5), y)
        solved.append(solve_complementarity(compliance, free, rows.inequality, np.zeros(rows.count, bool)))
    for one, other in zip(*answers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert (solved[0] is None) == (solved[1] is None)
    if solved[0] is not None:
        np.testing.assert_allclose(rows.A.T @ solved[0][0], rows.A.T @ solved[1][0], atol=1e-9)


def test_variables_that_stand_alone_do_not_make_a_block_look_nonconvex():
    random = np.random.default_rng(0)
    root = random.standard_normal((20, 20))
    hessian = sp.block_diag([sp.eye(3000), root @ root.T], format="csc")
    convex, shifted = convexified(hessian)
    assert not shifted
    assert abs(convex - hessian).max() == 0.0
    assert convexified(sp.csc_matrix(hessian - 2 * sp.diags((np.arange(3020) == 5) * 1.0)))[1]


def _peak(problem, x0):
    """The solution, and the most that NumPy and Python held at a time on the way, once all functions are compiled."""
    bx.solve(problem, x0)
    tracemalloc.start()
    try:
        return bx.solve(problem, x0), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_an_svm_needs_no_matrix_of_rows_by_rows_and_keeps_its_time_limit():
    problem, x0 = _made_up(4000, 10), np.full(4000, 3.0)
    solution, peak = _peak(problem, x0)
    assert solution.success
    assert "w = 0" in solution.certificate.stationarity_test
    assert peak < 8 * 4000**2 / 4
    for limit in (0.1, 2.0):
        stopwatch = Stopwatch()
        stopped = bx.solve(problem, x0, time_limit=limit)
        assert stopwatch.seconds() <= limit + 1.0
        assert stopped.success or stopped.status is bx.Status.TIME_LIMIT


@pytest.mark.slow
def test_copies_of_a_full_matrix_are_few():
    solution, peak = _peak(_made_up(2000, 100), np.full(2000, 3.0))
    assert solution.success
    assert peak <= 7 * 8 * (1.5 * 2000) * 101  # training and validation rows


def test_numbers_on_the_device_are_there_once():
    problem = _made_up(60, 5)
    flats = [FlatProblem(problem, np.zeros(60), problem.y_like) for _ in range(2)]
    assert flats[0]._numbers[2]["margins"].stored is flats[1]._numbers[2]["margins"].stored
    coupling = bx.LinearCoupling(A=np.random.default_rng(0).standard_normal((6, 60)), lower=0.0)
    wide = bx.BilevelProblem(problem.upper, problem.lower, coupling, data=problem.data)
    rows = FlatProblem(wide, np.zeros(60), np.zeros(60)).rows
    assert np.shares_memory(rows.A.data, jax.tree.leaves(coupling.A)[0])  # those of a matrix never go there


@pytest.mark.slow
def test_a_sparse_matrix_is_never_copied_into_an_array():
    solution, peak = _peak(_chain(7000), np.zeros(3))
    assert solution.success
    assert peak < 8 * 7000**2 / 4


@pytest.mark.parametrize("at_a_time", [1, 4, 100_000])
def test_compressed_rows_are_put_together_as_blocks(at_a_time, monkeypatch):
    monkeypatch.setattr(compressed_rows, "_FEW_ENTRIES", 0)
    monkeypatch.setattr(compressed_rows, "_ENTRIES_AT_A_TIME", at_a_time)
    random = np.random.default_rng(0)
    for rows, n_x, n_y, of_x, of_y in random.integers([0, 1, 1, 0, 0], 6, (40, 5)):
        draw = lambda *shape: sp.random(*shape, 0.5, format="csr", random_state=random)
        B, A, X, Y = draw(rows, n_x), draw(rows, n_y), draw(of_x, n_x), draw(of_y, n_y)
        joint = compressed_rows.joint_matrix(B, A, X, Y)
        np.testing.assert_array_equal(joint.toarray(), sp.block_array([[B, A], [X, None], [None, Y]]).toarray())
        np.testing.assert_allclose(compressed_rows.row_squares(joint), (joint.toarray() ** 2).sum(axis=1))
        assert joint.has_sorted_indices
        assert not any(np.shares_memory(joint.data, part.data) for part in (B, A, X, Y))
        array, left, right = joint.toarray(), random.standard_normal(joint.shape[0]), random.standard_normal(n_x + n_y)
        for matrix in (joint, joint.tocsc()):
            np.testing.assert_allclose(
                compressed_rows.scaled(matrix, left, right).toarray(), left[:, None] * array * right, rtol=1e-15
            )
        weighted = np.abs(array * np.abs(right)).max(axis=1, initial=0.0)
        np.testing.assert_array_equal(compressed_rows.row_largest(joint, np.abs(right)), weighted)
        np.testing.assert_allclose(compressed_rows.row_terms(joint, right), np.abs(array) @ np.abs(right), rtol=1e-14)
        compressed_rows.multiply_rows(joint, left)
        np.testing.assert_array_equal(joint.toarray(), left[:, None] * array)


def test_sparse_kkt_systems_of_long_networks_are_solved_to_rounding():
    """The balance of flows on a long ladder: its rows are nearly dependent, so a residual of 1e-12 says little."""
    steps = 800
    path = sp.diags([1.0, -1.0], [0, -1], shape=(steps, steps))
    rungs = sp.eye(steps)
    balance = sp.csr_matrix(sp.block_array([[path, None, rungs], [None, path, -rungs]]))[:-1]
    hessian = sp.csc_matrix(sp.diags(np.random.default_rng(0).uniform(1.0, 2.0, balance.shape[1])))
    right = np.concatenate([np.random.default_rng(1).standard_normal(balance.shape[1]), np.zeros(balance.shape[0])])
    system = sp.block_array([[hessian, balance.T], [balance, None]]).toarray()
    solution, exact = solve_kkt(hessian, balance, right), np.linalg.solve(system, right)
    assert solution is not None
    np.testing.assert_allclose(solution, exact, rtol=0, atol=1e-10 * np.abs(exact).max())


def _grid(side):
    """Flows on the streets of a square grid that balance at all nodes but the last, for three tolls."""
    nodes = np.arange(side * side).reshape(side, side)
    ends = [(nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:])]
    start, stop = (np.concatenate([pair[k].ravel() for pair in ends]) for k in (0, 1))
    streets = np.arange(len(start))
    signs, places = np.repeat([1.0, -1.0], len(start)), (np.concatenate([start, stop]), np.tile(streets, 2))
    balance = sp.csr_matrix((signs, places), shape=(side * side, len(start)))[:-1]
    supply = np.random.default_rng(0).standard_normal(side * side - 1)
    return bx.BilevelProblem(
        upper=lambda x, y: 0.5 * jnp.mean((y - 0.1) ** 2) + 0.01 * jnp.sum(x**2),
        lower=lambda x, y: jnp.sum((0.5 + 0.1 * (streets % 7)) * y**2 + x[streets % 3] * y),
        coupling=bx.LinearCoupling(A=balance, lower=supply, upper=supply),
        x_set=bx.Box(-1.0, 1.0),
    )


def test_units_of_large_networks_do_not_drift(monkeypatch):
    """Each flow stands in two rows: if but a part of all entries were looked at, some would be told by none."""
    monkeypatch.setattr(scales, "_MOST_ENTRIES", 500)
    problem, y = _grid(30), np.zeros(2 * 30 * 29)
    units = scales.natural_scales(FlatProblem(problem, np.zeros(3), y), np.zeros(3), y)
    assert units.y.max() <= 4 * units.y.min()
    assert units.rows.max() <= 100 * units.rows.min()


def test_a_network_is_factorised_no_more_often_than_its_matrix_changes(monkeypatch):
    """With equations alone and a quadratic g it never does: once for the search, and few times for the certificate."""
    made = {"search": 0, "certificate": 0}

    def counted(of, factorise):
        def count(*arguments, **options):
            made[of] += 1
            return factorise(*arguments, **options)

        return count

    monkeypatch.setattr(qdldl.Solver, "update", counted("search", qdldl.Solver.update))
    monkeypatch.setattr(saddle_point, "symmetric_factor", counted("certificate", saddle_point.symmetric_factor))
    monkeypatch.setattr(newton_program, "conic", None)  # no program is solved where there are but equations
    solution = bx.solve(_grid(30), np.zeros(3))
    assert solution.success
    assert solution.stats["steps"] > 1
    assert solution.certificate.challenges > 1
    assert made == {"search": 0, "certificate": 2}  # at the answer, and for all points around it


def test_equal_and_opposite_rows_are_found_as_one_by_one():
    random = np.random.default_rng(0)
    for count in (1, 30, 200):
        array = random.integers(-1, 2, (count, 4)).astype(float)
        first, sign = active_rows._groups(sp.csr_matrix(array))
        for row, (found, side) in enumerate(zip(first, sign, strict=True)):
            same = (array[: row + 1] == array[row]).all(axis=1) | (array[: row + 1] == -array[row]).all(axis=1)
            assert found == np.flatnonzero(same)[0]
            np.testing.assert_array_equal(side * array[found], array[row])


def test_rows_with_equal_fingerprints_are_compared(monkeypatch):
    monkeypatch.setattr(active_rows, "fingerprints", lambda rows, digits: np.zeros(rows.shape[0], np.uint64))
    rows = sp.csr_matrix(np.array([[1.0, 2.0], [1.0, 3.0], [-1.0, -2.0], [0.0, 1.0]]))
    first, sign = active_rows._groups(rows)
    assert list(first) == [0, 1, 0, 3]
    assert list(sign) == [1, 1, -1, 1]
