"""All benchmarks, one after the other, each in a process of its own: a table, a plot and the numbers behind them.

python benchmarks/all.py [--only step dense ...] [--quick] [--write] [--clock wall] [--folder build/bench]

Writes `table.md`, `growth.svg`, `growth.png` and `results.json`. What was measured before by another call with the
same folder stays, with its own date, commit and load: comparisons that take hours need not be run together. With
`--write` the numbers and the plot become those of the documentation, whose tables `make results` makes of them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bilevax.app.experiments.provenance import made
from default import _COMMANDS
from growth import draw

_HERE = Path(__file__).resolve().parent
_FIGURES = _HERE.parent / "docs" / "figures"
# What is run, as arguments of Python.
_PROGRAMS = {
    "step": ["sflcb_step.py", "--one-core"],
    "torch": ["torch_step.py"],
    **{name: ["default.py", name] for name in _COMMANDS},
}
# What makes it a matter of minutes.
_QUICK = {
    "step": ["--turns", "8"],
    "torch": ["--turns", "8"],
    "public": ["--pympcc", "none"],
    "dense": ["--sizes", "20", "50", "100"],
    "svm": ["--pympcc", "none"],
    "networks": ["--networks", "paper3"],
    "smooth": ["--rows", "200", "1000", "4000"],
    "sizes": ["--most", "1000"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=_PROGRAMS, default=list(_PROGRAMS), help="these comparisons")
    parser.add_argument("--quick", action="store_true", help="small sizes, without pympcc where it takes long")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu", help="cpu counts a process's own seconds")
    parser.add_argument("--folder", type=Path, default=_HERE.parent / "build" / "bench")
    parser.add_argument("--write", action="store_true", help="into docs/figures, too")
    parser.add_argument("--json", action="store_true", help="print the numbers instead of where they are")
    parser.add_argument("--time-limit", type=float, default=7200.0, help="seconds for one comparison")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    stored = arguments.folder / "results.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    for name in arguments.only:
        print(name, "...", file=sys.stderr, flush=True)
        command = [*_PROGRAMS[name], *(_QUICK.get(name, []) if arguments.quick else [])]
        results[name] = measured(command, arguments.clock, arguments.time_limit)
        stored.write_text(json.dumps(results, indent=2))
    (arguments.folder / "table.md").write_text(table(results))
    draw(results, arguments.folder)
    if arguments.write:
        shutil.copy(stored, _FIGURES / "speed.json")
        shutil.copy(arguments.folder / "growth.png", _FIGURES)
    print(json.dumps(results, indent=2) if arguments.json else arguments.folder / "table.md")


def measured(program: list[str], clock: str, limit: float) -> dict[str, Any]:
    """Return what a comparison printed, and when, on what and of which commit; a failure is a result, too."""
    script, *rest = program
    about = made() | {
        "load": round(os.getloadavg()[0], 1),
        "clock": clock,
        "command": " ".join(program),
    }
    command = [sys.executable, str(_HERE / script), *rest, "--json", "--clock", clock]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return about | {"failure": f"not done after {limit:g} s"}
    if done.returncode != 0:
        return about | {"failure": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return about | json.loads(done.stdout[done.stdout.index("{") :])


def table(results: dict[str, Any]) -> str:
    """Return all targets beside what was measured, in Markdown."""
    lines = ["| comparison | what | measured | wanted | met |", "|---|---|---|---|---|"]
    for name, result in results.items():
        if "failure" in result:
            lines.append(f"| {name} | failed: {result['failure']} | | | |")
        for target in result.get("targets", ()):
            wanted = "" if target["wanted"] is None else f"{target['relation']} {target['wanted']:g}"
            value = "" if target["measured"] is None else f"{target['measured']:.4g}"
            verdict = {True: "yes", False: "no", None: ""}[target["met"]]
            lines.append(f"| {name} | {target['name']} | {value} | {wanted} | {verdict} |")
    lines += ["", "| comparison | command | date | commit | machine | load | clock |", "|---|---|---|---|---|---|---|"]
    keys = ("command", "date", "commit", "machine", "load", "clock")
    lines += [f"| {name} | " + " | ".join(str(result[key]) for key in keys) + " |" for name, result in results.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
