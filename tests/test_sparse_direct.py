"""The default on sparse matrices: exact derivatives, networks, large problems; and the high-point relaxation."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.model.flat import FlatProblem
from bilevax.problems import NetworkDesign
from bilevax.solvers.default.lower.central import CentralLower
from bilevax.solvers.default.lower.dense_algebra import DenseAlgebra
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.lower.sparse_algebra import SparseAlgebra
from bilevax.solvers.default.pieces.conditions import point_at
from bilevax.solvers.default.pieces.descent import Step, exact_descent
from bilevax.solvers.default.pieces.other_multipliers import other_multipliers
from bilevax.solvers.default.pieces.point import ACTIVE, BIACTIVE, ExactPoint, Units
from bilevax.solvers.default.pieces.sparse import SparsePieces, SparseTrust
from bilevax.solvers.default.programs.box import box_step
from bilevax.solvers.default.programs.convexify import convexified
from bilevax.solvers.default.programs.quadratic import least_step, nearest_on_rows, solve_qp
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import RESTORATION
from bilevax.solvers.default.smoothing.central_path import Barrier, CentralPath
from known import present
from shared_data import INSIDE
from test_first_order import _chain


def network(name: str) -> tuple[bx.BilevelProblem, int, int]:
    """Return the design problem of one of the networks of the package, its number of links and of variables in y."""
    record = json.loads((INSIDE / "networks" / f"{name}.json").read_text())
    links, pairs = record["links"], record["od"]
    column = lambda rows, key: np.array([row[key] for row in rows], float)
    nodes = {node: index for index, node in enumerate(sorted({link[end] for link in links for end in "ij"}))}
    incidence = np.zeros((len(nodes), len(links)))
    for index, link in enumerate(links):
        incidence[nodes[link["i"]], index], incidence[nodes[link["j"]], index] = 1, -1
    demand = np.zeros((len(pairs), len(nodes), 1))
    for index, pair in enumerate(pairs):
        demand[index, nodes[pair["o"]]], demand[index, nodes[pair["d"]]] = -1, 1
    count = len(pairs)
    flows = sp.kron(sp.eye(count), incidence)
    conservation = sp.hstack([sp.block_diag(demand), flows], format="csr")
    load = sp.hstack(
        [sp.csr_matrix((len(links), count)), sp.kron(column(pairs, "w"), sp.eye(len(links)))], format="csr"
    )
    data = {"t": column(links, "t"), "c": column(links, "c")}
    data |= {key: column(pairs, key) for key in ("w", "t_ext", "m")}

    def lower(x, y, d):
        share, flow = y[:count], y[count:].reshape(count, -1)
        entropy = share * (jnp.log(share) - 1) + (1 - share) * (jnp.log(1 - share) - 1)
        return jnp.sum(d["w"] * (flow @ d["t"] + d["t_ext"] * (1 - share) + entropy))

    size = conservation.shape[1]
    share = np.arange(size) < count
    problem = bx.BilevelProblem(
        lambda x, y, d: jnp.sum(d["c"] * x) - jnp.sum(d["m"] * y[:count]),
        lower,
        [
            bx.LinearCoupling(A=conservation, lower=0.0, upper=0.0),
            bx.LinearCoupling(A=load, B=-sp.eye(len(links)), upper=0.0),
        ],
        x_set=bx.NonNegative(),
        y_set=bx.Box(np.where(share, 1e-6, 0.0), np.where(share, 1 - 1e-6, 1.0)),
        data=data,
    )
    return problem, len(links), size


def central_lower(flat: FlatProblem, sparse: bool) -> CentralLower:
    rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=sparse)
    algebra = SparseAlgebra(flat, rows) if sparse else DenseAlgebra(flat, rows, np.ones(flat.n_y, bool))
    return CentralLower(flat, rows, algebra)


def sparse_pieces(flat: FlatProblem) -> SparsePieces:
    return SparsePieces(flat, UpperSet(flat.x_rows), central_lower(flat, sparse=True))


def bent() -> tuple[bx.BilevelProblem, int, int]:
    """Return a problem of 3 and 5 variables with rows, bounds and a g that is no quadratic."""
    random = np.random.default_rng(2)
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((y - 0.3) ** 2) + jnp.sum(jnp.cos(x)) * y[0],
        lambda x, y: jnp.sum(jnp.cosh(y - x[0])) + x[1] * y[0] * y[1] / 4 + 0.5 * jnp.sum(y**2),
        bx.LinearCoupling(random.standard_normal((4, 5)), random.standard_normal((4, 3)), upper=0.2),
        y_set=bx.Box(-0.2, 0.5),
    )
    return problem, 3, 5


@pytest.mark.parametrize(
    ("make", "sparse"),
    [(lambda: network("paper3"), True), (bent, True), (bent, False)],
    ids=["net3", "bent", "dense"],
)
def test_derivatives_of_the_smoothed_objective(make, sparse):
    problem, n_x, n_y = make()
    flat = FlatProblem(problem, np.zeros(n_x), np.zeros(n_y))
    x, lower = np.random.default_rng(1).uniform(0.3, 1.0, n_x), central_lower(flat, sparse)
    smoothing = Barrier(0.05, 1e-3, kappa=2.0)
    oracle = CentralPath(lower, lower.start(x, np.zeros(n_y)), smoothing)
    point = present(oracle.evaluate(x, smoothing, present(oracle.begin())))
    at = lambda shift: present(oracle.evaluate(x + shift, smoothing, point))
    ways = 1e-5 * np.eye(n_x)
    values = np.array([(at(way).value - at(-way).value) / 2e-5 for way in ways])
    gradients = np.array([(at(way).gradient - at(-way).gradient) / 2e-5 for way in ways])
    assert np.abs(values - point.gradient).max() <= 1e-8 * np.abs(point.gradient).max()
    assert np.abs(gradients - oracle.hessian(point)).max() <= 1e-6 * np.abs(gradients).max()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_three_nodes_are_certified(seed):
    problem, links, _ = network("paper3")
    solution = bx.solve(problem, np.random.default_rng(seed).uniform(0.3, 1.0, links))
    assert solution.success, solution.message
    assert -solution.value == pytest.approx(1.761594, abs=1e-5)


def test_exact_evaluation_agrees_with_the_certificate():
    problem, links, size = network("paper3")
    flat = FlatProblem(problem, np.zeros(links), np.zeros(size))
    x = np.random.default_rng(3).uniform(0.3, 1.0, links)
    point = sparse_pieces(flat).evaluate(x, np.zeros(size))
    assert point is not None
    assert point.value == pytest.approx(bx.certify(problem, x).value, abs=1e-7)


def roads(seed: int, towns: int = 5, pairs: int = 6) -> NetworkDesign:
    """Return a made-up road network: half of its roads are two links, one after the other, and all exist in part."""
    random = np.random.default_rng(seed)
    place = random.random((towns, 2))
    distance = np.linalg.norm(place[:, None] - place, axis=2)
    near = {(town, int(other)) for town in range(towns) for other in np.argsort(distance[town])[1:3]}
    near |= {(town, town + 1) for town in range(towns - 1)}
    tail, head, time = [], [], []
    for start, end in sorted(near | {(end, start) for start, end in near}):
        middle = [len(tail) + towns] if random.random() < 0.5 else []
        tail, head = [*tail, start, *middle], [*head, *middle, end]
        time += [distance[start, end] / (1 + len(middle))] * (1 + len(middle))
    every = [(a, b) for a in range(towns) for b in range(towns) if a != b]
    origin, destination = zip(*(every[index] for index in random.choice(len(every), pairs, replace=False)), strict=True)
    demand = random.uniform(0.3, 2.0, pairs)
    outside = 1.5 * distance[list(origin), list(destination)] + 0.3
    return NetworkDesign.from_arrays(tail, head, time, time, origin, destination, demand, outside, demand, existing=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_roads_of_several_full_links_are_certified(seed):
    # Most links end up just full, some at no price, and in a row of them any can be the one that holds traffic back.
    design = roads(seed)
    solution = bx.solve(design.problem(), design.start())
    assert solution.success, solution.message
    x, existing = np.asarray(solution.x), np.broadcast_to(present(design.existing), len(design.tail))
    worth = lambda z: design.utility(z, bx.solve_lower_level(design.problem(), z).y)
    for route in design._graph.shortest_routes(design.origin, design.destination)[:3]:
        for change in (1e-3, -1e-3):
            moved = x.copy()
            moved[route] += change
            assert worth(np.maximum(moved, existing)) <= -solution.value + 1e-9


def test_other_multipliers_are_the_extremes_of_full_links_in_a_row():
    # One pair on two links of one road, both full: either of them can carry the whole price.
    design = NetworkDesign.from_arrays([0, 1], [1, 2], [0.1, 0.2], 1.0, [0], [2], [1.0], [2.0], [1.0])
    problem, x = design.problem(), np.array([0.4, 0.4])
    flat = FlatProblem(problem, x, problem.y_like)
    pieces = sparse_pieces(flat)
    point = pieces.evaluate(x, np.zeros(flat.n_y))
    assert point is not None
    prices = pieces.rows.inequality & (np.diff(pieces.rows.B.indptr) > 0)
    # The share 0.4 is chosen at a price of ln(0.6 / 0.4) + 2 - 0.3, in the units of unit rows.
    total = (np.log(0.6 / 0.4) + 1.7) * np.sqrt(2)
    assert point.multiplier[prices].sum() == pytest.approx(total, abs=1e-6)
    others = list(other_multipliers(pieces, point))
    for other in others:
        assert point_at(pieces, other.x, other.y, other.multiplier[: pieces.rows.general])[1] <= RESTORATION.exact
        assert np.array_equal(other.x, point.x)
        assert np.array_equal(other.y, point.y)
    found = sorted(tuple(np.round(other.multiplier[prices] / total, 6)) for other in others)
    assert found == [(0.0, 1.0), (1.0, 0.0)]


def test_the_drag_falls_only_where_the_model_told_the_truth():
    trust = SparseTrust(radius=1.0, rtol=1e-6, drag=1e-3)
    assert trust.after_success(0.1, gain=0.1, share=1.0).drag == pytest.approx(1e-4)
    assert trust.after_success(0.1, gain=0.1, share=0.3).drag == trust.drag
    assert trust.after_success(0.1, gain=1e-13, share=0.3).drag == pytest.approx(1e-4)  # rounding tells nothing


def test_a_step_that_failed_shrinks_the_region_below_its_length():
    trust = SparseTrust(radius=30.0, rtol=1e-6, curved=True)
    assert trust.after_failure(0.8).radius == pytest.approx(0.4)
    assert trust.after_failure(np.inf).radius == pytest.approx(15.0)


class _OnTheLastMultipliersItDescends:
    """Pieces without descent on their own multipliers; of two others the first have a step that f cannot tell."""

    resolution, lands_anywhere = 1e-11, False

    def units(self, point):
        return Units(1.0, 1.0)

    def trust(self, point, rtol):
        return SparseTrust(radius=1.0, rtol=rtol)

    def readings(self, point):
        yield point, np.array([1, 1], np.int8)

    def other_readings(self, point, promises):
        yield point, np.array([-1, 1], np.int8)
        yield point, np.array([-1, -1], np.int8)

    def model(self, point, trust):
        def solve(sides):
            gain = {2: 0.0, 0: 1e-13, -2: 0.0 if point.value < -0.5 else 1.0}[int(sides.sum())]
            end = dataclasses.replace(point, value=point.value - gain)
            return Step(end, sides, gain, length=1e-9, slope=1e-8)

        return SimpleNamespace(solve=solve)

    def arrive(self, step):
        return step.end

    def polished(self, point, trust):
        return None


def test_other_multipliers_are_looked_at_until_one_descends():
    nothing = np.zeros(2)
    start = ExactPoint(np.zeros(1), np.zeros(1), nothing, nothing, value=0.0)
    *_, (end, finished, _) = exact_descent(_OnTheLastMultipliersItDescends(), start, 1e-6)
    assert finished
    assert end.value == -1.0


@pytest.mark.parametrize(("promise", "looked_at"), [(False, 0), (True, 2), (None, 2)])
def test_other_multipliers_are_left_alone_if_all_of_them_together_promise_nothing(monkeypatch, promise, looked_at):
    pieces: Any = SparsePieces.__new__(SparsePieces)
    pieces.rows, pieces.units = SimpleNamespace(inequality=np.ones(3, bool)), lambda: Units(1.0, 1.0)
    at = lambda *multiplier: ExactPoint(np.zeros(1), np.zeros(1), np.array(multiplier), np.zeros(3), value=0.0)
    others, asked = [at(0.0, 2.0, 1.0), at(2.0, 0.0, 1.0)], []
    monkeypatch.setattr("bilevax.solvers.default.pieces.sparse.other_multipliers", lambda setting, point: iter(others))
    promises = lambda point, sides: asked.append(sides) or promise
    assert len(list(pieces.other_readings(at(1.0, 1.0, 1.0), promises))) == looked_at
    np.testing.assert_array_equal(asked, [[BIACTIVE, BIACTIVE, ACTIVE]])


@pytest.mark.parametrize("reverse", [True, False])
def test_negative_curvature_is_reversed_or_dropped(reverse):
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    curvature, convex = np.array([2.0, 0.5, -1.0]), np.array([2.0, 0.5, 1.0 if reverse else 0.0])
    coupled, expected = turn @ np.diag(curvature) @ turn.T, turn @ np.diag(convex) @ turn.T
    for given, wanted in ((np.diag(curvature), np.diag(convex)), (coupled, expected)):
        alone = sp.block_diag([sp.csc_matrix(given), sp.diags([3.0, -4.0])], format="csc")
        found, bent = convexified(sp.csc_matrix(alone), reverse=reverse)
        np.testing.assert_allclose(found.toarray()[:3, :3], wanted, atol=1e-12)
        np.testing.assert_allclose(found.diagonal()[3:], [3.0, 4.0 if reverse else 0.0])
        assert bent


def test_the_least_step_meets_dependent_rows():
    random = np.random.default_rng(0)
    rows = random.standard_normal((4, 9))
    rows = sp.csr_matrix(np.vstack([rows, rows[0] + rows[1]]))  # the last follows from two others
    miss = rows @ random.standard_normal(9)
    step = present(least_step(rows, miss))
    np.testing.assert_allclose(step, np.linalg.lstsq(rows.toarray(), miss, rcond=1e-12)[0], atol=1e-10)


def test_nearest_point_on_rows():
    random = np.random.default_rng(0)
    matrix, start = sp.csr_matrix(random.standard_normal((8, 20))), random.standard_normal(20)
    weights, image = random.uniform(0.5, 2.0, 20), matrix @ start
    low, high = image - 1.0, image + 1.0
    low[:3] = high[:3] = image[:3] + 1e-3  # broken equations
    low[3] = image[3] + 1e-4  # a broken bound
    near = nearest_on_rows(weights, matrix, low, high, start)
    assert near is not None
    best = present(solve_qp(np.diag(weights), -weights * start, matrix.toarray(), low, high))
    np.testing.assert_allclose(near, best, atol=1e-9)
    twice = sp.vstack([matrix, matrix[:1]], format="csr")
    contradicting = nearest_on_rows(weights, twice, np.append(low, low[0] + 0.1), np.append(high, high[0] + 0.1), start)
    assert contradicting is None


def test_a_support_vector_machine_with_slack_variables_is_certified():
    # g is linear in the slacks, and Phi so flat in the logarithms of penalties that only exact programs see its slope.
    random, examples, features = np.random.default_rng(1), 30, 3
    signs = lambda rows: np.sign(rows @ [1, -1, 0.3] + 0.7 * random.standard_normal(len(rows)))
    inside, outside = random.standard_normal((examples, features)), random.standard_normal((40, features))
    labels, judged = signs(inside)[:, None], signs(outside)
    solution = bx.solve(
        bx.BilevelProblem(
            lambda x, y: jnp.mean(jnp.log1p(jnp.exp(-judged * (outside @ y[:features] + y[features])))),
            lambda x, y: jnp.exp(x) @ y[:features] ** 2 / 2 + 1e-4 * y[features] ** 2 + jnp.sum(y[features + 1 :]),
            bx.LinearCoupling(A=np.hstack([labels * inside, labels, np.eye(examples)]), lower=1.0),
            x_set=bx.Box(-6.0, 6.0),
            y_set=bx.Box(np.where(np.arange(features + 1 + examples) <= features, -np.inf, 0.0), np.inf),
        ),
        np.zeros(features),
    )
    assert solution.success, solution.message


def test_large_sparse_problems_are_solved_directly():
    size = 7000
    target = np.linspace(-1, 1, size)
    problem = bx.BilevelProblem(
        lambda x, y, d: jnp.sum((y - d) ** 2) / d.size + 0.1 * jnp.sum(x**2),
        lambda x, y, d: 0.5 * jnp.sum((y - x[0] * d) ** 2),
        bx.LinearCoupling(A=sp.diags([1.0, -1.0], [0, 1], (size - 1, size)), B=sp.csr_matrix((size - 1, 2)), upper=0.0),
        y_set=bx.Box(-2.0, 2.0),
        data=target,
    )
    solution = bx.solve(problem, np.array([0.2, 0.3]), solver=bx.Default(variant="direct"))
    assert solution.success, solution.message
    assert "sweeps" not in solution.stats
    # y = x_0 target is increasing wherever x_0 >= 0, so the rows are slack and Phi is a parabola.
    spread = float(np.mean(target**2))
    np.testing.assert_allclose(solution.x, [spread / (spread + 0.1), 0.0], atol=1e-6)


def test_a_chain_that_starts_at_the_minimiser_of_g_is_certified():
    # The gradient of g is zero at the start, so that it tells nothing of the multipliers to come.
    solution = bx.solve(_chain(7000), np.zeros(3))
    assert "sweeps" not in solution.stats
    assert solution.success, solution.message


def test_steps_in_a_box_are_those_of_the_quadratic_program():
    random = np.random.default_rng(0)
    for _ in range(20):
        root, gradient = random.standard_normal((12, 12)) * np.logspace(-1, 0, 12), random.standard_normal(12)
        hessian, low, high = root.T @ root, -random.random(12), random.random(12)
        step = present(box_step(gradient, hessian, low, high))
        np.testing.assert_allclose(step, present(solve_qp(hessian, gradient, np.eye(12), low, high)), atol=1e-7)


def test_the_high_point_relaxation_is_taken_where_the_lower_level_agrees():
    random = np.random.default_rng(0)
    rows, check = random.standard_normal((40, 4)), random.standard_normal((15, 4))
    problem = bx.BilevelProblem(
        lambda x, y, d: jnp.sum(jnp.exp(1 - d["check"] @ y)) + 0.5 * jnp.sum(x**2),
        lambda x, y, d: 0.5 * jnp.sum(y**2),
        bx.LinearCoupling(A=-rows, B=-sp.eye(40), upper=-1.0),
        data={"check": check},
    )
    solution = bx.solve(problem, np.full(40, 3.0))
    assert solution.success, solution.message
    assert solution.history["phase"][-1] == "high-point relaxation"


@pytest.mark.slow
def test_warm_start_for_changed_data_is_exact_at_once():
    problem, links, _ = network("paper3")
    first = bx.solve(problem, np.ones(links))
    assert first.success, first.message
    dearer = eqx.tree_at(lambda p: p.data["c"], problem, 1.001 * np.asarray(problem.data["c"]))
    again = bx.solve(dearer, np.ones(links), warm_start=first)
    assert again.success, again.message
    assert set(again.history["phase"]) == {"start", "exact descent", "answer"}
    assert again.stats["steps"] < first.stats["steps"]
