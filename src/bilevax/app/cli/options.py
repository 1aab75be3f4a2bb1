"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write a page with tables and plots.")
]
Rtol = Annotated[float, typer.Option(help="What the certificate's stationarity has to reach.")]
MaxSteps = Annotated[int | None, typer.Option(help="Stop after so many steps; the solver's own limit when absent.")]
TimeLimit = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after so many seconds.")]
File = Annotated[
    Path, typer.Argument(metavar="FILE.py", exists=True, dir_okay=False, help="Defines `problem`, `x0` and more.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes of this machine that share the work.")]
Dask = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of a Dask scheduler that does the work.")]
