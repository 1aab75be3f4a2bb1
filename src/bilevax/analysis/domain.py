"""Where a function is defined: the arguments of its logarithms, roots and quotients."""

import dataclasses
from typing import Literal

import numpy as np

from bilevax.analysis.facts import AFFINE, Facts
from bilevax.analysis.intervals import Interval
from bilevax.analysis.program import Op, Program

DomainKind = Literal["log", "sqrt", "power", "reciprocal"]


@dataclasses.dataclass(frozen=True)
class DomainRow:
    """Expressions that have to be positive (``strict``), nonnegative, or, for "reciprocal", different from zero.

    Attributes
    ----------
    kind
        The function whose argument they are: "log", also in ``y log y``, "sqrt", "power" or "reciprocal".
    strict
        Whether zero itself is outside; in ``y log y`` it is not, with a slope that is not finite there.
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
    _slot: int = dataclasses.field(repr=False)
    _offset: float = dataclasses.field(default=0.0, repr=False)

    def arguments(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the expressions at a point, or one row a point for arrays of two axes."""
        batch = np.ndim(y) == 2 or np.ndim(x) == 2
        at = [np.atleast_2d(np.asarray(v, np.float64))[None] for v in (x, y)]
        (values,) = self._program.evaluate(at[0], at[1], [self._slot])
        rows = values[0].reshape(values.shape[1], -1) + self._offset
        return rows if batch else rows[0]


def domain_rows(program: Program, facts: Facts) -> list[DomainRow]:
    """Return the rows of a function's domain, each expression once."""
    rows: dict[tuple[int, DomainKind], DomainRow] = {}
    for op in program.ops:
        for slot, kind, strict, offset in _arguments(op, facts):
            if not program.varies(slot):
                continue
            fact = facts[slot]
            least = fact.interval.least + offset
            inside = least > 0 or (not strict and least >= 0) or (kind == "reciprocal" and fact.interval.most < 0)
            row = DomainRow(
                kind, strict, fact.degree in (0, 1), inside, program.on_y[slot], op.where(), program, slot, offset
            )
            known = rows.get((slot, kind))
            if known is None or (strict and not known.strict):
                rows[slot, kind] = row
    return list(rows.values())


def required_positive(program: Program, facts: Facts) -> frozenset[int]:
    """Return the slots, affine in y, that are nonnegative wherever the function is defined, but not by their bounds."""
    return frozenset(
        slot
        for op in program.ops
        for slot, kind, _, offset in _arguments(op, facts)
        if kind != "reciprocal" and offset == 0.0 and program.on_y[slot]
        if facts[slot].curvature == AFFINE and facts[slot].interval.least < 0
    )


def _arguments(op: Op, facts: Facts) -> list[tuple[int, DomainKind, bool, float]]:
    """Return the arguments of an operation that are restricted: slot, kind, strict, and what is added to it."""
    first = op.inputs[0] if op.inputs else -1
    if op.name == "log":
        return [(first, "log", True, 0.0)]
    if op.name == "log1p":
        return [(first, "log", True, 1.0)]
    if op.name in ("xlogy", "xlog1py"):
        strict = op.inputs[0] != op.inputs[1]
        return [(op.inputs[1], "log", strict, 0.0 if op.name == "xlogy" else 1.0)]
    if op.name == "xlogx":
        return [(first, "log", False, 0.0)]
    if op.name in ("sqrt", "rsqrt"):
        return [(first, "sqrt", op.name == "rsqrt", 0.0)]
    if op.name == "div":
        return [(op.inputs[1], "reciprocal", True, 0.0)]
    if op.name == "integer_pow" and op.params["y"] < 0:
        return [(first, "reciprocal", True, 0.0)]
    if op.name == "pow":
        exponent: Interval = facts[op.inputs[1]].interval
        whole = exponent.least == exponent.most and float(exponent.least).is_integer()
        if not whole:
            return [(first, "power", exponent.least < 0, 0.0)]
        if exponent.least < 0:
            return [(first, "reciprocal", True, 0.0)]
    return []
