"""How long a small problem keeps a user waiting: the import, the first call in a fresh process, the second call."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from comparisons.public import load_judge
from comparisons.report import CLOCKS, Report

#: What a fresh process does: the package, all that a solve needs of it, and a problem solved for the first time and
#: again, the fastest of several turns. It prints the seconds of each.
_CHILD = """
import json, sys, time, warnings
clock, name, turns = getattr(time, sys.argv[2]), sys.argv[3], int(sys.argv[4])
warnings.simplefilter("ignore")
began = clock()
import bilevax as bx
seconds = {"import": clock() - began}
bx.BilevelProblem, bx.LinearCoupling, bx.Box, bx.solve
seconds["names"] = clock() - began
if name:
    sys.path.insert(0, sys.argv[1])
    import jax.numpy as jnp
    from comparisons.public import load_judge
    judge = load_judge()
    problem, x0, y0 = judge.build(next(r for r in judge.records() if r["name"] == name), bx, jnp)
    calls = []
    for _ in range(1 + turns):
        began = clock()
        solution = bx.solve(problem, x0, y0=y0)
        calls.append(clock() - began)
    seconds |= {"first": calls[0], "second": min(calls[1:]), "success": bool(solution.success)}
print(json.dumps(seconds))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="only problems whose name contains this text")


def run(arguments: argparse.Namespace) -> Report:
    report = Report(("problem", "success", "first_ms", "second_ms"), arguments.json)
    loads = [_child(arguments, "") for _ in range(3)]
    for record in load_judge().records():
        if arguments.only in record["name"]:
            found = _child(arguments, record["name"])
            report.add(
                problem=record["name"],
                success=found["success"],
                first_ms=1e3 * found["first"],
                second_ms=1e3 * found["second"],
            )
    calls = {name: report.column(f"{name}_ms") for name in ("first", "second")}
    report.remarks += [f"{name} call: slowest {max(times):.4g} ms" for name, times in calls.items()]
    report.target("s: import bilevax", min(load["import"] for load in loads), "<=", 1.0)
    report.target("s: import with all that a solve needs", min(load["names"] for load in loads), "<=", None)
    report.target("s: first call in a fresh process, median", 1e-3 * float(np.median(calls["first"])), "<=", 0.35)
    report.target("s: second call, median", 1e-3 * float(np.median(calls["second"])), "<=", 0.03)
    return report


def _child(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return what a fresh process measured."""
    folder = str(Path(__file__).parents[1])
    clock, turns = CLOCKS[arguments.clock].__name__, str(max(arguments.turns, 2))
    command = [sys.executable, "-c", _CHILD, folder, clock, name, turns]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
