"""Degrees of values as polynomials."""

from typing import Any

from bilevax.model.analysis import jets
from bilevax.model.analysis.facts.fact import Fact
from bilevax.model.analysis.facts.terms import only_number
from bilevax.model.analysis.program import Op


def joint_degree(op: Op, operands: list[Fact]) -> int | None:
    """Return the degree of an operation's result in x and y together; see `Fact.degree`."""
    degrees = [fact.degree for fact in operands]
    known = [degree for degree in degrees if degree is not None]
    if len(known) < len(degrees):
        return None
    if all(degree == 0 for degree in known):
        return 0
    if op.name in ("add", "add_any", "sub", "neg"):
        return max(known)
    if op.name in jets.LINEAR:
        free = [d == 0 or jets.may_vary(op, index) for index, d in enumerate(known)]
        return max(known) if all(free) else None
    if op.name in ("mul", "dot_general", "conv_general_dilated"):
        return sum(known)
    if op.name == "div" or op.name in ("triangular_solve",):
        return (known[0] if known[1] == 0 else None) if op.name == "div" else (known[1] if known[0] == 0 else None)
    if op.name == "select_n":
        return max(known) if known[0] == 0 else None
    power = _power_of(op, operands)
    return None if power is None else power * known[0]


def degrees_in_y(op: Op, operands: list[Fact]) -> tuple[int, int, int] | None:
    """Return the degrees of an operation's result in y; see `Fact.degrees`."""
    parts = [fact.degrees for fact in operands]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    largest = lambda many: tuple(max(column) for column in zip(*many, strict=True))
    if op.name in ("add", "add_any", "sub", "neg"):
        return largest(known)
    if op.name in jets.LINEAR:
        moved = [part for index, part in enumerate(known) if jets.may_vary(op, index)]
        places = [part for index, part in enumerate(known) if not jets.may_vary(op, index)]
        if any(part[1] or part[2] for part in places):
            return None
        return _on_x(largest(moved), any(part[0] == 2 for part in places))
    if op.name in ("mul", "dot_general", "conv_general_dilated"):
        return _multiplied(known[0], known[1])
    if op.name == "div":
        return _on_x(known[0], known[1][0] == 2) if operands[1].constant else None
    if op.name in ("triangular_solve", "custom_linear_solve") and all(fact.constant for fact in operands[:-1]):
        return _on_x(known[-1], any(part[0] == 2 for part in known[:-1]))
    if op.name == "select_n":
        return _on_x(largest(known[1:]), known[0][0] == 2) if operands[0].constant else None
    if _power_of(op, operands) == 2:
        return _multiplied(known[0], known[0])
    return None


def _power_of(op: Op, operands: list[Fact]) -> int | None:
    if op.name == "square":
        return 2
    if op.name == "integer_pow":
        return op.params["y"] if op.params["y"] >= 0 else None
    if op.name == "pow":
        p = only_number(operands[1].interval)
        return int(p) if p is not None and p >= 0 and p == int(p) else None
    return None


def _on_x(degrees: Any, depends: bool) -> tuple[int, int, int]:
    """Return degrees with coefficients that depend on x, if they do."""
    return tuple(2 if part and depends else part for part in degrees)  # type: ignore[return-value]


def _multiplied(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int] | None:
    out = [0, 0, 0]
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            if left and right:
                if i + j > 2:
                    return None
                out[i + j] = max(out[i + j], left, right)
    return (out[0], out[1], out[2])
