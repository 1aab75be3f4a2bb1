"""What curves down, or is no quadratic: `Conditions` given to SCIP (the extra ``global``), pairs as sets with one zero.

SCIP branches on products and functions, too, and needs no bounds on multipliers. Its lower bound is not recomputed
here: it holds up to SCIP's own tolerances. Points are evaluated exactly, as everywhere.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bilevax._support import clock
from bilevax.proof.conditions import Conditions
from bilevax.proof.forms import Definition, Form
from bilevax.proof.incumbents import Incumbent
from bilevax.proof.settings import PROOF

_FEASIBLE = 1e-9  # SCIP's tolerance of rows, a thousandth of its default


class Found(NamedTuple):
    """SCIP's lower bound, the best point, the nodes, and whether it stopped at the deadline."""

    lower: float
    best: Incumbent | None
    nodes: int
    late: bool


def available() -> bool:
    """Return whether SCIP is installed."""
    return importlib.util.find_spec("pyscipopt") is not None


def scip_bounds(
    given: Conditions,
    evaluate: Callable[[np.ndarray, np.ndarray, np.ndarray], Incumbent | None],
    known: Incumbent | None,
    gap: float,
) -> Found:
    """Return what SCIP finds; ``evaluate`` returns what x, y and the multipliers ``forces`` are worth."""
    from pyscipopt import Model

    model = Model()
    model.hideOutput()
    model.setParam("limits/gap", gap)
    model.setParam("limits/absgap", 0.5 * gap * PROOF.smallest_value)
    model.setParam("numerics/feastol", _FEASIBLE)
    if np.isfinite(clock.remaining()):
        model.setParam("limits/time", max(clock.remaining(), 1e-3))
    z = _stated(model, given)
    model.optimize()
    best = known
    for solution in model.getSols():
        parts = (
            [model.getSolVal(solution, z[_place(form)]) for form in part] for part in (given.x, given.y, given.forces)
        )
        found = evaluate(*map(np.array, parts))
        if found is not None and (best is None or found.value < best.value):
            best = found
    bound = np.inf if model.getStatus() == "infeasible" else model.getDualbound()
    lower = -np.inf if bound <= -model.infinity() else float(bound)
    return Found(lower, best, int(model.getNNodes()), model.getStatus() == "timelimit")


def _stated(model: Any, given: Conditions) -> list:
    """State the problem; return the variables."""
    side = lambda value: float(value) if np.isfinite(value) else None
    program = given.program
    bounds = zip(program.lower, program.upper, strict=True)
    z = [model.addVar(lb=side(low), ub=side(high), name=f"z{k}") for k, (low, high) in enumerate(bounds)]
    value = model.addVar(lb=None, ub=None, name="value")
    model.addCons(value - _expression(given.objective, z) >= 0)
    model.setObjective(value, "minimize")
    zero = 0 * value
    for definition in program.definitions:
        model.addCons(_equation(definition, z))
    for form, low, high in given.rows:
        image = zero + _expression(form, z)
        if low == high:
            model.addCons(image == float(low))
            continue
        if np.isfinite(low):
            model.addCons(image >= float(low))
        if np.isfinite(high):
            model.addCons(image <= float(high))
    for form, multiplier in given.pairs:
        slack = model.addVar(lb=0.0, ub=None)
        model.addCons(slack == _expression(form, z))
        model.addConsSOS1([slack, z[_place(multiplier)]])
    return z


def _expression(form: Any, z: list) -> Any:
    from pyscipopt import quicksum

    if not isinstance(form, Form):
        return float(form)
    products = {0: lambda powers: 1.0, 1: lambda powers: z[powers[0]], 2: lambda powers: z[powers[0]] * z[powers[1]]}
    return quicksum(factor * products[len(powers)](powers) for powers, factor in form.terms.items())


def _equation(definition: Definition, z: list) -> Any:
    import pyscipopt

    result, argument = z[definition.variable], _expression(definition.argument, z)
    if definition.function == "same":
        return result == argument
    if definition.function == "power":
        whole = definition.exponent % 1 == 0
        return result == z[_place(definition.argument)] ** (int(definition.exponent) if whole else definition.exponent)
    function = abs if definition.function == "abs" else getattr(pyscipopt, definition.function)
    return result == function(argument)


def _place(variable: Form) -> int:
    """Return the number of a form that is a variable."""
    return next(iter(variable.terms))[0]
