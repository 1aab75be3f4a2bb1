"""From a traced function, operation by operation, to a factorable program; refused by name where one has no place."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevax.model.analysis import Program, jets
from bilevax.model.analysis.jets.combining import dot_general
from bilevax.model.analysis.program import Op
from bilevax.proof.building import Unsupported
from bilevax.proof.forms import Factorable, Form

Rule = Callable[[Factorable, dict[str, Any], list[np.ndarray]], Any]


def translated(program: Program, x: np.ndarray, y: np.ndarray, into: Factorable) -> np.ndarray:
    """Return the result of a function of vectors of forms; raise `Unsupported`, naming an operation that is not known.

    Parameters
    ----------
    program
        The function.
    x, y
        Arrays of forms.
    into
        The program whose forms they are.
    """
    values: dict[int, np.ndarray] = {slot: _objects(value) for slot, value in program.constants.items()}
    values |= {program.x: x, program.y: y}
    for op in program.ops:
        operands = [values[slot] for slot in op.inputs]
        shapes = [program.shapes[slot] for slot in op.inputs]
        (slot,) = op.outputs if len(op.outputs) == 1 else _refuse(op)
        values[slot] = _objects(_applied(op, operands, shapes, into)).reshape(program.shapes[slot])
    return values[program.result]


def _applied(op: Op, operands: list[np.ndarray], shapes: list[tuple[int, ...]], into: Factorable) -> Any:
    """Return an operation on arrays of forms and numbers."""
    if op.name == "convert_element_type":
        return operands[0] if np.dtype(op.params["new_dtype"]).kind == "f" else _refuse(op)
    if op.name in jets.LINEAR:
        fixed = [index for index in range(len(operands)) if not jets.may_vary(op, index)]
        if any(_holds_forms(operands[index]) for index in fixed):
            _refuse(op)  # entries at a place that varies
        return jets.rearrange(op, [a if k not in fixed else a.astype(int) for k, a in enumerate(operands)], shapes)
    if op.name == "dot_general":
        return dot_general(operands[0], operands[1], op.params, shapes)
    if op.name == "select_n" and not _holds_forms(operands[0]):
        return np.choose(operands[0].astype(int), np.broadcast_arrays(*operands[1:]))
    return _RULES[op.name](into, op.params, operands) if op.name in _RULES else _refuse(op)


def _objects(value: Any) -> np.ndarray:
    return np.asarray(value).astype(object)


def _holds_forms(array: np.ndarray) -> bool:
    return any(isinstance(each, Form) for each in array.flat)


def _refuse(op: Op) -> Any:
    where = op.where()
    raise Unsupported(f"'{op.name}' is no operation that a global solver knows" + (f" ({where})" if where else ""))


def _each(rule: Callable[..., Any]) -> Rule:
    """Return the rule of an operation that takes entry by entry."""
    return lambda into, params, operands: np.frompyfunc(
        lambda *entries: rule(into, params, *entries), len(operands), 1
    )(*operands)


def _power(into: Factorable, params: dict[str, Any], base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Form):
        return into.power(base, float(exponent))
    return into.function("exp", exponent * into.function("log", base))


def _largest(into: Factorable, a: Any, b: Any, sign: float) -> Any:
    """Return the larger of two, or the smaller: half their sum, and half their distance."""
    return (a + b) * 0.5 + into.function("abs", a - b) * (0.5 * sign)


def _log_add_exp(into: Factorable, params: dict[str, Any], a: Any, b: Any) -> Any:
    return into.function("log", into.function("exp", a) + into.function("exp", b))


def _reciprocal(into: Factorable, value: Any) -> Any:
    return into.power(value, -1.0)


def _unary(name: str) -> Rule:
    return _each(lambda into, params, a: into.function(name, a))


_RULES: dict[str, Rule] = {
    **{name: _unary(name) for name in ("exp", "log", "sqrt", "abs", "sin", "cos")},
    **dict.fromkeys(("add", "add_any"), lambda into, params, operands: np.add(*operands)),
    "sub": lambda into, params, operands: np.subtract(*operands),
    "neg": lambda into, params, operands: np.negative(*operands),
    "mul": lambda into, params, operands: np.multiply(*operands),
    "div": _each(lambda into, params, a, b: a * _reciprocal(into, b)),
    "square": _each(lambda into, params, a: into.power(a, 2.0)),
    "integer_pow": _each(lambda into, params, a: into.power(a, float(params["y"]))),
    "pow": _each(_power),
    "rsqrt": _each(lambda into, params, a: into.power(a, -0.5)),
    "exp2": _each(lambda into, params, a: into.function("exp", a * float(np.log(2.0)))),
    "expm1": _each(lambda into, params, a: into.function("exp", a) - 1.0),
    "log1p": _each(lambda into, params, a: into.function("log", a + 1.0)),
    "logistic": _each(lambda into, params, a: _reciprocal(into, into.function("exp", -a) + 1.0)),
    "tanh": _each(lambda into, params, a: 1.0 - 2.0 * _reciprocal(into, into.function("exp", a * 2.0) + 1.0)),
    "logaddexp": _each(_log_add_exp),
    "max": _each(lambda into, params, a, b: _largest(into, a, b, 1.0)),
    "min": _each(lambda into, params, a, b: _largest(into, a, b, -1.0)),
}
