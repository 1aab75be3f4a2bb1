"""Seville's network of 24 nodes: what its file starts from, what the default builds, and the way to it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bilevax.app import plot
from bilevax.app.experiments.networks import Visit, answered, judged
from bilevax.app.experiments.report import TIME, Report, say
from bilevax.datasets import network
from bilevax.driver.solution import Solution
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.problems.network.design import NetworkDesign

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(name: str = "seville") -> Report:
    """Run the figure. The paper has no such network; what is built is compared with the start that its file names."""
    design = network(name)
    say("seville: default")
    solution = design.solve(progress=False)
    start = design.start()
    exact = Hyperobjective(design.problem(), start)
    begun = exact(start)
    first = judged(Visit(0, 0.0, start, begun.y, begun.y), design, exact)
    rows = [{"method": "start"} | first, {"method": "default"} | answered(solution, design)]
    table = [
        {
            "status": str(solution.status),
            "certified": solution.success,
            "utility": rows[-1]["utility"],
            "utility_at_start": rows[0]["utility"],
            "stationarity": solution.certificate.stationarity,
            "best_unbuilt": solution.stats["best_unbuilt"],
            "links_built": int(np.count_nonzero(solution.x)),
            "links": len(design.tail),
            "pairs_served": solution.stats["served"],
            TIME: solution.stats["time"],
        }
    ]
    worth, built = table[0]["best_unbuilt"], table[0]["links_built"]
    sentences = [
        f"From {rows[0]['utility']:.4g} at the start of its file the default comes to a utility of "
        f"{rows[-1]['utility']:.6g}, with {built} of {len(design.tail)} links. {solution.status.value}"
        + ("" if worth is None else f" A unit of the best link that is not built is worth {worth:.3g}.")
    ]
    settings = {"network": name, "default": "NetworkDesign.solve()", "start": "NetworkDesign.start()"}
    return Report("seville", settings, rows, _draw(design, start, solution, rows), table, sentences)


def _draw(design: NetworkDesign, start: np.ndarray, solution: Solution, rows: list[dict[str, Any]]) -> "Figure":
    figure, (way, before, after) = plot.panels(3, width=6.2, height=5.4)
    history = solution.history
    way.step(history["time"], -history["best"], where="post", color=plot.GREY, label="best design of the search")
    way.plot(rows[-1][TIME], rows[-1]["utility"], "D", color=plot.BLUE, label="default: true utility")
    way.set(xlabel="time (s)", ylabel="operator's utility", title=f"{len(design.nodes)} nodes: the search")
    plot.legend_below(figure)
    plot.network(design, start, before)
    before.set_title("The file's start")
    plot.network(design, solution, after)
    after.set_title("What the default builds")
    return figure
