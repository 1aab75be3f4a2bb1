"""Sensitivity to the penalty delta on the network of 3 nodes: what SFLCB reports, and what its designs are worth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from bilevax.app import plot
from bilevax.app.experiments.networks import (
    BEST_KNOWN,
    PUBLISHED,
    answered,
    judged,
    mark_best_known,
    mark_missing,
    sflcb_visits,
)
from bilevax.app.experiments.report import Report, parameters, say
from bilevax.app.experiments.trajectory import marks
from bilevax.datasets import network
from bilevax.exact.hyperobjective import Hyperobjective

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTAS = (0.01, 0.05, 0.1, 0.5, 1.0)
SEEDS = (1, 2, 3)
NODES = 3


def run(
    deltas: Sequence[float] = DELTAS,
    seeds: Sequence[int] = SEEDS,
    steps: int = 20_000,
    records: int = 30,
) -> Report:
    """Run the figure; five values of delta, three seeds and 20,000 steps of SFLCB are the published numbers."""
    design = network(f"paper{NODES}")
    exact = Hyperobjective(design.problem(), np.ones(len(design.tail)))
    solver = PUBLISHED[NODES][0]
    rows = []
    for delta in deltas:
        say(f"delta: {delta}, {len(seeds)} seeds of {steps} steps")
        penalised = eqx.tree_at(lambda parts: parts.delta, solver, np.asarray(delta))
        for seed in seeds:
            visits = sflcb_visits(design, penalised, seed, marks(steps, records))
            rows += [
                {"method": "SFLCB", "delta": delta, "seed": seed} | judged(visit, design, exact) for visit in visits
            ]
    say(f"delta: default, {len(seeds)} seeds")
    certified = 0
    for seed in seeds:
        solution = design.solve(progress=False, key=seed)
        rows.append({"method": "default", "delta": np.nan, "seed": seed} | answered(solution, design))
        certified += solution.success
    settings = {
        "deltas": list(deltas),
        "seeds": list(seeds),
        "start": "as in the figure of the networks",
        "default": "NetworkDesign.solve(key=seed)",
        "sflcb": parameters(solver) | {"steps": steps, "delta": "varied"},
        "best_known": BEST_KNOWN[NODES],
    }
    table = [_summary(rows, "SFLCB", delta) for delta in deltas] + [_summary(rows, "default", None)]
    figure = _draw(rows, deltas, seeds)
    return Report("delta", settings, rows, figure, table, _sentences(table, certified, len(seeds)))


def _summary(rows: list[dict[str, Any]], method: str, delta: float | None) -> dict[str, Any]:
    mine = [row for row in rows if row["method"] == method and (delta is None or row["delta"] == delta)]
    last = [[row for row in mine if row["seed"] == seed][-1] for seed in dict.fromkeys(row["seed"] for row in mine)]
    of = lambda key: np.array([row[key] for row in last])
    return {
        "method": method,
        "delta": np.nan if delta is None else delta,
        "reported": of("reported").mean(),
        "reported_z": of("reported_z").mean(),
        "utility": of("utility").mean(),
        "deviation": of("utility").std(),
        "without_value": int(np.isnan(of("utility")).sum()),
    }


def _sentences(table: list[dict[str, Any]], certified: int, seeds: int) -> list[str]:
    *sflcb, default = table
    proven = [line for line in sflcb if not np.isnan(line["utility"])]
    best = max(proven, key=lambda line: line["utility"], default=None)
    claimed = max(sflcb, key=lambda line: line["reported_z"])
    lines = [
        f"By what SFLCB reports (z, as published), delta {claimed['delta']:g} is the best: {claimed['reported_z']:.4g} "
        f"(mean over the seeds), against {BEST_KNOWN[NODES]:.4f}, the best any design is known to earn."
    ]
    if best is not None:
        lines.append(f"By true utility delta {best['delta']:g} is the best: {best['utility']:.4g}.")
        over = max(proven, key=lambda line: line["reported_z"] - line["utility"])
        lines.append(
            f"The reported number is above the true one by up to {over['reported_z'] - over['utility']:.3g}, "
            f"at delta {over['delta']:g}."
        )
    lines += [
        f"At delta {line['delta']:g} {line['without_value']} of {seeds} ends have no value: their lower level has no "
        "proven answer."
        for line in sflcb
        if line["without_value"]
    ]
    lines.append(
        f"The default, which has no delta to choose, ends at {default['utility']:.6g} (mean of the seeds); "
        f"{certified} of {seeds} answers are certified."
    )
    return lines


def _draw(rows: list[dict[str, Any]], deltas: Sequence[float], seeds: Sequence[int]) -> "Figure":
    figure, (reported, true) = plot.panels(2, height=4.4)
    colours = (plot.SKY, plot.GREEN, plot.VERMILION, plot.PURPLE, plot.ORANGE)
    for delta, colour in zip(deltas, colours, strict=False):
        runs = [[row for row in rows if row["delta"] == delta and row["seed"] == seed][1:] for seed in seeds]
        steps = [row["step"] for row in runs[0]]
        for ax, key in ((reported, "reported_z"), (true, "utility")):
            plot.band(ax, steps, [[row[key] for row in run] for run in runs], color=colour, label=f"δ = {delta:g}")
        missing = [row["step"] for run in runs for row in run if np.isnan(row["utility"])]
        mark_missing(true, missing, colour, f"δ = {delta:g}: no value, lower level infeasible or unproven")
    answer = float(np.mean([row["utility"] for row in rows if row["method"] == "default"]))
    true.axhline(answer, color=plot.BLUE, linewidth=3, label="default: true utility")
    reported.set(ylabel="operator's utility", title="What SFLCB reports: f(x, z)")
    true.set(ylabel="operator's utility", title="What its designs are worth")
    for ax in (reported, true):
        mark_best_known(ax, NODES)
        ax.set(xscale="log", xlabel="steps", ylim=(-2.0, 2.2))
    plot.legend_below(figure)
    return figure
