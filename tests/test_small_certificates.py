"""Shortcuts of certificates of small problems tell the same as what they stand for."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax._support.precision import float64
from bilevax.certificate.stationarity.multipliers import MultiplierSet
from bilevax.certificate.stationarity.pieces import _has_interior, _program_has_interior
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.lower import constraints_at, objective_at
from bilevax.exact.phi import Surroundings, evaluate
from bilevax.model import compressed_rows
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import validate


@pytest.mark.parametrize("seed", range(40))
def test_a_cone_has_the_interior_that_a_linear_program_finds(seed):
    random = np.random.default_rng(seed)
    cone = random.normal(size=(random.integers(2, 7), random.integers(1, 5)))
    if seed % 4 == 1:
        cone[-1] = -cone[0]  # the cone is flat
    if seed % 4 == 2:
        cone[-1] = -cone[0] + 1e-6 * cone[-1]  # or nearly so
    if seed % 4 == 3:
        cone[-1] = -random.uniform(0, 1, len(cone) - 1) @ cone[:-1]
    cone /= np.linalg.norm(cone, axis=1)[:, None]
    assert _has_interior(cone) == _program_has_interior(cone)


def test_blocks_are_put_together_the_same_way_as_arrays_and_as_sparse_matrices(monkeypatch):
    blocks = [[2.0, None, sp.csr_matrix([[1.0], [3.0]])], [None, np.array([[4.0, 5.0, 6.0]]), None]]
    expected = [[2, 0, 0, 0, 0, 1], [0, 2, 0, 0, 0, 3], [0, 0, 4, 5, 6, 0]]
    assert compressed_rows.put_together(blocks, [2, 1], [2, 3, 1]).tolist() == expected
    monkeypatch.setattr(compressed_rows, "_FEW_ENTRIES", 0)
    assert compressed_rows.put_together(blocks, [2, 1], [2, 3, 1]).toarray().tolist() == expected


def kinks(weights, count=8):
    """Return problems of one x and two y each, side by side: y is max(x, 0) twice, and f tells them apart."""
    weights = np.asarray(weights)

    def lower(x, y):
        return jnp.sum((y - x[:, None]) ** 2)

    def upper(x, y):
        return jnp.sum(y @ weights) - 0.5 * jnp.sum(x)

    return bx.BilevelProblem(
        upper, lower, x_set=bx.Box(-np.ones(count), np.ones(count)), y_set=bx.NonNegative(), y_like=np.zeros((count, 2))
    )


def test_independent_kinks_branch_one_by_one():
    """Each is stationary, though not strongly so; the 65,536 pieces of all of them could not be listed."""
    certificate = bx.certify(kinks([2.0, -1.0]), np.zeros(8))
    assert certificate.stationarity <= 1e-9, str(certificate)
    assert certificate.stationarity_test.startswith("strong in")
    assert certificate.confirms(1e-6)


def test_one_of_independent_kinks_that_descends_is_seen():
    certificate = bx.certify(kinks([2.0, -2.0]), np.zeros(8))  # -x / 2: x = 1 is best
    assert certificate.stationarity > 0.05
    assert certificate.descent is not None


def test_answers_around_a_kink_are_those_of_exact_solves(monkeypatch):
    random = np.random.default_rng(0)
    n, root = 6, random.normal(size=(6, 6))
    data = {"Q": root @ root.T + np.eye(n), "R": random.normal(size=(n, 3))}
    rows = bx.LinearCoupling(A=random.normal(size=(5, n)), B=random.normal(size=(5, 3)), upper=np.zeros(5))
    problem = bx.BilevelProblem(
        lambda x, y, d: jnp.sum((y - 1) ** 2) + x @ x,
        lambda x, y, d: 0.5 * y @ d["Q"] @ y + (d["R"] @ x) @ y,
        rows,
        x_set=bx.Box(-np.ones(3), np.ones(3)),
        data=data,
    )
    with float64():
        flat = FlatProblem(problem, *validate(problem, np.zeros(3))[:2])
        around = Surroundings(flat, np.zeros(3), evaluate(flat, np.zeros(3)).lower)  # all rows are weakly active
        points = list(0.1 * random.normal(size=(40, 3)))
        around.expect(points)
        monkeypatch.setattr(Surroundings, "_nearby", None)  # these answers need nothing else
        for point in points:
            exact, found = evaluate(flat, point), around.evaluate(point)
            np.testing.assert_allclose(found.lower.y, exact.lower.y, atol=1e-9)
            np.testing.assert_allclose(found.lower.multipliers, exact.lower.multipliers, atol=1e-8)
            assert abs(found.value - exact.value) <= 1e-9


def active_at_a_corner(seed):
    """Return more rows than variables, mostly with an equality: multipliers are not unique, and some can vanish."""
    random = np.random.default_rng(seed)
    n_y, count = (2, 4) if seed % 2 else (3, 6)
    a = random.normal(size=(count, n_y)).round(1)
    a[:, 0] = np.abs(a[:, 0]) + 0.5  # the multiplier vectors are bounded
    multiplier, equality = random.integers(0, 3, count).astype(float), np.arange(count) == (0 if seed % 3 else -1)
    return ActiveRows(
        a=sp.csr_matrix(a),
        b=sp.csr_matrix(random.normal(size=(count, 2)).round(1)),
        equality=equality,
        multiplier=multiplier,
        weak=~equality & (multiplier == 0),
        zero=np.full(count, 1e-9),
        slack=np.zeros(count),
        count_before_merging=count,
    )


@pytest.mark.parametrize("seed", range(20))
def test_vertices_tell_of_multipliers_what_linear_programs_do(seed):
    active = active_at_a_corner(seed)
    by_vertices, by_programs = MultiplierSet(active), MultiplierSet(active)
    vars(by_programs)["_vertices"] = None
    found, sampled = (each.resolve(np.zeros(len(active.weak), bool)) for each in (by_vertices, by_programs))
    if by_vertices._vertices is None:
        pytest.skip("not bounded, or rounding decides")
    assert by_vertices._same_on_coupled_rows() == by_programs._same_on_coupled_rows()
    assert found[0].tolist() == sampled[0].tolist()
    assert not np.any(sampled[1] & ~found[1])  # programs look at samples of the faces only
    for row in np.flatnonzero(~active.equality):
        assert by_vertices.can_vanish(np.array([row])) == by_programs.can_vanish(np.array([row]))


@pytest.mark.slow
def test_answers_around_a_point_by_joint_newton_are_those_of_exact_solves():
    random = np.random.default_rng(0)
    n_x, n_y = 60, 4
    data = {"T": random.normal(size=(n_x, n_y))}
    problem = bx.BilevelProblem(
        lambda x, y, d: jnp.sum((y - 1) ** 2) + x @ x,
        lambda x, y, d: jnp.sum(x * jnp.logaddexp(0.0, d["T"] @ y)) + 0.5 * y @ y,
        bx.LinearCoupling(A=np.ones((1, n_y)), B=np.full((1, n_x), -1 / n_x), lower=0.0),
        x_set=bx.Box(0.0, 1.0),
        y_set=bx.Box(-0.1, 5.0),
        data=data,
    )
    with float64():
        x = np.full(n_x, 0.5)
        flat = FlatProblem(problem, *validate(problem, x)[:2])
        lower = evaluate(flat, x).lower
        assert np.count_nonzero(lower.multipliers) == 2  # the row and a bound
        around = Surroundings(flat, x, lower)
        points = [x + distance * random.normal(size=n_x) for distance in (1e-6, 1e-3, 1e-2) for _ in range(6)]
        around.expect(points)
        found = [around._expected[point.tobytes()] for point in points]
        assert sum(answer is not None for answer in found) >= 12  # where other rows are active there is none
        for point, answer in zip(points, found, strict=True):
            exact = evaluate(flat, point).lower
            near = around.evaluate(point).lower
            np.testing.assert_allclose(near.y, exact.y, atol=1e-9)
            if answer is not None:
                assert near is answer
                assert near.unique
                np.testing.assert_allclose(near.multipliers, exact.multipliers, atol=1e-8)
        # A point that is not a minimiser is refused, however it was found.
        rows = constraints_at(flat, points[0])
        wrong = lower.y + 1e-6
        assert around._nearby.verified(objective_at(flat, points[0]), rows, wrong, lower.multipliers) is None
