"""``python -m bilevax.app.experiments toy|svm|methods|networks|delta|seville|roads|all --output DIR``."""

import argparse
from collections.abc import Callable
from pathlib import Path

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
    given = parser.parse_args(arguments)
    for name in FIGURES if given.figure == "all" else [given.figure]:
        try:
            report = FIGURES[name]()
        except ImportError as error:
            parser.exit(2, f"{name}: {error}\n")
        print(report, end="\n\n", flush=True)
        for path in report.write(given.output):
            say(f"wrote {path}")


if __name__ == "__main__":
    main()
