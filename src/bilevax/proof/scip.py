"""Where f curves down: the same program given to SCIP (the extra ``global``), pairs as sets of which one is zero.

SCIP branches on products, too, and needs no bounds on multipliers. Its lower bound is not recomputed here: it holds up
to SCIP's own tolerances. Points are evaluated exactly, as everywhere.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from bilevax._support import clock
from bilevax.proof.incumbents import Incumbent
from bilevax.proof.program import ComplementarityProgram

_FEASIBLE = 1e-9  # SCIP's tolerance of rows, a thousandth of its default


def available() -> bool:
    """Return whether SCIP is installed."""
    return importlib.util.find_spec("pyscipopt") is not None


def scip_bounds(
    program: ComplementarityProgram,
    evaluate: Callable[[np.ndarray], Incumbent | None],
    known: Incumbent | None,
    gap: float,
) -> tuple[float, Incumbent | None, int, bool]:
    """Return SCIP's lower bound, the best point, the nodes, and whether it stopped at the deadline."""
    from pyscipopt import Model

    model = Model()
    model.hideOutput()
    model.setParam("limits/gap", gap)
    model.setParam("numerics/feastol", _FEASIBLE)
    if np.isfinite(clock.remaining()):
        model.setParam("limits/time", max(clock.remaining(), 1e-3))
    z = [model.addVar(lb=None, ub=None, name=f"z{k}") for k in range(len(program.cost))]
    _add_rows(model, program, z)
    value = model.addVar(lb=None, ub=None, name="value")
    model.addCons(value >= _quadratic(program, z))
    model.setObjective(value, "minimize")
    model.optimize()
    best = known
    for solution in model.getSols():
        found = evaluate(np.array([model.getSolVal(solution, each) for each in z]))
        if found is not None and (best is None or found.value < best.value):
            best = found
    bound = np.inf if model.getStatus() == "infeasible" else model.getDualbound()
    lower = -np.inf if bound <= -model.infinity() else float(bound)
    return lower, best, int(model.getNNodes()), model.getStatus() == "timelimit"


def _quadratic(program: ComplementarityProgram, z: list) -> Any:
    from pyscipopt import quicksum

    rows, columns = np.nonzero(program.hessian)
    terms = [0.5 * float(program.hessian[i, j]) * z[i] * z[j] for i, j in zip(rows, columns, strict=True)]
    terms += [float(program.cost[k]) * z[k] for k in np.flatnonzero(program.cost)]
    return quicksum(terms) + program.constant


def _add_rows(model: Any, program: ComplementarityProgram, z: list) -> None:
    """Add the rows, and for each pair a variable that is its slack, in a set with its multiplier."""
    from pyscipopt import quicksum

    image = lambda row: quicksum(float(row[k]) * z[k] for k in np.flatnonzero(row))
    for row, low, high in zip(program.matrix, program.lower, program.upper, strict=True):
        if low == high:
            model.addCons(image(row) == float(low))
            continue
        if np.isfinite(low):
            model.addCons(image(row) >= float(low))
        if np.isfinite(high):
            model.addCons(image(row) <= float(high))
    for row, side, force in zip(program.pair_row, program.pair_side, program.pair_force, strict=True):
        slack = model.addVar(lb=0.0, ub=None)
        bound = program.upper[row] if side > 0 else program.lower[row]
        model.addCons(slack == float(side) * (float(bound) - image(program.matrix[row])))
        multiplier = z[int(np.flatnonzero(program.matrix[force])[0])]
        model.addConsSOS1([slack, multiplier])
