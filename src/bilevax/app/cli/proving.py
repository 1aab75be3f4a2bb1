"""The command ``prove``: whether an answer is the best there is."""

import dataclasses
from typing import Annotated

import typer

from bilevax._support.elsewhere import dask_executor
from bilevax.app import report
from bilevax.app.cli.inputs import given, load, writable
from bilevax.app.cli.options import Dask, File, Json, Report, Workers
from bilevax.app.cli.output import Output, answer
from bilevax.app.cli.tables import facts_table, solution_tables, verdict
from bilevax.driver.prove import prove

_RTOL = 1e-6  # as in `solve`


def prove_file(
    file: File,
    gap: Annotated[float, typer.Option(help="When to stop: the bounds' difference, relative to the value.")] = 1e-4,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="Stop after so many seconds.")] = 60.0,
    workers: Workers = None,
    dask: Dask = None,
    page: Report = None,
    as_json: Json = False,
) -> None:
    """Bound the least value of the problem of a Python file from below, for all x at once, and find the best x.

    The file defines `problem`, a BilevelProblem, and `x0`, a point to begin with.

    - `bilevax prove toy.py`
    - `bilevax prove toy.py --time-limit 600 --report toy.html --workers 2`
    """
    with Output(as_json, file) as output:
        if page is not None:
            writable(page)
        names = load(file)
        shared = {"executor": dask_executor(dask), "workers": workers}
        proof = prove(names["problem"], names["x0"], gap=gap, time_limit=time_limit, **shared)
        best = None if proof.solution is None else dataclasses.replace(proof.solution, proof=proof)
        if page is not None and best is not None:
            settings = given({"file": file, "gap": gap, "time_limit": time_limit})
            report.write(best, page, names["problem"], title=f"{file.name}", settings=settings)
        output.show(verdict(proof.proven, "proven", "not proven", proof.message), facts_table(dict(proof.lines())))
        if best is not None:
            output.show(*solution_tables(best, _RTOL))
    keys = ("status", "proven", "message", "lower_bound", "upper_bound", "gap", "nodes", "time")
    said = {key: getattr(proof, key) for key in keys}
    output.end(said | {"solution": None if best is None else answer(best)}, proof.proven, page)
