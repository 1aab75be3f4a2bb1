"""Networks in fewer variables: equal flows are one, and so are links with the same load."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.exact import active_rows
from bilevax.exact.spread import error_by_curvature
from bilevax.model.flat import FlatProblem
from bilevax.problems import NetworkDesign
from bilevax.problems.network.contraction import contracted
from bilevax.problems.network.restriction import whole
from known import present
from test_sparse_direct import roads


def two_ways(**options) -> NetworkDesign:
    """A road of two links, then two ways to choose from, one of them of two links; nobody can use the last link."""
    tail, head = [0, 1, 2, 2, 3, 4], [1, 2, 4, 3, 4, 0]
    time = [0.1, 0.2, 0.3, 0.1, 0.1, 0.5]
    return NetworkDesign.from_arrays(tail, head, time, 1.0, [0, 1], [4, 4], [1.0, 0.5], 2.0, [2.0, 1.0], **options)


def test_equal_flows_and_links_with_the_same_load_are_one():
    small = contracted(whole(two_ways()))
    # Of each pair's flows two are left, one a way: all others equal one of them, or its share.
    assert small.conservation.shape == (2, 2 * 2 + 2)
    assert small.group[3] == small.group[4] >= 0  # the way of two links
    assert small.group[0] != small.group[1]  # the second pair uses the second link alone
    assert small.group[5] == -1
    # Links with the same load but other capacities that exist already stay apart.
    apart = contracted(whole(two_ways(existing=[0.1, 0.1, 0.1, 0.1, 0.2, 0.3])))
    assert apart.group[3] != apart.group[4]
    assert apart.links(np.full(5, 0.4))[5] == 0.3


def test_flows_in_a_circle_are_zero():
    # From 1 to 3 and back leads nowhere.
    design = NetworkDesign.from_arrays([0, 1, 1, 3], [1, 2, 3, 1], 0.1, 1.0, [0], [2], 1.0, 1.0, 1.0)
    small = contracted(whole(design))
    assert sorted(small.column) == [-1, -1, 0, 0]
    assert list(small.group) == [0, 0, -1, -1]


@pytest.mark.slow
def test_a_contraction_has_the_answers_of_what_was_contracted():
    design = roads(0)
    part = whole(design)
    small = contracted(part)
    x = small.links(small.capacities(design.start() * np.random.default_rng(0).uniform(0.3, 1.2, len(design.tail))))
    of_whole = bx.solve_lower_level(design.problem(), x)
    of_small = bx.certify(small.problem(1e-6), small.capacities(x))
    restored = small.restored(of_small)
    assert -of_small.value == pytest.approx(design.utility(x, of_whole.y), abs=1e-8)
    np.testing.assert_allclose(restored.y["share"], of_whole.y["share"], atol=1e-7)
    # Flows, shares and prices are those of an answer of the whole: feasible, dual feasible, complementary.
    y = np.concatenate([restored.y["flow"], restored.y["share"]])
    problem = design.problem()
    conservation = part.conservation.to_scipy()
    load = FlatProblem(problem, x, problem.y_like).rows.A[conservation.shape[0] :]
    share = restored.y["share"]
    own = design.demand * (np.log(share / (1 - share)) - design.outside)
    gradient = np.concatenate([problem.data["flow_time"], own])
    rest = gradient + conservation.T @ restored.multipliers[0] + load.T @ restored.multipliers[1]
    assert np.abs(conservation @ y).max() < 1e-9
    assert (load @ y - x).max() < 1e-9
    assert min(restored.multipliers[1].min(), rest.min()) > -1e-7
    assert np.abs(rest * y).max() < 1e-7
    assert np.abs(restored.multipliers[1] * (load @ y - x)).max() < 1e-7


@pytest.mark.slow
def test_a_solution_is_one_of_the_whole_network():
    design = two_ways(existing=0.1, detour=3.0)
    solution = design.solve()
    assert solution.success, solution.message
    assert design.utility(solution.x, solution.y) == pytest.approx(-solution.value, abs=1e-8)
    assert solution.x[5] == 0.1
    assert [len(rows) for rows in solution.multipliers] == [whole(design).conservation.rows, 6]
    assert bx.certify(design.problem(), solution.x).confirms(1e-6)


@pytest.mark.parametrize(
    "leader",
    [
        lambda x, y, data: y["flow"] @ y["flow"],
        lambda x, y, data: -jnp.sum(jnp.maximum(0.0, y["flow"] - 0.999) ** 2),  # only at the end of its range
    ],
)
def test_curvature_tells_where_f_is_the_same_at_all_minimisers(leader):
    design = two_ways(existing=1.0)
    problem = design.problem()
    flat = FlatProblem(problem, np.ones(6), problem.y_like)
    lower = bx.exact.phi.evaluate(flat, np.ones(6)).lower
    assert present(error_by_curvature(flat, np.ones(6), lower)) < 1e-7  # f sees the shares, along which g is curved
    seen = bx.BilevelProblem(
        upper=leader,
        lower=problem.lower,
        coupling=list(problem.coupling),
        y_set=problem.y_set,
        data=problem.data,
    )
    assert error_by_curvature(FlatProblem(seen, np.ones(6), problem.y_like), np.ones(6), lower) is None


def test_projections_by_sparse_rows_are_those_by_arrays(monkeypatch):
    random = np.random.default_rng(0)
    rows = sp.random(300, 400, 0.01, "csr", random_state=0)
    rows = sp.vstack([rows, rows[:9] - rows[9:18]], format="csr")  # some depend on others
    vector = random.standard_normal(400)
    monkeypatch.setattr(active_rows, "_as_array", lambda rows: False)
    sparse, least = active_rows.project_out(rows, vector), active_rows.smallest_singular_value(rows)
    monkeypatch.setattr(active_rows, "_as_array", lambda rows: True)
    np.testing.assert_allclose(sparse, active_rows.project_out(rows, vector), atol=1e-11)
    assert max(least, active_rows.smallest_singular_value(rows)) < 1e-9
