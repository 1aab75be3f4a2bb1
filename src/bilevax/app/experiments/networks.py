"""The networks of 3 and 9 nodes: what SFLCB reports of its designs, what they are worth, and what the default finds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from bilevax.app import plot
from bilevax.app.experiments.report import TIME, Report, is_certified, parameters, say
from bilevax.app.experiments.trajectory import Visit, first_state, follow_steps, marks
from bilevax.datasets import network
from bilevax.driver.solution import Solution
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box
from bilevax.problems.network.design import NetworkDesign
from bilevax.solvers.sflcb import SFLCB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEED = 1
# Bounds of the published scripts, on shares and capacities; the paper has an unnamed small epsilon and x >= 0.
PUBLISHED_SHARE, PUBLISHED_CAPACITY = 0.01, 0.001

PUBLISHED = {3: (SFLCB.paper_network3(), 30_000), 9: (SFLCB.paper_network9(), 300_000)}
# 3 nodes: only the links 1-2 and 2-1 are worth building; 9 nodes: the best certified design of many starts.
BEST_KNOWN = {3: 2 * float(expit(2.0)), 9: 5.427449582}
# Utilities worth seeing: early designs are far below.
_LOWEST_SHOWN = {3: -1.0, 9: -16.0}


def published_problem(design: NetworkDesign) -> BilevelProblem:
    """Return the problem as the published scripts have it: their bounds, and more variables and rows.

    Every pair has a flow on every link and a conservation row at every node. The answers are those of
    ``design.problem(0.01)``, which leaves out what is of no use, but SFLCB penalises violations row by row: the rows
    that follow from others make it keep closer to all of them.
    """
    reduced = design.problem(PUBLISHED_SHARE)
    nodes, links, pairs = len(design.nodes), len(design.tail), len(design.origin)
    link, pair = np.divmod(np.arange(links * pairs), pairs)
    flow, share = np.arange(links * pairs), links * pairs + np.arange(pairs)
    row = lambda owner, node: owner * nodes + node
    # What leaves a node minus what enters it; the share enters at the origin and leaves at the destination.
    entries = (
        (1.0, row(pair, design.tail[link]), flow),
        (-1.0, row(pair, design.head[link]), flow),
        (-1.0, row(np.arange(pairs), design.origin), share),
        (1.0, row(np.arange(pairs), design.destination), share),
    )
    sizes = (pairs * nodes, links * pairs + pairs)
    conservation = sum(sp.csr_matrix((np.full(len(at), sign), (at, of)), shape=sizes) for sign, at, of in entries)
    load = sp.csr_matrix((design.demand[pair], (link, flow)), shape=(links, sizes[1]))
    return BilevelProblem(
        upper=reduced.upper,
        lower=reduced.lower,
        coupling=[
            LinearCoupling(A=conservation, lower=0.0, upper=0.0),
            LinearCoupling(A=load, B=-sp.eye(links), upper=0.0),
        ],
        x_set=Box(PUBLISHED_CAPACITY, np.inf),
        y_set=reduced.y_set,
        data=reduced.data | {"flow_time": design.demand[pair] * design.time[link]},
        y_like={"flow": np.zeros(links * pairs), "share": np.zeros(pairs)},
    )


def published_capacities(design: NetworkDesign, seed: int) -> np.ndarray:
    """Return the scripts' random start: a matrix over the nodes, column by column, from the generator they share."""
    nodes = len(design.nodes)
    draw = np.random.RandomState(seed).uniform(0.3, 1.0, nodes * nodes).reshape((nodes, nodes), order="F")
    return draw[design.tail, design.head]


def sflcb_visits(design: NetworkDesign, solver: SFLCB, seed: int, at: list[int]) -> list[Visit]:
    """Run SFLCB as the published scripts do: from no flow, the smallest shares and multipliers 0."""
    problem, capacities = published_problem(design), published_capacities(design, seed)
    flow, share = (np.zeros(problem.y_like[key].shape) for key in ("flow", "share"))
    y = {"flow": flow, "share": share + PUBLISHED_SHARE}
    return list(follow_steps(problem, solver, first_state(problem, solver, capacities, y), at))


def judged(visit: Visit, design: NetworkDesign, exact: Hyperobjective) -> dict[str, Any]:
    """Return a row: what the iteration says its utility is, and what it is."""
    found = exact(visit.x)
    return {
        "step": visit.step,
        TIME: visit.seconds,
        "reported": design.utility(visit.x, visit.y),
        "reported_z": design.utility(visit.x, visit.z),
        "utility": -found.value,
        "lower_level": found.outcome.name.lower(),
        "infeasibility": found.infeasibility,
        "x": visit.x,
    }


def answered(solution: Solution, design: NetworkDesign) -> dict[str, Any]:
    """Return the row of a design that `NetworkDesign.solve` found; its value is the certificate's."""
    own = design.utility(solution.x, solution.y)
    return {
        "step": solution.stats["steps"],
        TIME: solution.stats["time"],
        "reported": own,
        "reported_z": own,
        "utility": -solution.value,
        "lower_level": "optimal" if solution.certificate.proves_value else "unproven",
        "infeasibility": solution.certificate.lower_infeasibility,
        "x": np.asarray(solution.x),
    }


def run(nodes: Sequence[int] = (3, 9), steps: int | None = None, records: int = 30) -> Report:
    """Run the figure; ``steps`` replaces the published numbers of steps of SFLCB."""
    rows, table, sentences = [], [], []
    settings: dict[str, Any] = {
        "seed": SEED,
        "start": "SFLCB: capacities uniform in [0.3, 1], shares 0.01, flows 0, multipliers 0",
        "default": "NetworkDesign.solve()",
        "sflcb_bounds": {"shares": [PUBLISHED_SHARE, 1 - PUBLISHED_SHARE], "smallest_capacity": PUBLISHED_CAPACITY},
        "minimal_share": 1e-6,
        "best_known": {count: BEST_KNOWN[count] for count in nodes},
        "sflcb": {},
    }
    for count in nodes:
        design = network(f"paper{count}")
        solver, published = PUBLISHED[count]
        limit = published if steps is None else steps
        settings["sflcb"][count] = parameters(solver) | {"steps": limit}
        problem = design.problem()
        exact = Hyperobjective(problem, np.ones(len(design.tail)))
        say(f"{count} nodes: SFLCB, {limit} steps")
        sflcb = [
            {"nodes": count, "method": "SFLCB"} | judged(visit, design, exact)
            for visit in sflcb_visits(design, solver, SEED, marks(limit, records))
        ]
        say(f"{count} nodes: default")
        solution = design.solve(progress=False)
        default = [{"nodes": count, "method": "default"} | answered(solution, design)]
        rows += [*sflcb, *default]
        table += [
            {key: part[-1][key] for key in ("nodes", "method", "step", "reported", "reported_z", "utility", TIME)}
            | {"status": status, "certified": certified}
            for part, status, certified in (
                (sflcb, "fixed steps", is_certified(problem, sflcb[-1]["x"])),
                (default, str(solution.status), solution.success),
            )
        ]
        sentences.append(_sentence(count, sflcb, default, solution.success))
    return Report("networks", settings, rows, _draw(rows, nodes), table, sentences)


def _sentence(nodes: int, sflcb: list[dict[str, Any]], default: list[dict[str, Any]], certified: bool) -> str:
    last, answer, best = sflcb[-1], default[-1], BEST_KNOWN[nodes]
    claimed = (
        f"{nodes} nodes: after {last['step']} steps SFLCB reports a utility of {last['reported_z']:.4g} at its z, "
        f"which the published figure shows, and of {last['reported']:.4g} at its y; "
    )
    true = last["utility"]
    if np.isnan(true):
        truth = f"no exact value exists there: the lower level is {last['lower_level']}."
    else:
        truth = f"its design is worth {true:.4g}."
        if last["reported_z"] > true:
            truth += f" A figure of the published kind overstates it by {last['reported_z'] - true:.3g}"
            truth += (
                f", above the best that any design is known to earn, {best:.4f}." if last["reported_z"] > best else "."
            )
    found = (
        f" The default ends at {answer['utility']:.6f} ({'certified' if certified else 'not certified'}); "
        f"the best known is {best:.6g}."
    )
    return claimed + truth + found


def mark_missing(ax: "Axes", across: list[float], colour: str, label: str) -> None:
    """Mark at the foot of a panel where a design has no value, for its lower level has no proven answer."""
    if across:
        foot = np.full(len(across), 0.02)
        ax.scatter(across, foot, marker="x", s=18, color=colour, transform=ax.get_xaxis_transform(), label=label)


def mark_best_known(ax: "Axes", nodes: int) -> None:
    """Draw the best utility that any design is known to earn."""
    ax.axhline(BEST_KNOWN[nodes], color="black", linestyle="--", linewidth=0.8, label="best known utility")


def _draw(rows: list[dict[str, Any]], nodes: Sequence[int]) -> "Figure":
    figure, axes = plot.panels(len(nodes), height=4.4)
    for ax, count in zip(axes, nodes, strict=True):
        mine = [row for row in rows if row["nodes"] == count and row["method"] == "SFLCB" and row["step"] > 0]
        seconds = [row[TIME] for row in mine]
        for key, name, line in (("reported", "f(x, y)", ":"), ("reported_z", "f(x, z), as published", "--")):
            label = f"SFLCB reports: {name}"
            ax.plot(seconds, [row[key] for row in mine], color=plot.ORANGE, linestyle=line, label=label)
        ax.plot(seconds, [row["utility"] for row in mine], ".-", color=plot.VERMILION, label="SFLCB: true utility")
        missing = [row[TIME] for row in mine if np.isnan(row["utility"])]
        mark_missing(ax, missing, plot.VERMILION, "SFLCB: no value, lower level infeasible or unproven")
        for row in rows:
            if row["nodes"] == count and row["method"] == "default":
                ax.plot(row[TIME], row["utility"], "D", color=plot.BLUE, label="default: true utility")
        mark_best_known(ax, count)
        ax.set_ylim(bottom=_LOWEST_SHOWN[count])
        ax.set(xscale="log", xlabel="time (s)", ylabel="operator's utility", title=f"{count} nodes")
    plot.legend_below(figure)
    return figure
