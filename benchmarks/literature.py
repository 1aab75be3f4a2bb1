"""All problems of the literature with known optima, from one start each: what the default finds, proven or not.

python benchmarks/literature.py [--starts 32] [--write]

Expects the known-answer problems in BILEVAX_PROBLEMS, or in ``shared/problems`` beside the checkout. *Solved* means a
success that is globally optimal to 1e-3; *wrong* one below the known optimum. ``--write`` keeps the table for the
documents, as ``docs/figures/literature.json``.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.app.experiments.provenance import made

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("BILEVAX_PROBLEMS", HERE.parents[1] / "shared" / "problems"))
TIME_LIMIT = 60.0


def records() -> list[dict[str, Any]]:
    """Return the records, with their arrays in place."""
    found = json.loads((FOLDER / "problems.json").read_text())
    for record in found:
        if record.get("data_file"):
            data = dict(np.load(FOLDER / record["data_file"]))
            record["data"] = {**record.get("data", {}), **data}
            lower, upper = record["lower"], record["upper"]
            for part in filter(None, (lower["ineq"], lower["eq"], upper["x_linear"], upper.get("x_equality"))):
                for key, value in part.items():
                    if isinstance(value, str) and value.startswith("@"):
                        part[key] = data[value[1:]]
    return found


def function(expression: str, data: dict[str, np.ndarray]) -> Any:
    """Return an expression in x and y as a JAX function."""
    code = compile(expression, "problem", "eval")
    known = {"np": jnp, "D": {key: jnp.asarray(value) for key, value in data.items()}}
    return lambda x, y: eval(code, known, {"x": x, "y": y})


def stacked(expressions: list[str], data: dict[str, np.ndarray]) -> Any:
    """Return several expressions as one function."""
    parts = [function(expression, data) for expression in expressions]
    return lambda x, y: jnp.stack([jnp.asarray(part(x, y), float).reshape(()) for part in parts])


def matrix(value: Any, columns: int) -> np.ndarray:
    return np.array(value, float).reshape(-1, columns)


def bounds(pairs: list[list[float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper bounds, infinite where there is none."""
    low = np.array([-np.inf if pair[0] is None else pair[0] for pair in pairs], float)
    return low, np.array([np.inf if pair[1] is None else pair[1] for pair in pairs], float)


def box(low: np.ndarray, high: np.ndarray) -> bx.Box | bx.Free:
    return bx.Box(low, high) if np.isfinite(np.r_[low, high]).any() else bx.Free()


def upper_set(record: dict[str, Any]) -> Any:
    """Return X: bounds, and rows where there are some."""
    upper, n = record["upper"], record["n"]
    low, high = bounds(upper["x_bounds"])
    below = np.ravel(upper["x_linear"]["d"]).astype(float)
    parts = [(matrix(upper["x_linear"]["C"], n), np.full(len(below), -np.inf), below)]
    if "x_equality" in upper:
        right = np.ravel(upper["x_equality"]["d"]).astype(float)
        parts.append((matrix(upper["x_equality"]["C"], n), right, right))
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return box(low, high)
    finite = np.isfinite(low) | np.isfinite(high)
    parts.append((np.eye(n)[finite], low[finite], high[finite]))
    sides = [np.concatenate([part[side] for part in parts]) for side in (1, 2)]
    return bx.Polyhedron(np.vstack([part[0] for part in parts]), lower=sides[0], upper=sides[1])


def build(record: dict[str, Any]) -> bx.BilevelProblem:
    """Return a record as a problem."""
    n, m, lower, upper = record["n"], record["m"], record["lower"], record["upper"]
    data = {key: np.array(value, float) for key, value in record.get("data", {}).items()}
    coupling: list[Any] = []
    for part, equal in ((lower["ineq"], False), (lower["eq"], True)):
        right = np.ravel(part["b"]).astype(float) if part else np.zeros(0)
        if len(right):
            low = right if equal else -np.inf
            coupling.append(bx.LinearCoupling(matrix(part["A"], m), matrix(part["B"], n), lower=low, upper=right))
    if lower["nonaffine_le0"]:
        coupling.append(bx.ConvexCoupling(stacked(lower["nonaffine_le0"], data)))
    rows = [*upper["coupling_le0"], *upper["x_nonlinear_le0"]]
    return bx.BilevelProblem(
        upper=function(upper["F"], data),
        lower=function(lower["f"], data),
        coupling=coupling or None,
        x_set=upper_set(record),
        y_set=box(*bounds(lower["y_bounds"])),
        upper_rows=bx.ConvexCoupling(stacked(rows, data)) if rows else None,
    )


def starts_of(record: dict[str, Any], count: int) -> np.ndarray:
    """Return the record's start, and others across X or around it."""
    x0 = np.array(record["start"]["x0"], float)
    low, high = bounds(record["upper"]["x_bounds"])
    reach = 5 + 2 * np.abs(x0).max()
    low, high = np.where(np.isfinite(low), low, -reach), np.where(np.isfinite(high), high, reach)
    random = np.random.default_rng(7)
    return np.vstack([x0, random.uniform(low, np.minimum(high, low + 4 * reach), (count - 1, len(x0)))])


def solved(record: dict[str, Any], count: int) -> dict[str, Any]:
    """Return what became of a record."""
    problem, best = build(record), float(record["best"]["F"])
    starts, y0 = starts_of(record, count), np.array(record["start"]["y0"], float)
    began = time.process_time()
    if count > 1:
        solution = bx.multistart(problem, starts, y0=y0, time_limit=TIME_LIMIT, progress=False).best
    else:
        solution = bx.solve(problem, starts[0], y0=y0, time_limit=TIME_LIMIT, progress=False)
    margin, value = 1e-3 * max(1.0, abs(best)), float(solution.value)
    proof = getattr(solution, "proof", None)
    return {
        "problem": record["name"],
        "scope": "base" if record["properties"]["in_base_scope"] else "wider",
        "status": str(solution.status),
        "value": value if np.isfinite(value) else None,
        "best": best,
        "solved": bool(solution.success and value <= best + margin),
        "wrong": bool(solution.success and value < best - margin),
        "proven": bool(proof is not None and proof.proven),
        "cpu_seconds": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=1, help="starts of each problem")
    parser.add_argument("--only", nargs="*", default=None, help="names of problems")
    parser.add_argument("--write", action="store_true", help="keep the table for the documents")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    table = []
    for record in records():
        if arguments.only is None or record["name"] in arguments.only:
            row = solved(record, arguments.starts)
            table.append(row)
            words = "solved" if row["solved"] else "WRONG" if row["wrong"] else "-"
            words += ", proven" if row["proven"] else ""
            numbers = f"{row['value'] or 0:13.6g} best {row['best']:13.6g} {row['cpu_seconds']:6.2f} s"
            print(f"{row['problem']:30} {row['scope']:5} {row['status']:16} {numbers}  {words}", flush=True)
    count = lambda key: sum(row[key] for row in table)
    base = [row for row in table if row["scope"] == "base"]
    sentences = [
        f"{count('solved')} of {len(table)} problems are solved, {sum(row['solved'] for row in base)} of the "
        f"{len(base)} in the base scope; {count('wrong')} answers are wrong.",
        f"{count('proven')} answers come with a proof that they are the global optimum.",
        f"Median {np.median([row['cpu_seconds'] for row in table]):.2f} CPU s a problem, certificate and compilation "
        "included.",
    ]
    print("\n".join(sentences))
    if arguments.write:
        told = {"table": table, "sentences": sentences, "made": made()}
        path = HERE.parent / "docs" / "figures" / "literature.json"
        path.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
