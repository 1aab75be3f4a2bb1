"""Seville's network of 24 nodes: the default's design, and the way to it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bilevax.app import plot
from bilevax.app.experiments.networks import judged, mark_missing
from bilevax.app.experiments.report import TIME, Report, say
from bilevax.app.experiments.trajectory import follow_search
from bilevax.datasets import network
from bilevax.driver.solution import Solution
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.problems.network.design import NetworkDesign

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(name: str = "seville", records: int = 6, rtol: float = 1e-3) -> Report:
    """Run the figure: some minutes. The paper has no such network; the start is the one that its file names."""
    design = network(name)
    start = design.start()
    say("seville: default, some minutes")
    solution, visits = follow_search(design.problem(), start, records, rtol=rtol)
    say(f"seville: {len(visits)} exact evaluations")
    exact = Hyperobjective(design.problem(), start)
    rows = [judged(visit, design, exact) for visit in visits]
    certificate = solution.certificate
    table = [
        {
            "status": str(solution.status),
            "utility": rows[-1]["utility"],
            "utility_at_start": rows[0]["utility"],
            "stationarity": certificate.stationarity,
            "lower_infeasibility": certificate.lower_infeasibility,
            "links_built": int((np.asarray(solution.x) > _BUILT).sum()),
            "steps": solution.stats["steps"],
            TIME: solution.stats["time"],
        }
    ]
    sentences = [
        f"From {rows[0]['utility']:.4g} at the start the default comes to a utility of {rows[-1]['utility']:.6g}; it "
        f"builds {table[0]['links_built']} of {len(design.tail)} links. Status: {solution.status.value}"
    ]
    settings = {"network": name, "start": "NetworkDesign.start()", "rtol": rtol, "minimal_share": 1e-6}
    return Report("seville", settings, rows, _draw(design, solution, rows), table, sentences)


# Of the largest capacities, of the order of one: what is below is not there.
_BUILT = 1e-3


def _draw(design: NetworkDesign, solution: Solution, rows: list[dict[str, Any]]) -> "Figure":
    figure, (way, map_) = plot.panels(2, width=7.6, height=5.4)
    later = rows[1:]
    seconds = [row[TIME] for row in later]
    reported = [row["reported"] for row in later]
    way.plot(seconds, reported, "--", color=plot.ORANGE, label="the iteration's own f(x, y)")
    way.plot(seconds, [row["utility"] for row in later], "o", color=plot.BLUE, label="true utility")
    missing = [row[TIME] for row in later if np.isnan(row["utility"])]
    mark_missing(way, missing, plot.BLUE, "no value, lower level infeasible or unproven")
    way.set(xlabel="time (s)", ylabel="operator's utility", title=f"{len(design.nodes)} nodes: default")
    plot.legend_below(figure)
    plot.network(design, solution, map_)
    map_.set_title("The design")
    return figure
