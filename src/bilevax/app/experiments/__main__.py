"""``python -m bilevax.app.experiments toy|svm|methods|networks|delta|seville|all --output DIR``."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from bilevax.app.experiments import delta, methods, networks, seville, svm, toy
from bilevax.app.experiments.report import Report, say

FIGURES: dict[str, Callable[[Path | None], Report]] = {
    "toy": lambda data: toy.run(),
    "svm": svm.run,
    "methods": methods.run,
    "networks": networks.run,
    "delta": delta.run,
    "seville": seville.run,
}
_SLOW = ("seville",)


def main(arguments: list[str] | None = None) -> None:
    """Run figures, write their files and print what they show."""
    parser = argparse.ArgumentParser("python -m bilevax.app.experiments", description=__doc__)
    parser.add_argument(
        "figure", choices=[*FIGURES, "all"], help=f"all: without {', '.join(_SLOW)}, which takes minutes"
    )
    parser.add_argument("--output", type=Path, required=True, help="the folder for figures, numbers and settings")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("BILEVAX_DATA"), help="the data folder; BILEVAX_DATA when absent"
    )
    given = parser.parse_args(arguments)
    for name in FIGURES if given.figure == "all" else [given.figure]:
        if given.figure == "all" and name in _SLOW:
            continue
        try:
            report = FIGURES[name](given.data)
        except (FileNotFoundError, ImportError) as error:
            parser.exit(2, f"{name}: {error}\n")
        print(report, end="\n\n", flush=True)
        for path in report.write(given.output):
            say(f"wrote {path}")


if __name__ == "__main__":
    main()
