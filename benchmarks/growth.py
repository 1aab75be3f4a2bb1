"""Time against size: every row of a comparison with a size ``n`` and seconds ``s`` is a point of the plot."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

_NAMES = {"s": "bilevax", "s_mpcc": "pympcc"}
Curves = dict[tuple[str, str], list[tuple[float, float]]]


def curves(results: dict[str, Any]) -> Curves:
    """Return the points of each program on each family of problems.

    A row says its family, or stands for its comparison; ``s`` are bilevax's seconds, ``s_name`` another program's.
    Where a row has both, those of the processor (``cpu_s``) count.
    """
    found: Curves = defaultdict(list)
    for comparison, result in results.items():
        for row in result.get("rows", ()):
            for key, seconds in (row | {"s": row.get("cpu_s", row.get("s"))}).items():
                if (key == "s" or key.startswith("s_")) and row.get("n") and isinstance(seconds, int | float):
                    program = _NAMES.get(key, key.removeprefix("s_"))
                    found[str(row.get("family", comparison)), program].append((row["n"], seconds))
    return {name: sorted(points) for name, points in found.items()}


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write the plot as SVG and PNG; nothing where no comparison went through sizes."""
    found = curves(results)
    if not found:
        return
    families = sorted({family for family, _ in found})
    colour = {family: f"C{index}" for index, family in enumerate(families)}
    marks = dict(zip(sorted({program for _, program in found}), "os^Dvx", strict=False))
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for (family, program), points in found.items():
        size, seconds = zip(*points, strict=True)
        style = "-" if program == "bilevax" else "--"
        axes.plot(size, seconds, style, marker=marks[program], color=colour[family], label=f"{family}: {program}")
    axes.set(xscale="log", yscale="log", xlabel="size n", ylabel="seconds")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    for kind in ("svg", "png"):
        figure.savefig(folder / f"growth.{kind}", dpi=150)
    plt.close(figure)
