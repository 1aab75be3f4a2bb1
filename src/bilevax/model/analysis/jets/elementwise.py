"""Operations entry by entry on several operands: sums, products, choices, comparisons."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from bilevax.model.analysis.jets.components import lift, value_of
from bilevax.model.analysis.jets.functions import UNARY, chain_rule, integer_power_rule, power_rule


def _sum(operands: list[np.ndarray], varies: Sequence[bool], sign: int = 1) -> np.ndarray:
    a, b = operands
    if not (varies[0] and varies[1]):  # a constant moves the value alone
        moved, other, at = (a, b, 0) if varies[0] else (b, a, 1)
        own, its = (1, sign) if at == 0 else (sign, 1)
        shape = np.broadcast_shapes(moved.shape, other.shape)
        out = np.array(np.broadcast_to(moved, shape))
        out[:3] = own * out[:3]
        out[0] += its * other
        return out
    components = max(len(a), len(b))
    a, b = lift(a, True, components), lift(b, True, components)
    return np.concatenate([(np.add if sign > 0 else np.subtract)(a[:3], b[:3]), a[3:] + b[3:]])


def leibniz_rule(operands: list[np.ndarray], varies: Sequence[bool], product: Callable = np.multiply) -> np.ndarray:
    """Return a bilinear operation, such as the product, by Leibniz's rule."""
    a, b = operands
    if not varies[1]:
        return np.concatenate([product(a[:3], b), product(a[3:], np.abs(b))]) if len(a) > 1 else product(a, b)
    if not varies[0]:
        return np.concatenate([product(a, b[:3]), product(np.abs(a), b[3:])]) if len(b) > 1 else product(a, b)
    components = max(len(a), len(b))
    if components == 1:
        return product(a, b)
    a, b = lift(a, True, components), lift(b, True, components)
    times = lambda p, q: product(p[None], q[None])[0]
    sizes = np.abs(a[0]), np.abs(b[0])
    return np.stack(
        [
            times(a[0], b[0]),
            times(a[1], b[0]) + times(a[0], b[1]),
            times(a[2], b[0]) + 2 * times(a[1], b[1]) + times(a[0], b[2]),
            times(a[3], sizes[1]) + times(sizes[0], b[3]),
            times(a[4], sizes[1]) + 2 * times(a[3], b[3]) + times(sizes[0], b[4]),
        ]
    )


def _quotient(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    a, b = operands
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.asarray(np.trunc(a / b), a.dtype)
    if not varies[1]:
        return leibniz_rule([a, 1 / b], varies)
    return leibniz_rule([a, chain_rule(b, lambda v: integer_power_rule(v, -1))], varies)


def _general_power(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    a, b = operands
    if not varies[1]:
        return chain_rule(a, lambda v: power_rule(v, b))
    if len(a if varies[0] else a[None]) == 1 and len(b) == 1:
        return a**b
    logarithm = chain_rule(a, lambda v: UNARY["log"](v, {})) if varies[0] else np.log(a)
    return chain_rule(leibniz_rule([b, logarithm], [True, varies[0]]), lambda v: UNARY["exp"](v, {}))


def _choose(chosen: np.ndarray, cases: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    """Return at each entry the case with the chosen number, all components of it."""
    components = max((len(a) for a, free in zip(cases, varies, strict=True) if free), default=1)
    out = lift(cases[0], varies[0], components)
    for number in range(1, len(cases)):
        out = np.where(chosen == number, lift(cases[number], varies[number], components), out)
    return out


def _larger(operands: list[np.ndarray], varies: Sequence[bool], sign: int = 1) -> np.ndarray:
    a, b = (value_of(part, free) for part, free in zip(operands, varies, strict=True))
    return _choose((sign * b > sign * a) | np.isnan(b), operands, varies)


def _clamp(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    low, middle, high = (value_of(part, free) for part, free in zip(operands, varies, strict=True))
    return _choose(np.where(middle < low, 0, np.where(middle > high, 2, 1)), operands, varies)


def _select(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    return _choose(value_of(operands[0], varies[0]).astype(int), operands[1:], varies[1:])


def _remainder(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    a, b = operands
    whole = np.trunc(value_of(a, varies[0]) / value_of(b, varies[1]))
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.fmod(value_of(a, varies[0]), value_of(b, varies[1]))
    return _sum([a, leibniz_rule([b, whole], [varies[1], True])], [varies[0], True], -1)


def _log_add_exp(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    components = max(len(a) for a, free in zip(operands, varies, strict=True) if free)
    a, b = (lift(part, free, components) for part, free in zip(operands, varies, strict=True))
    value = np.logaddexp(a[0], b[0])
    if components == 1:
        return value[None]
    p, q = special.expit(a[0] - b[0]), special.expit(b[0] - a[0])
    first, size1 = p * a[1] + q * b[1], p * a[3] + q * b[3]
    second = p * a[2] + q * b[2] + p * q * (a[1] - b[1]) ** 2
    return np.stack([value, first, second, size1, p * a[4] + q * b[4] + p * q * (a[3] + b[3]) ** 2])


def _x_times_log(function: str) -> Callable:
    def rule(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
        a, b = operands
        b = chain_rule(b, lambda v: UNARY[function](v, {})) if varies[1] else UNARY[function](b, {})[0]
        out = leibniz_rule([a, b], varies)
        return np.where(value_of(a, varies[0]) == 0, np.where(np.isnan(value_of(b, varies[1])), out, 0.0), out)

    return rule


def _compare(relation: Callable) -> Callable:
    return lambda operands, varies: relation(*(value_of(a, free) for a, free in zip(operands, varies, strict=True)))


ELEMENTWISE: dict[str, Callable] = {
    "add": _sum,
    "add_any": _sum,
    "sub": lambda operands, varies: _sum(operands, varies, -1),
    "mul": leibniz_rule,
    "div": _quotient,
    "pow": _general_power,
    "max": _larger,
    "min": lambda operands, varies: _larger(operands, varies, -1),
    "clamp": _clamp,
    "select_n": _select,
    "rem": _remainder,
    "logaddexp": _log_add_exp,
    "xlogy": _x_times_log("log"),
    "xlog1py": _x_times_log("log1p"),
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "eq_to": _compare(np.equal),
    "lt_to": _compare(np.less),
    "le_to": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "and": _compare(np.bitwise_and),
    "or": _compare(np.bitwise_or),
    "xor": _compare(np.bitwise_xor),
}
