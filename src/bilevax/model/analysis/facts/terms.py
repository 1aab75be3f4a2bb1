"""Values as terms k u^p log(u)^q of another value u: their arithmetic, and the curvature they prove."""

from typing import Any

import numpy as np

from bilevax.model.analysis import intervals
from bilevax.model.analysis.facts.curvature import AFFINE, CONCAVE, CONVEX, log_interval, scaled
from bilevax.model.analysis.facts.fact import Fact, Terms
from bilevax.model.analysis.intervals import Interval
from bilevax.model.analysis.program import Op

ONE = (1.0, 1.0)
_UNKNOWN = (-np.inf, np.inf)


def _scale(k: tuple[float, float], m: tuple[float, float]) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        found = intervals.product(Interval(*map(np.asarray, k)), Interval(*map(np.asarray, m)))
    return found.least, found.most


def _times(terms: tuple[int, Terms], factor: tuple[float, float]) -> tuple[int, Terms]:
    return terms[0], {key: _scale(k, factor) for key, k in terms[1].items()}


def factor_of_line(terms: Terms) -> tuple[float, float] | None:
    """Return the bounds of k where the value is k u."""
    return terms[1.0, 0] if len(terms) == 1 and (1.0, 0) in terms else None


def same_sign(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Return whether two factors are both nonnegative or both nonpositive."""
    return (a[0] >= 0 and b[0] >= 0) or (a[1] <= 0 and b[1] <= 0)


def only_number(interval: Interval) -> float | None:
    """Return the one number an interval holds."""
    least, most = interval.least, interval.most
    return least if least == most and np.isfinite(least) else None


def terms_of(op: Op, operands: list[Fact]) -> tuple[int, Terms] | None:
    """Return an operation's result in terms of another value, if it is known; see `Fact.terms`."""
    name = op.name
    first = operands[0]
    if name == "neg" and first.terms:
        return _times(first.terms, (-1.0, -1.0))
    if name in ("add", "add_any", "sub"):
        return _added_terms(operands, -1.0 if name == "sub" else 1.0)
    if name in ("mul", "div"):
        return _multiplied_terms(op, operands)
    if name in ("log", "integer_pow", "square", "sqrt", "rsqrt", "xlogx") or (name == "pow" and first.terms):
        return _function_terms(op, operands)
    if name == "xlogy" and operands[1].constant:
        factor = log_interval(operands[1].interval)
        return _times(first.terms, (factor.least, factor.most)) if first.terms else None
    if name == "xlogy":
        return _products(first.terms, op.inputs[0], _logarithm(op.inputs[1], operands[1].terms), op.inputs[1])
    return None


def _added_terms(operands: list[Fact], sign: float) -> tuple[int, Terms] | None:
    a, b = operands
    if a.constant or b.constant:
        value, factor = (b, sign) if a.constant else (a, 1.0)
        if value.terms is None or factor_of_line(value.terms[1]) is not None:
            return None  # a line in u: a value to count from
        root, parts = _times(value.terms, (factor, factor))
        return root, {**parts, (0.0, 0): _UNKNOWN}
    if a.terms is None or b.terms is None or a.terms[0] != b.terms[0]:
        return None
    root, parts = a.terms
    total = dict(parts)
    for key, (low, high) in b.terms[1].items():
        low, high = sorted((sign * low, sign * high))
        old = total.get(key, (0.0, 0.0))
        total[key] = (old[0] + low, old[1] + high)
    return root, total


def _multiplied_terms(op: Op, operands: list[Fact]) -> tuple[int, Terms] | None:
    a, b = operands
    if op.name == "div":
        if b.constant:
            factor = intervals.reciprocal(b.interval)
            return _times(a.terms, (factor.least, factor.most)) if a.terms else None
        line = factor_of_line(b.terms[1]) if b.terms else None
        if line is None or (line[0] <= 0 <= line[1]) or b.terms is None:
            return None
        inverse: tuple[int, Terms] = (b.terms[0], {(-1.0, 0): (1 / line[1], 1 / line[0])})
        if a.constant:
            return _times(inverse, (a.interval.least, a.interval.most))
        return _products(a.terms, op.inputs[0], inverse, op.inputs[1])
    if a.constant or b.constant:
        factor, value = (a, b) if a.constant else (b, a)
        return _times(value.terms, (factor.interval.least, factor.interval.most)) if value.terms else None
    return _products(a.terms, op.inputs[0], b.terms, op.inputs[1])


def _products(a: Any, slot_a: int, b: Any, slot_b: int) -> tuple[int, Terms] | None:
    """Return the terms of a product of values of the same u, which may be one of them."""
    for left in (a, (slot_a, {(1.0, 0): ONE})):
        for right in (b, (slot_b, {(1.0, 0): ONE})):
            if left is None or right is None or left[0] != right[0]:
                continue
            total: Terms = {}
            for (p, q), k in left[1].items():
                for (r, s), m in right[1].items():
                    if q + s > 1:
                        return None
                    old = total.get((p + r, q + s), (0.0, 0.0))
                    low, high = _scale(k, m)
                    total[p + r, q + s] = (old[0] + low, old[1] + high)
            return left[0], total
    return None


def _logarithm(slot: int, terms: tuple[int, Terms] | None) -> tuple[int, Terms]:
    """Return log(value) in terms of u where the value is k u with k > 0."""
    line = factor_of_line(terms[1]) if terms else None
    if terms is None or line is None or line[0] <= 0:
        return slot, {(0.0, 1): ONE}
    return terms[0], {(0.0, 1): ONE, **({} if line == ONE else {(0.0, 0): _UNKNOWN})}


def _function_terms(op: Op, operands: list[Fact]) -> tuple[int, Terms] | None:
    terms = operands[0].terms
    if op.name == "log":
        return _logarithm(op.inputs[0], terms)
    if op.name == "xlogx":
        return _products(terms, op.inputs[0], _logarithm(op.inputs[0], terms), op.inputs[0])
    line = factor_of_line(terms[1]) if terms else None
    if terms is None or line is None:
        return None
    power = {"integer_pow": op.params.get("y"), "square": 2, "sqrt": 0.5, "rsqrt": -0.5}.get(op.name)
    power = only_number(operands[1].interval) if op.name == "pow" else power
    if power is None:
        return None
    if power == int(power) and power > 0:
        bounds = intervals.power(Interval(np.asarray(line[0]), np.asarray(line[1])), float(power))
        return terms[0], {(float(power), 0): (bounds.least, bounds.most)}
    if line[0] <= 0:
        return None
    ends = line[0] ** power, line[1] ** power
    return terms[0], {(float(power), 0): (min(ends), max(ends))}


def terms_curvature(terms: Terms, root: Fact) -> int:
    """Return the curvature of terms in u, whose fact is ``root``."""
    if root.curvature != AFFINE:
        return 0
    positive = root.interval.least >= 0 or any(q or p != int(p) for p, q in terms)
    curvature = AFFINE
    for (p, q), (low, high) in terms.items():
        if q:
            shape = {1.0: CONVEX, 0.0: CONCAVE}.get(p, 0)
        elif p in (0.0, 1.0):
            shape = AFFINE
        elif p > 0 and p % 2 == 0:
            shape = CONVEX
        else:
            shape = (CONVEX if p * (p - 1) > 0 else CONCAVE) if positive else 0
        curvature &= scaled(shape, Interval(np.asarray(low), np.asarray(high)))
    return curvature
