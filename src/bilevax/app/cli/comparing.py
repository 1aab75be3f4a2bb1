"""The command ``compare``."""

from pathlib import Path
from typing import Annotated

import typer

from bilevax._support.elsewhere import dask_executor
from bilevax.app.cli.inputs import load, writable
from bilevax.app.cli.options import Dask, File, Json, MaxSteps, TimeLimit, Workers
from bilevax.app.cli.output import Output
from bilevax.driver.comparison import compare
from bilevax.solvers.baselines.bic_gaffa import BiCGAFFA
from bilevax.solvers.baselines.blocc import BLOCC
from bilevax.solvers.baselines.gam import GAM
from bilevax.solvers.baselines.lv_hba import LVHBA
from bilevax.solvers.baselines.projected_penalty import ProjectedPenalty
from bilevax.solvers.default import Default
from bilevax.solvers.sflcb import SFLCB

_METHODS = {
    "default": Default,
    "SFLCB": SFLCB,
    "BLOCC": BLOCC,
    "LVHBA": LVHBA,
    "BiCGAFFA": BiCGAFFA,
    "GAM": GAM,
    "ProjectedPenalty": ProjectedPenalty,
}


def compare_methods(
    file: File,
    methods: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help=f"Any of {', '.join(_METHODS)}; repeat it.")
    ] = None,
    max_steps: MaxSteps = None,
    time_limit: TimeLimit = 60.0,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw true Phi against time.")] = None,
    workers: Workers = None,
    dask: Dask = None,
    as_json: Json = False,
) -> None:
    """Run several methods on the problem of a Python file, each judged by its certificate.

    The file defines `problem` and `x0`; a dictionary `solvers` in it, by name, takes the place of --method.

    - `bilevax compare toy.py`
    - `bilevax compare toy.py --method default --method BLOCC --time-limit 10 --figure methods.png`
    """
    with Output(as_json, file) as output:
        if figure is not None:
            writable(figure)
        unknown = [name for name in methods or () if name not in _METHODS]
        if unknown:
            raise ValueError(f"--method: expected any of {', '.join(_METHODS)}, got {unknown[0]}.")
        names = load(file)
        solvers = names.get("solvers") or {name: _METHODS[name]() for name in methods or ("default", "SFLCB")}
        found = compare(
            names["problem"],
            names["x0"],
            solvers,
            points=20 if figure is not None else 0,
            y0=names.get("y0"),
            max_steps=max_steps,
            time_limit=time_limit,
            executor=dask_executor(dask),
            workers=workers,
        )
        if figure is not None:
            found.plot().savefig(figure, dpi=160)
        output.say(str(found))
    output.end({"methods": found.rows()}, any(row["certified"] for row in found.rows()))
