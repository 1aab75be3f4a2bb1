"""The paper's SVM hyperparameters on ten splits of the diabetes data: Phi against the certified global optima."""

import argparse

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import bilevax as bx
from comparisons.instance import Instance, QuadraticLower, Rows
from comparisons.judge import Judge
from comparisons.mpcc import solve_as_mpcc, wanted
from comparisons.report import Report, timed

_TRAINING, _VALIDATION = 500, 150
# Global optima of Phi by split, each with a matching lower bound (src/bilevax/data/README.md).
_OPTIMA = (417.3201, 391.2525, 429.1404, 438.2940, 385.8223, 406.6983, 393.2591, 388.3652, 384.7303, 405.9452)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--splits", type=int, default=len(_OPTIMA), help="how many of the ten splits")
    parser.add_argument("--pympcc-splits", type=int, default=1, help="how many of them pympcc solves; minutes each")


def run(arguments: argparse.Namespace) -> Report:
    columns = (
        "split",
        "certified",
        "holds",
        "value",
        "optimum",
        "gap_percent",
        "s",
        "pympcc",
        "value_mpcc",
        "s_mpcc",
        "ratio",
    )
    report = Report(columns, arguments.json)
    for split, instance in enumerate(_splits(arguments.splits)):
        problem, judge = instance.to_bilevax(), Judge(instance)
        solution, seconds = timed(lambda p=problem, x=instance.x0: bx.solve(p, x), arguments.turns)
        optimum = _OPTIMA[split]
        row = {"split": f"split {split}", "certified": solution.success, "value": solution.value, "s": seconds}
        row |= {"optimum": optimum, "gap_percent": 100 * (solution.value / optimum - 1)}
        row["holds"] = judge.agrees(solution.x, solution.value)
        if split < arguments.pympcc_splits and wanted(arguments.pympcc):
            answer = solve_as_mpcc(instance, arguments.pympcc, arguments.turns)
            row |= {"pympcc": answer.success and judge.agrees(answer.x, answer.value), "value_mpcc": answer.value}
            row |= {"s_mpcc": answer.seconds, "ratio": answer.seconds / seconds, "message": answer.message}
        report.add(**row)
    values, optima = np.array(report.column("value")), np.array(report.column("optimum"))
    gap = float(100 * (values.mean() / optima.mean() - 1))
    report.remarks.append(f"mean Phi {values.mean():.4f}, mean optimum {optima.mean():.4f}")
    report.target("mean Phi above the mean optimum, percent", gap, "<=", 0.05)
    report.target(
        "certified and true, share", np.mean([row["certified"] and row["holds"] for row in report.rows]), ">=", 1
    )
    ratios = report.column("ratio")
    report.target("times faster than pympcc, one split", min(ratios) if ratios else None, ">=", 30)
    return report


def _splits(count: int) -> list[Instance]:
    """Return the splits of the published experiment: one array, shuffled in place by one seed after another."""
    base, labels = _diabetes()
    first, second = np.triu_indices(base.shape[1], k=1)
    features = np.column_stack([np.ones(len(base)), base, base**2, base[:, first] * base[:, second]])
    table = np.column_stack([features, labels])
    found = []
    for seed in range(count):
        np.random.RandomState(seed).shuffle(table)
        signed = table[:, -1:] * np.column_stack([table[:, :-1], np.ones(len(table))])
        found.append(_instance(signed[:_TRAINING], signed[_TRAINING : _TRAINING + _VALIDATION], seed))
    return found


def _instance(training: np.ndarray, validation: np.ndarray, seed: int) -> Instance:
    """Return the problem: the slacks c of the rows ``margin >= 1 - c`` that give the SVM of least validation loss."""
    weight = np.ones(training.shape[1])
    weight[-1] = 0.01  # of the bias
    rows, size = training.shape
    return Instance(
        name=f"SVM, split {seed}",
        upper=lambda c, y, data: jnp.sum(jnp.exp(1 - data["V"] @ y)) + 0.5 * c @ c,
        lower=lambda c, y, data: 0.5 * (data["weight"] * y) @ y,
        data={"V": validation, "weight": weight},
        rows=Rows(sp.hstack([-sp.eye(rows), -training]).tocsr(), np.full(rows, -np.inf), np.full(rows, -1.0)),
        x0=np.random.default_rng(seed).uniform(1.0, 5.0, rows),
        y0=np.zeros(size),
        quadratic=QuadraticLower(sp.diags(weight), sp.csr_matrix((size, rows)), np.zeros(size)),
    )


def _diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Return the data in their own order, which the published shuffles start from."""
    found = bx.datasets.diabetes()
    return found.features, found.labels
