"""The command ``network``."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bilevax.app import report
from bilevax.app.cli.inputs import given, writable
from bilevax.app.cli.options import Json, MaxSteps, Report, Rtol, TimeLimit
from bilevax.app.cli.output import Output, answer
from bilevax.app.cli.tables import columns_table, solution_tables
from bilevax.driver.solve import solve
from bilevax.problems.network.design import NetworkDesign


def design_network(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="NET.tntp TRIPS.tntp [NODES.tntp] | NETWORK.json", exists=True, dir_okay=False, help="The network."
        ),
    ],
    detour: Annotated[
        float | None, typer.Option(help="Leave out ways longer than this factor times the shortest.")
    ] = None,
    rtol: Rtol = 1e-6,
    max_steps: MaxSteps = None,
    time_limit: TimeLimit = None,
    rows: Annotated[int, typer.Option(min=0, help="Print at most so many links and pairs.")] = 30,
    page: Report = None,
    as_json: Json = False,
) -> None:
    """Choose the capacities of a network's links against travellers who answer rationally.

    NODES.tntp gives coordinates for the picture in the report.

    - `bilevax network SiouxFalls_net.tntp SiouxFalls_trips.tntp SiouxFalls_node.tntp --report sioux.html`
    - `bilevax network town.json`
    """
    with Output(as_json) as output:
        if page is not None:
            writable(page)
        design = _read_network(files, detour)
        problem = design.problem()
        limits = {"rtol": rtol, "max_steps": max_steps, "time_limit": time_limit}
        solution = solve(problem, design.start(), **limits)
        known = np.isfinite(solution.value)
        links, pairs = (design.links_table(solution), design.pairs_table(solution)) if known else ({}, {})
        if page is not None:
            names = ", ".join(str(file) for file in files)
            settings = given({"files": names, "detour": detour, **limits})
            report.write(solution, page, problem, design, f"Network {files[0].name}", settings=settings, rtol=rtol)
        output.show(*solution_tables(solution, rtol))
        if known:
            output.show(columns_table("Links", links, rows), columns_table("Origin-destination pairs", pairs, rows))
            output.say(f"utility: {design.utility(solution.x, solution.y):.10g} (revenue minus cost of capacity)")
    utility = design.utility(solution.x, solution.y) if known else None
    output.end({"utility": utility, "links": links, "pairs": pairs, **answer(solution)}, solution.success, page)


def _read_network(files: list[Path], detour: float | None) -> NetworkDesign:
    if len(files) == 1:
        return NetworkDesign.from_json(files[0], detour=detour)
    if len(files) > 3:
        raise ValueError(f"network: expected one JSON file, or two or three TNTP files, got {len(files)} files.")
    return NetworkDesign.from_tntp(*files, detour=detour)
