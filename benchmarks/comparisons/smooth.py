"""Problems with a smooth Phi: bilevax, its certificate included, against L-BFGS-B on Phi with implicit gradients."""

import argparse

import jax
import numpy as np

import bilevax as bx
from comparisons.report import Report, timed
from comparisons.script import compiled_phi, solve_by_script
from comparisons.smooth_problems import controller, prices, ridge, weights

_ROWS = [200, 1000, 4000, 20_000, 50_000]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="*", default=_ROWS, help="training rows to weigh")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds after which the script is stopped")
    parser.add_argument("--others", action="store_true", help="also the controller, the ridge and the prices: minutes")


def run(arguments: argparse.Namespace) -> Report:
    report = Report(("problem", "certified", "value", "s", "value_script", "s_script", "ratio"), arguments.json)
    for rows in arguments.rows:
        case = weights(rows, int(np.clip(rows // 100, 10, 60)))
        solution, seconds = timed(lambda c=case: bx.solve(c.problem, c.x0), arguments.turns)
        phi, data = compiled_phi(*case.functions), jax.device_put(case.problem.data)
        by_script = lambda c=case, p=phi, d=data: solve_by_script(
            p, c.x0, np.zeros(c.n_y), d, [c.box] * len(c.x0), arguments.limit
        )
        script, slow = timed(by_script, arguments.turns)
        row = {"problem": case.name, "certified": solution.success, "value": solution.value, "s": seconds}
        report.add(**row, value_script=script.fun, s_script=slow, ratio=seconds / slow)
    for case in (controller(20), controller(200), ridge(200), prices(1000, 100)) if arguments.others else ():
        solution, seconds = timed(lambda c=case: bx.solve(c.problem, c.x0), arguments.turns)
        report.add(problem=case.name, certified=solution.success, value=solution.value, s=seconds)
    if any(seconds > arguments.limit for seconds in report.column("s_script")):
        report.remarks.append("The script was stopped by its limit before it arrived: its ratio is an upper bound.")
    ratios = report.column("ratio")
    report.target("times the script's time, worst", max(ratios) if ratios else None, "<=", 2)
    return report
