"""The figures of the paper in small: what they write, that it is the same twice, and that it is exact."""

import csv
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

import bilevax as bx
from bilevax.app.experiments import delta, methods, networks, roads, seville, svm, toy
from bilevax.app.experiments.__main__ import FIGURES, _made_by, main
from bilevax.app.experiments.report import TIME, Report
from bilevax.app.experiments.trajectory import first_state, follow_steps, marks
from bilevax.datasets import diabetes, network, paper_splits, quadratic_features
from test_network_solve import exact_utility

ENDINGS = ("png", "svg", "csv", "npz", "json", "txt")

SMALL: dict[str, Callable[[], Report]] = {
    "toy": lambda: toy.run(starts=4, steps=300),
    "svm": lambda: svm.run(splits=2, steps=60, records=2),
    "methods": lambda: methods.run(splits=1, share=0.01, records=2),
    "networks": lambda: networks.run(nodes=(3,), steps=400, records=3),
    "delta": lambda: delta.run(deltas=(0.1, 1.0), seeds=(1,), steps=300, records=2),
    "seville": lambda: seville.run(name="paper3"),
    "roads": lambda: roads.run(towns={"Braess-Example": 2.0}),
}


FEW = functools.partial(paper_splits, train=90, validation=40)  # of the published 500 and 150


@pytest.fixture(autouse=True)
def _small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows of the plain features, without their products."""
    for module in (svm, methods):
        monkeypatch.setattr(module, "paper_splits", FEW)
        monkeypatch.setattr(module, "quadratic_features", lambda dataset: dataset)


@functools.cache
def small(name: str) -> Report:
    return SMALL[name]()


def problem_of(name: str, row: dict[str, str]) -> bx.BilevelProblem:
    if name == "toy":
        return bx.problems.toy()
    if name in ("svm", "methods"):
        split = FEW(diabetes(), 2)[int(row["split"])]
        return bx.problems.svm(split.train, split.validation)
    if name == "roads":
        return bx.datasets.roads(row["town"], detour=2.0).problem()
    return network("paper3").problem()


def exact_value(name: str, row: dict[str, str], x: np.ndarray) -> float:
    """Return Phi at a point; designs that leave links out are judged by `exact_utility`, which has no floor."""
    if name in ("networks", "delta", "seville") and not np.all(x > 0):
        return -exact_utility(network("paper3"), x)
    return bx.certify(problem_of(name, row), x).value


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_ends_of_every_method_are_certified_by_the_same_judge() -> None:
    """SFLCB converges on the toy and has no certificate of its own."""
    rows = toy.run(starts=3, steps=10_000).rows
    assert [row["method"] for row in rows if row["certified"]] == ["SFLCB"] * 3 + ["default"] * 3
    early = toy.run(starts=3, steps=20).rows
    assert not any(row["certified"] for row in early if row["method"] == "SFLCB")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_files_numbers_and_exactness(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    report = small(name)
    paths = report.write(first)
    dataclasses.replace(SMALL[name](), figure=Figure()).write(second)  # numbers are compared, not pictures
    assert [path.name for path in paths] == [f"{name}.{ending}" for ending in ENDINGS]
    assert all(path.stat().st_size > 0 for path in paths)

    rows, again = table(first / f"{name}.csv"), table(second / f"{name}.csv")
    without_time = [[{key: row[key] for key in row if key != TIME} for row in run] for run in (rows, again)]
    assert len(rows) == len(report.rows) > 0
    assert without_time[0] == without_time[1]
    told, told_again = (json.loads((folder / f"{name}.json").read_text()) for folder in (first, second))
    assert told["settings"] == told_again["settings"]
    assert set(told["settings"]["versions"]) >= {"bilevax", "jax", "numpy", "python"}
    assert set(told["made"]) == {"date", "commit", "machine"}
    assert len(told["table"]) == len(report.table)
    assert told["sentences"] == report.sentences

    points, same = np.load(first / f"{name}.npz"), np.load(second / f"{name}.npz")
    assert len(points.files) == len(rows)
    assert all(np.array_equal(points[key], same[key]) for key in points.files)
    key, sign = ("phi", 1.0) if name in ("toy", "svm", "methods") else ("utility", -1.0)
    for index in np.unique(np.linspace(0, len(rows) - 1, 3).astype(int)):
        value = exact_value(name, rows[index], points[f"arr_{index}"])
        written = rows[index][key]
        if np.isfinite(value):
            assert float(written) == pytest.approx(sign * value, rel=1e-9, abs=1e-9)
        else:
            assert written == ""
    assert all(sentence in str(report) for sentence in report.sentences)


def test_trajectory_is_the_solver_itself() -> None:
    problem, solver, steps = bx.problems.toy(), bx.SFLCB(), 137
    state = first_state(problem, solver, 0.7, np.zeros(()))
    visits = list(follow_steps(problem, solver, state, marks(steps, 6)))
    with jax.enable_x64(True):
        result = bx.run(problem, 0.7, y0=0.0, solver=solver, rtol=0.0, atol=0.0, max_steps=steps)
    assert [visit.step for visit in visits] == marks(steps, 6)
    assert visits[-1].step == steps
    assert float(visits[0].x) == 0.7
    assert float(visits[-1].x) == pytest.approx(float(result.x), rel=1e-12)
    assert float(visits[-1].z) == pytest.approx(float(result.state.z), rel=1e-12)
    assert all(later.seconds > earlier.seconds for earlier, later in itertools.pairwise(visits))


def test_start_carries_the_multipliers() -> None:
    state = first_state(bx.problems.toy(), bx.SFLCB(), 0.7, np.zeros(()), (np.array([3.0]),))
    assert float(state.u[0][0]) == float(state.v[0][0]) == 3.0


def test_a_design_without_value_is_no_number(tmp_path: Path) -> None:
    design = network("paper3")
    exact = networks.Hyperobjective(design.problem(), np.ones(6))
    share = {"flow": np.zeros(len(design.flows[0])), "share": np.full(6, 0.5)}
    row = networks.judged(networks.Visit(1, 0.1, np.zeros(6), share, share), design, exact)
    assert row["reported"] == pytest.approx(9.0)  # half of the revenue of 18, and nothing built
    assert np.isnan(row["utility"])
    assert row["lower_level"] == "infeasible"
    assert row["infeasibility"] > 0
    figure = networks._draw([{"nodes": 3, "method": method} | row for method in ("SFLCB", "default")], (3,))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "SFLCB: no value, lower level infeasible or unproven" in labels
    Report("empty", {}, [row], figure, [{"utility": row["utility"]}], []).write(tmp_path)
    assert table(tmp_path / "empty.csv")[0]["utility"] == ""


def test_published_rows_have_the_same_answers() -> None:
    design = network("paper3")
    for seed in (1, 2):
        capacities = networks.published_capacities(design, seed)
        published = bx.solve_lower_level(networks.published_problem(design), capacities)
        reduced = bx.solve_lower_level(design.problem(networks.PUBLISHED_SHARE), capacities)
        assert published.y["flow"].shape == (36,)
        assert published.y["share"] == pytest.approx(reduced.y["share"], abs=1e-7)


def test_published_start_is_the_scripts_generator() -> None:
    design = network("paper3")
    # rng(1); rand(3) of the scripts' language: 0.4170, 0.7203, 0.0001 is its first column.
    start = published = networks.published_capacities(design, 1)
    down = {(tail, head): value for tail, head, value in zip(design.tail, design.head, published, strict=True)}
    assert down[1, 0] == pytest.approx(0.3 + 0.7 * 0.7203244934421581)
    assert down[2, 0] == pytest.approx(0.3 + 0.7 * 0.00011437481734488664)
    assert ((start >= 0.3) & (start <= 1.0)).all()


def test_svm_optimum_bounds_phi_and_is_met() -> None:
    dataset = quadratic_features(diabetes())
    split = paper_splits(dataset, 1)[0]
    optimum = svm.global_optimum(split)
    assert optimum == pytest.approx(417.3201, abs=1e-4)
    problem = bx.problems.svm(split.train, split.validation)
    for seed in range(3):
        c = np.random.default_rng(seed).uniform(1.0, 1.5, len(split.train))
        assert bx.solve_lower_level(problem, c).outcome.name == "OPTIMAL"
        assert svm.Hyperobjective(problem, c)(c).value > optimum


def test_command_writes_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES, "toy", lambda: small("toy"))
    main(["toy", "--output", str(tmp_path)])
    printed = capsys.readouterr()
    assert "Default: 4 of 4 ends lie within" in printed.out
    assert "toy.png" in printed.err
    assert (tmp_path / "toy.txt").read_text().strip() == printed.out.strip()


@pytest.mark.slow
def test_a_figure_that_fails_in_another_process_is_told(tmp_path):
    [(name, made)] = _made_by(1, ["nothing"], tmp_path)
    assert name == "nothing"
    assert isinstance(made, KeyError)
