"""The command ``network``."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bilevax.app import report
from bilevax.app.cli.inputs import given, writable
from bilevax.app.cli.options import Json, Report, Rtol, TimeLimit
from bilevax.app.cli.output import Output, answer
from bilevax.app.cli.tables import columns_table, solution_tables
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
    starts: Annotated[int, typer.Option(min=1, help="Searches that begin with different links open.")] = 1,
    rtol: Rtol = 1e-6,
    time_limit: TimeLimit = None,
    rows: Annotated[int, typer.Option(min=0, help="Print at most so many links and pairs.")] = 30,
    page: Report = None,
    as_json: Json = False,
) -> None:
    """Choose the capacities of a network's links against travellers who answer rationally.

    NODES.tntp gives coordinates for the picture in the report.

    - `bilevax network SiouxFalls_net.tntp SiouxFalls_trips.tntp SiouxFalls_node.tntp --report sioux.html`
    - `bilevax network town.json --starts 16`
    """
    with Output(as_json) as output:
        if page is not None:
            writable(page)
        design = _read_network(files, detour)
        limits = {"rtol": rtol, "starts": starts, "time_limit": time_limit}
        solution = design.solve(**limits)
        known = np.isfinite(solution.value)
        links, pairs = (design.links_table(solution), design.pairs_table(solution)) if known else ({}, {})
        unbuilt = design.marginal_values(solution) if known else {}
        if page is not None:
            names = ", ".join(str(file) for file in files)
            settings = given({"files": names, "detour": detour, **limits})
            report.write(
                solution, page, design.problem(), design, f"Network {files[0].name}", settings=settings, rtol=rtol
            )
        output.show(*solution_tables(solution, rtol))
        if known:
            output.show(columns_table("Links", links, rows), columns_table("Origin-destination pairs", pairs, rows))
            if len(unbuilt.get("value", ())):
                output.show(columns_table("What a unit of an unbuilt link is worth", unbuilt, rows))
            output.say(f"utility: {design.utility(solution.x, solution.y):.10g} (revenue minus cost of capacity)")
    utility = design.utility(solution.x, solution.y) if known else None
    found = {"utility": utility, "links": links, "pairs": pairs, "unbuilt": unbuilt, **answer(solution)}
    output.end(found, solution.success, page)


def _read_network(files: list[Path], detour: float | None) -> NetworkDesign:
    if len(files) == 1:
        return NetworkDesign.from_json(files[0], detour=detour)
    if len(files) > 3:
        raise ValueError(f"network: expected one JSON file, or two or three TNTP files, got {len(files)} files.")
    return NetworkDesign.from_tntp(*files, detour=detour)
