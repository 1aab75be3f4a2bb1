"""Network design: rows and answers against the matrices written out, files, routes, tables."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from scipy.special import expit

import bilevax as bx
from bilevax.model.operators import Diagonal
from bilevax.model.problem import place
from bilevax.problems import NetworkDesign
from bilevax.problems.network import tntp
from known import linear_rows
from shared_data import INSIDE
from test_sparse_direct import network as written_out

nx = pytest.importorskip("networkx")

SIZES = {  # nodes, links, pairs
    "SiouxFalls": (24, 76, 528),
    "Eastern-Massachusetts": (74, 258, 1113),
    "Berlin-Friedrichshain": (224, 523, 506),
    "Braess-Example": (4, 5, 1),
}


def from_json(name: str) -> NetworkDesign:
    return bx.datasets.network(name)


def from_tntp(name: str, **options) -> NetworkDesign:
    return bx.datasets.roads(name, **options)


def random_point(network: NetworkDesign, seed: int = 0):
    random = np.random.default_rng(seed)
    y = {"flow": random.random(len(network.flows[0])), "share": random.uniform(0.1, 0.9, len(network.origin))}
    return random.uniform(0.3, 1.0, len(network.tail)), y


def in_full(network: NetworkDesign, y: dict[str, np.ndarray]) -> np.ndarray:
    """Return y as the written-out problem has it: shares, then flows pair by pair, zero on links of no use."""
    link, pair = network.flows
    flow = np.zeros((len(network.origin), len(network.tail)))
    flow[pair, link] = y["flow"]
    return np.concatenate([y["share"], flow.ravel()])


# --- the problem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper3", "paper9", "seville"])
def test_rows_and_objectives_are_those_written_out(name):
    reference, *_ = written_out(name)
    network = from_json(name)
    nodes, pairs = len(network.nodes), len(network.origin)
    link, pair = network.flows
    with jax.enable_x64(True):
        ours, theirs = place(network.problem(), np.float64), place(reference, np.float64)
        for seed in range(3):
            x, y = random_point(network, seed)
            full = in_full(network, y)
            assert ours.upper_value(x, y) == pytest.approx(float(theirs.upper_value(x, full)), rel=1e-12)
            assert network.utility(x, y) == pytest.approx(-float(ours.upper_value(x, y)), rel=1e-12)
            assert ours.lower_value(x, y) == pytest.approx(float(theirs.lower_value(x, full)), rel=1e-12)
            (conservation, capacity), (balance, load) = ours.rows(x, y), theirs.rows(x, full)
            np.testing.assert_allclose(capacity, load, rtol=1e-12, atol=1e-12)
            kept = np.zeros(pairs * nodes, bool)
            kept[pair * nodes + network.tail[link]] = True
            np.testing.assert_allclose(conservation, np.asarray(balance)[kept], atol=1e-12)
            # What is left out: rows of destinations, and of nodes that are on no way of the pair.
            destination = np.zeros((pairs, nodes), bool)
            destination[np.arange(pairs), network.destination] = True
            assert not kept[destination.ravel()].any()
            assert not np.asarray(balance)[~kept & ~destination.ravel()].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper3", "paper9"])
def test_answers_are_those_written_out(name):
    """Links of no use are left out without a trace in shares, loads and values."""
    reference, links, _ = written_out(name)
    network = from_json(name)
    x = np.random.default_rng(7).uniform(0.3, 1.0, links)
    ours, theirs = bx.certify(network.problem(), x), bx.certify(reference, x)
    assert ours.value == pytest.approx(theirs.value, abs=1e-8)
    np.testing.assert_allclose(ours.y["share"], theirs.y[: len(network.origin)], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "detour"), [("paper9", None), ("paper9", 1.2), ("seville", None), ("Berlin-Friedrichshain", 1.2)]
)
def test_structured_rows_match_their_matrices(name, detour):
    network = from_tntp(name, detour=detour) if name in SIZES else dataclasses.replace(from_json(name), detour=detour)
    random = np.random.default_rng(1)
    problem = network.problem()
    assert isinstance(linear_rows(problem, 1).B, Diagonal)
    forward, backward = jax.jit(lambda operator, v: operator.mv(v)), jax.jit(lambda operator, u: operator.rmv(u))
    several = jax.jit(lambda operator, vectors: jax.vmap(operator.mv)(vectors))
    for dtype, tolerance in ((np.float64, 1e-11), (np.float32, 1e-4)):
        with jax.enable_x64(True):
            placed = place(problem, dtype)
            for operator in (linear_rows(placed, k).A for k in range(len(placed.coupling))):
                matrix = operator.to_scipy()
                assert matrix.shape == operator.shape
                v = random.standard_normal(matrix.shape[1]).astype(dtype)
                u = random.standard_normal(matrix.shape[0]).astype(dtype)
                images = forward(operator, v), backward(operator, u)
                assert [image.dtype for image in images] == [dtype, dtype]
                np.testing.assert_allclose(images[0], matrix @ v, atol=tolerance)
                np.testing.assert_allclose(images[1], matrix.T @ u, atol=tolerance)
                np.testing.assert_allclose(several(operator, np.stack([u[0] * v, v]))[1], images[0], atol=tolerance)


def test_conservation_rows_are_independent():
    matrix = linear_rows(from_json("paper9").problem()).A.to_scipy().toarray()
    assert np.linalg.matrix_rank(matrix) == len(matrix)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["ones", "own"])
def test_three_nodes_are_solved(start):
    network = from_json("paper3")
    solution = bx.solve(network.problem(), np.ones(6) if start == "ones" else network.start())
    assert solution.success, solution.message
    assert network.utility(solution.x, solution.y) == pytest.approx(2 * expit(2.0), abs=1e-5)
    assert solution.value == pytest.approx(-network.utility(solution.x, solution.y), abs=1e-9)


@pytest.mark.slow
def test_first_order_steps_run_on_the_structure():
    network = from_json("paper3")
    problem = network.problem()
    plain = bx.BilevelProblem(
        problem.upper,
        problem.lower,
        [
            bx.LinearCoupling(A=part.A.to_scipy(), B=part.B, lower=part.lower, upper=part.upper)
            for part in (linear_rows(problem, k) for k in range(len(problem.coupling)))
        ],
        problem.x_set,
        problem.y_set,
        data=problem.data,
        y_like=problem.y_like,
    )
    solver = bx.SFLCB(0.25, 50.0, 50.0, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4)
    y0 = {"flow": np.full(len(network.flows[0]), 0.1), "share": np.full(6, 0.5)}
    run = lambda part: jax.jit(lambda x: bx.run(part, x, y0=y0, solver=solver, max_steps=300))(np.ones(6))
    found = [run(part) for part in (problem, plain)]
    np.testing.assert_allclose(found[0].x, found[1].x, rtol=1e-4)
    np.testing.assert_allclose(found[0].y["share"], found[1].y["share"], rtol=1e-4)


def test_new_numbers_compile_nothing(compilations):
    network = from_json("paper3")
    bx.certify(network.problem(), np.ones(6))
    dearer = dataclasses.replace(network, cost=2 * network.cost, demand=1.1 * network.demand)
    with compilations() as count:
        certificate = bx.certify(dearer.problem(), np.ones(6))
    assert count[0] == 0
    assert certificate.value > bx.certify(network.problem(), np.ones(6)).value


def test_minimal_share():
    network = from_json("paper3")
    certificate = bx.certify(network.problem(minimal_share=0.01), np.full(6, 1e-3))
    assert not certificate.lower_feasible
    assert bx.certify(network.problem(), np.full(6, 1e-3)).lower_feasible
    with pytest.raises(ValueError, match=r"minimal_share: expected a number between 0 and 0\.5, got 0"):
        network.problem(minimal_share=0)


# --- routes


def random_network(seed: int, **options) -> NetworkDesign:
    """Return nine nodes with random links, some of them parallel, and all pairs that a route joins."""
    random = np.random.default_rng(seed)
    ends = random.integers(0, 9, (24, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    blocked = options.get("not_passed", ())
    reach = _allowed_graphs(ends, blocked)
    pairs = [(o, d) for o in range(9) for d in range(9) if o != d and nx.has_path(reach(o, d), o, d)]
    time = random.uniform(0.0, 1.0, len(ends))
    origin, destination = zip(*pairs, strict=True)
    return NetworkDesign.from_arrays(
        ends[:, 0], ends[:, 1], time, 1.0, origin, destination, 1.0, 2.0, 1.0, nodes=range(9), **options
    )


def _allowed_graphs(ends, blocked):
    def graph(origin, destination):
        found = nx.MultiDiGraph()
        found.add_nodes_from(range(9))
        keep = lambda tail, head: (
            (tail == origin or tail not in blocked) and (head == destination or head not in blocked)
        )
        found.add_edges_from(
            (int(tail), int(head), index) for index, (tail, head) in enumerate(ends) if keep(tail, head)
        )
        return found

    return graph


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("blocked", [(), (2, 5)])
def test_a_pair_keeps_the_links_of_all_its_simple_paths(seed, blocked):
    network = random_network(seed, not_passed=blocked)
    graphs = _allowed_graphs(np.stack([network.tail, network.head], axis=1), blocked)
    link, pair = network.flows
    for index, (origin, destination) in enumerate(zip(network.origin, network.destination, strict=True)):
        paths = list(nx.all_simple_edge_paths(graphs(origin, destination), origin, destination))
        on_paths = {edge[2] for path in paths for edge in path}
        kept = set(link[pair == index].tolist())
        assert on_paths <= kept
        # What is kept besides lies on walks between the two that go in circles, but never by the ends themselves.
        assert not any(network.head[extra] == origin or network.tail[extra] == destination for extra in kept)
        lengths = [sum(network.time[edge[2]] for edge in path) for path in paths]
        assert network.shortest_times[index] == pytest.approx(min(lengths))
        for factor in (1.0, 1.4):
            short = {
                edge[2]
                for path, length in zip(paths, lengths, strict=True)
                if length <= factor * min(lengths) * (1 + 1e-9)
                for edge in path
            }
            narrow = dataclasses.replace(network, detour=factor)
            links = set(narrow.flows[0][narrow.flows[1] == index].tolist())
            assert short <= links <= kept


def test_links_on_no_way_are_left_out():
    """0 -> 1 -> 2, a dead end 1 -> 3, a source 4 -> 1, a way back 2 -> 0 and a loop at 1."""
    network = NetworkDesign.from_arrays([0, 1, 1, 4, 2, 1], [1, 2, 3, 1, 0, 1], 1.0, 1.0, [0], [2], 1.0, 3.0, 1.0)
    np.testing.assert_array_equal(network.flows[0], [0, 1])
    assert linear_rows(network.problem()).A.shape == (2, 3)


def test_zones_are_not_passed():
    network = from_tntp("Berlin-Friedrichshain")
    link, pair = network.flows
    tail, head = network.tail[link], network.head[link]
    assert np.all((tail >= 23) | (tail == network.origin[pair]))
    assert np.all((head >= 23) | (head == network.destination[pair]))
    everywhere = dataclasses.replace(network, passable=np.ones(224, bool))
    assert len(everywhere.flows[0]) > len(link)
    assert np.any(everywhere.shortest_times < network.shortest_times - 1e-9)


def test_a_pair_without_a_route_is_refused():
    arguments = [["a", "b"], ["b", "a"], 1.0, 1.0, ["a", "c"], ["b", "a"], 1.0, 2.0, 1.0]
    with pytest.raises(ValueError, match=r"found none for 1 of 2 pairs, the first from c to a"):
        NetworkDesign.from_arrays(*arguments, nodes=["a", "b", "c"])
    with pytest.raises(ValueError, match="found none for 1 of 1 pairs, the first from 0 to 2"):
        NetworkDesign.from_arrays([0, 1], [1, 2], 1.0, 1.0, [0], [2], 1.0, 2.0, 1.0, not_passed=[1])


# --- starts and tables


def test_start_is_the_load_of_the_shortest_ways():
    network = NetworkDesign.from_arrays(
        ["a", "b", "a"], ["b", "c", "c"], [1.0, 1.0, 5.0], 1.0, ["a", "b"], ["c", "c"], [2.0, 3.0], [4.0, 1.0], 1.0
    )
    load = np.array([2 * expit(2.0), 2 * expit(2.0) + 3 * expit(0.0), 0.0])
    np.testing.assert_allclose(network.start(), np.maximum(load, 0.1 * load.mean()))
    seville = json.loads((INSIDE / "networks" / "seville.json").read_text())
    np.testing.assert_array_equal(from_json("seville").start(), seville["x_start"])


def test_tables():
    frames = pytest.importorskip("pandas")
    network = from_json("paper3")
    certificate = bx.certify(network.problem(), np.full(6, 0.4))
    answer = dataclasses.make_dataclass("Answer", ["x", "y"])(np.full(6, 0.4), certificate.y)
    links, pairs = (frames.DataFrame(table) for table in (network.links_table(answer), network.pairs_table(answer)))
    assert list(links.columns) == ["from", "to", "capacity", "flow", "used"]
    assert list(zip(links["from"], links["to"], strict=True)) == [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
    np.testing.assert_allclose(links["used"], links["flow"] / 0.4)
    assert links["used"].max() == pytest.approx(1.0)
    assert list(pairs.columns) == ["origin", "destination", "demand", "share", "travel_time", "outside_time"]
    assert np.all(pairs["travel_time"] >= network.shortest_times - 1e-6)
    # All demand is somewhere: the travellers' time is that of the links.
    spent = np.sum(pairs["demand"] * pairs["share"] * pairs["travel_time"])
    assert spent == pytest.approx(np.sum(links["flow"] * network.time))


def test_tables_of_unbuilt_links_and_odd_names():
    network = NetworkDesign.from_arrays(
        [("a", 1), ("a", 1)], [("b", 2), ("b", 2)], 1.0, 1.0, [("a", 1)], [("b", 2)], 1.0, 2.0, 1.0
    )
    answer = dataclasses.make_dataclass("Answer", ["x", "y"])(
        np.array([0.5, 0.0]), {"flow": np.array([0.5, 0.0]), "share": np.array([0.5])}
    )
    table = network.links_table(answer)
    assert table["from"][0] == ("a", 1)
    np.testing.assert_array_equal(table["used"], [1.0, 0.0])


# --- SIZES files


@pytest.mark.parametrize("name", list(SIZES))
def test_road_networks_have_their_sizes(name):
    network = from_tntp(name)
    assert (len(network.nodes), len(network.tail), len(network.origin)) == SIZES[name]
    assert (network.coordinates is not None) == (name in ("SiouxFalls", "Berlin-Friedrichshain"))
    np.testing.assert_allclose(np.mean(network.demand), 1.0)
    assert network.time.min() >= 0.01
    np.testing.assert_allclose(network.outside, 1.5 * network.shortest_times + 0.5)
    np.testing.assert_allclose(network.revenue, 1.5 * network.demand)
    # Links of no time count a little; otherwise the mean trip is the unit.
    assert 1.0 <= np.average(network.shortest_times, weights=network.demand) < 1.1
    problem = network.problem()
    sparse = sum(linear_rows(problem, k).A.to_scipy().nnz for k in range(len(problem.coupling)))
    bytes_used = sum(leaf.nbytes for leaf in jax.tree.leaves(problem) if isinstance(leaf, np.ndarray))
    assert bytes_used < 20 * sparse + 10_000


def test_a_road_network_is_worth_building_in_part():
    network = from_tntp("SiouxFalls")
    worth = network.shortest_times < 1.5
    assert 0.2 < worth.mean() < 0.8
    assert network.utility(network.start(), {"share": expit(network.outside - network.shortest_times)}) > 0


def test_braess():
    network = from_tntp("Braess-Example", existing_part=0.0)
    solution = bx.solve(network.problem(), network.start())
    assert solution.success, solution.message
    # One pair, whose shortest way costs 1.02 and takes as long: all who come pay, so all are carried.
    way = network.shortest_times[0]
    assert network.utility(solution.x, solution.y) == pytest.approx((1.5 - way) * expit(0.5 * way + 0.5), abs=1e-5)


@pytest.mark.slow
def test_a_real_network_is_solved_and_certified():
    network = from_tntp("SiouxFalls", detour=1.2)
    solution = bx.solve(network.problem(), network.start())
    assert solution.success, solution.message
    assert network.existing is not None
    assert np.all(np.asarray(solution.x) >= network.existing)
    assert network.utility(solution.x, solution.y) == pytest.approx(180.9572, abs=1e-3)


NET = """<NUMBER OF ZONES> 2
<NUMBER OF NODES> 3
<FIRST THRU NODE> 3
<NUMBER OF LINKS> 2
<END OF METADATA>

~ init term capacity length time b power speed toll type ;
1 3 10 2.5 4 0.15 4 0 0 1 ;
3 2 10 1.5 6 0.15 4 0 0 1;
"""
TRIPS = "<NUMBER OF ZONES> 2\n<END OF METADATA>\n\nOrigin 1\n 1 : 5.0; 2 : 7.5;\n"


def written(tmp_path, net=NET, trips=TRIPS, node=None):
    files = {"a_net.tntp": net, "a_trips.tntp": trips} | ({} if node is None else {"a_node.tntp": node})
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in files]


def test_tntp_files_are_read(tmp_path):
    paths = written(tmp_path, node="Node X Y ;\n1 0.5 1.5 ;\n2 2 3 ;\n3 4 5;\n")
    road, trips = tntp.read_network(paths[0]), tntp.read_trips(paths[1])
    np.testing.assert_array_equal(road.free_flow_time, [4, 6])
    np.testing.assert_array_equal(road.length, [2.5, 1.5])
    assert (road.nodes, road.first_through_node) == (3, 3)
    assert (trips.origin.tolist(), trips.destination.tolist(), trips.demand.tolist()) == ([1], [2], [7.5])
    network = NetworkDesign.from_tntp(*paths, fare=3.0, cost_rate=0.5)
    np.testing.assert_allclose(network.time, [0.4, 0.6])
    np.testing.assert_allclose(network.cost, [0.2, 0.3])
    np.testing.assert_array_equal(network.coordinates, [[0.5, 1.5], [2, 3], [4, 5]])
    assert (network.demand, network.revenue, network.outside) == (1.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"net": NET.replace("10 2.5 4 ", "10 2.5 ")},
            r"a_net.tntp, line 8: expected ten numbers: init node, .*, got 9",
        ),
        ({"net": NET.replace("1 3 10 2.5", "1 3 ten 2.5")}, r"a_net.tntp, line 8: .*, got 'ten'"),
        (
            {"net": NET.replace("1 3 10", "1 4 10")},
            r"a_net.tntp, line 8: expected a node's number from 1 to 3, got '4'",
        ),
        ({"net": NET.replace("2.5 4", "2.5 -4")}, r"a_net.tntp, line 8: .* not negative"),
        ({"net": NET.replace("LINKS> 2", "LINKS> 3")}, r"a_net.tntp: expected 3 links as its header says, found 2"),
        ({"net": NET.replace("LINKS> 2", "LINKS> two")}, r"a_net.tntp, line 4: .*, got 'two'"),
        ({"net": NET.replace("<FIRST THRU NODE> 3\n", "")}, r"a_net.tntp: expected a line <FIRST THRU NODE>"),
        ({"net": NET.replace("2.5 4", "2.5 0").replace("1.5 6", "1.5 0")}, r"expected trips that take time"),
        ({"trips": TRIPS.replace("Origin 1\n", "")}, r"a_trips.tntp, line 4: expected a line 'Origin"),
        ({"trips": TRIPS.replace("Origin 1", "Origin one")}, r"a_trips.tntp, line 4: .*, got 'one'"),
        ({"trips": TRIPS.replace("2 : 7.5", "2 7.5")}, r"a_trips.tntp, line 5: .*, got '2 7.5'"),
        ({"trips": TRIPS.replace("7.5", "many")}, r"a_trips.tntp, line 5: .*, got 'many'"),
        ({"trips": TRIPS.replace("7.5", "-7.5")}, r"a_trips.tntp, line 5: .*not negative"),
        ({"trips": TRIPS.replace("2 : 7.5;", "")}, r"a_trips.tntp: expected trips between different zones"),
        ({"trips": TRIPS.replace("2 : 7.5", "9 : 7.5")}, r"a_trips.tntp: expected nodes from 1 to 3 .*, got 9"),
        ({"trips": TRIPS.replace("Origin 1", "Origin 2").replace("2 : 7.5", "1 : 7.5")}, r"the first from 2 to 1"),
        ({"node": "Node X Y\n1 0 0\n2 0\n"}, r"a_node.tntp, line 3: .*, got '2 0'"),
        ({"node": "Node X Y\n1 0 0\n3 0 0\n"}, r"a_node.tntp: .* found none of node 2"),
    ],
)
def test_malformed_tntp_files_are_named(tmp_path, change, message):
    paths = written(tmp_path, **change)
    with pytest.raises(ValueError, match=message):
        NetworkDesign.from_tntp(*paths)


# --- other sources


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"bad.json, line 1: expected JSON"),
        ("[]", r"expected an object with links and od, got list"),
        ('{"od": []}', r"expected a list 'links', got NoneType"),
        ('{"links": [{"i": 1, "j": 2, "t": 1}], "od": []}', r"bad.json, links\[0\]: expected i, j, t, c, found no c"),
        (
            '{"links": [{"i": 1, "j": 2, "t": 1, "c": 1}], "od": [{"o": 1, "d": 3, "w": 1, "t_ext": 1, "m": 1}]}',
            r"destination: expected names of nodes, got 3",
        ),
    ],
)
def test_malformed_json_is_named(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        NetworkDesign.from_json(path)


GOOD = {
    "tail": ["a", "b"],
    "head": ["b", "a"],
    "time": [1.0, 2.0],
    "cost": 1.0,
    "origin": ["a"],
    "destination": ["b"],
    "demand": 1.0,
    "outside": 2.0,
    "revenue": 1.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": [1.0, -2.0]}, r"time: expected a number >= 0, got -2.0 for link 1"),
        ({"cost": np.nan}, r"cost: expected a number >= 0, got nan for link 0"),
        ({"time": [1.0, 2.0, 3.0]}, r"time: expected a number or 2 numbers, got shape \(3,\)"),
        ({"demand": 0.0}, r"demand: expected a positive number, got 0.0 for pair 0"),
        ({"outside": np.inf}, r"outside: expected a number, got inf for pair 0"),
        ({"destination": ["a"]}, r"destination: expected another node than the origin"),
        ({"origin": [], "destination": []}, r"origin: expected .* at least one"),
        ({"nodes": ["a"]}, r"tail: expected names of nodes, got 'b'"),
        ({"nodes": ["a", "b", "a"]}, r"nodes: expected different names"),
        ({"coordinates": [[0.0, 1.0]]}, r"coordinates: expected shape \(2, 2\), got \(1, 2\)"),
        ({"detour": 0.5}, r"detour: expected a factor of at least 1, got 0.5"),
    ],
)
def test_wrong_arrays_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        NetworkDesign.from_arrays(**(GOOD | change))


def test_networkx_graphs():
    graph = nx.Graph()
    graph.add_edge("a", "b", time=1.0, cost=2.0)
    graph.add_edge("b", "c", time=0.5, cost=1.0)
    pairs = {("a", "c"): {"demand": 2.0, "outside": 3.0, "revenue": 4.0}}
    network = NetworkDesign.from_networkx(graph, pairs)
    assert len(network.tail) == 4
    assert network.coordinates is None
    assert network.shortest_times == pytest.approx([1.5])
    directed = nx.MultiDiGraph()
    directed.add_node("a", pos=(0, 0))
    directed.add_node("c", pos=(1, 2))
    directed.add_edge("a", "c", minutes=1.0, price=2.0)
    directed.add_edge("a", "c", minutes=3.0, price=1.0)
    network = NetworkDesign.from_networkx(directed, pairs, time="minutes", cost="price")
    np.testing.assert_array_equal(network.time, [1.0, 3.0])
    np.testing.assert_array_equal(network.coordinates, [[0, 0], [1, 2]])
    assert len(network.flows[0]) == 2
    with pytest.raises(ValueError, match=r"expected edge \('a', 'c'\) to have 'time', got \['minutes', 'price'\]"):
        NetworkDesign.from_networkx(directed, pairs)
    with pytest.raises(ValueError, match="expected demand, outside, revenue"):
        NetworkDesign.from_networkx(graph, {("a", "c"): {"demand": 1.0}})
    with pytest.raises(ValueError, match=r"expected a networkx graph \(pip install 'bilevax\[networks\]'\), got dict"):
        NetworkDesign.from_networkx({}, pairs)
