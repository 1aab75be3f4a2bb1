"""`Conditions` as a model of SCIP: pairs are sets of which one member is zero."""

from typing import Any

import numpy as np

from bilevax.proof.conditions import Conditions
from bilevax.proof.forms import Definition, Form


def stated(model: Any, given: Conditions) -> list:
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
        model.addConsSOS1([slack, z[place(multiplier)]])
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
        return result == z[place(definition.argument)] ** (int(definition.exponent) if whole else definition.exponent)
    function = abs if definition.function == "abs" else getattr(pyscipopt, definition.function)
    return result == function(argument)


def place(variable: Form) -> int:
    """Return the number of a form that is a variable."""
    return next(iter(variable.terms))[0]
