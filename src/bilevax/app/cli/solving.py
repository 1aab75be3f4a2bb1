"""Commands that solve or check: ``demo``, ``solve`` and ``certify``."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from jaxtyping import PyTree
from rich.text import Text

from bilevax._support.elsewhere import dask_executor
from bilevax._support.trees import summarise
from bilevax.app import demo, report
from bilevax.app.cli.inputs import given, load, read_point, writable
from bilevax.app.cli.options import Dask, File, Json, MaxSteps, Report, Rtol, TimeLimit, Workers
from bilevax.app.cli.output import Output, answer
from bilevax.app.cli.tables import answers_table, certificate_table, solution_tables, verdict
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.certify import certify
from bilevax.driver.multistart import multistart
from bilevax.driver.solve import solve
from bilevax.model.problem import BilevelProblem


def demonstrate(
    page: Annotated[Path, typer.Option("--report", metavar="FILE.html", help="Where to write the page.")] = Path(
        "bilevax-demo.html"
    ),
    as_json: Json = False,
) -> None:
    """Solve three problems in under two minutes, print their certificates and write a report page.

    The toy of the SFLCB paper, the hyperparameters of an SVM, and the design of a small network.

    - `bilevax demo --report demo.html`
    """
    with Output(as_json) as output:
        writable(page)
        cases = demo.cases()
        about = {case.name: case.about for case in cases}
        solutions = {}
        for case in cases:
            output.say(f"{case.name}: {case.about}")
            solutions[case.name] = solve(case.problem, case.x0)
        report.write(
            solutions,
            page,
            {case.name: case.problem for case in cases},
            {case.name: case.network for case in cases if case.network is not None},
            "bilevax demo",
            x0={case.name: case.x0 for case in cases},
            settings=about,
        )
        output.show(answers_table(solutions))
        output.say(f"report: {page}")
    output.end(
        {"answers": {name: {"about": about[name], **answer(solution)} for name, solution in solutions.items()}},
        all(solution.success for solution in solutions.values()),
        page,
    )


def solve_file(
    file: File,
    rtol: Rtol = 1e-6,
    max_steps: MaxSteps = None,
    time_limit: TimeLimit = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Write the run's state here, to go on after a stop.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on from this checkpoint.")] = None,
    page: Report = None,
    as_json: Json = False,
) -> None:
    """Solve the problem of a Python file, and certify the answer.

    The file defines `problem`, a BilevelProblem, and `x0`, the start; it may define `y0` and `solver`.

    - `bilevax solve toy.py`
    - `bilevax solve toy.py --rtol 1e-8 --report toy.html`
    - `bilevax solve toy.py --json > answer.json`
    """
    with Output(as_json, file) as output:
        if page is not None:
            writable(page)
        names = load(file)
        limits = {"rtol": rtol, "max_steps": max_steps, "time_limit": time_limit}
        solution = solve(
            names["problem"],
            names["x0"],
            y0=names.get("y0"),
            solver=names.get("solver"),
            checkpoint=checkpoint,
            resume=resume,
            **limits,
        )
        if page is not None:
            settings = {"file": file, "solver": names.get("solver"), **limits}
            report.write(solution, page, names["problem"], title=f"{file.name}", settings=given(settings), rtol=rtol)
        output.show(*solution_tables(solution, rtol))
    output.end(answer(solution), solution.success, page)


def multistart_file(
    file: File,
    starts: Annotated[int, typer.Option(min=1, help="How many starts to draw from X.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    rtol: Rtol = 1e-6,
    max_steps: MaxSteps = None,
    time_limit: TimeLimit = None,
    workers: Workers = None,
    dask: Dask = None,
    as_json: Json = False,
) -> None:
    """Solve the problem of a Python file from many starts; the distinct answers, best first, each with its certificate.

    The file defines `problem` and `x0`, and may define `starts`, an array of starts in place of those drawn.

    - `bilevax multistart toy.py --starts 32 --workers 2`
    """
    with Output(as_json, file) as output:
        names = load(file)
        found = multistart(
            names["problem"],
            names.get("starts", starts),
            seed,
            y0=names.get("y0"),
            solver=names.get("solver"),
            rtol=rtol,
            max_steps=max_steps,
            time_limit=time_limit,
            executor=dask_executor(dask),
            workers=workers,
        )
        output.say(str(found))
        output.show(*solution_tables(found.best, rtol))
    answers = [answer(solution) for solution in found.solutions]
    output.end({"answers": answers, "answer_of": found.answer_of}, found.best.success)


def certify_file(
    file: File,
    point: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="FILE.npy|json|NUMBERS",
            help="The x to check: a file in the form of x0, or with its numbers in one list, or what `solve --json` "
            "printed; or the numbers themselves, 1,2,3.",
        ),
    ] = None,
    rtol: Rtol = 1e-6,
    as_json: Json = False,
) -> None:
    """Check anybody's answer: solve the lower level at x exactly, and measure what can be proven.

    Without --x, the file's own `x` is checked, or else its `x0`.

    - `bilevax certify toy.py --x 0.9`
    - `bilevax certify toy.py --x answer.json`
    - `bilevax certify toy.py --x point.npy --json`
    """
    with Output(as_json, file) as output:
        names = load(file)
        x = names.get("x", names["x0"]) if point is None else read_point(point, names["x0"])
        certificate = _certify(names["problem"], x, names.get("y"), names.get("y0"))
        confirmed = certificate.confirms(rtol)
        output.show(
            Text(f"x: {summarise(x)}"),
            certificate_table(certificate, rtol),
            verdict(confirmed, "confirmed", f"not confirmed to rtol {rtol:g}"),
        )
    output.end({"confirmed": confirmed, "rtol": rtol, "x": x, "certificate": certificate}, confirmed)


def _certify(problem: BilevelProblem, x: PyTree, y: PyTree, y0: PyTree) -> Certificate:
    if y is not None or y0 is None:
        return certify(problem, x, y)
    return dataclasses.replace(certify(problem, x, y0), y_error=None)  # a start gives y its form, and claims nothing
