"""Pictures, with matplotlib: how a run went, Phi along a line or over two variables, and a network with its loads.

Colours are told apart by colour-blind people too: the palette of Okabe and Ito for lines, cividis for scales.
"""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.driver.solution import Solution
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.design import NetworkDesign

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilevax.driver.comparison import Comparison

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, YELLOW = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#F0E442",
)
GREY = "#999999"
_UNBUILT = "#b0b0b0"
_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, "black", GREY)
_SCALE = "cividis"
_MANY_NODES = 40


def convergence(solution: Solution, ax: "Axes | None" = None) -> "Axes":
    """Draw how a run went: the residuals of its stopping test, or the values of f where it has none.

    Parameters
    ----------
    solution
        What `bilevax.solve` returned. A run that nobody watched has only its beginning and its end in its history: a
        callback, ``progress=True`` or a time limit makes it look more often.
    ax
        Where to draw; a new figure when absent.
    """
    ax = _axes(ax)
    history = solution.history
    if not history:
        raise ValueError("solution: expected a history to draw, got none.")
    residuals = [key for key in history if key not in ("step", "time", "phase", "upper", "best", "sweeps")]
    if residuals:
        for colour, key in zip(_cycle(len(residuals)), residuals, strict=True):
            ax.semilogy(history["step"], np.where(history[key] > 0, history[key], np.nan), color=colour, label=key)
        ax.set_ylabel("residual")
    else:
        phases = list(dict.fromkeys(history["phase"]))
        ax.plot(history["step"], history["upper"], color=GREY, linewidth=1, zorder=1)
        for colour, phase in zip(_cycle(len(phases)), phases, strict=True):
            here = history["phase"] == phase
            ax.scatter(history["step"][here], history["upper"][here], s=14, color=colour, label=phase, zorder=2)
        ax.axhline(solution.value, color="black", linestyle="--", linewidth=1, label=f"certified: {solution.value:.6g}")
        ax.set_ylabel("f(x, y)")
    ax.set_xlabel("step")
    ax.locator_params(axis="x", integer=True)
    ax.legend(fontsize="small")
    return ax


def hyperobjective(
    problem: BilevelProblem,
    start: PyTree,
    end: PyTree,
    *,
    variables: int | Sequence[int] | None = None,
    samples: int | None = None,
    points: Sequence[Any] = (),
    y_like: PyTree = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw Phi, evaluated exactly: along a line, or over two variables. Where the lower level is infeasible is a gap.

    Parameters
    ----------
    problem
        The problem.
    start, end
        Two points x: the ends of the line, or opposite corners of the rectangle.
    variables
        None: the straight line from start to end. One position in the flattened x: that variable alone, the others as
        in ``start``. Two positions: both of them, as contours.
    samples
        Points a direction; 200 on a line and 40 over two variables when absent. Each is one exact lower-level solve.
    points
        Points found, `Solution` or x, to be marked; on a line at the nearest place and at their own Phi.
    y_like
        An example of y, where the problem does not tell its shape.
    ax
        Where to draw; a new figure when absent.
    """
    phi = Hyperobjective(problem, start, y_like)
    first, last = trees.flatten_host(start), trees.flatten_host(end)
    if first.shape != last.shape:
        raise ValueError(f"end: expected {first.size} numbers as in start, got {last.size}.")
    chosen = None if variables is None else np.atleast_1d(np.asarray(variables, int))
    if chosen is not None and (chosen.size not in (1, 2) or chosen.min() < 0 or chosen.max() >= first.size):
        raise ValueError(f"variables: expected one or two positions below {first.size}, got {variables}.")
    marked = [trees.flatten_host(point.x if isinstance(point, Solution) else point) for point in points]
    ax = _axes(ax)
    if chosen is not None and chosen.size == 2:
        _contours(ax, phi, first, last, chosen, 40 if samples is None else samples, marked)
    else:
        if chosen is not None:
            last = np.where(np.arange(first.size) == chosen[0], last, first)
        elif first.size == 1:
            chosen = np.array([0])
        _line(ax, phi, first, last, chosen, 200 if samples is None else samples, marked)
    return ax


def comparison(found: "Comparison") -> "Figure":
    """Draw true Phi against time, a line a method; dashed what it reports itself, a diamond where it is certified.

    A cross on the lower edge marks an end at which the lower level has no answer: there is no value to show.
    """
    figure, (ax,) = panels(1)
    ran = [contender for contender in found.contenders if contender.solution is not None and len(contender.phi)]
    if not ran:
        raise ValueError("found: expected methods with points on their way, got none; compare with points > 0.")
    for colour, contender in zip(_cycle(len(ran)), ran, strict=True):
        assert contender.solution is not None
        seconds = np.maximum(contender.seconds, 1e-3)
        ax.plot(seconds, contender.phi, color=colour, marker=".", label=contender.name)
        ax.plot(seconds[:-1], contender.reported[:-1], color=colour, linestyle="--", linewidth=0.8)
        if contender.solution.success:
            ax.plot(seconds[-1], contender.phi[-1], color=colour, marker="D")
        elif not np.isfinite(contender.phi[-1]):
            ax.plot(seconds[-1], 0.02, color=colour, marker="x", transform=ax.get_xaxis_transform())
    shown = np.concatenate([contender.phi[np.isfinite(contender.phi)] for contender in ran])
    if shown.size and shown.min() > 0 and shown.max() > 30 * shown.min():
        ax.set_yscale("log")
    elif shown.size:  # reported values may be anything
        room = 0.1 * (np.ptp(shown) or 1.0)
        ax.set_ylim(shown.min() - room, shown.max() + room)
    ax.set(xscale="log", xlabel="time (s)", ylabel="Φ(x), exact")
    legend_below(figure)
    return figure


def network(design: NetworkDesign, solution: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw a network: links as wide as their capacity, coloured by the part of it that is used, by side of the road.

    Links of no capacity are thin and grey.

    Parameters
    ----------
    design
        The network; nodes without coordinates are laid out, by networkx where it is installed, else on a circle.
    solution
        A `Solution` of ``design.problem()``, or capacities; then the travellers' answer is computed here. Where they
        have none, for not even the smallest shares fit, the links stay grey.
    ax
        Where to draw; a new figure when absent.
    """
    ax = _axes(ax)
    from matplotlib.collections import PolyCollection

    capacity, used, places, radius, shapes = lanes_of(design, solution)
    built = capacity > 0
    chosen = lambda these: [shapes[index] for index in np.flatnonzero(these)]
    lanes = PolyCollection(chosen(built), linewidths=0.2, edgecolors="black", zorder=1)
    if not built.all():
        ax.add_collection(PolyCollection(chosen(~built), linewidths=0.0, facecolors=_UNBUILT, zorder=0))
    if used is None:
        lanes.set_facecolor(GREY)
    else:
        lanes.set_array(np.clip(used[built], 0.0, 1.0))
        lanes.set_cmap(_SCALE)
        lanes.set_clim(0.0, 1.0)
    ax.add_collection(lanes)
    named = len(design.nodes) <= _MANY_NODES
    for place, name in zip(places, design.nodes, strict=True):
        ax.add_patch(_circle(place, radius if named else 0.4 * radius))
        if named:
            ax.text(
                float(place[0]),
                float(place[1]),
                str(name),
                ha="center",
                va="center",
                fontsize=8 if len(places) <= 12 else 6.5,
                zorder=3,
            )
    ax.set_aspect("equal")
    ax.autoscale_view()
    ax.margins(0.05)
    ax.set_axis_off()
    if used is not None:
        ax.figure.colorbar(lanes, ax=ax, label="used part of the capacity", shrink=0.8)
    ax.annotate(
        f"widest link: capacity {capacity.max():.3g}", (0.0, 0.0), xycoords="axes fraction", va="top", fontsize="small"
    )
    return ax


def lanes_of(
    design: NetworkDesign, solution: Any
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, float, list[np.ndarray]]:
    """Return what a picture of a network needs: capacities, used parts, nodes' places and radius, links' outlines.

    The used parts are None where the travellers have no answer.
    """
    capacity, used = _use(design, solution)
    places = _places(design)
    length = np.linalg.norm(places[design.head] - places[design.tail], axis=1)
    unit = min(np.median(length), 0.25 * np.linalg.norm(np.ptp(places, axis=0)))
    radius, widest = 0.13 * unit, 0.1 * unit
    width = widest * np.maximum(capacity / max(capacity.max(), 1e-300), 0.03)
    shapes = [
        _lane(places[tail], places[head], size, radius)
        for tail, head, size in zip(design.tail, design.head, width, strict=True)
    ]
    return capacity, used, places, radius, shapes


def legend_below(figure: "Figure") -> None:
    """Put one legend for all panels below them, where it hides nothing."""
    named = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    columns = 2 * len(figure.axes)
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, fontsize="small")


def band(ax: "Axes", across: Any, runs: Any, **style: Any) -> None:
    """Draw the mean of several runs, one a row, and one standard deviation around it; a gap where any has no number.

    The band ends at the least and the largest run: of positive numbers it stays on a logarithmic axis.
    """
    middle, width = np.mean(runs, axis=0), np.std(runs, axis=0)
    (line,) = ax.plot(across, middle, **style)
    low, high = np.maximum(middle - width, np.min(runs, axis=0)), np.minimum(middle + width, np.max(runs, axis=0))
    ax.fill_between(across, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def _use(design: NetworkDesign, solution: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the capacities and the part of each that is used, None where the travellers have no answer."""
    capacity = np.asarray(solution.x if isinstance(solution, Solution) else solution, np.float64)
    if capacity.shape != design.tail.shape:
        raise ValueError(f"solution: expected {len(design.tail)} capacities, one a link, got shape {capacity.shape}.")
    if isinstance(solution, Solution):
        return capacity, design.links_table(solution)["used"] if np.isfinite(solution.value) else None
    answer = Hyperobjective(design.problem(), capacity)(capacity)
    if not np.isfinite(answer.value):
        return capacity, None
    link, pair = design.flows
    flow = np.bincount(link, design.demand[pair] * np.asarray(answer.y["flow"]), minlength=len(capacity))
    return capacity, np.divide(flow, capacity, out=np.zeros_like(flow), where=capacity > 0)


def _places(design: NetworkDesign) -> np.ndarray:
    if design.coordinates is not None:
        return np.asarray(design.coordinates, np.float64)
    count = len(design.nodes)
    try:
        import networkx
    except ImportError:
        angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
        return np.column_stack([np.cos(angle), np.sin(angle)])
    graph = networkx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(zip(design.tail.tolist(), design.head.tolist(), strict=True))
    found = networkx.spring_layout(graph, seed=0, iterations=500)
    return np.array([found[index] for index in range(count)])


def _lane(tail: np.ndarray, head: np.ndarray, width: float, radius: float) -> np.ndarray:
    """Return the outline of a link: a lane on the right of the way, pointed at its head."""
    along = (head - tail) / max(np.linalg.norm(head - tail), 1e-300)
    right = np.array([along[1], -along[0]])
    gap = 0.12 * radius
    first, last = tail + radius * along, head - radius * along
    tip = last - min(1.2 * max(width, 0.3 * radius), 0.5 * np.linalg.norm(last - first)) * along
    inner, outer = gap * right, (gap + width) * right
    return np.array([first + inner, last + inner, tip + outer, first + outer])


def _circle(place: np.ndarray, radius: float) -> Any:
    from matplotlib.patches import Circle

    return Circle((float(place[0]), float(place[1])), radius, facecolor="white", edgecolor="black", zorder=2)


def _line(
    ax: "Axes",
    phi: Hyperobjective,
    first: np.ndarray,
    last: np.ndarray,
    chosen: np.ndarray | None,
    samples: int,
    marked: list[np.ndarray],
) -> None:
    parts = np.linspace(0.0, 1.0, samples)
    values = [phi(first + part * (last - first)).value for part in parts]
    # Along one variable the axis shows that variable, else how far along the line.
    place = lambda part: part if chosen is None else first[chosen[0]] + part * (last - first)[chosen[0]]
    ax.plot(place(parts), values, color=BLUE, zorder=1)
    if marked:
        direction = (last - first) / ((last - first) @ (last - first))
        where = [place((point - first) @ direction) for point in marked]
        ax.scatter(where, [phi(point).value for point in marked], s=22, color=VERMILION, zorder=2)
    ax.set_xlabel("part of the way from start to end" if chosen is None else _name(chosen[0], first.size))
    ax.set_ylabel("Φ(x)")


def _contours(
    ax: "Axes",
    phi: Hyperobjective,
    first: np.ndarray,
    last: np.ndarray,
    chosen: np.ndarray,
    samples: int,
    marked: list[np.ndarray],
) -> None:
    across, up = (np.linspace(first[index], last[index], samples) for index in chosen)
    values = np.empty((samples, samples))
    for row, column in np.ndindex(values.shape):
        point = first.copy()
        point[chosen] = across[column], up[row]
        values[row, column] = phi(point).value
    # Rounding errors above the last of the round levels would be holes.
    unit = 1e-9 * float(np.nanmax(values) - np.nanmin(values)) or 1.0
    drawn = ax.contourf(across, up, np.ma.masked_invalid(unit * np.round(values / unit)), levels=20, cmap=_SCALE)
    ax.figure.colorbar(drawn, ax=ax, label="Φ(x)")
    if marked:
        where = np.array(marked)[:, chosen]
        ax.scatter(where[:, 0], where[:, 1], s=30, color=VERMILION, edgecolors="white", linewidths=0.8, zorder=2)
    ax.set_xlabel(_name(chosen[0], first.size))
    ax.set_ylabel(_name(chosen[1], first.size))


def _name(index: int, size: int) -> str:
    return "x" if size == 1 else f"x[{index}]"


def _cycle(count: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def panels(count: int, width: float = 5.2, height: float = 3.8) -> "tuple[Figure, list[Axes]]":
    """Return a figure of panels side by side that belongs to no window, each of this size in inches."""
    _need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _axes(ax: "Axes | None") -> "Axes":
    _need_matplotlib()
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("plots need matplotlib: pip install 'bilevax[plot]'")
