"""A `Program` as a function of one point, in NumPy: what is too small to be worth a compilation."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bilevax.model.analysis import jets
from bilevax.model.analysis.program import Op, Program

Shapes = Sequence[tuple[int, ...]]


class HostFunction:
    """A function of flat vectors x and y, evaluated operation by operation as the user wrote it."""

    def __init__(self, program: Program):
        self._program = program
        self._steps = [(_rule(op, program), op.inputs, op.outputs[0]) for op in program.ops]

    def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the function's result at a point; `jets.Unsupported` for an operation that NumPy does not know."""
        program = self._program
        values: dict[int, Any] = {**program.constants, program.x: x, program.y: y}
        with np.errstate(all="ignore"):
            for rule, inputs, output in self._steps:
                values[output] = rule(*[values[slot] for slot in inputs])
        return np.asarray(values[program.result])


def _rule(op: Op, program: Program) -> Callable[..., Any]:
    """Return an operation as a function of its operands."""
    if len(op.outputs) != 1:
        raise jets.Unsupported(op.name)
    shapes = [program.shapes[slot] for slot in op.inputs]
    rule = _RULES[op.name](op.params, shapes) if op.name in _RULES else None
    return _general(op, program, shapes) if rule is None else rule


def _general(op: Op, program: Program, shapes: Shapes) -> Callable[..., Any]:
    """Return an operation by the rules for batches of points, here of one."""
    varies = [program.varies(slot) for slot in op.inputs]

    def rule(*operands: Any) -> Any:
        lifted = [np.asarray(a)[None, None] if free else a for a, free in zip(operands, varies, strict=True)]
        return jets.apply(op, lifted, shapes, varies)[0][0, 0]

    return rule


def _dot_general(params: dict[str, Any], shapes: Shapes) -> Callable[..., Any] | None:
    """Return a product of vectors and matrices; None for one of other tensors."""
    (left, right), batch = params["dimension_numbers"]
    if any(batch) or len(left) != 1 or max(map(len, shapes)) > 2:
        return None
    turn_left, turn_right = len(shapes[0]) == 2 and left[0] == 0, len(shapes[1]) == 2 and right[0] == 1
    return lambda a, b: (a.T if turn_left else a) @ (b.T if turn_right else b)


def _slice(params: dict[str, Any], shapes: Shapes) -> Callable[..., Any]:
    steps = params["strides"] or (1,) * len(shapes[0])
    part = tuple(map(slice, params["start_indices"], params["limit_indices"], steps))
    return lambda a: a[part]


def _power(params: dict[str, Any], shapes: Shapes) -> Callable[..., Any]:
    power = params["y"]
    return (lambda a: a * a) if power == 2 else (lambda a: a**power)


def _squeeze(params: dict[str, Any], shapes: Shapes) -> Callable[..., Any]:
    gone = {axis % len(shapes[0]) for axis in params["dimensions"]}
    left = tuple(size for axis, size in enumerate(shapes[0]) if axis not in gone)
    return lambda a: a.reshape(left)


# The operations of most small problems, without the detour by batches.
_RULES: dict[str, Callable[[dict[str, Any], Shapes], Callable[..., Any] | None]] = {
    "add": lambda params, shapes: operator.add,
    "add_any": lambda params, shapes: operator.add,
    "sub": lambda params, shapes: operator.sub,
    "mul": lambda params, shapes: operator.mul,
    "div": lambda params, shapes: operator.truediv,
    "neg": lambda params, shapes: operator.neg,
    "square": lambda params, shapes: lambda a: a * a,
    "integer_pow": _power,
    "reshape": lambda params, shapes: lambda a: a.reshape(params["new_sizes"]),
    "squeeze": _squeeze,
    "slice": _slice,
    "concatenate": lambda params, shapes: lambda *parts: np.concatenate(parts, axis=params["dimension"]),
    "reduce_sum": lambda params, shapes: lambda a: a.sum(axis=params["axes"]),
    "dot_general": _dot_general,
}
