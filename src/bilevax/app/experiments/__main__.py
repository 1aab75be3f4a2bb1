"""``python -m bilevax.app.experiments toy|svm|methods|networks|delta|seville|roads|all --output DIR``."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bilevax._support.elsewhere import as_they_come, chosen_executor
from bilevax.app.experiments import delta, methods, networks, roads, seville, svm, toy
from bilevax.app.experiments.report import Report, say

FIGURES: dict[str, Callable[[], Report]] = {
    "toy": toy.run,
    "svm": svm.run,
    "methods": methods.run,
    "networks": networks.run,
    "delta": delta.run,
    "seville": seville.run,
    "roads": roads.run,
}


def main(arguments: list[str] | None = None) -> None:
    """Run figures, write their files and print what they show."""
    parser = argparse.ArgumentParser("python -m bilevax.app.experiments", description=__doc__)
    parser.add_argument("figure", choices=[*FIGURES, "all"])
    parser.add_argument("--output", type=Path, required=True, help="the folder for figures, numbers and settings")
    parser.add_argument("--workers", type=int, default=None, help="processes, each with a figure at a time")
    given = parser.parse_args(arguments)
    names = list(FIGURES) if given.figure == "all" else [given.figure]
    for name, made in _made_by(given.workers, names, given.output):
        if isinstance(made, BaseException):
            parser.exit(2, f"{name}: {made}\n")
        text, paths = made
        print(text, end="\n\n", flush=True)
        for path in paths:
            say(f"wrote {path}")


def _made_by(workers: int | None, names: list[str], folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield for each figure its text and files, or the error it failed with; with workers as they come."""
    if workers is not None:
        yield from as_they_come(chosen_executor(None, workers), _make, names, lambda name: (name, folder))
        return
    for name in names:
        try:
            yield name, _make(name, folder)
        except ImportError as error:
            yield name, error


def _make(name: str, folder: Path) -> tuple[str, list[Path]]:
    """Run a figure and write its files; return what it shows, and their paths."""
    report = FIGURES[name]()
    return str(report), report.write(folder)


if __name__ == "__main__":
    main()
