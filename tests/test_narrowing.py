"""Existing roads without the flows that cannot matter: what was left out is priced, and comes back where it has to."""

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest

import bilevax as bx
from bilevax.driver.solution import Solution
from bilevax.problems import NetworkDesign
from bilevax.problems.network import existing_roads, narrowing, road_descent
from bilevax.problems.network.contraction import contracted
from bilevax.problems.network.narrowing import Narrowed
from bilevax.problems.network.restriction import whole
from bilevax.problems.network.routes import Graph
from bilevax.problems.network.settings import NARROWING
from bilevax.problems.network.travellers import residuals
from bilevax.problems.network.ways import Ways
from known import present
from test_sparse_direct import roads

FLOOR = 1e-6


def every_flow(small) -> np.ndarray:
    return np.ones(small.conservation.shape[1] - len(small.part.pairs), bool)


def answer(narrowed: Narrowed, x: np.ndarray) -> Solution:
    """Return the travellers' answer at x with what is left, as a solution that claims success."""
    capacities = narrowed.part.capacities(narrowed.small.links(x))
    certificate = bx.certify(narrowed.part.problem(FLOOR), capacities)
    assert certificate.proves_value
    return Solution(
        x=capacities,
        y=certificate.y,
        value=certificate.value,
        multipliers=certificate.multipliers,
        status=bx.Status.CONVERGED,
        success=True,
        message="",
        certificate=certificate,
        history={},
        stats={},
    )


def around() -> NetworkDesign:
    """Two roads one after the other, the travellers of both, and those who have a slow road beside the second."""
    return NetworkDesign.from_arrays(
        [0, 1, 3, 4, 1],
        [1, 2, 1, 1, 2],
        [0.1, 0.1, 0.1, 0.1, 0.8],
        1.0,
        [0, 3],
        [2, 2],
        [1.0, 1.0],
        [2.0, 2.0],
        1.5,
        nodes=range(5),
        existing=[0.1, 0.1, 1.0, 1.0, 1.0],
    )


@pytest.mark.parametrize("seed", range(3))
def test_ways_are_as_long_as_shortest_routes(seed):
    design = roads(seed, 6, 9)
    small = contracted(whole(design))
    price = np.random.default_rng(seed).uniform(0, 0.5, small.load.shape[0])
    ways, every = Ways(small, price), design.time + small.split(price)
    graph = Graph(len(design.nodes), design.tail, design.head, every, present(design.passable))
    common = design.outside - small.numbers()["outside"]
    np.testing.assert_allclose(ways.lengths + common, graph.times(design.origin, design.destination))
    over = graph.times_over_links(design.origin, design.destination)
    kind = small.column[small.column < len(ways.excess)]
    link, pair = (part[small.column < len(ways.excess)] for part in (small.part.flow_link, small.part.flow_pair))
    known = kind >= 0
    # A way over a link that passes a node twice is longer than any that conservation knows of.
    longer = (ways.over_flows[kind] + common[pair] - over[pair, link])[known]
    assert longer.min() > -1e-12
    assert np.mean(np.abs(longer) < 1e-12) > 0.5


def test_multipliers_of_shortest_ways_are_those_of_an_answer():
    design = roads(1, 6, 9)
    small = contracted(whole(design))
    x = small.capacities(design.start())
    certificate = bx.certify(small.problem(FLOOR), x)
    ways = Ways(small, np.maximum(np.asarray(certificate.multipliers[-1]), 0.0))
    assert max(residuals(ways, x, certificate.y, FLOOR)) < 1e-7
    assert residuals(Ways(small, ways.price + 0.1), x, certificate.y, FLOOR)[0] > 1e-3
    assert residuals(ways, 0.5 * x, certificate.y, FLOOR)[1] > 1e-3


def test_a_flow_that_is_used_is_missed():
    design = roads(1, 6, 9)
    small = contracted(whole(design))
    x = small.capacities(design.start())
    used = np.flatnonzero(np.asarray(bx.certify(small.problem(FLOOR), x).y["flow"]) > 0.05)
    without = every_flow(small)
    other = [flow for flow in used if np.count_nonzero(small.pair[: len(without)] == small.pair[flow]) > 1]
    without[other[0]] = False
    narrowed = Narrowed(small, without)
    found = answer(narrowed, x)
    assert narrowed.missed(found)[other[0]]
    refused = narrowed.in_all(found, missed=False, minimal_share=FLOOR, rtol=1.0)
    assert not refused.success
    assert not refused.certificate.proves_value
    assert not narrowed.in_all(found, missed=True, minimal_share=FLOOR, rtol=1.0).success


def test_what_is_left_tells_all_of_the_network():
    design = roads(1, 6, 9)
    small = contracted(whole(design))
    x = small.capacities(design.start())
    exact = bx.certify(small.problem(FLOOR), x)
    excess = Ways(small, np.maximum(np.asarray(exact.multipliers[-1]), 0.0)).excess
    narrowed = Narrowed(small, excess <= 0.05)
    assert np.count_nonzero(~narrowed.kept) > 0
    assert narrowed.part.load.shape[1] < small.load.shape[1]
    found = answer(narrowed, x)
    assert found.value == pytest.approx(exact.value, abs=1e-8)
    restored = narrowed.in_all(found, missed=False, minimal_share=FLOOR, rtol=np.inf).certificate
    assert restored.proves_value
    assert [len(rows) for rows in restored.multipliers] == list(map(len, exact.multipliers))
    np.testing.assert_allclose(restored.y["share"], exact.y["share"], atol=1e-7)


def test_prices_that_are_not_unique_bring_back_what_one_of_them_attracts():
    # Without the second pair's flow on the fast road two full roads have the same load: any of them can have a price.
    design = around()
    small = contracted(whole(design))
    x = small.capacities(present(design.existing))
    pair, fast = small.part.flow_pair, small.part.flow_link == 1
    flow = small.column[fast & (pair == 1)][0]
    kept = every_flow(small)
    kept[flow] = False
    kept[small.column[(small.part.flow_link == 4) & (pair == 0)][0]] = False
    narrowed = Narrowed(small, kept)
    found = answer(narrowed, x)
    assert narrowed.part.group[0] == narrowed.part.group[1]
    assert Ways(small, narrowed.design(found).price).excess[flow] > 0.1  # half of the price deters
    assert narrowed.missed(found)[flow]


@pytest.mark.slow
@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_narrowed_towns_end_where_whole_ones_do(margin, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    design = importlib.import_module("towns").town(5, 60)
    plain = design.solve()
    narrow = dataclasses.replace(NARROWING, few=0, margin=margin)
    kept = []
    for module in (existing_roads, narrowing, road_descent):
        monkeypatch.setattr(module, "NARROWING", narrow)
    descend = existing_roads.descend

    def watched(*given):
        for found in descend(*given):
            kept.append(np.count_nonzero(found.kept))
            yield found

    monkeypatch.setattr(existing_roads, "descend", watched)
    solution = design.solve()
    assert plain.success, plain.message
    assert solution.success, solution.message
    assert solution.value == pytest.approx(plain.value, rel=1e-2)  # another local optimum, perhaps
    assert solution.stats["flows"] < plain.stats["flows"]
    assert margin > 0 or kept[-1] > kept[0]  # flows came back on the way
    judged = bx.certify(design.problem(), solution.x)
    assert judged.confirms(1e-6)
    assert judged.value == pytest.approx(solution.value, abs=1e-7)
