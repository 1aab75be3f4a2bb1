"""Towns with their existing roads: what widening them is worth, how well that is proven, and what it costs to find."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevax.app import plot
from bilevax.app.experiments.networks import answered
from bilevax.app.experiments.report import TIME, Report, say
from bilevax.datasets import roads
from bilevax.exact.hyperobjective import Hyperobjective

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How much longer than the shortest way a pair's ways may be.
TOWNS = {"SiouxFalls": 1.2, "Eastern-Massachusetts": 1.05, "Berlin-Friedrichshain": 1.05}


def run(towns: Mapping[str, float] = TOWNS) -> Report:
    """Run the figure: minutes. Costs, fares and the outside option are derived as `NetworkDesign.from_tntp` says."""
    rows, table, answers = [], [], {}
    for name, detour in towns.items():
        design = roads(name, detour=detour)
        say(f"roads: {name}")
        began = time.process_time()
        solution = design.solve(progress=False)
        seconds = time.process_time() - began
        start = Hyperobjective(design.problem(), design.start())(design.start())
        rows.append({"town": name} | answered(solution, design))
        answers[name] = (design, solution)
        table.append(
            {
                "town": name,
                "detour": detour,
                "links": len(design.tail),
                "pairs": len(design.origin),
                "flows": len(design.flows[0]),
                "utility_at_start": -start.value,
                "utility": -solution.value,
                "known_to": solution.certificate.value_error,
                "stationarity": solution.certificate.stationarity,
                "status": str(solution.status),
                "certified": solution.success,
                "cpu_seconds": seconds,
                TIME: solution.stats["time"],
            }
        )
    settings = {"towns": dict(towns), "default": "NetworkDesign.solve()", "start": "NetworkDesign.start()"}
    return Report("roads", settings, rows, _draw(answers), table, [_sentence(line) for line in table])


def _sentence(line: dict[str, Any]) -> str:
    return (
        f"{line['town']}: from {line['utility_at_start']:.6g} at the start to {line['utility']:.7g} "
        f"({line['status']}), stationarity {line['stationarity']:.2g}, in {line['cpu_seconds']:.0f} CPU s."
    )


def _draw(answers: dict[str, Any]) -> "Figure":
    figure, axes = plot.panels(len(answers), width=6.2, height=5.4)
    for ax, (name, (design, solution)) in zip(axes, answers.items(), strict=True):
        plot.network(design, solution, ax)
        wider = int(np.sum(np.asarray(solution.x) > 1.001 * design.existing))
        ax.set_title(f"{name}: {wider} of {len(design.tail)} links widened")
    return figure
