"""`write`: answers, what their certificates prove and how they were found, as one HTML page that needs nothing else."""

import datetime
import html
import importlib.metadata
import importlib.util
import itertools
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.trees import summarise
from bilevax.app import plot
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.driver.solution import Solution
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.design import NetworkDesign

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PACKAGES = ("bilevax", "jax", "jaxlib", "equinox", "lineax", "numpy", "scipy", "clarabel")
_NUMBERS_SHOWN = 2000
_ROWS_SHOWN = 1000
_NOT_RESIDUALS = ("step", "time", "phase", "upper", "sweeps")


class Check(NamedTuple):
    """A line of a certificate: what was measured, what it has to be, and whether it is.

    Attributes
    ----------
    name
        What was measured.
    value
        A number, a yes or no, or a text.
    limit
        What success asks of it, as text; empty where nothing.
    passed
        Whether it is so; None where success does not ask.
    meaning
        A sentence on what the number means.
    """

    name: str
    value: Any
    limit: str
    passed: bool | None
    meaning: str


def checks(certificate: Certificate, rtol: float = 1e-6) -> list[Check]:
    """Return a certificate line by line; all of those that are asked for hold exactly when it ``confirms(rtol)``."""

    def at_most(name: str, value: float, limit: float, meaning: str) -> Check:
        return Check(name, value, f"≤ {limit:.3g}", bool(value <= limit), meaning)

    def told(name: str, value: Any, meaning: str) -> Check:
        return Check(name, value, "", None, meaning)

    solved = certificate.failure is None
    rows = [
        Check(
            "Φ(x)",
            certificate.value,
            "finite",
            bool(np.isfinite(certificate.value)),
            "The upper objective at x and the exact lower-level answer: the value of this x, and of no other y.",
        ),
        Check(
            "lower level solved",
            "yes" if certificate.failure is None else certificate.failure.value,
            "yes",
            solved,
            "Whether an independent exact method found the lower level's minimiser at x.",
        ),
        Check(
            "lower level feasible",
            certificate.lower_feasible,
            "yes",
            certificate.lower_feasible,
            "Whether any y satisfies the rows at x.",
        ),
        at_most(
            "lower-level infeasibility",
            certificate.lower_infeasibility,
            TOLERANCES.lower,
            "How far y violates the rows and Y, relative to their size."
            if certificate.lower_feasible
            else "The smallest uniform relaxation of the rows that would make the lower level feasible.",
        ),
        at_most(
            "lower-level stationarity",
            certificate.lower_stationarity,
            TOLERANCES.lower,
            "The gradient of the lower level's Lagrangian in y at the minimiser of g, relative to its terms.",
        ),
        at_most(
            "lower-level complementarity",
            certificate.lower_complementarity,
            TOLERANCES.lower,
            "How far rows that are not active are from having no multiplier.",
        ),
        at_most("distance of x from X", certificate.x_infeasibility, TOLERANCES.lower, "Relative to the size of x."),
        at_most(
            "stationarity of x",
            certificate.stationarity,
            rtol,
            "The slope of Φ that is left, relative to its pieces', kinks and borders of feasibility included. "
            f"Test: {certificate.stationarity_test}.",
        ),
        at_most(
            "radius of stationarity",
            certificate.radius,
            rtol,
            "How far x would have to move, in natural units, for that slope to hold; 0 where no margin was used.",
        ),
        at_most(
            "error of the value",
            certificate.value_error,
            TOLERANCES.value * (certificate.value_unit + np.nan_to_num(abs(certificate.value), posinf=0.0)),
            "How far Φ(x) may be off, since y*(x) is known only so well.",
        ),
        told(
            "challenged",
            f"{certificate.challenges} points, " + ("none lower" if certificate.descent is None else "one lower"),
            "Points around x at which Φ was evaluated exactly; one that is lower refutes x.",
        ),
        told("g convex in y", certificate.lower_convexity, "Proven by its composition, or tested at points."),
        told(
            "y*(x) unique",
            "yes" if certificate.lower_unique else "not proven",
            "Whether y is known to be the lower level's only minimiser."
            if certificate.lower_unique
            else "Over the minimisers f lies in [{:.6g}, {:.6g}].".format(*certificate.value_range),
        ),
        told(
            "hypergradient",
            "none here" if certificate.hypergradient is None else summarise(certificate.hypergradient),
            "The gradient of Φ at x; Φ has none at a kink or a border. It need not vanish at the edge of X.",
        ),
        told(
            "active rows independent (LICQ)",
            certificate.licq,
            f"Smallest singular value {certificate.smallest_singular_value:.2g}.",
        ),
        told(
            "strict complementarity",
            certificate.strict_complementarity,
            "Whether each active row presses: else Φ may have a kink here. "
            f"Margin {certificate.complementarity_margin:.2g}.",
        ),
    ]
    if certificate.penalty_gap is not None:
        rows.append(
            told(
                "penalty gap", certificate.penalty_gap, f"Φ(x) minus its penalised form at delta {certificate.delta:g}."
            )
        )
    if certificate.y_error is not None:
        rows.append(
            told("error of the given y", certificate.y_error, "Largest distance of the given y from the exact one.")
        )
    return rows


def short(value: Any, digits: int = 3) -> str:
    """Return a measured value as a short text."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value + 0.0:.{digits}g}"  # + 0.0: no minus before a zero
    return str(value)


def versions() -> dict[str, str]:
    """Return the versions of what an answer depends on."""
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
        "platform": platform.platform(),
        "devices": ", ".join(str(device) for device in jax.devices()),
    }


def write(
    solutions: Solution | Mapping[str, Solution] | Iterable[Solution],
    path: str | Path,
    problem: BilevelProblem | Mapping[str, BilevelProblem] | None = None,
    network: NetworkDesign | Mapping[str, NetworkDesign] | None = None,
    title: str = "bilevax report",
    *,
    settings: Mapping[str, Any] | None = None,
    rtol: float = 1e-6,
) -> Path:
    """Write one self-contained HTML page about one or several answers.

    Parameters
    ----------
    solutions
        What `bilevax.solve` returned; several, also a `Multistart`; or several by name.
    path
        The file. Folders on the way are made.
    problem, network
        What was solved, to be described, and the network to be drawn: one for all, or by the names of the solutions.
    title
        The page's heading.
    settings
        More lines for the table of settings.
    rtol
        What the certificates' stationarity is held against: what `bilevax.solve` was given.

    Returns
    -------
    Path
        Where the page is.
    """
    require()
    import jinja2
    import markupsafe
    import plotly.offline

    named = _named(solutions)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bilevax.app"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = short
    page = environment.get_template("report.html").render(
        title=title,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        parts=[_part(name, solution, _of(problem, name), _of(network, name), rtol) for name, solution in named.items()],
        settings={"rtol": rtol, **(settings or {})},
        versions=versions(),
        plotly=markupsafe.Markup(plotly.offline.get_plotlyjs()),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def require() -> None:
    """Raise an `ImportError` that says what to install, where the packages that a page needs are missing."""
    missing = [package for package in ("jinja2", "plotly") if importlib.util.find_spec(package) is None]
    if missing:
        raise ImportError(f"a report needs {' and '.join(missing)}: pip install 'bilevax[report]'")


def _named(solutions: Any) -> dict[str, Solution]:
    if isinstance(solutions, Solution):
        named = {"": solutions}
    elif isinstance(solutions, Mapping):
        named = {str(name): solution for name, solution in solutions.items()}
    elif isinstance(solutions, Iterable):
        named = {f"answer {index}": solution for index, solution in enumerate(solutions, start=1)}
    else:
        raise ValueError(f"solutions: expected a Solution or several, got {type(solutions).__name__}.")
    for solution in named.values():
        if not isinstance(solution, Solution):
            raise ValueError(f"solutions: expected what solve returned, got {type(solution).__name__}.")
    if not named:
        raise ValueError("solutions: expected at least one, got none.")
    return named


def _of(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else given


def _part(
    name: str, solution: Solution, problem: BilevelProblem | None, network: NetworkDesign | None, rtol: float
) -> dict[str, Any]:
    """Return what the template shows of one answer."""
    picture, tables = None, []
    figures = _convergence(solution) if solution.history else ()
    if network is not None:
        picture = (
            "The network: links as wide as their capacity, on the right side of the way",
            _map(network, solution),
        )
        if np.isfinite(solution.value):
            tables = [
                _table("Links", network.links_table(solution)),
                _table("Origin-destination pairs", network.pairs_table(solution)),
            ]
    return {
        "name": name,
        "solution": solution,
        "facts": _facts(solution, problem, network),
        "checks": checks(solution.certificate, rtol),
        "points": [*_leaves("x", solution.x), *_leaves("y", solution.y), *_leaves("multipliers", solution.multipliers)],
        "figures": [
            {"caption": figure[0], "drawing": json.loads(figure[1].to_json() or ""), "wide": figure is picture}
            for figure in ([] if picture is None else [picture]) + list(figures)
        ],
        "tables": tables,
    }


def _facts(solution: Solution, problem: BilevelProblem | None, network: NetworkDesign | None) -> dict[str, str]:
    """Return what is known of the problem, in words."""
    size = lambda tree: len(trees.flatten_host(tree))
    facts = {
        "upper level": f"x: {_count(size(solution.x), 'variable')}",
        "lower level": f"y: {_count(size(solution.y), 'variable')}, {_count(size(solution.multipliers), 'row')}",
    }
    if problem is not None:
        rows = (solution.multipliers,) if problem.single_coupling else solution.multipliers
        low, high = (trees.flatten_host(bound) for bound in problem.row_bounds(rows))
        facts["upper level"] += f", X: {type(problem.x_set).__name__}"
        equations = _count(int(np.sum(low == high)), "equation")
        facts["lower level"] += f" ({equations} among them), Y: {type(problem.y_set).__name__}"
    if network is not None:
        parts = {"node": network.nodes, "link": network.tail, "origin-destination pair": network.origin}
        facts["network"] = ", ".join(_count(len(items), kind) for kind, items in parts.items())
    return facts


def _count(number: int, kind: str) -> str:
    return f"{number} {kind}{'' if number == 1 else 's'}"


class _Leaf(NamedTuple):
    """An array of a point: its place in the tree, its shape and its numbers."""

    name: str
    shape: tuple[int, ...]
    numbers: np.ndarray
    text: str


def _leaves(name: str, tree: PyTree) -> list[_Leaf]:
    leaves = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        numbers = np.asarray(leaf, np.float64)
        text = ", ".join(f"{number:.10g}" for number in numbers.ravel()[:_NUMBERS_SHOWN])
        if numbers.size > _NUMBERS_SHOWN:
            text += f", … ({numbers.size - _NUMBERS_SHOWN} more)"
        leaves.append(_Leaf(name + jax.tree_util.keystr(path), numbers.shape, numbers, text))
    return leaves


def _table(caption: str, columns: dict[str, np.ndarray]) -> dict[str, Any]:
    rows = list(zip(*columns.values(), strict=True))
    return {"caption": caption, "columns": list(columns), "rows": rows[:_ROWS_SHOWN], "more": len(rows[_ROWS_SHOWN:])}


def _convergence(solution: Solution) -> Iterator[tuple[str, "Figure"]]:
    """Yield what the run recorded, against its steps and against time: the upper objective, and the residuals."""
    import plotly.graph_objects as go

    history = solution.history
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


def _styles() -> Iterator[dict[str, str]]:
    """Yield styles of lines, in colours that colour-blind people tell apart on a light and on a dark page."""
    colours = (plot.BLUE, plot.VERMILION, plot.GREEN, plot.ORANGE, plot.SKY, plot.PURPLE)
    for dash in itertools.cycle(("solid", "dot", "dash")):
        yield from ({"color": colour, "dash": dash} for colour in colours)


def _map(design: NetworkDesign, solution: Solution) -> "Figure":
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
