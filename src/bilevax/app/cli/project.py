"""Commands about bilevax itself: ``reproduce``, ``bench`` and ``info``."""

import ast
import contextlib
import importlib.metadata
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import jax
import typer

from bilevax.app import report
from bilevax.app.cli.options import Json, Workers
from bilevax.app.cli.output import Output
from bilevax.app.cli.tables import facts_table

Figure = Literal["toy", "svm", "methods", "networks", "delta", "seville", "roads", "all"]


def reproduce(
    figure: Annotated[Figure, typer.Argument(help="A figure; all of them take many minutes.")],
    folder: Annotated[Path, typer.Option("--output", metavar="DIR", help="For figures, numbers and settings.")] = Path(
        "reproduced"
    ),
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Reproduce a figure of the SFLCB paper, with every point evaluated exactly.

    - `bilevax reproduce toy`
    - `bilevax reproduce all --output figures --workers 4`
    """
    from bilevax.app.experiments.__main__ import main as experiments

    text = io.StringIO()
    with contextlib.redirect_stdout(text) if as_json else contextlib.nullcontext():
        experiments([figure, "--output", str(folder), *(["--workers", str(workers)] if workers else [])])
    Output(as_json).end({"figure": figure, "output": folder, "text": text.getvalue()}, True)


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which one; without it, they are listed.")] = None,
    as_json: Json = False,
) -> None:
    """Run a benchmark of the checkout; what follows its name is its own.

    - `bilevax bench`
    - `bilevax bench sflcb_step --turns 10`
    - `bilevax bench default -- --help`
    """
    folder = Path(__file__).resolve().parents[4] / "benchmarks"
    with Output(as_json) as output:
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


def show_version(wanted: bool) -> None:
    """Print the version and end, where that is what was asked for."""
    if wanted:
        print(importlib.metadata.version("bilevax"))
        raise typer.Exit


def info(as_json: Json = False) -> None:
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
    with Output(as_json) as output:
        output.show(facts_table(found))
    output.end(found, True)


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
