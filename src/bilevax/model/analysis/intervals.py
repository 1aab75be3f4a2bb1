"""Interval arithmetic: between which numbers each entry of an operation's result lies.

An interval is a pair of arrays (lower, upper). Predicates are intervals of 0 and 1. Those on polynomials are understood
up to borders: where y >= 0 is known, ``y > 0`` counts as true and ``y == 0`` as false, since a function is what its
limits are there.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from bilevax.model.analysis import jets

_TINY = np.finfo(np.float64).tiny


class Interval(NamedTuple):
    """Bounds of each entry; ``least`` and ``most`` are those of all of them."""

    lower: np.ndarray
    upper: np.ndarray

    @property
    def least(self) -> float:
        """The smallest lower bound."""
        return float(self.lower.min(initial=np.inf))

    @property
    def most(self) -> float:
        """The largest upper bound."""
        return float(self.upper.max(initial=-np.inf))


ANY = Interval(np.asarray(-np.inf), np.asarray(np.inf))


def of(
    op: Any,
    operands: Sequence[Interval],
    shapes: Sequence[tuple[int, ...]],
    shape: tuple[int, ...],
    polynomials: bool = False,
) -> Interval:
    """Return the interval of an operation's (first) result of some shape.

    ``polynomials`` tells that the operands are such, which take a value on an open set only if they are constant.
    """
    with np.errstate(all="ignore"):
        if op.name in RELATIONS and not (polynomials or op.inputs[0] == op.inputs[1]):
            lower, upper = RELATIONS[op.name](*operands)
        else:
            lower, upper = _of(op, operands, shapes)
    lower = np.where(np.isnan(lower), -np.inf, lower)
    upper = np.where(np.isnan(upper), np.inf, upper)
    return Interval(np.broadcast_to(lower, shape), np.broadcast_to(upper, shape))


def _of(op: Any, operands: Sequence[Interval], shapes: Sequence[tuple[int, ...]]) -> Interval:
    name = op.name
    if name in _INCREASING:
        rule = _INCREASING[name]
        return Interval(rule(operands[0].lower), rule(operands[0].upper))
    if name in _RULES:
        rank = max(map(len, shapes), default=0)
        aligned = [
            Interval(*(a.reshape((*a.shape, *(1,) * (rank - a.ndim))) if a.ndim == 0 else a for a in interval))
            for interval in operands
        ]
        same = len(op.inputs) == 2 and op.inputs[0] == op.inputs[1]
        return _RULES[name](op, aligned, same)
    if name in jets.LINEAR and name != "convert_element_type":
        whole = [tuple(np.broadcast_to(a, s) for a in i) for i, s in zip(operands, shapes, strict=True)]
        return Interval(*(jets.rearrange(op, [pair[side] for pair in whole], shapes) for side in (0, 1)))
    if name == "convert_element_type":
        return operands[0]
    if name == "dot_general":
        return _dot_general(op, operands, shapes)
    if name in ("reduce_max", "reduce_min"):
        axes = op.params["axes"]
        reduce = np.max if name == "reduce_max" else np.min
        return Interval(*(reduce(np.broadcast_to(a, shapes[0]), axis=axes) for a in operands[0]))
    if name in ("cummax", "cummin", "sort", "top_k"):
        return Interval(np.asarray(operands[0].least), np.asarray(operands[0].most))
    if name == "reduce_prod" and operands[0].least >= 0:
        return Interval(*(np.prod(np.broadcast_to(a, shapes[0]), axis=op.params["axes"]) for a in operands[0]))
    return ANY


def _dot_general(op: Any, operands: Sequence[Interval], shapes: Sequence[tuple[int, ...]]) -> Interval:
    (left, _), _ = op.params["dimension_numbers"]
    terms = int(np.prod([shapes[0][d] for d in left]))
    if op.inputs[0] == op.inputs[1] and _squares(op):
        return Interval(np.asarray(0.0), np.asarray(np.inf))
    a, b = (Interval(np.asarray(i.least), np.asarray(i.most)) for i in operands)
    return _times(Interval(np.asarray(float(terms)), np.asarray(float(terms))), product(a, b))


def _squares(op: Any) -> bool:
    """Return whether a tensor product multiplies entries of the same place only."""
    (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
    return tuple(left) == tuple(right) and tuple(left_batch) == tuple(right_batch)


def product(a: Interval, b: Interval) -> Interval:
    """Return the interval of a product."""
    ends = np.stack(np.broadcast_arrays(a.lower * b.lower, a.lower * b.upper, a.upper * b.lower, a.upper * b.upper))
    ends = np.where(np.isnan(ends), 0.0, ends)  # zero times infinity
    lower = ends.min(0)
    return Interval(np.where((a.lower > 0) & (b.lower > 0), np.maximum(lower, _TINY), lower), ends.max(0))


_times = product


def reciprocal(a: Interval) -> Interval:
    """Return the interval of 1 / a."""
    above, below = a.lower >= 0, a.upper <= 0
    with np.errstate(divide="ignore"):
        ends = np.abs(1 / a.lower), np.abs(1 / a.upper)
    lower = np.where(above, np.maximum(ends[1], _TINY), np.where(below, -ends[1], -np.inf))
    return Interval(lower, np.where(above, ends[0], np.where(below, -ends[0], np.inf)))


def power(a: Interval, p: float) -> Interval:
    """Return the interval of a to a constant power."""
    if p == 0:
        return Interval(np.ones_like(a.lower), np.ones_like(a.lower))
    if p < 0:
        return reciprocal(power(a, -p))
    if p == int(p) and int(p) % 2 == 1:
        return Interval(a.lower**p, a.upper**p)
    if p == int(p):
        size = _absolute(a)
        lower = size.lower**p
        return Interval(np.where(size.lower > 0, np.maximum(lower, _TINY), lower), size.upper**p)
    return Interval(np.maximum(a.lower, 0.0) ** p, np.maximum(a.upper, 0.0) ** p)  # defined for a >= 0


def _absolute(a: Interval) -> Interval:
    lower = np.maximum(np.maximum(a.lower, -a.upper), 0.0)
    return Interval(lower, np.maximum(np.abs(a.lower), np.abs(a.upper)))


def _general_power(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
    a, p = operands
    if p.lower.size and (p.lower == p.lower.flat[0]).all() and (p.upper == p.lower.flat[0]).all():
        return power(a, float(p.lower.flat[0]))
    if (a.lower > 0).all():
        exponent = product(p, Interval(np.log(a.lower), np.log(a.upper)))
        return Interval(_exp(exponent.lower), np.exp(exponent.upper))
    return Interval(np.asarray(0.0 if (a.lower >= 0).all() else -np.inf), np.asarray(np.inf))


def _exp(v: np.ndarray) -> np.ndarray:
    return np.maximum(np.exp(v), _TINY)


def _log(v: np.ndarray) -> np.ndarray:
    return np.where(v > 0, np.log(v), -np.inf)


def _sum(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
    return Interval(operands[0].lower + operands[1].lower, operands[0].upper + operands[1].upper)


def _difference(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
    if same:
        return Interval(np.zeros_like(operands[0].lower), np.zeros_like(operands[0].lower))
    return Interval(operands[0].lower - operands[1].upper, operands[0].upper - operands[1].lower)


def _product(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
    return power(operands[0], 2) if same else product(*operands)


def _quotient(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
    return product(operands[0], reciprocal(operands[1]))


def _greater(strict: bool, swap: bool) -> Callable:
    def rule(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
        a, b = operands[::-1] if swap else operands
        if same:
            value = np.asarray(0.0 if strict else 1.0)
            return Interval(value, value)
        fixed = (a.lower == a.upper) & (b.lower == b.upper)
        surely = (a.lower > b.upper) | ((a.lower >= b.upper) & (not strict or ~fixed))
        never = (a.upper < b.lower) | ((a.upper <= b.lower) & (strict or ~fixed))
        return Interval(surely.astype(float), (~never | surely).astype(float))

    return rule


def _equal(value: float) -> Callable:
    """Equality holds on a border at most, unless both sides are the same or fixed."""

    def rule(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
        a, b = operands
        if same:
            return Interval(np.asarray(value), np.asarray(value))
        possible = (a.lower == a.upper) & (b.lower == b.upper) & (a.lower == b.lower)
        found = np.where(possible, value, 1 - value)
        return Interval(found, found)

    return rule


def _select(op: Any, operands: Sequence[Interval], same: bool) -> Interval:
    index, *cases = operands
    lower, upper = np.full(np.shape(cases[0].lower), np.inf), np.full(np.shape(cases[0].upper), -np.inf)
    for number, case in enumerate(cases):
        possible = (index.lower <= number) & (number <= index.upper)
        lower = np.where(possible, np.minimum(lower, case.lower), lower)
        upper = np.where(possible, np.maximum(upper, case.upper), upper)
    return Interval(lower, upper)


def _bounded(low: float, high: float) -> Callable:
    return lambda op, operands, same: Interval(np.asarray(low), np.asarray(high))


# What relations say of operands that may have the same value on an open set.
_UNDECIDED = Interval(np.asarray(0.0), np.asarray(1.0))
_above = lambda a, b: Interval((a.lower > b.upper).astype(float), (a.upper > b.lower).astype(float))
_not_below = lambda a, b: Interval((a.lower >= b.upper).astype(float), (a.upper >= b.lower).astype(float))
RELATIONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "gt": _above,
    "ge": _not_below,
    "lt": lambda a, b: _above(b, a),
    "le": lambda a, b: _not_below(b, a),
    "eq": lambda a, b: _UNDECIDED,
    "ne": lambda a, b: _UNDECIDED,
}

_INCREASING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": _exp,
    "exp2": lambda v: np.maximum(np.exp2(v), _TINY),
    "expm1": np.expm1,
    "log": _log,
    "log1p": lambda v: np.where(v > -1, np.log1p(v), -np.inf),
    "sqrt": lambda v: np.sqrt(np.maximum(v, 0.0)),
    "cbrt": np.cbrt,
    "tanh": np.tanh,
    "atan": np.arctan,
    "asin": lambda v: np.arcsin(np.clip(v, -1, 1)),
    "sinh": np.sinh,
    "asinh": np.arcsinh,
    "acosh": lambda v: np.arccosh(np.maximum(v, 1.0)),
    "atanh": lambda v: np.arctanh(np.clip(v, -1, 1)),
    "logistic": lambda v: np.clip(special.expit(v), _TINY, np.nextafter(1.0, 0.0)),
    "erf": special.erf,
    "erf_inv": lambda v: special.erfinv(np.clip(v, -1, 1)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "sign": np.sign,
}

_RULES: dict[str, Callable[[Any, Sequence[Interval], bool], Interval]] = {
    "neg": lambda op, operands, same: Interval(-operands[0].upper, -operands[0].lower),
    "abs": lambda op, operands, same: _absolute(operands[0]),
    "square": lambda op, operands, same: power(operands[0], 2),
    "integer_pow": lambda op, operands, same: power(operands[0], op.params["y"]),
    "rsqrt": lambda op, operands, same: power(operands[0], -0.5),
    "pow": _general_power,
    "sin": _bounded(-1.0, 1.0),
    "cos": _bounded(-1.0, 1.0),
    "cosh": lambda op, operands, same: Interval(*map(np.cosh, _absolute(operands[0]))),
    "acos": _bounded(0.0, np.pi),
    "erfc": lambda op, operands, same: Interval(
        np.maximum(special.erfc(operands[0].upper), _TINY), special.erfc(operands[0].lower)
    ),
    "xlogx": _bounded(-np.exp(-1.0), np.inf),
    "add": _sum,
    "add_any": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
    "max": lambda op, operands, same: Interval(
        np.maximum(operands[0].lower, operands[1].lower), np.maximum(operands[0].upper, operands[1].upper)
    ),
    "min": lambda op, operands, same: Interval(
        np.minimum(operands[0].lower, operands[1].lower), np.minimum(operands[0].upper, operands[1].upper)
    ),
    "clamp": lambda op, operands, same: Interval(
        *(np.minimum(np.maximum(v, low), high) for low, v, high in zip(*operands, strict=True))
    ),
    "logaddexp": lambda op, operands, same: Interval(
        np.logaddexp(operands[0].lower, operands[1].lower), np.logaddexp(operands[0].upper, operands[1].upper)
    ),
    "xlogy": lambda op, operands, same: product(operands[0], Interval(*map(_log, operands[1]))),
    "select_n": _select,
    "gt": _greater(strict=True, swap=False),
    "ge": _greater(strict=False, swap=False),
    "lt": _greater(strict=True, swap=True),
    "le": _greater(strict=False, swap=True),
    "eq": _equal(1.0),
    "ne": _equal(0.0),
    "is_finite": _bounded(1.0, 1.0),
    "not": lambda op, operands, same: Interval(1 - operands[0].upper, 1 - operands[0].lower),
    "and": lambda op, operands, same: Interval(
        np.minimum(operands[0].lower, operands[1].lower), np.minimum(operands[0].upper, operands[1].upper)
    ),
    "or": lambda op, operands, same: Interval(
        np.maximum(operands[0].lower, operands[1].lower), np.maximum(operands[0].upper, operands[1].upper)
    ),
}
