"""Two cores against one of them: rows of an SVM on two devices, and 32 starts in two processes."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from comparisons.report import Report

#: Microseconds a step of SFLCB, rows on so many devices: the fastest of many turns.
_STEP = """
import dataclasses, json, sys, time
import equinox as eqx, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import bilevax as bx
from cases import svm
jax.config.update("jax_enable_x64", True)
case = svm.large()
if jax.device_count() > 1:
    rows = NamedSharding(Mesh(jax.devices(), ("rows",)), PartitionSpec("rows"))
    put = lambda array: jax.device_put(np.asarray(array), rows)
    part = case.problem.coupling[0]
    coupling = bx.LinearCoupling(put(part.A.matrix), part.B, put(part.lower), put(part.upper))
    problem = eqx.tree_at(lambda problem: problem.coupling, case.problem, (coupling,))
    case = dataclasses.replace(case, problem=problem, x0=put(case.x0))
loop, advance = case.prepare(case.steps)
advance(loop)
best = np.inf
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    advance(loop)
    best = min(best, time.perf_counter() - began)
print(json.dumps(1e6 * best / case.steps))
"""

#: The same by the kernel in C, on as many threads as devices, each with its part of the rows and no sum at the
#: end of a step: what the machine has to offer.
_KERNEL = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
import jax, numpy as np
from cases import svm
from sflcb_step import _host
jax.config.update("jax_enable_x64", True)
count = jax.device_count()
random = np.random.default_rng(0)
features = random.standard_normal((20_000 // count + 150, 200)) / np.sqrt(200)
labels = np.where(features[:, 0] > 0, 1.0, -1.0)
case = svm.svm("part", features, labels, training=20_000 // count, validation=150, target=1.0, steps=20)
states = [_host(case.prepare(case.steps)[0].state) for _ in range(count)]
kernels = [case.c_loop(state) for state in states]
best = np.inf
with ThreadPoolExecutor(count) as pool:
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        list(pool.map(lambda kernel: kernel(case.steps), kernels))
        best = min(best, time.perf_counter() - began)
print(json.dumps(1e6 * best / case.steps))
"""

#: Seconds of 32 starts by so many processes (0: this one), and the best value.
_STARTS = """
import json, sys, time
import numpy as np
import bilevax as bx
from bilevax.problems import quadratic
workers, size, count = map(int, sys.argv[1:])
if __name__ == "__main__":
    problem = quadratic(size, size, size, upper="nonconvex", box=5.0, with_theta_bar=False).problem
    began = time.perf_counter()
    found = bx.multistart(problem, count, workers=workers or None)
    print(json.dumps([time.perf_counter() - began, found.best.value, found.answer_of.tolist()]))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=40, help="variables and rows of the problem with many starts")
    parser.add_argument("--starts", type=int, default=32)
    parser.add_argument("--only", choices=("step", "starts"), default=None)


def run(arguments: argparse.Namespace) -> Report:
    report = Report(("what", "one core", "two cores", "ratio", "load"), arguments.json)
    if arguments.only != "starts":
        wanted = {_STEP: ("us a step, SVM 20,000 x 201", 1.5), _KERNEL: ("the same in C, without the sum", None)}
        times = {(program, cores): [] for program in wanted for cores in (1, 2)}
        for _ in range(arguments.turns):  # they take turns: a busy machine is busy for all
            for (program, cores), found in times.items():
                found.append(_child(program, set(range(cores)), "20"))
        for program, (what, ratio) in wanted.items():
            _add(report, what, min(times[program, 1]), min(times[program, 2]), ratio)
    if arguments.only != "step":
        given = str(arguments.size), str(arguments.starts)
        one, two = [], []
        for _ in range(arguments.turns):
            one.append(_child(_STARTS, {0}, "0", *given))
            two.append(_child(_STARTS, {0, 1}, "2", *given))
        if one[0][1:] != two[0][1:]:
            raise AssertionError(f"two processes find {two[0][1:]}, one finds {one[0][1:]}")
        _add(report, f"s, {arguments.starts} starts", min(one)[0], min(two)[0], 1.7)
    return report


def _add(report: Report, what: str, one: float, two: float, wanted: float | None) -> None:
    load = round(os.getloadavg()[0], 1)
    report.add(what=what, **{"one core": one, "two cores": two, "ratio": one / two, "load": load})
    report.target(f"{what}: one core / two", one / two, ">=", wanted)


def _child(program: str, cores: set[int], *arguments: str) -> Any:
    """Return what a program prints that runs on these cores alone, with a device of JAX's on each."""
    flags = f"--xla_force_host_platform_device_count={len(cores)}" if program is not _STARTS else ""
    folder = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])
