"""`write`: answers, what their certificates prove and how they were found, as one HTML page that needs nothing else."""

import datetime
import importlib.metadata
import importlib.util
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.app.report.figures import convergence, hyperobjective, network_map
from bilevax.app.report.lines import checks, short
from bilevax.app.report.proofs import bounds_closing
from bilevax.driver.solution import Solution
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.design import NetworkDesign

_PACKAGES = ("bilevax", "jax", "jaxlib", "equinox", "lineax", "numpy", "scipy", "clarabel")
_NUMBERS_SHOWN = 2000
_ROWS_SHOWN = 1000


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
    x0: PyTree | Mapping[str, PyTree] = None,
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
    x0
        Where the searches started, by the names of the solutions, or the start of a single one: with the problem, it
        is what a curve of Phi needs.
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
        parts=[
            _part(name, solution, _of(problem, name), _of(network, name), x0 if name == "" else _of(x0, name), rtol)
            for name, solution in named.items()
        ],
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
    name: str,
    solution: Solution,
    problem: BilevelProblem | None,
    network: NetworkDesign | None,
    x0: PyTree,
    rtol: float,
) -> dict[str, Any]:
    """Return what the template shows of one answer."""
    picture, tables = None, []
    figures = list(convergence(solution)) if solution.history else []
    if problem is not None and x0 is not None:
        figures.insert(0, hyperobjective(problem, x0, solution))
    if solution.proof is not None and len(solution.proof.history["nodes"]) > 1:
        figures.append(bounds_closing(solution.proof))
    if network is not None:
        picture = (
            "The network: links as wide as their capacity, on the right side of the way",
            network_map(network, solution),
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
        "proof": None if solution.proof is None else solution.proof.lines(),
        "points": [*_leaves("x", solution.x), *_leaves("y", solution.y), *_leaves("multipliers", solution.multipliers)],
        "figures": [
            {"caption": figure[0], "drawing": json.loads(figure[1].to_json() or ""), "wide": figure is picture}
            for figure in ([] if picture is None else [picture]) + figures
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
        low, high = (trees.flatten_host(bound) for bound in problem.row_bounds(problem.row_parts(solution.multipliers)))
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
