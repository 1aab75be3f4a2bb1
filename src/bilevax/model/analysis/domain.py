"""Where a function is defined: the arguments of its logarithms, roots and quotients, and where it is finite."""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np

from bilevax.model.analysis.facts import AFFINE, Facts
from bilevax.model.analysis.program import Op, Program

DomainKind = Literal["log", "sqrt", "power", "reciprocal", "where"]


@dataclasses.dataclass(frozen=True)
class DomainRow:
    """Expressions that have to be positive (``strict``), nonnegative, or, for "reciprocal", different from zero.

    Attributes
    ----------
    kind
        The function whose argument they are: "log", also in ``y log y``, "sqrt", "power" or "reciprocal"; "where" for
        the condition under which the function is finite.
    strict
        Whether zero itself is outside; in ``xlogy(y, y)`` it is not, with a slope that is not finite there.
    affine
        Whether they are affine in x and y together.
    implied
        Whether the bounds of x and y keep them inside.
    on_y
        Whether they depend on y.
    where
        The place in the user's code.
    """

    kind: DomainKind
    strict: bool
    affine: bool
    implied: bool
    on_y: bool
    where: str
    _program: Program = dataclasses.field(repr=False)
    _argument: "_Argument" = dataclasses.field(repr=False)

    def arguments(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the expressions at a point, or one row a point for arrays of two axes."""
        batch = np.ndim(y) == 2 or np.ndim(x) == 2
        at = [np.atleast_2d(np.asarray(v, np.float64))[None] for v in (x, y)]
        (values,) = self._program.evaluate(at[0], at[1], [self._argument.slot])
        rows = self._argument.sign * values[0].reshape(values.shape[1], -1) + self._argument.offset
        return rows if batch else rows[0]


class _Argument(NamedTuple):
    """``sign * slot + offset``, which is restricted."""

    slot: int
    kind: DomainKind
    strict: bool
    offset: float = 0.0
    sign: int = 1


def domain_rows(program: Program, facts: Facts) -> list[DomainRow]:
    """Return the rows of a function's domain, each expression once."""
    rows: dict[tuple[int, int, bool], DomainRow] = {}
    for op, argument in _all_arguments(program, facts):
        bounds, offset, sign = facts[argument.slot].interval, argument.offset, argument.sign
        least = offset + (bounds.least if sign > 0 else -bounds.most)
        most = offset + (bounds.most if sign > 0 else -bounds.least)
        apart = argument.kind == "reciprocal"
        inside = least > 0 or (not argument.strict and least >= 0) or (apart and most < 0)
        affine = facts[argument.slot].degree in (0, 1)
        on_y = program.on_y[argument.slot]
        row = DomainRow(argument.kind, argument.strict, affine, inside, on_y, op.where(), program, argument)
        key = (argument.slot, sign, apart)
        if key not in rows or (argument.strict and not rows[key].strict):
            rows[key] = row
    return list(rows.values())


def required_positive(program: Program, facts: Facts) -> frozenset[int]:
    """Return the slots, affine in y, that are nonnegative wherever the function is defined, but not by their bounds."""
    return frozenset(
        argument.slot
        for op, argument in _all_arguments(program, facts)
        if op.name != "xlogy" or not facts[op.inputs[0]].constant  # zeros in front of logarithms free their arguments
        if argument.kind != "reciprocal" and argument.offset == 0.0 and argument.sign > 0
        if program.on_y[argument.slot] and facts[argument.slot].curvature == AFFINE
        if facts[argument.slot].interval.least < 0
    )


def _all_arguments(program: Program, facts: Facts) -> list[tuple[Op, _Argument]]:
    """Return all restricted arguments, but for those in one of several cases, the others being defined elsewhere."""
    cases = [
        slot
        for op in program.ops
        if op.name == "select_n" and program.varies(op.inputs[0]) and all(map(program.varies, op.inputs[1:]))
        if facts[op.inputs[0]].interval.least < facts[op.inputs[0]].interval.most
        for slot in op.inputs[1:]
    ]
    inner = {id(op) for op in program.needed(cases)} if cases else set()
    return [
        (op, argument)
        for op in program.ops
        if id(op) not in inner
        for argument in _arguments(op, program, facts)
        if program.varies(argument.slot)
    ]


def _arguments(op: Op, program: Program, facts: Facts) -> list[_Argument]:
    """Return the arguments of an operation that are restricted."""
    first = op.inputs[0] if op.inputs else -1
    if op.name == "log":
        return [_Argument(first, "log", True)]
    if op.name == "log1p":
        return [_Argument(first, "log", True, 1.0)]
    if op.name in ("xlogy", "xlog1py"):
        return [_Argument(op.inputs[1], "log", op.inputs[0] != op.inputs[1], 0.0 if op.name == "xlogy" else 1.0)]
    if op.name == "xlogx":
        return [_Argument(first, "log", False)]
    if op.name in ("sqrt", "rsqrt"):
        return [_Argument(first, "sqrt", op.name == "rsqrt")]
    if op.name == "div":
        return [_Argument(op.inputs[1], "reciprocal", True)]
    if op.name == "integer_pow" and op.params["y"] < 0:
        return [_Argument(first, "reciprocal", True)]
    if op.name == "pow":
        exponent = facts[op.inputs[1]].interval
        whole = exponent.least == exponent.most and float(exponent.least).is_integer()
        if not whole:
            return [_Argument(first, "power", exponent.least < 0)]
        if exponent.least < 0:
            return [_Argument(first, "reciprocal", True)]
    if op.name == "select_n" and len(op.inputs) == 3:
        ends = [(facts[slot].interval.least, facts[slot].interval.most) for slot in op.inputs[1:]]
        infinite = [least == most and np.isinf(least) for least, most in ends]
        if infinite[0] != infinite[1]:
            return _conditions(first, infinite[0], program)
    return []


def _conditions(slot: int, holds: bool, program: Program) -> list[_Argument]:
    """Return what has to be nonnegative for a predicate to hold, or not to hold, where that is simple."""
    op = program.maker.get(slot)
    if op is None:
        return []
    if op.name == ("and" if holds else "or"):
        return [argument for operand in op.inputs for argument in _conditions(operand, holds, program)]
    if op.name == "not":
        return _conditions(op.inputs[0], not holds, program)
    if op.name not in ("gt", "ge", "lt", "le"):
        return []
    sign = 1 if (op.name in ("gt", "ge")) == holds else -1
    for value, other, side in ((*op.inputs, sign), (*op.inputs[::-1], -sign)):
        bound = program.constants.get(other)
        if bound is not None and bound.size and (bound == bound.flat[0]).all():
            return [_Argument(value, "where", False, -side * float(bound.flat[0]), side)]
    return []
