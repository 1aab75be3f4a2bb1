"""How time and memory grow with size: the paper's SVM, dense quadratics, sparse chains and grids, a process each."""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import bilevax as bx
from bilevax.datasets import Dataset
from bilevax.problems.svm import svm
from comparisons.quadratics import dense
from comparisons.report import Report

# Kind, size (and features), and the CPU seconds that it may take.
_CASES = (
    ("svm", (1000, 50), None),
    ("svm", (2000, 50), 5.0),
    ("svm", (5000, 100), 15.0),
    ("svm", (20_000, 200), 120.0),
    ("dense", (100,), None),
    ("dense", (500,), None),
    ("dense", (1000,), None),
    ("dense", (2000,), 10.0),
    ("dense", (5000,), None),
    ("chain", (10_000,), None),
    ("chain", (50_000,), None),
    ("chain", (330_000,), None),
    ("grid", (50,), None),
    ("grid", (150,), None),
    ("grid", (500,), None),
)
_MEMORY = {"svm": 5.0, "chain": 10.0, "grid": 10.0}  # times the data, of the largest size
_STEEPEST = {"chain": 1.2, "grid": 1.2}  # exponent of the growth
_LIMIT = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=tuple(_MAKERS), default=list(_MAKERS))
    parser.add_argument("--most", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)  # one of them, in this process


def run(arguments: argparse.Namespace) -> Report:
    if arguments.case:
        print(json.dumps(_measure(arguments.case[0], tuple(int(part) for part in arguments.case[1:]))))
        sys.exit()
    report = Report(("case", "certified", "cpu_s", "s", "data_mb", "peak_mb", "growth", "exponent"), arguments.json)
    for kind, size, most in _CASES:
        if kind not in arguments.kinds or size[0] > arguments.most:
            continue
        command = [sys.executable, sys.argv[0], "sizes", "--case", kind, *map(str, size)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"{kind} {size}: {answer.stderr[-2000:]}")
        row = json.loads(answer.stdout.splitlines()[-1]) | {"case": f"{kind} {' x '.join(map(str, size))}"}
        row |= {"n": size[0], "family": f"{kind}, first call"}
        before = [other for other in report.rows if other["kind"] == kind]
        if before:  # time against numbers in the data
            last = before[-1]
            row["exponent"] = np.log(row["cpu_s"] / last["cpu_s"]) / np.log(row["work"] / last["work"])
            # Megabytes that a megabyte more of data takes: what does not depend on the size is left out.
            row["growth"] = (row["peak_mb"] - before[0]["peak_mb"]) / (row["data_mb"] - before[0]["data_mb"])
        report.add(**row)
        if most is not None:
            report.target(f"CPU seconds, {row['case']}", row["cpu_s"], "<=", most)
    for kind in arguments.kinds:
        rows = [row for row in report.rows if row["kind"] == kind]
        if rows and kind in _MEMORY:
            last = rows[-1]
            report.target(f"memory over data, {last['case']}", last["peak_mb"] / last["data_mb"], "<=", _MEMORY[kind])
        if len(rows) > 1 and kind in _STEEPEST:
            report.target(f"exponent, {kind}", rows[-1]["exponent"], "<=", _STEEPEST[kind])
    report.target("certified, share", np.mean([row["certified"] for row in report.rows]), ">=", 1)
    return report


def _measure(kind: str, size: tuple[int, ...]) -> dict[str, Any]:
    """Solve one problem, the first of the process: compiling counts, in time and in memory."""
    jax.config.update("jax_enable_x64", True)
    before = _resident()
    problem, x0, data, work = _MAKERS[kind](*size)
    clock, cpu = time.perf_counter(), time.process_time()
    solution = bx.solve(problem, x0, time_limit=_LIMIT, progress=False)
    return {
        "kind": kind,
        "certified": bool(solution.success),
        "cpu_s": time.process_time() - cpu,
        "s": time.perf_counter() - clock,
        "data_mb": data / 2**20,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before,
        "work": work,
        "message": solution.message,
    }


def _resident() -> float:
    """Return the megabytes that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def synthetic_svm(rows: int, features: int, seed: int = 0) -> bx.BilevelProblem:
    """Return an SVM with so many training rows, half as many validation rows, and noisy labels."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(features)

    def part(count: int) -> Dataset:
        values = random.standard_normal((count, features))
        score = values @ truth / np.sqrt(features) + 0.5 * random.standard_normal(count)
        return Dataset(values, np.where(score >= 0, 1.0, -1.0))

    return svm(part(rows), part(rows // 2))


def _svm(rows: int, features: int) -> tuple[bx.BilevelProblem, np.ndarray, float, float]:
    numbers = 1.5 * rows * (features + 1)
    return synthetic_svm(rows, features), np.full(rows, 3.0), 8 * numbers, rows


def _dense(n: int) -> tuple[bx.BilevelProblem, np.ndarray, float, float]:
    instance = dense(n, 0)
    numbers = sum(np.asarray(part).size for part in jax.tree.leaves(instance.data)) + instance.rows.matrix.size
    return instance.to_bilevax(), np.asarray(instance.x0), 8.0 * numbers, n


def _chain(size: int) -> tuple[bx.BilevelProblem, np.ndarray, float, float]:
    """Return the tracking of a goal on a chain whose neighbours limit each other: three entries a row, three x."""
    A = sp.diags([np.full(size - 1, -0.2), np.ones(size), np.full(size - 1, -0.2)], [-1, 0, 1], format="csr")
    group = np.arange(size) % 3
    B = sp.csr_matrix((np.full(size, -0.1), (np.arange(size), group)), shape=(size, 3))
    problem = bx.BilevelProblem(
        upper=lambda x, y: 0.5 * jnp.mean((y - 0.8) ** 2) + 0.05 * jnp.sum(x**2),
        lower=lambda x, y: 0.5 * jnp.sum((y - x[group]) ** 2),
        coupling=bx.LinearCoupling(A=A, B=B, upper=0.4),
        x_set=bx.Box(-2.0, 2.0),
    )
    return problem, np.zeros(3), 12.0 * (A.nnz + B.nnz), size


def _grid(side: int) -> tuple[bx.BilevelProblem, np.ndarray, float, float]:
    """Return tolls on three kinds of streets of a square grid: a node's flows balance, two entries a street."""
    random, nodes = np.random.default_rng(0), np.arange(side * side).reshape(side, side)
    ends = [(nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:])]
    start, stop = (np.concatenate([pair[k].ravel() for pair in ends]) for k in (0, 1))
    streets = len(start)
    entries = np.repeat([1.0, -1.0], streets), (np.concatenate([start, stop]), np.tile(np.arange(streets), 2))
    balance = sp.csr_matrix(sp.coo_matrix(entries, (nodes.size, streets)))[:-1]  # the last follows from the others
    supply = random.standard_normal(nodes.size)
    supply = (supply - supply.mean())[:-1]
    kind, cost, goal = np.arange(streets) % 3, random.uniform(1.0, 2.0, streets), random.uniform(-0.5, 0.5, streets)
    problem = bx.BilevelProblem(
        upper=lambda x, y: 0.5 * jnp.mean((y - goal) ** 2) + 0.01 * jnp.sum(x**2),
        lower=lambda x, y: jnp.sum(0.5 * cost * y**2 + x[kind] * y),
        coupling=bx.LinearCoupling(A=balance, lower=supply, upper=supply),
        x_set=bx.Box(-1.0, 1.0),
    )
    return problem, np.zeros(3), 12.0 * balance.nnz, streets


_MAKERS = {"svm": _svm, "dense": _dense, "chain": _chain, "grid": _grid}
