"""The command ``bilevax``."""

import ast
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

try:
    import typer
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    print(f"the command bilevax needs {error.name}: pip install 'bilevax[cli]'", file=sys.stderr)
    raise SystemExit(2) from error

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.trees import summarise
from bilevax.app import demo, report
from bilevax.certificate.certificate import Certificate, certify
from bilevax.driver.comparison import compare
from bilevax.driver.solution import Solution
from bilevax.driver.solve import solve
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.design import NetworkDesign
from bilevax.solvers.baselines.bic_gaffa import BiCGAFFA
from bilevax.solvers.baselines.blocc import BLOCC
from bilevax.solvers.baselines.gam import GAM
from bilevax.solvers.baselines.lv_hba import LVHBA
from bilevax.solvers.baselines.projected_penalty import ProjectedPenalty
from bilevax.solvers.default import Default
from bilevax.solvers.sflcb import SFLCB

app = typer.Typer(
    help="Bilevel optimisation with certified answers.",
    epilog="Exit codes: 0 success; 1 an answer, but without success; 2 wrong input. "
    "With --json, standard output is one JSON object; numbers that are not finite are the strings "
    "'NaN', 'Infinity' and '-Infinity', and wrong input is {'error': ...}.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

_METHODS = {
    "default": Default,
    "SFLCB": SFLCB,
    "BLOCC": BLOCC,
    "LVHBA": LVHBA,
    "BiCGAFFA": BiCGAFFA,
    "GAM": GAM,
    "ProjectedPenalty": ProjectedPenalty,
}

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
_Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write a page with tables and plots.")
]
_Rtol = Annotated[float, typer.Option(help="What the certificate's stationarity has to reach.")]
_MaxSteps = Annotated[int | None, typer.Option(help="Stop after so many steps; the solver's own limit when absent.")]
_TimeLimit = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after so many seconds.")]
_File = Annotated[
    Path, typer.Argument(metavar="FILE.py", exists=True, dir_okay=False, help="Defines `problem`, `x0` and more.")
]


@app.command("demo")
def demonstrate(
    page: Annotated[Path, typer.Option("--report", metavar="FILE.html", help="Where to write the page.")] = Path(
        "bilevax-demo.html"
    ),
    as_json: _Json = False,
) -> None:
    """Solve three problems in under two minutes, print their certificates and write a report page.

    The toy of the SFLCB paper, the hyperparameters of an SVM, and the design of a small network.

    - `bilevax demo --report demo.html`
    """
    with _Output(as_json) as output:
        _writable(page)
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
            settings=about,
        )
        output.show(_answers(solutions))
        output.say(f"report: {page}")
    output.end(
        {"answers": {name: {"about": about[name], **_answer(solution)} for name, solution in solutions.items()}},
        all(solution.success for solution in solutions.values()),
        page,
    )


@app.command("solve")
def solve_file(
    file: _File,
    rtol: _Rtol = 1e-6,
    max_steps: _MaxSteps = None,
    time_limit: _TimeLimit = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Write the run's state here, to go on after a stop.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on from this checkpoint.")] = None,
    page: _Report = None,
    as_json: _Json = False,
) -> None:
    """Solve the problem of a Python file, and certify the answer.

    The file defines `problem`, a BilevelProblem, and `x0`, the start; it may define `y0` and `solver`.

    - `bilevax solve toy.py`
    - `bilevax solve toy.py --rtol 1e-8 --report toy.html`
    - `bilevax solve toy.py --json > answer.json`
    """
    with _Output(as_json, file) as output:
        if page is not None:
            _writable(page)
        names = _load(file)
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
            report.write(solution, page, names["problem"], title=f"{file.name}", settings=_given(settings), rtol=rtol)
        output.show(*_solution_tables(solution, rtol))
    output.end(_answer(solution), solution.success, page)


@app.command("certify")
def certify_file(
    file: _File,
    point: Annotated[
        Path | None,
        typer.Option(
            "--x",
            metavar="FILE.npy|json",
            exists=True,
            dir_okay=False,
            help="The x to check: in the form of x0, or its numbers in one list, or what `solve --json` printed.",
        ),
    ] = None,
    rtol: _Rtol = 1e-6,
    as_json: _Json = False,
) -> None:
    """Check anybody's answer: solve the lower level at x exactly, and measure what can be proven.

    Without --x, the file's own `x` is checked, or else its `x0`.

    - `bilevax certify toy.py --x answer.json`
    - `bilevax certify toy.py --x point.npy --json`
    """
    with _Output(as_json, file) as output:
        names = _load(file)
        x = names.get("x", names["x0"]) if point is None else _read_point(point, names["x0"])
        certificate = _certify(names["problem"], x, names.get("y"), names.get("y0"))
        confirmed = certificate.confirms(rtol)
        output.show(
            Text(f"x: {summarise(x)}"),
            _certificate_table(certificate, rtol),
            _verdict(confirmed, "confirmed", f"not confirmed to rtol {rtol:g}"),
        )
    output.end({"confirmed": confirmed, "rtol": rtol, "x": x, "certificate": certificate}, confirmed)


@app.command("network")
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
    rtol: _Rtol = 1e-6,
    max_steps: _MaxSteps = None,
    time_limit: _TimeLimit = None,
    rows: Annotated[int, typer.Option(min=0, help="Print at most so many links and pairs.")] = 30,
    page: _Report = None,
    as_json: _Json = False,
) -> None:
    """Choose the capacities of a network's links against travellers who answer rationally.

    NODES.tntp gives coordinates for the picture in the report.

    - `bilevax network SiouxFalls_net.tntp SiouxFalls_trips.tntp SiouxFalls_node.tntp --report sioux.html`
    - `bilevax network town.json`
    """
    with _Output(as_json) as output:
        if page is not None:
            _writable(page)
        design = _read_network(files, detour)
        problem = design.problem()
        limits = {"rtol": rtol, "max_steps": max_steps, "time_limit": time_limit}
        solution = solve(problem, design.start(), **limits)
        known = np.isfinite(solution.value)
        links, pairs = (design.links_table(solution), design.pairs_table(solution)) if known else ({}, {})
        if page is not None:
            names = ", ".join(str(file) for file in files)
            settings = _given({"files": names, "detour": detour, **limits})
            report.write(solution, page, problem, design, f"Network {files[0].name}", settings=settings, rtol=rtol)
        output.show(*_solution_tables(solution, rtol))
        if known:
            output.show(_columns("Links", links, rows), _columns("Origin-destination pairs", pairs, rows))
            output.say(f"utility: {design.utility(solution.x, solution.y):.10g} (revenue minus cost of capacity)")
    utility = design.utility(solution.x, solution.y) if known else None
    output.end({"utility": utility, "links": links, "pairs": pairs, **_answer(solution)}, solution.success, page)


@app.command("compare")
def compare_methods(
    file: _File,
    methods: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help=f"Any of {', '.join(_METHODS)}; repeat it.")
    ] = None,
    max_steps: _MaxSteps = None,
    time_limit: _TimeLimit = 60.0,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw true Phi against time.")] = None,
    as_json: _Json = False,
) -> None:
    """Run several methods on the problem of a Python file, each judged by its certificate.

    The file defines `problem` and `x0`; a dictionary `solvers` in it, by name, takes the place of --method.

    - `bilevax compare toy.py`
    - `bilevax compare toy.py --method default --method BLOCC --time-limit 10 --figure methods.png`
    """
    with _Output(as_json, file) as output:
        if figure is not None:
            _writable(figure)
        unknown = [name for name in methods or () if name not in _METHODS]
        if unknown:
            raise ValueError(f"--method: expected any of {', '.join(_METHODS)}, got {unknown[0]}.")
        names = _load(file)
        solvers = names.get("solvers") or {name: _METHODS[name]() for name in methods or ("default", "SFLCB")}
        found = compare(
            names["problem"],
            names["x0"],
            solvers,
            points=20 if figure is not None else 0,
            y0=names.get("y0"),
            max_steps=max_steps,
            time_limit=time_limit,
        )
        if figure is not None:
            found.plot().savefig(figure, dpi=160)
        output.say(str(found))
    output.end({"methods": found.rows()}, any(row["certified"] for row in found.rows()))


@app.command()
def reproduce(
    figure: Annotated[
        str, typer.Argument(help="toy, svm, methods, networks, delta, seville (minutes), or all but the last.")
    ],
    folder: Annotated[Path, typer.Option("--output", metavar="DIR", help="For figures, numbers and settings.")] = Path(
        "reproduced"
    ),
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="The data folder; BILEVAX_DATA when absent.")] = None,
    as_json: _Json = False,
) -> None:
    """Reproduce a figure of the SFLCB paper, with every point evaluated exactly.

    - `bilevax reproduce toy`
    - `bilevax reproduce all --output figures`
    """
    from bilevax.app.experiments.__main__ import main as experiments

    place = [] if data is None else ["--data", str(data)]
    text = io.StringIO()
    with contextlib.redirect_stdout(text) if as_json else contextlib.nullcontext():
        experiments([figure, "--output", str(folder), *place])
    _Output(as_json).end({"figure": figure, "output": folder, "text": text.getvalue()}, True)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which one; without it, they are listed.")] = None,
    as_json: _Json = False,
) -> None:
    """Run a benchmark of the checkout; what follows its name is its own.

    - `bilevax bench`
    - `bilevax bench sflcb_step --turns 10`
    - `bilevax bench default -- --help`
    """
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    with _Output(as_json) as output:
        if not folder.is_dir():
            raise ValueError(f"bench: expected a checkout of bilevax with its benchmarks, found none at {folder}.")
        scripts = {path.stem: path for path in sorted(folder.glob("*.py")) if "__main__" in path.read_text()}
        if name is not None and name not in scripts:
            raise ValueError(f"bench: expected one of {', '.join(scripts)}, got {name!r}.")
        about = {stem: _first_line(path) for stem, path in scripts.items()} if name is None else {}
        for stem, line in about.items():
            output.say(f"{stem}: {line}")
    if name is None:
        output.end({"benchmarks": about}, True)
    options = [*context.args, *(["--json"] if as_json else [])]
    raise typer.Exit(subprocess.run([sys.executable, str(scripts[name]), *options], check=False).returncode)


@app.command()
def info(as_json: _Json = False) -> None:
    """Tell versions, devices, what optional packages there are, and where compiled programs are kept.

    - `bilevax info --json`
    """
    found = {
        **report.versions(),
        "cores": os.cpu_count(),
        "compilation cache": jax.config.values["jax_compilation_cache_dir"]
        or "none; JAX_COMPILATION_CACHE_DIR sets one",
        "data folder": os.environ.get("BILEVAX_DATA") or "none; BILEVAX_DATA sets one",
        **{f"extra {extra}": state for extra, state in _extras().items()},
    }
    with _Output(as_json) as output:
        output.show(_lines(found))
    output.end(found, True)


class _Output:
    """Where a command speaks: tables on standard output, or one JSON object there and everything else beside it.

    As a context it turns what the user did wrong into a message and exit code 2; an error that is ours keeps its
    traceback.
    """

    def __init__(self, as_json: bool, file: Path | None = None):
        self.as_json, self.file = as_json, file
        self.console = Console(stderr=as_json)
        self._prints = contextlib.ExitStack()

    def __enter__(self) -> "_Output":
        if self.as_json:  # what the user's file prints must not spoil the object
            self._prints.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._prints.close()
        if not isinstance(error, Exception):
            return
        line = _line_in(error, self.file)
        if line is not None:
            says = "" if type(error) is ValueError else f"{type(error).__name__}: "
            self._fail(f"{self.file}, line {line}: {says}{error.msg if isinstance(error, SyntaxError) else error}")
        if isinstance(error, ValueError | ImportError):
            self._fail(str(error) if self.file is None or str(self.file) in str(error) else f"{self.file}: {error}")
        if isinstance(error, OSError):
            self._fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))

    def say(self, message: str) -> None:
        """Print a line as it is, however long."""
        self.show(Text(message, no_wrap=True, overflow="ignore"))

    def show(self, *parts: Any) -> None:
        """Print tables and lines, where people are the readers."""
        if not self.as_json:
            for part in parts:
                self.console.print(part)

    def end(self, result: Mapping[str, Any], success: bool, page: Path | None = None) -> NoReturn:
        """Print the object, if that is asked for, and exit."""
        if self.as_json:
            self._print_json(dict(result) | ({} if page is None else {"report": page}))
        raise typer.Exit(0 if success else 1)

    def _fail(self, message: str) -> NoReturn:
        if self.as_json:
            self._print_json({"error": message})
        Console(stderr=True).print(Text("error: ", style="bold red"), Text(message), sep="", soft_wrap=True)
        raise typer.Exit(2) from None

    def _print_json(self, result: dict[str, Any]) -> None:
        print(json.dumps(_plain(result), indent=2, allow_nan=False))


def _line_in(error: BaseException, file: Path | None) -> int | None:
    """Return the line of the user's file where an error, or what caused it, came up."""
    if file is None:
        return None
    place = os.path.realpath(file)
    if isinstance(error, SyntaxError) and error.filename and os.path.realpath(error.filename) == place:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.realpath(frame.filename) == place]
    cause = error.__cause__ or error.__context__
    return lines[-1] if lines else None if cause is None else _line_in(cause, file)


def _load(file: Path) -> dict[str, Any]:
    """Run the user's file and return what it defines."""
    spec = importlib.util.spec_from_file_location("bilevax_file", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file}: expected a Python file, *.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.resolve().parent))  # so that it can import what lies beside it
    _execute(spec.loader, module)
    names = vars(module)
    for name in ("problem", "x0"):
        if name not in names:
            raise ValueError(f"{file}: expected it to define problem and x0, found no {name}.")
    return names


def _execute(loader: Any, module: ModuleType) -> None:
    try:
        loader.exec_module(module)
    except SystemExit as error:  # it would pass for our own exit code
        raise RuntimeError(f"expected definitions, but the file ended the program: exit code {error.code}") from error


def _read_point(path: Path, like: PyTree) -> PyTree:
    """Return a point in the structure of ``like``."""
    if path.suffix == ".npy":
        found = np.load(path, allow_pickle=False)
    else:
        try:
            found = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: expected a file *.npy, or JSON: {error}.") from error
        if isinstance(found, dict) and {"x", "certificate"} <= set(found):
            found = found["x"]
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, like))
    numbers, size = _numbers(found, path), sum(leaf.size for leaf in leaves)
    if numbers.size != size:
        raise ValueError(f"{path}: expected {trees.describe(like)} as in x0, {size} numbers, got {numbers.size}.")
    return trees.unflatten(numbers, jax.tree.unflatten(structure, leaves))


def _numbers(found: Any, path: Path) -> np.ndarray:
    """Return all numbers of nested lists and objects, those of an object by sorted keys, as in a pytree."""
    if isinstance(found, dict):
        found = [found[key] for key in sorted(found)]
    if isinstance(found, list):
        return np.concatenate([np.zeros(0), *(_numbers(item, path) for item in found)])
    try:
        return np.asarray(found, np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected numbers, got {found!r}.") from error


def _certify(problem: BilevelProblem, x: PyTree, y: PyTree, y0: PyTree) -> Certificate:
    if y is not None or y0 is None:
        return certify(problem, x, y)
    return dataclasses.replace(certify(problem, x, y0), y_error=None)  # a start gives y its form, and claims nothing


def _read_network(files: list[Path], detour: float | None) -> NetworkDesign:
    if len(files) == 1:
        return NetworkDesign.from_json(files[0], detour=detour)
    if len(files) > 3:
        raise ValueError(f"network: expected one JSON file, or two or three TNTP files, got {len(files)} files.")
    return NetworkDesign.from_tntp(*files, detour=detour)


def _writable(page: Path) -> None:
    """Refuse a report that could not be written before the work is done, not after."""
    report.require()
    page.parent.mkdir(parents=True, exist_ok=True)
    if page.is_dir() or not os.access(page if page.exists() else page.parent, os.W_OK):
        raise ValueError(f"report: expected a file that can be written, got {page}.")


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _extras() -> dict[str, str]:
    missing: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("bilevax") or []:
        if found := re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line):
            package, extra = found.groups()
            missing.setdefault(extra, [])
            try:
                importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                missing[extra].append(package)
    return {extra: f"lacks {', '.join(packages)}" if packages else "installed" for extra, packages in missing.items()}


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _answer(solution: Solution) -> dict[str, Any]:
    keys = ("status", "success", "message", "value", "x", "y", "multipliers", "certificate", "stats")
    return {key: getattr(solution, key) for key in keys}


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _solution_tables(solution: Solution, rtol: float) -> list[Any]:
    facts = {"Φ(x)": f"{solution.value:.10g}", "x": summarise(solution.x), "y": summarise(solution.y)}
    return [
        _verdict(solution.success, "success", "no success", solution.message),
        _lines(facts | {key: report.short(value, 4) for key, value in solution.stats.items()}),
        _certificate_table(solution.certificate, rtol),
    ]


def _verdict(good: bool, yes: str, no: str, message: str = "") -> Text:
    mark = Text(f"✓ {yes}", style="bold green") if good else Text(f"✗ {no}", style="bold red")
    return mark.append(f"  {message}", style="not bold default") if message else mark


def _certificate_table(certificate: Certificate, rtol: float) -> Table:
    table = _table("certificate", "", "value", "asked for")
    for index, check in enumerate(report.checks(certificate, rtol)):
        verdict = Text("") if check.passed is None else _verdict(check.passed, "holds", "fails")
        table.add_row(Text(check.name), verdict, Text(report.short(check.value, 3 if index else 10)), Text(check.limit))
    return table


def _answers(solutions: Mapping[str, Solution]) -> Table:
    table = _table("problem", "", "Φ(x)", "stationarity", "lower level", "steps", "seconds")
    for name, solution in solutions.items():
        certificate = solution.certificate
        lower = (certificate.lower_infeasibility, certificate.lower_stationarity, certificate.lower_complementarity)
        table.add_row(
            Text(name),
            _verdict(solution.success, "certified", str(solution.status)),
            f"{solution.value:.10g}",
            report.short(certificate.stationarity),
            report.short(max(lower)),
            str(solution.stats["steps"]),
            f"{solution.stats['time']:.1f}",
        )
    return table


def _lines(facts: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        table.add_row(Text(key, style="bold"), Text(str(value)))
    return table


def _columns(title: str, columns: Mapping[str, np.ndarray], limit: int) -> Table:
    count = len(next(iter(columns.values())))
    more = f"; {count - limit} more not shown, --rows {count} shows all" if count > limit else ""
    table = _table(*(name.replace("_", " ") for name in columns), title=f"{title}: {count}{more}")
    for row in list(zip(*columns.values(), strict=True))[:limit]:
        table.add_row(*(Text(report.short(value, 4)) for value in row))
    return table


def _table(*names: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")  # a number cut short would be another number
    return table


if __name__ == "__main__":
    app()
