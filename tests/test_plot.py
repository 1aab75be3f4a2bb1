"""Pictures: that everything that should be in them is, at its right place."""

import importlib.util

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

import bilevax as bx
from bilevax.app import plot
from bilevax.problems import NetworkDesign

mpl.use("Agg")


def triangle(**options) -> NetworkDesign:
    return NetworkDesign.from_arrays(
        tail=["a", "b", "b", "c", "c", "a"],
        head=["b", "a", "c", "b", "a", "c"],
        time=1.0,
        cost=1.0,
        origin=["a", "c"],
        destination=["c", "a"],
        demand=1.0,
        outside=3.0,
        revenue=4.0,
        **options,
    )


def lanes(ax) -> PolyCollection:
    found = [item for item in ax.collections if isinstance(item, PolyCollection)][-1]
    return found


def width(lane: np.ndarray, tail: np.ndarray, head: np.ndarray) -> float:
    along = (head - tail) / np.linalg.norm(head - tail)
    across = lane @ np.array([along[1], -along[0]])
    return float(np.ptp(across))


@pytest.mark.parametrize("coordinates", [None, [[0.0, 0.0], [2.0, 0.0], [1.0, 1.5]]])
def test_network_draws_every_link_as_wide_as_its_capacity(coordinates) -> None:
    design = triangle(coordinates=coordinates)
    capacity = np.array([1.0, 0.5, 0.25, 0.5, 0.75, 1.0])
    figure, (ax,) = plot.panels(1)
    assert plot.network(design, capacity, ax) is ax
    shapes = [np.asarray(path.vertices)[:-1] for path in lanes(ax).get_paths()]
    assert len(shapes) == len(design.tail)
    places = plot._places(design)
    found = [width(lane, places[a], places[b]) for lane, a, b in zip(shapes, design.tail, design.head, strict=True)]
    assert np.array(found) / found[0] == pytest.approx(capacity)
    assert {text.get_text() for text in ax.texts} >= {"a", "b", "c"}
    assert len(figure.axes) == 2  # with the colours' scale

    flow = bx.solve_lower_level(design.problem(), capacity).y["flow"]
    link, pair = design.flows
    used = np.bincount(link, design.demand[pair] * flow, minlength=6) / capacity
    assert np.asarray(lanes(ax).get_array()) == pytest.approx(np.clip(used, 0, 1), abs=1e-6)


def test_both_directions_of_a_link_lie_side_by_side() -> None:
    design = triangle(coordinates=[[0.0, 0.0], [2.0, 0.0], [1.0, 1.5]])
    _, (ax,) = plot.panels(1)
    there, back = (np.asarray(path.vertices) for path in lanes(plot.network(design, np.ones(6), ax)).get_paths()[:2])
    assert there[:, 1].max() < 0 < back[:, 1].min()  # from a to b is to the right: below the way


def test_network_of_a_solution() -> None:
    design = triangle()
    solution = bx.solve(design.problem(), design.start())
    _, (ax,) = plot.panels(1)
    plot.network(design, solution, ax)
    used = design.links_table(solution)["used"][np.asarray(solution.x) > 0]
    assert np.asarray(lanes(ax).get_array()) == pytest.approx(np.clip(used, 0, 1))


def test_network_without_an_answer_is_grey() -> None:
    figure, (ax,) = plot.panels(1)
    plot.network(triangle(), np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]), ax)
    assert lanes(ax).get_array() is None
    assert np.allclose(lanes(ax).get_facecolor()[0], to_rgba(plot.GREY))
    assert len(figure.axes) == 1


def test_network_without_networkx_is_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "networkx", None)
    assert np.linalg.norm(plot._places(triangle()), axis=1) == pytest.approx(1.0)


def test_network_refuses_other_capacities() -> None:
    with pytest.raises(ValueError, match="expected 6 capacities"):
        plot.network(triangle(), np.ones(5))


def test_hyperobjective_along_a_line_is_exact_with_points_on_it() -> None:
    problem = bx.problems.toy()
    ax = plot.hyperobjective(problem, 0.0, 3.0, samples=7, points=[0.5, bx.solve(problem, 0.7)])
    across, values = ax.lines[0].get_data()
    assert across == pytest.approx(np.linspace(0.0, 3.0, 7))
    assert values == pytest.approx([bx.certify(problem, x).value for x in np.asarray(across)])
    marked = np.asarray(ax.collections[0].get_offsets())
    assert marked[0] == pytest.approx([0.5, bx.certify(problem, 0.5).value])
    assert marked[1] == pytest.approx([0.98622483, 1.7218830], abs=1e-4)


def two_variables() -> bx.BilevelProblem:
    """y between x[1] - 0.5 and 0.5 - x[0]: infeasible where x[0] + x[1] > 1."""
    return bx.BilevelProblem(
        upper=lambda x, y: (x[0] - 1) ** 2 + (x[1] + y[0]) ** 2,
        lower=lambda x, y: (y[0] - x[0]) ** 2,
        coupling=bx.LinearCoupling(A=[[1.0], [-1.0]], B=np.eye(2), upper=0.5),
        y_like=np.zeros(1),
    )


def test_hyperobjective_leaves_a_gap_where_the_lower_level_is_infeasible() -> None:
    ax = plot.hyperobjective(two_variables(), [0.0, 0.0], [2.0, 9.0], variables=0, samples=5)
    across, values = ax.lines[0].get_data()
    assert across == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])
    assert np.isfinite(values).tolist() == [True, True, True, False, False]
    assert ax.get_xlabel() == "x[0]"
    along = plot.hyperobjective(two_variables(), [0.0, 0.0], [1.0, 1.0], samples=5, points=[[0.25, 0.25]])
    assert np.isfinite(along.lines[0].get_ydata()).tolist() == [True, True, True, False, False]
    assert np.asarray(along.collections[0].get_offsets())[0, 0] == pytest.approx(0.25)


def test_hyperobjective_over_two_variables() -> None:
    ax = plot.hyperobjective(
        two_variables(), [-2.0, -2.0], [2.0, 2.0], variables=(1, 0), samples=6, points=[[0.8, 0.2]]
    )
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x[1]", "x[0]")
    assert np.asarray(ax.collections[-1].get_offsets())[0] == pytest.approx([0.2, 0.8])


@pytest.mark.parametrize(("end", "variables"), [([1.0], None), ([1.0, 1.0], 2), ([1.0, 1.0], (0, 1, 1))])
def test_hyperobjective_refuses(end, variables) -> None:
    with pytest.raises(ValueError, match="expected"):
        plot.hyperobjective(two_variables(), [0.0, 0.0], end, variables=variables)


def test_convergence_of_the_default_shows_values_and_the_certified_one() -> None:
    solution = bx.solve(bx.problems.toy(), 0.7)
    ax = plot.convergence(solution)
    steps, values = ax.lines[0].get_data()
    assert np.array_equal(steps, solution.history["step"])
    assert np.array_equal(values, solution.history["upper"])
    assert np.asarray(ax.lines[1].get_ydata()) == pytest.approx(solution.value)


def test_convergence_of_a_compiled_solver_shows_its_residuals() -> None:
    solution = bx.solve(bx.problems.toy(), 0.7, solver=bx.SFLCB(), max_steps=500, callback=lambda _: None)
    ax = plot.convergence(solution)
    drawn = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert set(drawn) == set(solution.history) - {"step", "time", "upper"}
    assert np.array_equal(drawn["gradient"], solution.history["gradient"])
    assert ax.get_yscale() == "log"


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"bilevax\[plot\]"):
        plot.hyperobjective(bx.problems.toy(), 0.0, 3.0)


def test_a_band_of_positive_numbers_stays_positive():
    _, (ax,) = plot.panels(1)
    runs = [[1.0, 1.0], [1.0, 2.0], [900.0, 3.0]]  # the mean of the first column is below its deviation
    plot.band(ax, [1.0, 2.0], runs)
    corners = np.asarray(ax.collections[0].get_paths()[0].vertices)
    assert corners[:, 1].min() >= 1.0


def test_links_that_are_not_built_are_drawn_apart():
    capacity = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    _, (ax,) = plot.panels(1)
    plot.network(triangle(), capacity, ax)
    sizes = [len(item.get_paths()) for item in ax.collections if isinstance(item, PolyCollection)]
    assert sorted(sizes) == [2, 4]
