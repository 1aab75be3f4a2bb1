"""Time per SFLCB step on the paper's SVM: the library's compiled loop against a plain PyTorch script.

The script is Algorithm 1 as one would write it down from the paper: K as a function, its gradients by autograd, and a
loop in Python. Both have to agree before they are timed; they then take turns, and the fastest turn of each counts.
"""

import argparse
import importlib
import os
from typing import Any

# Before NumPy is loaded: idle threads of its BLAS spin, and would disturb whoever takes the next turn.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np

from cases import svm
from cases.case import Case
from comparisons.report import CLOCKS, Report
from sflcb_step import AGREEMENT, AGREEMENT_STEPS

_TARGET = 50.0


class Script:
    """Algorithm 1 on the SVM problem, on PyTorch tensors; slacks in the units of the rows."""

    def __init__(self, case: Case, torch: Any):
        self.torch = torch
        self.steps = {name: float(value) for name, value in vars(case.solver).items()}
        tensor = lambda array: torch.tensor(np.array(array), dtype=torch.float64)
        _, A, _ = case.problem.coupling[0].matrices(case.x0, case.y0, case.problem.data)
        self.A = tensor(A.toarray())
        self.V, self.weight = tensor(case.problem.data["V"]), tensor(case.problem.data["weight"])
        self.x, self.y = tensor(case.x0), tensor(case.y0)
        self.z = self.y.clone()
        self.s_y = self.project(self.rows(self.x, self.y))
        self.s_z = self.s_y.clone()
        self.u = self.v = torch.zeros_like(self.s_y)

    def upper(self, x: Any, y: Any) -> Any:
        return self.torch.sum(self.torch.exp(1 - self.V @ y)) + 0.5 * x @ x

    def lower(self, y: Any) -> Any:
        return 0.5 * (self.weight * y) @ y

    def rows(self, x: Any, y: Any) -> Any:
        return self.A @ y - x

    def project(self, slack: Any) -> Any:
        return self.torch.clamp(slack, max=-1.0)

    def lagrangian(self, x: Any, y: Any, z: Any, s_y: Any, s_z: Any) -> Any:
        residual_y, residual_z = self.rows(x, y) - s_y, self.rows(x, z) - s_z
        p = self.steps
        penalised = p["delta"] * self.upper(x, y) + self.lower(y) - self.lower(z)
        pull = self.u @ residual_y - self.v @ residual_z
        augmented = p["rho1"] * residual_y @ residual_y - p["rho2"] * residual_z @ residual_z
        return penalised + pull + 0.5 * augmented

    def step(self) -> None:
        p = self.steps
        self.u = self.u + p["eta_u"] * (self.rows(self.x, self.y) - self.s_y)
        self.v = self.v + p["eta_v"] * (self.rows(self.x, self.z) - self.s_z)
        point = [part.detach().requires_grad_() for part in (self.x, self.y, self.z, self.s_y, self.s_z)]
        x, y, z, s_y, s_z = self.torch.autograd.grad(self.lagrangian(*point), point)
        self.x = self.x - p["eta_x"] * x
        self.y, self.s_y = self.y - p["eta_y"] * y, self.project(self.s_y - p["eta_y"] * s_y)
        self.z, self.s_z = self.z + p["eta_z"] * z, self.project(self.s_z + p["eta_z"] * s_z)


def check(case: Case, torch: Any) -> None:
    """Raise unless both programs give the same point after some steps."""
    loop, advance = case.prepare(AGREEMENT_STEPS)
    expected, script = advance(loop).state, Script(case, torch)
    for _ in range(AGREEMENT_STEPS):
        script.step()
    for name in ("x", "y", "z"):
        error = np.abs(getattr(script, name).numpy() - np.asarray(getattr(expected, name))).max()
        if not error <= AGREEMENT:
            raise AssertionError(f"{name}: after {AGREEMENT_STEPS} steps PyTorch differs from JAX by {error:.2g}")


def measure(case: Case, torch: Any, turns: int, clock: str) -> dict[str, float]:
    """Return microseconds per step of both programs, each the fastest of many turns."""
    loop, advance = case.prepare(case.steps)
    script, now = Script(case, torch), CLOCKS[clock]

    def run_script() -> None:
        for _ in range(100):
            script.step()

    best = {"JAX us": np.inf, "PyTorch us": np.inf}
    for _ in range(turns):
        for name, program, steps in (("JAX us", lambda: advance(loop), case.steps), ("PyTorch us", run_script, 100)):
            began = now()
            program()
            best[name] = min(best[name], (now() - began) / steps * 1e6)
    return best | {"PyTorch/JAX": best["PyTorch us"] / best["JAX us"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--turns", type=int, default=30, help="how often each program is timed")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu counts the process's own seconds")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)  # matrices of this size gain nothing from more, and waiting threads would count
    case = svm.small()
    check(case, torch)
    report = Report(("case", "JAX us", "PyTorch us", "PyTorch/JAX"), arguments.json)
    report.add(case=case.name, **measure(case, torch, arguments.turns, arguments.clock))
    report.target("times faster than the PyTorch loop", report.rows[0]["PyTorch/JAX"], ">=", _TARGET)
    report.finish()


if __name__ == "__main__":
    main()
