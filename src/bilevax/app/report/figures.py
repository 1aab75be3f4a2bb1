"""The figures of a page: what a run recorded on its way, Phi around its answer, and the map of a network."""

import html
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.app import plot
from bilevax.driver.solution import Solution
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box
from bilevax.problems.network.design import NetworkDesign

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_NOT_RESIDUALS = ("step", "time", "phase", "upper", "sweeps")
# Exact evaluations for a curve of Phi: along one variable, and along a line through several, which is smoother.
_SAMPLES, _SAMPLES_ON_A_LINE = 201, 41
# How far a line goes on behind the answer, as a part of the way to it.
_BEYOND = 0.25
# Less than this many records make no curve.
_FEWEST_RECORDS = 3


def convergence(solution: Solution) -> Iterator[tuple[str, "Figure"]]:
    """Yield what the run recorded, against its steps and against time: the upper objective, and the residuals."""
    import plotly.graph_objects as go

    history = solution.history
    if len(history["step"]) < _FEWEST_RECORDS:
        return
    # A logarithmic axis has no place for what is never positive.
    residuals = [
        key
        for key, numbers in history.items()
        if key not in _NOT_RESIDUALS and numbers.dtype.kind in "fiu" and (numbers > 0).any()
    ]
    axes = {"step": ("step", "steps"), "time": ("seconds", "time, compilation included")}
    for key, (unit, words) in axes.items():
        across = history[key]
        layout = {"template": "none", "xaxis_title": unit}
        if "upper" in history:
            figure = go.Figure(layout=layout | {"yaxis_title": "f(x, y)"})
            line = {"color": plot.GREY}
            figure.add_scatter(
                x=across, y=history["upper"], mode="lines", line=line, showlegend=False, hoverinfo="skip"
            )
            phases = history.get("phase", np.full(len(history["step"]), "iterates"))
            for phase, style in zip(dict.fromkeys(phases.tolist()), _styles(), strict=False):
                here = phases == phase
                marker = {"color": style["color"]}
                figure.add_scatter(
                    x=across[here], y=history["upper"][here], mode="markers", name=html.escape(phase), marker=marker
                )
            if np.isfinite(solution.value):
                figure.add_hline(y=solution.value, line_dash="dash", line_color=plot.GREEN)
            yield f"The upper objective against {words}; dashed: the certified Φ(x)", figure
        if residuals:
            figure = go.Figure(layout=layout | {"yaxis_title": "residual"})
            figure.update_yaxes(type="log", exponentformat="power")
            for name, style in zip(residuals, _styles(), strict=False):
                positive = np.where(history[name] > 0, history[name], np.nan)
                figure.add_scatter(x=across, y=positive, mode="lines+markers", name=html.escape(name), line=style)
            yield f"What the stopping test looked at, against {words}", figure


def hyperobjective(problem: BilevelProblem, x0: PyTree, solution: Solution) -> tuple[str, "Figure"]:
    """Return Phi, evaluated exactly: over all of a bounded X of one variable, else from the start to the answer."""
    import plotly.graph_objects as go

    start, answer = trees.flatten_host(x0), trees.flatten_host(solution.x)
    phi = Hyperobjective(problem, x0, solution.y)
    whole = _interval(problem) if answer.size == 1 else None
    first, last = (start, answer + _BEYOND * (answer - start)) if whole is None else whole
    parts = np.linspace(0.0, 1.0, _SAMPLES if answer.size == 1 else _SAMPLES_ON_A_LINE)
    marked = {"start": (start, plot.ORANGE, "circle"), "answer": (answer, plot.GREEN, "diamond")}
    # The marked points belong to the curve, which may have a kink there.
    length = float((last - first) @ (last - first)) or 1.0
    place = {name: float((point - first) @ (last - first)) / length for name, (point, *_) in marked.items()}
    parts = np.unique(np.r_[parts, *place.values()])
    across = lambda part: part if answer.size > 1 else first[0] + part * (last - first)[0]
    axis = "x" if answer.size == 1 else "part of the line"
    figure = go.Figure(layout={"template": "none", "xaxis_title": axis, "yaxis_title": "Φ(x)"})
    values = [phi(first + part * (last - first)).value for part in parts]
    figure.add_scatter(x=across(parts).tolist(), y=values, mode="lines", line={"color": plot.BLUE}, showlegend=False)
    for name, (point, colour, symbol) in marked.items():
        marker = {"color": colour, "symbol": symbol, "size": 11}
        figure.add_scatter(x=[across(place[name])], y=[phi(point).value], mode="markers", name=name, marker=marker)
    words = "over X" if whole is not None else "from the start to the answer, and beyond"
    return f"Φ, evaluated exactly, {words}; gaps: the lower level has no answer", figure


def _interval(problem: BilevelProblem) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the ends of X where it is a bounded interval."""
    if not isinstance(problem.x_set, Box):
        return None
    low, high = (np.atleast_1d(np.asarray(end, np.float64)) for end in (problem.x_set.lower, problem.x_set.upper))
    return (low, high) if low.size == high.size == 1 and np.isfinite([*low, *high]).all() else None


def _styles() -> Iterator[dict[str, str]]:
    """Yield styles of lines, in colours that colour-blind people tell apart on a light and on a dark page."""
    colours = (plot.BLUE, plot.VERMILION, plot.GREEN, plot.ORANGE, plot.SKY, plot.PURPLE)
    for dash in itertools.cycle(("solid", "dot", "dash")):
        yield from ({"color": colour, "dash": dash} for colour in colours)


def network_map(design: NetworkDesign, solution: Solution) -> "Figure":
    """Return the network's picture: that of `bilevax.app.plot.network`, with numbers under the pointer."""
    import plotly.graph_objects as go
    from plotly.colors import sample_colorscale

    capacity, used, places, _, lanes = plot.lanes_of(design, solution)
    names = [html.escape(str(name)) for name in design.nodes]
    colours = (
        [plot.GREY] * len(capacity)
        if used is None
        else sample_colorscale(plot._SCALE, np.clip(used, 0.0, 1.0).tolist())
    )
    figure = go.Figure(layout={"template": "none", "showlegend": False})
    for index, (lane, colour) in enumerate(zip(lanes, colours, strict=True)):
        text = f"{names[design.tail[index]]} to {names[design.head[index]]}: capacity {capacity[index]:.4g}"
        text += "" if used is None else f", {used[index]:.1%} used"
        figure.add_scatter(
            x=lane[:, 0], y=lane[:, 1], mode="lines", fill="toself", fillcolor=colour, line_color=plot.GREY,
            line_width=0.5, hoveron="fills", hoverinfo="text", text=text,
        )  # fmt: skip
    # The names lie beside the nodes, in the page's colour; the nodes carry the links' scale.
    figure.add_scatter(
        x=places[:, 0], y=places[:, 1], text=names, hoverinfo="text", textposition="top center",
        mode="markers" if len(names) > plot._MANY_NODES else "markers+text",
        marker={
            "size": 8, "color": np.zeros(len(names)), "line": {"color": plot.GREY, "width": 1},
            "colorscale": plot._SCALE, "cmin": 0.0, "cmax": 1.0, "showscale": used is not None,
            "colorbar": {"title": {"text": "used"}, "tickformat": ".0%", "thickness": 12},
        },
    )  # fmt: skip
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    return figure
