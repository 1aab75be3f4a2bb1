"""Time per SFLCB step: the library's compiled loop against plain NumPy and against C fused by hand.

The three have to agree before they are timed. They then take turns, and the fastest turn of each counts, so that the
ratios survive a busy machine.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

# Before NumPy is loaded: idle threads of its BLAS spin, and would disturb whoever takes the next turn.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np

from cases import svm
from cases.case import Case
from cases.network import network
from cases.toy import toy
from comparisons.report import CLOCKS, Report
from data import nine_nodes, sioux_falls
from kernels import aligned

AGREEMENT_STEPS, AGREEMENT = 50, 1e-9
_COLUMNS = ("case", "C us", "JAX us", "NumPy us", "JAX/C", "NumPy/JAX")


def cases() -> list[Case]:
    return [
        toy(),
        svm.small(),
        svm.large(),
        network("9 nodes", nine_nodes(), target=2.0, steps=2000),
        network("Sioux Falls", sioux_falls(), target=2.0, steps=400),
    ]


def check(case: Case) -> None:
    """Raise unless the three programs give the same state after some steps."""
    loop, advance = case.prepare(AGREEMENT_STEPS)
    in_numpy, in_c = _host(loop.state), _host(loop.state)
    expected = _host(advance(loop).state)
    for _ in range(AGREEMENT_STEPS):
        in_numpy = case.numpy_step(in_numpy)
    case.c_loop(in_c)(AGREEMENT_STEPS)
    for name, found in (("NumPy", in_numpy), ("C", in_c)):
        error = max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), found, expected)))
        if not error <= AGREEMENT:
            raise AssertionError(f"{case.name}: after {AGREEMENT_STEPS} steps {name} differs from JAX by {error:.2g}")


def measure(case: Case, turns: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return microseconds per step of the three programs by this clock, each the fastest of many turns."""
    loop, advance = case.prepare(case.steps)
    c_state, numpy_state = _host(loop.state), _host(loop.state)
    run_c = case.c_loop(c_state)
    numpy_steps = max(1, case.steps // 10)

    def run_numpy() -> None:
        state = numpy_state
        for _ in range(numpy_steps):
            state = case.numpy_step(state)

    programs: dict[str, tuple[Callable[[], Any], int]] = {
        "C us": (lambda: run_c(case.steps), case.steps),
        "JAX us": (lambda: advance(loop), case.steps),
        "NumPy us": (run_numpy, numpy_steps),
    }
    best = dict.fromkeys(programs, np.inf)
    for _ in range(turns):
        for name, (program, steps) in programs.items():
            began = clock()
            program()
            best[name] = min(best[name], (clock() - began) / steps * 1e6)
    return best | {"JAX/C": best["JAX us"] / best["C us"], "NumPy/JAX": best["NumPy us"] / best["JAX us"]}


def _host(state: Any) -> Any:
    return jax.tree.map(lambda leaf: aligned(np.asarray(leaf)), state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--turns", type=int, default=100, help="how often each program is timed")
    parser.add_argument("--case", default="", help="only cases whose name contains this text")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu counts the process's own seconds")
    parser.add_argument("--one-core", action="store_true", help="all programs on one and the same core, as C is anyway")
    arguments = parser.parse_args()
    if arguments.one_core:  # before JAX counts them
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    jax.config.update("jax_enable_x64", True)
    report = Report(_COLUMNS, arguments.json)
    for case in cases():
        if arguments.case in case.name:
            check(case)
            report.add(case=case.name, **measure(case, arguments.turns, CLOCKS[arguments.clock]))
            report.target(f"{case.name}, JAX / C", report.rows[-1]["JAX/C"], "<=", case.target)
    report.finish()


if __name__ == "__main__":
    main()
