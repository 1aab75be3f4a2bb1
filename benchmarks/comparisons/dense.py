"""Dense random quadratic problems with n / 2 + n variables and n / 2 coupled rows: bilevax against pympcc, by size."""

import argparse

import numpy as np

import bilevax as bx
from comparisons.judge import Judge
from comparisons.mpcc import solve_as_mpcc, wanted
from comparisons.quadratics import dense
from comparisons.report import Report, timed

# Of this size and the wanted ratio; larger ones would keep pympcc busy for hours.
_TARGET = 500, 50
_LARGEST_FOR_MPCC = 500
# Of this size in less time than pympcc needs for the largest it is given.
_LARGE = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 2000], help="values of n")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Report:
    columns = ("problem", "certified", "holds", "value", "s", "pympcc", "holds_mpcc", "value_mpcc", "s_mpcc", "ratio")
    report = Report(columns, arguments.json)
    for n in arguments.sizes:
        instance = dense(n, arguments.seed)
        problem, judge = instance.to_bilevax(), Judge(instance)
        solution, seconds = timed(lambda p=problem, x=instance.x0: bx.solve(p, x), arguments.turns)
        row = {"problem": instance.name, "n": n, "certified": solution.success, "value": solution.value, "s": seconds}
        row["holds"] = judge.agrees(solution.x, solution.value)
        if n <= _LARGEST_FOR_MPCC and wanted(arguments.pympcc):
            answer = solve_as_mpcc(instance, arguments.pympcc, arguments.turns)
            row |= {"pympcc": answer.success, "value_mpcc": answer.value, "s_mpcc": answer.seconds}
            row |= {"holds_mpcc": judge.agrees(answer.x, answer.value), "ratio": answer.seconds / seconds}
            row["message"] = answer.message
        report.add(**row)
    size, ratio = _TARGET
    found = [row.get("ratio") for row in report.rows if row["n"] == size]
    report.target(f"times faster than pympcc at n = {size}", found[0] if found else None, ">=", ratio)
    large = [row["s"] for row in report.rows if row["n"] == _LARGE]
    other = [row["s_mpcc"] for row in report.rows if row["n"] == _LARGEST_FOR_MPCC and "s_mpcc" in row]
    report.target(
        f"seconds at n = {_LARGE} over pympcc's at n = {_LARGEST_FOR_MPCC}",
        large[0] / other[0] if large and other else None,
        "<=",
        1,
    )
    report.target(
        "certified and true, share", np.mean([row["certified"] and row["holds"] for row in report.rows]), ">=", 1
    )
    return report
