"""The base-scope problems of the literature, one start each, judged by SciPy: bilevax against pympcc with IPOPT."""

import argparse
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from comparisons.instance import Instance, Rows
from comparisons.mpcc import solve_as_mpcc, wanted
from comparisons.report import Report, median, timed

# Of feasibility, as in judge.py; values may differ by a thousandth.
_FEASIBLE = 1e-5
_SAME_VALUE = 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="only problems whose name contains this text")


def run(arguments: argparse.Namespace) -> Report:
    judge = load_judge()
    columns = ("problem", "bilevax", "value", "pympcc", "value_mpcc", "best", "ms", "ms_mpcc", "ratio")
    report = Report(columns, arguments.json)
    for record in judge.records():
        if arguments.only not in record["name"]:
            continue
        problem, x0, y0 = judge.build(record, bx, jnp)
        solution, seconds = timed(lambda p=problem, x=x0, y=y0: bx.solve(p, x, y0=y), arguments.turns)
        row = {"problem": record["name"], "best": record["best"]["F"], "ms": 1e3 * seconds}
        verdict, value = _verdict(judge, record, np.ravel(solution.x), float(solution.value), solution.success)
        row |= {"bilevax": verdict, "value": value}
        if wanted(arguments.pympcc):
            answer = solve_as_mpcc(_instance(judge, record), arguments.pympcc, arguments.turns)
            verdict, value = _verdict(judge, record, answer.x, answer.value, answer.success)
            row |= {"pympcc": verdict, "value_mpcc": value, "ms_mpcc": 1e3 * answer.seconds}
            row["ratio"] = answer.seconds / seconds
        report.add(**row)
    _conclude(report)
    return report


def _conclude(report: Report) -> None:
    count = {name: [row.get(name) for row in report.rows] for name in ("bilevax", "pympcc")}
    number = lambda name, *verdicts: sum(verdict in verdicts for verdict in count[name])
    both = bool(report.column("ms_mpcc"))
    for name in ("bilevax", "pympcc") if both else ("bilevax",):
        report.remarks.append(
            f"{name}: {number(name, 'global', 'local', 'wrong')} successes of {len(report.rows)}, "
            f"{number(name, 'global')} global, {number(name, 'wrong')} wrong; "
            f"median {median(report.column('ms' if name == 'bilevax' else 'ms_mpcc')):.4g} ms"
        )
    report.target("wrong successes", number("bilevax", "wrong"), "<=", 0)
    report.target(
        "global, minus pympcc's", number("bilevax", "global") - number("pympcc", "global") if both else None, ">=", 0
    )
    ratio = np.median(report.column("ms_mpcc")) / np.median(report.column("ms")) if both else None
    report.target("ratio of the median times, pympcc / bilevax", ratio, ">=", 5)


def _verdict(judge: Any, record: dict, x: np.ndarray, claimed: float, success: bool) -> tuple[str, float]:
    """Return what an answer is worth, and Phi(x) by SciPy: wrong means a success that does not hold."""
    value, _, infeasible, outside = judge.judge(record, x)
    best, scale = record["best"]["F"], _SAME_VALUE * max(1.0, abs(record["best"]["F"]))
    if not success:
        return "failed", value
    if infeasible > _FEASIBLE or outside > _FEASIBLE or not abs(value - claimed) <= scale:
        return "wrong", value
    return ("global" if value <= best + scale else "local"), value


def _instance(judge: Any, record: dict) -> Instance:
    """Return a record as an instance, for pympcc; bilevax's problem is the judge's own."""
    n, m, upper, lower = record["n"], record["m"], record["upper"], record["lower"]
    data = {key: np.array(value, float) for key, value in record.get("data", {}).items()}
    f, g = judge.fn(upper["F"], data, jnp), judge.fn(lower["f"], data, jnp)
    part = lambda rows: (np.hstack([judge.arr(rows["B"], n), judge.arr(rows["A"], m)]), judge.arr(rows["b"]))
    below, equal = part(lower["ineq"]), part(lower["eq"])
    x_below = judge.arr(upper["x_linear"]["C"], n), judge.arr(upper["x_linear"]["d"])
    given = upper.get("x_equality") or {"C": [], "d": []}
    x_rows = _rows(x_below, (judge.arr(given["C"], n), judge.arr(given["d"])))
    return Instance(
        name=record["name"],
        upper=lambda x, y, _: f(x, y),
        lower=lambda x, y, _: g(x, y),
        data={},
        rows=_rows(below, equal),
        x0=np.array(record["start"]["x0"], float),
        y0=np.array(record["start"]["y0"], float),
        x_box=judge.bounds(upper["x_bounds"]),
        y_box=judge.bounds(lower["y_bounds"]),
        x_rows=x_rows if len(x_rows.lower) else None,
    )


def _rows(below: tuple[np.ndarray, np.ndarray], equal: tuple[np.ndarray, np.ndarray]) -> Rows:
    lower = np.concatenate([np.full(len(below[1]), -np.inf), equal[1]])
    return Rows(np.vstack([below[0], equal[0]]), lower, np.concatenate([below[1], equal[1]]))


def load_judge() -> ModuleType:
    """Return judge.py, which lies beside the problems and shares nothing with bilevax."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "problems"
    path = Path(os.environ.get("BILEVAX_PROBLEMS", beside)) / "judge.py"
    if not path.exists():
        raise SystemExit(f"public: expected the known-answer problems in BILEVAX_PROBLEMS or {beside}, found none.")
    spec = importlib.util.spec_from_file_location("judge", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
