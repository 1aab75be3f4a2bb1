"""All problems of the literature with known optima, from one start each: what the default finds, proven or not.

python benchmarks/literature.py [--starts 32] [--prove] [--write]

Expects the known-answer problems in BILEVAX_PROBLEMS, or in ``shared/problems`` beside the checkout. *Solved* means a
success that is globally optimal to 1e-3; *wrong* one below the known optimum. ``--prove`` lets `bx.prove` bound the
values that come without a proof, within 60 CPU s each; a bound above the known optimum is *false*. ``--patience`` is
how many seconds a CPU second may take, on a machine with other work. ``--write`` keeps the table for the documents, as
``docs/figures/literature.json``.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.app.experiments.provenance import made
from comparisons.public import load_judge

DOCUMENTS = Path(__file__).resolve().parents[1] / "docs"
TIME_LIMIT = 60.0


def build(record: dict[str, Any], judge: ModuleType) -> bx.BilevelProblem:
    """Return a record as a problem: what the judge makes of it, and the rows that it leaves out."""
    lower, upper = record["lower"], record["upper"]
    none: dict[str, list] = {"A": [], "B": [], "b": []}
    base = judge.build(record | {"lower": lower | {"ineq": lower["ineq"] or none}}, bx, jnp)[0]
    data = {key: np.array(value, float) for key, value in record.get("data", {}).items()}

    def rows(expressions: list[str]) -> list[bx.ConvexCoupling]:
        parts = [judge.fn(expression, data, jnp) for expression in expressions]
        stacked = lambda x, y: jnp.stack([jnp.asarray(part(x, y), float).reshape(()) for part in parts])
        return [bx.ConvexCoupling(stacked)] if parts else []

    return bx.BilevelProblem(
        upper=base.upper,
        lower=base.lower,
        coupling=[*base.coupling, *rows(lower["nonaffine_le0"])] or None,
        x_set=base.x_set,
        y_set=base.y_set,
        upper_rows=rows([*upper["coupling_le0"], *upper["x_nonlinear_le0"]]) or None,
    )


def starts_of(record: dict[str, Any], judge: ModuleType, count: int) -> np.ndarray:
    """Return the record's start, and others across X or around it."""
    x0 = np.array(record["start"]["x0"], float)
    low, high = judge.bounds(record["upper"]["x_bounds"])
    reach = 5 + 2 * np.abs(x0).max()
    low, high = np.where(np.isfinite(low), low, -reach), np.where(np.isfinite(high), high, reach)
    random = np.random.default_rng(7)
    return np.vstack([x0, random.uniform(low, np.minimum(high, low + 4 * reach), (count - 1, len(x0)))])


def bounded(problem: bx.BilevelProblem, solution: bx.Solution, best: float, patience: float) -> dict[str, Any]:
    """Return the global bound of a solution, from `solve` itself or from `prove`, and what it took."""
    proof, began = solution.proof, time.process_time()
    if proof is None and patience:
        proof = bx.prove(problem, solution.x, time_limit=patience * TIME_LIMIT, progress=False)
    seconds = time.process_time() - began
    lower = -np.inf if proof is None else proof.lower_bound
    margin = 1e-3 * max(1.0, abs(best))
    return {
        "proven": bool(proof is not None and proof.proven and seconds <= TIME_LIMIT),
        "lower_bound": float(lower) if np.isfinite(lower) else None,
        "false": bool(lower > best + margin),
        "proof_cpu_seconds": seconds,
    }


def solved(record: dict[str, Any], judge: ModuleType, count: int, patience: float) -> dict[str, Any]:
    """Return what became of a record."""
    problem, best = build(record, judge), float(record["best"]["F"])
    starts, y0 = starts_of(record, judge, count), np.array(record["start"]["y0"], float)
    began = time.process_time()
    if count > 1:
        solution = bx.multistart(problem, starts, y0=y0, time_limit=TIME_LIMIT, progress=False).best
    else:
        solution = bx.solve(problem, starts[0], y0=y0, time_limit=TIME_LIMIT, progress=False)
    seconds = time.process_time() - began
    margin, value = 1e-3 * max(1.0, abs(best)), float(solution.value)
    return {
        "problem": record["name"],
        "scope": "base" if record["properties"]["in_base_scope"] else "wider",
        "status": str(solution.status),
        "value": value if np.isfinite(value) else None,
        "best": best,
        "solved": bool(solution.success and value <= best + margin),
        "wrong": bool(solution.success and value < best - margin),
        "cpu_seconds": seconds,
    } | bounded(problem, solution, best, patience)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=1, help="starts of each problem")
    parser.add_argument("--prove", action="store_true", help="prove what comes without a proof")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds that a CPU second of a proof may take")
    parser.add_argument("--only", nargs="*", default=None, help="names of problems")
    parser.add_argument("--write", action="store_true", help="keep the table for the documents")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    table, judge = [], load_judge()
    for record in judge.records(base_only=False):
        if arguments.only is None or record["name"] in arguments.only:
            row = solved(record, judge, arguments.starts, arguments.patience * arguments.prove)
            table.append(row)
            words = "solved" if row["solved"] else "WRONG" if row["wrong"] else "-"
            words += ", proven" if row["proven"] else ""
            words += f", bound {row['lower_bound']:.6g}" if row["lower_bound"] is not None else ""
            words += ", FALSE" if row["false"] else ""
            numbers = f"{row['value'] or 0:13.6g} best {row['best']:13.6g} {row['cpu_seconds']:6.2f} s"
            print(f"{row['problem']:30} {row['scope']:5} {row['status']:16} {numbers}  {words}", flush=True)
    count = lambda key: sum(row[key] for row in table)
    base = [row for row in table if row["scope"] == "base"]
    sentences = [
        f"{count('solved')} of {len(table)} problems are solved, {sum(row['solved'] for row in base)} of the "
        f"{len(base)} in the base scope; {count('wrong')} answers are wrong.",
        f"{count('proven')} global optima are proven, by `solve` itself or by `bx.prove` within "
        f"{TIME_LIMIT:g} CPU s; {count('false')} bounds are false.",
        f"Median {np.median([row['cpu_seconds'] for row in table]):.2f} CPU s a problem, certificate and compilation "
        "included.",
    ]
    print("\n".join(sentences))
    if arguments.write:
        told = {"table": table, "sentences": sentences, "made": made()}
        (DOCUMENTS / "figures" / "literature.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
