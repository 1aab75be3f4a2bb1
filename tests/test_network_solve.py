"""`NetworkDesign.solve`: prices against exact lower levels, marginal values against small capacities, and success."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit

import bilevax as bx
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, Objective
from bilevax.datasets import network as packaged
from bilevax.problems import NetworkDesign
from bilevax.problems.network import marginal
from bilevax.problems.network.climbing import climb
from bilevax.problems.network.joint_prices import improved
from bilevax.problems.network.price_search import best_price, starting_prices
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.restriction import pruned
from bilevax.problems.network.rows import Load


def random_network(seed: int, nodes: int = 5, pairs: float = 0.5, links: float = 0.6) -> NetworkDesign:
    """Return a network in which some pairs of nodes are joined by links, and some have travellers."""
    random = np.random.default_rng(seed)
    ends = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    ring = [(i, (i + 1) % nodes) for i in range(nodes)]  # so that every pair has a route
    chosen = sorted(set(ring) | {end for end in ends if random.random() < links})
    travelling = [end for end in ends if random.random() < pairs] or [ends[0]]
    tail, head = zip(*chosen, strict=True)
    origin, destination = zip(*travelling, strict=True)
    number = lambda low, high, count: random.uniform(low, high, count)
    demand = number(0.5, 2.0, len(origin))
    return NetworkDesign.from_arrays(
        tail, head, number(0.3, 1.5, len(tail)), number(0.5, 2.0, len(tail)),
        origin, destination, demand, number(0.5, 3.0, len(origin)), demand * number(1.0, 5.0, len(origin)),
        nodes=range(nodes),
    )  # fmt: skip


def exact_utility(network: NetworkDesign, x: np.ndarray) -> float:
    """Return the utility of capacities by an exact lower level of the links that have any; NaN if it is not solved."""
    part = pruned(network, np.flatnonzero(x > 0))
    if len(part.pairs) == 0:
        return -float(network.cost @ x)
    flows, pairs = len(part.flow_link), len(part.pairs)
    pair, link = part.pairs[part.flow_pair], part.links[part.flow_link]
    demand, outside = network.demand[part.pairs], network.outside[part.pairs]
    conservation = part.conservation.to_scipy()
    load = Load(network.demand[pair], part.flow_link, len(part.links), pairs).to_scipy()
    guard = np.r_[np.zeros(flows), np.full(pairs, 1e-12)]
    rows = Constraints(
        sp.vstack([conservation, load, sp.eye(flows + pairs)], format="csr"),
        np.r_[np.zeros(conservation.shape[0]), np.full(len(part.links), -np.inf), guard],
        np.r_[np.zeros(conservation.shape[0]), x[part.links], 1 - guard],
        relaxable=conservation.shape[0] + len(part.links),
    )
    time = network.demand[pair] * network.time[link]
    entropy = lambda s: s * (np.log(s) - 1) + (1 - s) * (np.log(1 - s) - 1)
    answer = minimise(
        Objective(
            lambda y: float(time @ y[:flows] + demand @ (entropy(y[flows:]) - outside * y[flows:])),
            lambda y: np.r_[time, demand * (np.log(y[flows:]) - np.log(1 - y[flows:]) - outside)],
            lambda y: sp.csc_matrix(sp.diags(np.r_[np.zeros(flows), demand / (y[flows:] * (1 - y[flows:]))])),
        ),
        rows,
    )
    utility = float(network.revenue[part.pairs] @ answer.y[flows:] - network.cost @ x)
    return utility if answer.residual < 1e-7 else np.nan


def local_design(network: NetworkDesign, seed: int = 0) -> Priced:
    random = np.random.default_rng(seed)
    return climb(Priced(network, starting_prices(network, seed, random)), random, lambda _: None)


# --- prices


@pytest.mark.parametrize("seed", range(4))
def test_the_utility_under_prices_is_that_of_the_capacities_they_fill(seed):
    network = random_network(seed)
    random = np.random.default_rng(seed)
    links = len(network.tail)
    priced = Priced(network, np.where(random.random(links) < 0.6, random.exponential(1.0, links), np.inf))
    assert priced.utility == pytest.approx(exact_utility(network, priced.load), abs=1e-7)


def test_routes_respect_parallel_links_and_nodes_that_are_not_passed():
    network = NetworkDesign.from_arrays(
        [0, 0, 1, 0], [1, 1, 2, 2], [1.0, 2.0, 1.0, 5.0], [5.0, 1.0, 1.0, 1.0], [0, 0], [1, 2], 1.0, 6.0, 9.0
    )
    free = Priced(network, np.zeros(4))
    np.testing.assert_array_equal(free.routes(np.arange(2)).toarray(), [[1, 0, 0, 0], [1, 0, 1, 0]])
    np.testing.assert_allclose((free.length, free.cost), [[1, 2], [5, 6]])
    dear = Priced(network, np.array([3.0, 0.0, 0.0, np.inf]))
    np.testing.assert_array_equal(dear.routes(np.arange(2)).toarray(), [[0, 1, 0, 0], [0, 1, 1, 0]])
    # Equally long: the cheaper one counts.
    tied = Priced(network, np.array([1.0, 0.0, 0.0, np.inf]))
    np.testing.assert_array_equal(tied.routes(np.arange(2)).toarray(), [[0, 1, 0, 0], [0, 1, 1, 0]])
    around = dataclasses.replace(network, passable=np.array([True, False, True]))
    np.testing.assert_array_equal(Priced(around, np.zeros(4)).routes(np.arange(2)).toarray()[1], [0, 0, 0, 1])


@pytest.mark.parametrize("seed", range(3))
def test_the_best_price_of_a_link_is_the_best_of_many(seed):
    network = random_network(seed)
    random = np.random.default_rng(seed)
    priced = Priced(network, random.exponential(1.0, len(network.tail)))
    for link in range(len(network.tail)):
        price, utility = best_price(priced, link)
        assert priced.at(link, price).utility == pytest.approx(utility, abs=1e-9)
        others = [priced.at(link, other).utility for other in (*np.linspace(0, 12, 300), np.inf)]
        assert utility >= max(others) - 1e-5


def test_all_prices_together_follow_a_ridge():
    network = random_network(3, nodes=6, pairs=0.9)
    random = np.random.default_rng(0)
    priced = Priced(network, random.exponential(0.3, len(network.tail)))
    better = improved(priced)
    assert better.utility > priced.utility + 1e-3
    again = improved(better)
    assert again.utility == pytest.approx(better.utility, abs=1e-8)


# --- marginal values


def opened_by(priced: Priced, links: tuple[int, ...], epsilon: float) -> np.ndarray:
    """Return capacities with a little of unbuilt links, and of the built ones what the new travellers need."""
    network, scarce = priced.network, links[0]
    opened = priced.at(list(links), 0.0)
    new = np.flatnonzero(np.isfinite(opened.length) & np.isinf(priced.length))
    length, _ = opened.over(scarce)
    weight = network.demand[new] * np.exp(network.outside[new] - length[new])
    return priced.load + epsilon * (opened.routes(new).T @ (weight / weight.sum()))


def few_of_each_kind(values: list[marginal.Marginal]) -> list[marginal.Marginal]:
    """Return three links, spread over the network, of every test that gave a value: each costs an exact lower level."""
    kinds = {found.test: [other for other in values if other.test == found.test] for found in values}
    return [links[index] for links in kinds.values() for index in sorted({0, len(links) // 2, len(links) - 1})]


@pytest.mark.parametrize("case", ["paper3", "paper9", *range(6)])
def test_marginal_values_are_those_of_a_little_capacity(case):
    network = packaged(case) if isinstance(case, str) else random_network(case, nodes=4 + case % 3, pairs=0.7)
    priced = local_design(network)
    here, epsilon, checked = exact_utility(network, priced.load), 1e-4, 0
    for found in few_of_each_kind(marginal.of_links(priced)):
        alone = priced.load.copy()
        alone[found.links[0]] = epsilon
        gain_alone = (exact_utility(network, alone) - here) / epsilon
        assert gain_alone <= found.value + 0.01 * (1 + abs(found.value))
        if found.test == "new travellers":
            widened = opened_by(priced, found.links, epsilon)
            assert (exact_utility(network, widened) - here) / epsilon == pytest.approx(found.value, rel=0.01, abs=2e-3)
            checked += 1
        if found.test == "nobody":
            assert gain_alone == pytest.approx(found.value, rel=0.01)
    assert checked or not any(np.isinf(priced.length))


def chain(revenue: float) -> NetworkDesign:
    """Return 0 -> 1 -> 2 -> 3 with travellers between the ends alone."""
    return NetworkDesign.from_arrays([0, 1, 2], [1, 2, 3], 1.0, [1.0, 2.0, 3.0], [0], [3], 1.0, 4.0, revenue)


def test_a_route_of_several_unbuilt_links_is_priced():
    nothing = Priced(chain(8.0), np.full(3, np.inf))
    assert [one.test for one in marginal.of_links(nothing)] == ["nobody"] * 3
    assert marginal.candidate_routes(nothing) == [(0, 1, 2)]
    route = marginal.of_route(nothing, (0, 1, 2))
    assert route is not None
    assert route.value == pytest.approx(8.0 - 6.0)
    with_first = Priced(chain(8.0), np.array([0.0, np.inf, np.inf]))
    pair = max(marginal.pairs_of_links(with_first), key=lambda one: one.value)
    assert pair.value == pytest.approx(2.0)
    assert set(pair.links) == {1, 2}


def test_a_link_that_adds_a_better_pair_to_another_one_pays_with_it():
    """Alone, 0 -> 1 attracts a pair that loses; with 1 -> 2, which serves nobody alone, also one that earns."""
    network = NetworkDesign.from_arrays([0, 1], [1, 2], 1.0, [2.0, 0.1], [0, 0], [1, 2], 1.0, [1.0, 4.0], [1.0, 9.0])
    nothing = Priced(network, np.full(2, np.inf))
    assert all(one.value < 0 for one in marginal.of_links(nothing))
    best = max(marginal.pairs_of_links(nothing), key=lambda one: one.value)
    weights = np.array([1.0, np.exp(4.0 - 2.0)])
    assert best.links == (0, 1)
    assert best.value == pytest.approx(weights @ [1.0 - 2.0, 9.0 - 2.1] / weights.sum())
    solution = network.solve(np.zeros(2))
    assert solution.success, solution.message
    assert solution.value < -1.0


@pytest.mark.slow
def test_pruning_leaves_no_flow_without_a_way_on():
    network = random_network(104, nodes=4, pairs=0.9)
    priced = local_design(network, 4)
    links = np.flatnonzero(priced.load > 0)
    some, all_of_it = (pruned(network, links, length) for length in (priced.length, None))
    assert len(some.flow_link) < len(all_of_it.flow_link)
    value = lambda part: bx.certify(part.problem(1e-12), priced.load[links]).value
    assert value(some) == pytest.approx(value(all_of_it), abs=1e-6)


# --- solve


@pytest.mark.parametrize("key", range(4))
def test_three_nodes_from_every_start(key):
    network = packaged("paper3")
    solution = network.solve(np.ones(6) if key == 0 else None, key=key)
    assert solution.success, solution.message
    assert -solution.value == pytest.approx(2 * expit(2.0), abs=1e-9)
    np.testing.assert_array_equal(np.flatnonzero(solution.x), [0, 2])
    assert network.utility(solution.x, solution.y) == pytest.approx(-solution.value, abs=1e-12)
    assert solution.stats["best_unbuilt"] == pytest.approx(-0.9242343)
    table = network.marginal_values(solution)
    assert list(table) == ["from", "to", "value", "test"]
    assert table["value"].max() == pytest.approx(solution.stats["best_unbuilt"])
    assert "on 2 built links" in solution.message


@pytest.mark.slow
def test_the_answer_is_that_of_the_problem_with_a_floor_up_to_its_effect():
    network = packaged("paper3")
    solution = network.solve()
    barely = network.problem(1e-9)
    with_floor = bx.certify(barely, solution.x + 1e-7)
    assert with_floor.value == pytest.approx(solution.value, abs=1e-5)
    shapes = lambda tree: [np.shape(part) for part in tree]
    assert shapes(solution.multipliers) == shapes(with_floor.multipliers)
    assert np.shape(solution.y["flow"]) == np.shape(with_floor.y["flow"])
    np.testing.assert_allclose(solution.y["share"], with_floor.y["share"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_where_success_is_claimed_no_little_capacity_gains(seed):
    network = random_network(100 + seed, nodes=4 + seed % 3, pairs=(0.2, 0.5, 0.9)[seed % 3])
    solution = network.solve(key=seed)
    assert solution.success, solution.message
    x = np.asarray(solution.x)
    here = exact_utility(network, x)
    assert here == pytest.approx(-solution.value, abs=1e-7)
    unbuilt = np.flatnonzero(x == 0)
    sets = [*((link,) for link in unbuilt), *itertools.combinations(unbuilt, 2)]
    random = np.random.default_rng(seed)
    gains = []
    for links in sets[:: max(1, len(sets) // 20)]:
        trial = x.copy()
        trial[list(links)] = 1e-4 * random.uniform(0.5, 1.5, len(links))
        gains.append(exact_utility(network, trial) - here)
        trial[x > 0] += 1e-4 * random.uniform(-0.5, 1.0, int((x > 0).sum()))
        gains.append(exact_utility(network, trial) - here)
    assert np.mean(np.isnan(gains)) < 0.2  # the judge has judged
    assert np.nanmax(gains) <= 1e-7


def test_where_nothing_is_worth_building_nothing_is_built():
    network = chain(5.0)
    solution = network.solve()
    assert solution.success, solution.message
    assert solution.value == 0.0
    assert not np.any(solution.x)
    assert not np.any(solution.y["share"])
    assert solution.stats["best_unbuilt"] == pytest.approx(-1.0)
    assert np.all(np.isnan(network.pairs_table(solution)["travel_time"]))


@pytest.mark.slow
def test_nine_nodes():
    network = packaged("paper9")
    solution = network.solve(starts=2)  # the second ends in another design
    assert solution.success, solution.message
    assert -solution.value == pytest.approx(5.427449582, abs=1e-8)
    assert np.count_nonzero(solution.x) == 8
    assert -0.1 < solution.stats["best_unbuilt"] < 0


@pytest.mark.slow
def test_seville():
    network = packaged("seville")
    solution = network.solve(time_limit=120)
    assert solution.success, solution.message
    assert -solution.value > 21.35


@pytest.mark.slow
def test_existing_roads_are_solved_as_they_stand():
    network = NetworkDesign.from_arrays([0, 0], [1, 1], 1.0, 1.0, [0], [1], 1.0, 3.0, 3.0, existing=[0.1, 0.0])
    solution = network.solve()
    direct = bx.solve(network.problem(), network.start())
    assert solution.success, solution.message
    assert solution.value == direct.value


def test_a_time_limit_is_kept_and_bad_arguments_are_refused():
    network = packaged("paper9")
    solution = network.solve(starts=1000, time_limit=2.0)
    assert solution.stats["time"] < 8.0
    assert solution.status in (bx.Status.TIME_LIMIT, bx.Status.CONVERGED)
    with pytest.raises(ValueError, match="starts: expected a whole number >= 1, got 0"):
        network.solve(starts=0)
    with pytest.raises(ValueError, match=r"x0: expected one capacity a link, shape \(30,\), got \(3,\)"):
        network.solve(np.ones(3))


def test_progress_is_shown(capsys):
    packaged("paper3").solve(starts=2, progress=True)
    assert "start 1/2" in capsys.readouterr().err
