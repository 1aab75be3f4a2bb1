"""Proofs of global optima: random quadratic problems of growing size, each proven by `bx.prove`.

    python benchmarks/proofs.py [20 40 80 160] [--discopt PYTHON]

Three seeds a size, the default gap. CPU seconds of the branch and bound alone and of the whole call, its certificate
included, the least of three after a first one, so that nothing is compiled in it. With the interpreter of an
environment that has discopt, it proves the same problems, helped with bounds on y and on the multipliers that bilevax
does not need.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax._support.precision import float64
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.problem import validate
from bilevax.proof.search import global_bounds


def numbers(n: int, seed: int) -> dict[str, np.ndarray]:
    """Draw n / 2 variables x in [-5, 5], n variables y and n / 2 rows."""
    half, random = n // 2, np.random.default_rng(1000 * n + seed)

    def definite(size: int, least: float) -> np.ndarray:
        root = random.normal(size=(size, size)) / np.sqrt(size)
        return root @ root.T + least * np.eye(size)

    return {
        "Q": definite(n, 0.5),
        "R": random.normal(size=(n, half)) / np.sqrt(half),
        "c": random.normal(size=n),
        "W": definite(half + n, 0.1),
        "w": random.normal(size=half + n) * 2,
        "A": random.normal(size=(half, n)) / np.sqrt(n),
        "B": random.normal(size=(half, half)) / np.sqrt(half),
        "b": random.uniform(0, 0.5, half),
    }


def _upper(x, y, d):
    z = jnp.concatenate([x, y])
    return 0.5 * z @ d["W"] @ z + d["w"] @ z


def _lower(x, y, d):
    return 0.5 * y @ d["Q"] @ y + (d["R"] @ x + d["c"]) @ y


def problem(n: int, seed: int) -> bx.BilevelProblem:
    """Return the problem of these numbers."""
    drawn = numbers(n, seed)
    rows = bx.LinearCoupling(A=drawn.pop("A"), B=drawn.pop("B"), upper=drawn.pop("b"))
    box = bx.Box(np.full(n // 2, -5.0), np.full(n // 2, 5.0))
    return bx.BilevelProblem(_upper, _lower, rows, x_set=box, data=drawn)


def measure(n: int, seed: int) -> tuple[float, float, bx.Proof]:
    """Return the CPU seconds of branch and bound, those of the whole call, each the least of three, and the proof."""
    stated = problem(n, seed)
    proof = bx.prove(stated)
    whole = least(lambda: bx.prove(stated))
    with float64():
        x, y_like, _ = validate(stated, np.zeros(n // 2))
        flat = equilibrated(FlatProblem(stated, x, y_like), x)
        return least(lambda: global_bounds(flat, None, 1e-4)), whole, proof


def least(call: Callable[[], Any]) -> float:
    """Return the least CPU seconds of three calls."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return min(seconds)


def by_discopt(interpreter: str, n: int, seed: int, time_limit: float = 300.0) -> dict[str, Any]:
    """Return what discopt finds on the same problem, and its CPU seconds."""
    script = Path(__file__).parent / "comparisons" / "discopt_proof.py"
    given = {"numbers": {name: part.tolist() for name, part in numbers(n, seed).items()}, "time_limit": time_limit}
    done = subprocess.run(
        [interpreter, "-P", str(script)], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.split("RESULT")[-1])


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[20, 40, 80, 160], help="values of n")
    parser.add_argument("--discopt", help="a Python that has discopt")
    arguments = parser.parse_args()
    print(f"{'n':>4} {'seed':>4} {'branching':>10} {'whole call':>10} {'nodes':>6} {'gap':>8}  status")
    for n in arguments.sizes:
        times = []
        for seed in range(3):
            branching, whole, proof = measure(n, seed)
            times.append((branching, whole))
            told = f"{branching:>10.4f} {whole:>10.4f} {proof.nodes:>6} {proof.gap:>8.1e}"
            print(f"{n:>4} {seed:>4} {told}  {proof.status}", flush=True)
            if arguments.discopt:
                other = by_discopt(arguments.discopt, n, seed)
                seconds = other["cpu_seconds"]
                words = (
                    f"discopt {seconds:.2f} s, {other['status']}, value {other['value']} against {proof.upper_bound}"
                )
                print(f"     {words}: {seconds / branching:.0f} and {seconds / whole:.0f} times as long", flush=True)
        print(f"{n:>4} median {np.median(times, axis=0)[0]:>8.4f} {np.median(times, axis=0)[1]:>10.4f}")


if __name__ == "__main__":
    main()
