"""What an experiment hands back: a figure, its numbers, its settings, and the sentences that belong beside it."""

import csv
import dataclasses
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support.tables import aligned
from bilevax.app import report
from bilevax.app.experiments.provenance import made
from bilevax.certificate.certify import certify
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import Solver

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The column that differs from run to run; all others are the same to the last digit.
TIME = "seconds"

_RTOL = 1e-6  # what the certificate is asked for: that of `solve`
_PATIENCE = 60.0  # seconds that a certificate may take


@dataclasses.dataclass
class Report:
    """A figure with everything needed to check it.

    Attributes
    ----------
    name
        Of the figure, and of the files.
    settings
        Seeds, parameters and starts.
    rows
        The numbers: one entry a point, with x itself under ``"x"``. Numbers that do not exist are NaN.
    figure
        The figure.
    table
        A few lines that sum the numbers up.
    sentences
        What the figure shows, in words made from the numbers.
    """

    name: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    figure: "Figure"
    table: list[dict[str, Any]]
    sentences: list[str]

    def __str__(self) -> str:
        lines = [list(self.table[0]), *([_short(value) for value in row.values()] for row in self.table)]
        return f"{self.name}\n\n{aligned(lines)}\n\n" + "\n".join(self.sentences)

    def write(self, folder: Path) -> list[Path]:
        """Write the figure (PNG, SVG), the numbers (CSV), the points x (NPZ), the summary (JSON) and the text.

        The points are numbered as the rows of the CSV file, ``arr_0`` the first. The summary holds settings, table and
        sentences, and which code made them, when, on what. Returns the paths.
        """
        from matplotlib import rc_context

        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.{ending}" for ending in ("png", "svg", "csv", "npz", "json", "txt")]
        png, svg, numbers, points, summary, text = paths
        with rc_context({"svg.hashsalt": self.name}):  # else its identifiers are random
            self.figure.savefig(png, dpi=160)
            self.figure.savefig(svg, metadata={"Date": None})
        with numbers.open("w", newline="") as file:
            writer = csv.DictWriter(file, [key for key in self.rows[0] if key != "x"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows({key: _text(value) for key, value in row.items()} for row in self.rows)
        np.savez_compressed(points, *(np.asarray(row["x"]) for row in self.rows))
        versions = report.versions() | {"matplotlib": importlib.metadata.version("matplotlib")}
        told = {
            "made": made(),
            "settings": self.settings | {"versions": versions},
            "table": self.table,
            "sentences": self.sentences,
        }
        summary.write_text(json.dumps(_plain(told), indent=2, ensure_ascii=False) + "\n")
        text.write_text(f"{self}\n")
        return paths


def is_certified(problem: BilevelProblem, x: PyTree) -> bool:
    """Return whether the certificate confirms where a method ended that has no certificate of its own."""
    return certify(problem, x, time_limit=_PATIENCE).confirms(_RTOL)


def say(message: str) -> None:
    """Tell how far a run is."""
    print(message, file=sys.stderr, flush=True)


def parameters(solver: Solver) -> dict[str, Any]:
    """Return a solver's parameters by name."""
    return {name: np.asarray(value).item() for name, value in vars(solver).items()}


def _short(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "-" if np.isnan(value) else f"{value:.6g}"
    return str(value)


def _text(value: Any) -> Any:
    """Return a number with all its digits, and nothing where there is none."""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else repr(float(value))
    return value


def _plain(value: Any) -> Any:
    """Return what strict JSON can hold: null where there is no number."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
