"""Operations of a `Program` in NumPy: values at points, or jets along lines, many at once.

A value that depends on variables has two axes in front of its own: components and batch. There is one component, the
value, or five: value v, first and second derivative v', v'' along the line, and the magnitudes |v'|, |v''| of the terms
that were added up to find them, against which rounding is judged. A value that depends on no variable, and is not
needed otherwise, has no axes in front. What is true or false, or whole, has one component.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

_FIVE = 5


class Unsupported(Exception):
    """An operation that is not known here; its name is the argument."""


def line_jet(points: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the jets, of shape (5, batch, size), of lines through points along directions."""
    zero = np.zeros_like(points)
    return np.stack([points, directions, zero, np.abs(directions), zero])


def apply(op: Any, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Sequence[bool]):
    """Return the results of an operation, as a list.

    Parameters
    ----------
    op
        With ``name`` and ``params`` of a JAX primitive.
    operands
        Their values; those that vary with the two axes in front.
    shapes
        Of the operands, without those axes.
    varies
        Which operands have those axes.

    Raises
    ------
    Unsupported
        For an operation, or a form of it, that is not known here.
    """
    try:
        return _apply(op, operands, shapes, varies)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Unsupported(op.name) from error


def _apply(op: Any, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Sequence[bool]):
    name, params = op.name, op.params
    if name in _UNARY:
        return [_chain(operands[0], lambda v: _UNARY[name](v, params))]
    if name in _STEPS:
        return [_STEPS[name](operands[0][:1])]
    if name in _ELEMENTWISE:
        rank = max(map(len, shapes))
        aligned = [a.reshape((*a.shape, *(1,) * (rank - len(s)))) for a, s in zip(operands, shapes, strict=True)]
        return [_ELEMENTWISE[name](aligned, varies)]
    if name in _REARRANGED:
        for index, free in enumerate(varies):
            if free and not may_vary(op, index):
                raise Unsupported(f"{name} at a place that varies")
        return [_REARRANGED[name](params, _same_components(operands, varies, op), shapes)]
    if name in _OTHERS:
        return _OTHERS[name](params, operands, shapes, varies)
    raise Unsupported(name)


def may_vary(op: Any, index: int) -> bool:
    """Return whether an operand may depend on variables; the indices of a ``gather`` may not."""
    places = {"gather": (0,), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1)}
    places |= dict.fromkeys(("scatter-add", "scatter_add", "scatter"), (0, 2))
    return op.name not in places or index in places[op.name]


# Functions of one number: the value and its first two derivatives.


def _power(v: np.ndarray, p: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return v**p, p * v ** (p - 1.0), p * (p - 1.0) * v ** (p - 2.0)


def _integer_power(v: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    term = lambda factor, power: factor * v**power if factor else np.zeros_like(v)
    return v ** float(p), term(float(p), float(p - 1)), term(float(p * (p - 1)), float(p - 2))


def _logistic(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = special.expit(v)
    d = s * special.expit(-v)
    return s, d, d * (1 - 2 * s)


def _tanh(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t = np.tanh(v)
    return t, 1 - t**2, -2 * t * (1 - t**2)


def _tan(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t = np.tan(v)
    return t, 1 + t**2, 2 * t * (1 + t**2)


def _gauss(v: np.ndarray) -> np.ndarray:
    return 2 / np.sqrt(np.pi) * np.exp(-(v**2))


def _erf_inv(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w = special.erfinv(v)
    d = 1 / _gauss(w)
    return w, d, 2 * w * d**2


def _cbrt(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r = np.cbrt(v)
    return r, 1 / (3 * r**2), -2 / (9 * r**5)


def _constant_slope(slope: Any) -> Callable:
    return lambda v, _: (v * slope(v), slope(v), np.zeros_like(v))


_UNARY: dict[str, Callable] = {
    "neg": lambda v, _: (-v, -np.ones_like(v), np.zeros_like(v)),
    "abs": _constant_slope(np.sign),
    "exp": lambda v, _: (np.exp(v),) * 3,
    "exp2": lambda v, _: (np.exp2(v), np.log(2) * np.exp2(v), np.log(2) ** 2 * np.exp2(v)),
    "expm1": lambda v, _: (np.expm1(v), np.exp(v), np.exp(v)),
    "log": lambda v, _: (np.log(v), np.where(v >= 0, 1 / v, np.nan), np.where(v >= 0, -1 / v**2, np.nan)),
    "log1p": lambda v, _: (np.log1p(v), np.where(v >= -1, 1 / (1 + v), np.nan), -1 / (1 + v) ** 2),
    "sqrt": lambda v, _: _power(v, 0.5),
    "rsqrt": lambda v, _: _power(v, -0.5),
    "cbrt": lambda v, _: _cbrt(v),
    "square": lambda v, _: (v**2, 2 * v, np.full_like(v, 2.0)),
    "integer_pow": lambda v, params: _integer_power(v, params["y"]),
    "sin": lambda v, _: (np.sin(v), np.cos(v), -np.sin(v)),
    "cos": lambda v, _: (np.cos(v), -np.sin(v), -np.cos(v)),
    "tan": lambda v, _: _tan(v),
    "asin": lambda v, _: (np.arcsin(v), (1 - v**2) ** -0.5, v * (1 - v**2) ** -1.5),
    "acos": lambda v, _: (np.arccos(v), -((1 - v**2) ** -0.5), -v * (1 - v**2) ** -1.5),
    "atan": lambda v, _: (np.arctan(v), 1 / (1 + v**2), -2 * v / (1 + v**2) ** 2),
    "sinh": lambda v, _: (np.sinh(v), np.cosh(v), np.sinh(v)),
    "cosh": lambda v, _: (np.cosh(v), np.sinh(v), np.cosh(v)),
    "tanh": lambda v, _: _tanh(v),
    "asinh": lambda v, _: (np.arcsinh(v), (1 + v**2) ** -0.5, -v * (1 + v**2) ** -1.5),
    "acosh": lambda v, _: (np.arccosh(v), (v**2 - 1) ** -0.5, -v * (v**2 - 1) ** -1.5),
    "atanh": lambda v, _: (np.arctanh(v), 1 / (1 - v**2), 2 * v / (1 - v**2) ** 2),
    "logistic": lambda v, _: _logistic(v),
    "erf": lambda v, _: (special.erf(v), _gauss(v), -2 * v * _gauss(v)),
    "erfc": lambda v, _: (special.erfc(v), -_gauss(v), 2 * v * _gauss(v)),
    "erf_inv": lambda v, _: _erf_inv(v),
    "lgamma": lambda v, _: (special.gammaln(v), special.digamma(v), special.polygamma(1, v)),
    "digamma": lambda v, _: (special.digamma(v), special.polygamma(1, v), special.polygamma(2, v)),
    "xlogx": lambda v, _: (special.xlogy(v, v), np.log(v) + 1, 1 / v),
}


def _chain(a: np.ndarray, rule: Callable) -> np.ndarray:
    """Return the jet of a function of one number, by the chain rule."""
    value, d1, d2 = rule(a[0])
    if len(a) == 1:
        return np.asarray(value)[None]
    size1, size2 = np.abs(d1), np.abs(d2)
    return np.stack([value, d1 * a[1], d2 * a[1] ** 2 + d1 * a[2], size1 * a[3], size2 * a[3] ** 2 + size1 * a[4]])


def _lift(a: np.ndarray, varies: bool, components: int) -> np.ndarray:
    """Return an operand with all its components; those of what does not change along the line are zero."""
    a = a if varies else a[None, None]
    if len(a) == components:
        return a
    return np.concatenate([a, np.zeros((components - 1, *a.shape[1:]))])


def _same_components(operands: Sequence[np.ndarray], varies: Sequence[bool], op: Any) -> list[np.ndarray]:
    """Return the operands of an operation that rearranges entries, all that may vary with the same axes in front."""
    free = [index for index in range(len(operands)) if may_vary(op, index)]
    components = max((len(operands[i]) for i in free if varies[i]), default=1)
    batch = max((operands[i].shape[1] for i in free if varies[i]), default=1)
    out = list(operands)
    for i in free:
        lifted = _lift(operands[i], varies[i], components)
        out[i] = np.broadcast_to(lifted, (components, batch, *lifted.shape[2:]))
    return out


# Operations entry by entry on several operands.


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
    a, b = _lift(a, True, components), _lift(b, True, components)
    return np.concatenate([(np.add if sign > 0 else np.subtract)(a[:3], b[:3]), a[3:] + b[3:]])


def _product(operands: list[np.ndarray], varies: Sequence[bool], product: Callable = np.multiply) -> np.ndarray:
    """Return a bilinear operation, such as the product, by Leibniz's rule."""
    a, b = operands
    if not varies[1]:
        return np.concatenate([product(a[:3], b), product(a[3:], np.abs(b))]) if len(a) > 1 else product(a, b)
    if not varies[0]:
        return np.concatenate([product(a, b[:3]), product(np.abs(a), b[3:])]) if len(b) > 1 else product(a, b)
    components = max(len(a), len(b))
    if components == 1:
        return product(a, b)
    a, b = _lift(a, True, components), _lift(b, True, components)
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
        return _product([a, 1 / b], varies)
    return _product([a, _chain(b, lambda v: _integer_power(v, -1))], varies)


def _general_power(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    a, b = operands
    if not varies[1]:
        return _chain(a, lambda v: _power(v, b))
    if len(a if varies[0] else a[None]) == 1 and len(b) == 1:
        return a**b
    logarithm = _chain(a, lambda v: _UNARY["log"](v, {})) if varies[0] else np.log(a)
    return _chain(_product([b, logarithm], [True, varies[0]]), lambda v: _UNARY["exp"](v, {}))


def _choose(chosen: np.ndarray, cases: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    """Return at each entry the case with the chosen number, all components of it."""
    components = max((len(a) for a, free in zip(cases, varies, strict=True) if free), default=1)
    out = _lift(cases[0], varies[0], components)
    for number in range(1, len(cases)):
        out = np.where(chosen == number, _lift(cases[number], varies[number], components), out)
    return out


def _value(a: np.ndarray, varies: bool) -> np.ndarray:
    return a[:1] if varies else a[None, None]


def _larger(operands: list[np.ndarray], varies: Sequence[bool], sign: int = 1) -> np.ndarray:
    a, b = (_value(part, free) for part, free in zip(operands, varies, strict=True))
    return _choose((sign * b > sign * a) | np.isnan(b), operands, varies)


def _clamp(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    low, middle, high = (_value(part, free) for part, free in zip(operands, varies, strict=True))
    return _choose(np.where(middle < low, 0, np.where(middle > high, 2, 1)), operands, varies)


def _select(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    return _choose(_value(operands[0], varies[0]).astype(int), operands[1:], varies[1:])


def _remainder(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    a, b = operands
    whole = np.trunc(_value(a, varies[0]) / _value(b, varies[1]))
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.fmod(_value(a, varies[0]), _value(b, varies[1]))
    return _sum([a, _product([b, whole], [varies[1], True])], [varies[0], True], -1)


def _log_add_exp(operands: list[np.ndarray], varies: Sequence[bool]) -> np.ndarray:
    components = max(len(a) for a, free in zip(operands, varies, strict=True) if free)
    a, b = (_lift(part, free, components) for part, free in zip(operands, varies, strict=True))
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
        b = _chain(b, lambda v: _UNARY[function](v, {})) if varies[1] else _UNARY[function](b, {})[0]
        out = _product([a, b], varies)
        return np.where(_value(a, varies[0]) == 0, np.where(np.isnan(_value(b, varies[1])), out, 0.0), out)

    return rule


def _compare(relation: Callable) -> Callable:
    return lambda operands, varies: relation(*(_value(a, free) for a, free in zip(operands, varies, strict=True)))


_ELEMENTWISE: dict[str, Callable] = {
    "add": _sum,
    "add_any": _sum,
    "sub": lambda operands, varies: _sum(operands, varies, -1),
    "mul": _product,
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

# Functions whose derivative is zero, where there is one.
_STEPS: dict[str, Callable] = {
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "is_finite": np.isfinite,
    "not": lambda v: ~v,
}


# Operations that move entries or add them up: the same for every component.


def _lead(a: np.ndarray, shape: tuple[int, ...]) -> int:
    return a.ndim - len(shape)


def _reshape(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], to: Any = None):
    (a,) = operands
    return a.reshape((*a.shape[: _lead(a, shapes[0])], *(params["new_sizes"] if to is None else to)))


def _squeeze(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    gone = {d % len(shapes[0]) for d in params["dimensions"]}
    return _reshape(params, operands, shapes, [n for d, n in enumerate(shapes[0]) if d not in gone])


def _broadcast(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    a, target = operands[0], params["shape"]
    lead = a.shape[: _lead(a, shapes[0])]
    spread = [1] * len(target)
    for own, position in enumerate(params["broadcast_dimensions"]):
        spread[position] = shapes[0][own]
    return np.broadcast_to(a.reshape((*lead, *spread)), (*lead, *target))


def _transpose(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    lead = _lead(operands[0], shapes[0])
    return operands[0].transpose(*range(lead), *(lead + d for d in params["permutation"]))


def _reduce_sum(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    lead = _lead(operands[0], shapes[0])
    return operands[0].sum(axis=tuple(lead + d for d in params["axes"]))


def _cumulative_sum(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    axis = _lead(operands[0], shapes[0]) + params["axis"]
    if params["reverse"]:
        return np.flip(np.cumsum(np.flip(operands[0], axis), axis), axis)
    return np.cumsum(operands[0], axis)


def _slice(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    strides = params["strides"] or (1,) * len(shapes[0])
    return operands[0][(..., *map(slice, params["start_indices"], params["limit_indices"], strides))]


def _reverse(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    lead = _lead(operands[0], shapes[0])
    return np.flip(operands[0], tuple(lead + d for d in params["dimensions"]))


def _concatenate(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.concatenate(operands, _lead(operands[0], shapes[0]) + params["dimension"])


def _pad(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    a, filling = operands
    lead = a.shape[: _lead(a, shapes[0])]
    whole = [n + max(n - 1, 0) * step for n, (_, _, step) in zip(shapes[0], params["padding_config"], strict=True)]
    size = [n + max(low, 0) + max(high, 0) for n, (low, high, _) in zip(whole, params["padding_config"], strict=True)]
    out = np.array(np.broadcast_to(filling.reshape((*filling.shape, *(1,) * len(size))), (*lead, *size)))
    starts = [max(low, 0) for low, _, _ in params["padding_config"]]
    steps = [step + 1 for _, _, step in params["padding_config"]]
    out[(..., *(slice(s, s + n, k) for s, n, k in zip(starts, whole, steps, strict=True)))] = a
    ends = [(low, high) for low, high, _ in params["padding_config"]]
    crop = (slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(size, ends, strict=True))
    return out[(..., *crop)]


def _identity(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    return operands[0]


def _convert(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    kind = np.dtype(params["new_dtype"]).kind
    if kind == "f":
        return operands[0].astype(np.float64)
    return np.trunc(operands[0][:1]).astype(np.int64 if kind in "iu" else bool)


def _window_indices(dims: Any, sizes: tuple[int, ...], indices: np.ndarray, operand: tuple[int, ...], mode: Any):
    """Return the flat index in the operand of every entry of a gather's result, and which of them lie inside."""
    batch_shape = indices.shape[:-1]
    kept = [
        d for d in range(len(operand)) if d not in dims.collapsed_slice_dims and d not in dims.operand_batching_dims
    ]
    rank = len(batch_shape) + len(kept)
    outside = [d for d in range(rank) if d not in dims.offset_dims]
    spread = lambda values, positions: np.asarray(values).reshape(
        [np.shape(values)[positions.index(d)] if d in positions else 1 for d in range(rank)]
    )
    flat, inside = np.zeros((1,) * rank, int), np.ones((1,) * rank, bool)
    for d, extent in enumerate(operand):
        if d in dims.start_index_map:
            start = spread(indices[..., dims.start_index_map.index(d)].astype(int), outside)
        elif d in dims.operand_batching_dims:
            own = dims.start_indices_batching_dims[dims.operand_batching_dims.index(d)]
            start = spread(np.arange(extent), [outside[own]])
        else:
            start = np.zeros((1,) * rank, int)
        inside = inside & (start >= 0) & (start <= extent - sizes[d])
        place = np.clip(start, 0, extent - sizes[d])
        if d in kept:
            place = place + spread(np.arange(sizes[d]), [dims.offset_dims[kept.index(d)]])
        flat = flat * extent + place
    clipped = "CLIP" in str(mode).upper()
    shape = np.broadcast_shapes(flat.shape, inside.shape)
    return np.broadcast_to(flat, shape), np.broadcast_to(inside | clipped, shape)


def _gather(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    a, indices = operands
    flat, inside = _window_indices(
        params["dimension_numbers"], params["slice_sizes"], indices, shapes[0], params["mode"]
    )
    taken = a.reshape(*a.shape[: _lead(a, shapes[0])], -1)[..., flat]
    return taken if inside.all() else np.where(inside, taken, np.nan)


def _scatter(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], add: bool) -> np.ndarray:
    a, indices, updates = operands
    dims = params["dimension_numbers"]
    windows = [d for d in range(len(shapes[0])) if d not in dims.inserted_window_dims]
    windows = [d for d in windows if d not in dims.operand_batching_dims]
    sizes = [1] * len(shapes[0])
    for d, position in zip(windows, dims.update_window_dims, strict=True):
        sizes[d] = shapes[2][position]

    class Dims:  # in a gather's words
        offset_dims = dims.update_window_dims
        collapsed_slice_dims = dims.inserted_window_dims
        start_index_map = dims.scatter_dims_to_operand_dims
        operand_batching_dims = dims.operand_batching_dims
        start_indices_batching_dims = dims.scatter_indices_batching_dims

    flat, inside = _window_indices(Dims, tuple(sizes), indices, shapes[0], params["mode"])
    lead = a.shape[: _lead(a, shapes[0])]
    out = np.array(a.reshape(int(np.prod(lead)), -1))
    inside = inside.ravel()
    values = updates.reshape(len(out), -1)[:, inside]
    if add:
        np.add.at(out.T, flat.ravel()[inside], values.T)
    else:
        out[:, flat.ravel()[inside]] = values
    return out.reshape((*lead, *shapes[0]))


def _dynamic_window(starts: Sequence[np.ndarray], shape: tuple[int, ...], sizes: Sequence[int]) -> tuple:
    firsts = [int(np.clip(start, 0, n - size)) for start, n, size in zip(starts, shape, sizes, strict=True)]
    return (..., *(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True)))


def _dynamic_slice(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    return operands[0][_dynamic_window(operands[1:], shapes[0], params["slice_sizes"])]


def _dynamic_update(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    out = np.array(operands[0])
    out[_dynamic_window(operands[2:], shapes[0], shapes[1])] = operands[1]
    return out


_REARRANGED: dict[str, Callable] = {
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": lambda params, operands, shapes: _reshape(
        params, operands, shapes, np.expand_dims(np.empty(shapes[0]), params["dimensions"]).shape
    ),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reduce_sum": _reduce_sum,
    "cumsum": _cumulative_sum,
    "slice": _slice,
    "rev": _reverse,
    "concatenate": _concatenate,
    "pad": _pad,
    "gather": _gather,
    "scatter-add": lambda params, operands, shapes: _scatter(params, operands, shapes, True),
    "scatter_add": lambda params, operands, shapes: _scatter(params, operands, shapes, True),
    "scatter": lambda params, operands, shapes: _scatter(params, operands, shapes, False),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "convert_element_type": _convert,
    "stack": lambda params, operands, shapes: np.stack(operands, _lead(operands[0], shapes[0]) + params["axis"]),
    "tile": lambda params, operands, shapes: np.tile(
        operands[0], (1,) * _lead(operands[0], shapes[0]) + params["reps"]
    ),
    **dict.fromkeys(("copy", "copy_p", "reduce_precision", "stop_gradient", "real", "optimization_barrier"), _identity),
    **dict.fromkeys(("device_put", "sharding_constraint", "name"), _identity),
}

#: Operations that are linear in what may vary: entries moved, repeated, left out or added up.
LINEAR = frozenset(_REARRANGED)


def rearrange(op: Any, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return an operation of `LINEAR` on plain arrays."""
    return _REARRANGED[op.name](op.params, operands, shapes)


# The rest.


def dot_general(a: np.ndarray, b: np.ndarray, params: dict, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return JAX's product of tensors; operands may have axes in front, which are broadcast."""
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    leads = _lead(a, shapes[0]), _lead(b, shapes[1])
    if not left_batch and 0 in leads:  # all in one matrix product
        axes = [leads[0] + d for d in left], [leads[1] + d for d in right]
        out = np.tensordot(a, b, axes)
        own = len(shapes[0]) - len(left)
        return np.moveaxis(out, range(own, own + leads[1]), range(leads[1])) if leads[1] else out
    free = [
        [d for d in range(len(shape)) if d not in used and d not in batch]
        for shape, used, batch in ((shapes[0], left, left_batch), (shapes[1], right, right_batch))
    ]

    def matrices(array: np.ndarray, lead: int, shape: tuple[int, ...], order: tuple[Sequence[int], ...]) -> np.ndarray:
        moved = array.transpose(*range(lead), *(lead + d for part in order for d in part))
        return moved.reshape(*array.shape[:lead], *(int(np.prod([shape[d] for d in part])) for part in order))

    first = matrices(a, leads[0], shapes[0], (left_batch, free[0], left))
    second = matrices(b, leads[1], shapes[1], (right_batch, right, free[1]))
    if not free[0] and not free[1]:  # inner products
        product = np.einsum("...k,...k->...", first[..., 0, :], second[..., 0])[..., None, None]
    else:
        product = np.matmul(first, second)
    sizes = [shapes[0][d] for d in (*left_batch, *free[0])] + [shapes[1][d] for d in free[1]]
    return product.reshape((*product.shape[:-3], *sizes))


def _dot_general(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    return [_product(list(operands), varies, lambda a, b: dot_general(a, b, params, shapes))]


def _take(a: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    return np.take_along_axis(a, np.broadcast_to(indices, (len(a), *indices.shape[1:])), axis)


def _extreme(sign: int) -> Callable:
    def rule(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
        (a,), axes = operands, params["axes"]
        kept = [d for d in range(len(shapes[0])) if d not in axes]
        moved = a.transpose(0, 1, *(2 + d for d in kept), *(2 + d for d in axes))
        moved = moved.reshape(*a.shape[:2], *(shapes[0][d] for d in kept), -1)
        return [_take(moved, (sign * moved[:1]).argmax(-1)[..., None], moved.ndim - 1)[..., 0]]

    return rule


def _position(sign: int) -> Callable:
    def rule(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
        return [(sign * operands[0][:1]).argmax(2 + params["axes"][0])]

    return rule


def _running_extreme(sign: int) -> Callable:
    def rule(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
        axis = 2 + params["axis"]
        a = np.flip(operands[0], axis) if params["reverse"] else operands[0]
        value = sign * a[:1]
        place = np.arange(a.shape[axis]).reshape([-1 if d == axis else 1 for d in range(a.ndim)])
        last = np.maximum.accumulate(np.where(value >= np.maximum.accumulate(value, axis), place, 0), axis)
        out = _take(a, last, axis)
        return [np.flip(out, axis) if params["reverse"] else out]

    return rule


def _sort(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    if params["num_keys"] != 1:
        raise Unsupported("sort by several keys")
    components = [a if free else a[None, None] for a, free in zip(operands, varies, strict=True)]
    axis = 2 + params["dimension"]
    order = np.argsort(components[0][:1], axis, kind="stable")
    whole = lambda a: np.broadcast_to(a, (len(a), *order.shape[1:]))
    return [_take(whole(a), order, axis) for a in components]


def _top(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    order = np.argsort(-operands[0][:1], -1, kind="stable")[..., : params["k"]]
    return [_take(operands[0], order, operands[0].ndim - 1), order]


def _reduce_product(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    a = operands[0]
    for axis in sorted(params["axes"], reverse=True):
        parts = np.moveaxis(a, 2 + axis, 0)
        a = parts[0] if len(parts) else np.ones((1, *a.shape[1 : 2 + axis], *a.shape[3 + axis :]))
        for part in parts[1:]:
            a = _product([a, part], [True, True])
    return [a]


def _triangular_solve(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    matrix = operands[0]
    if varies[0] and matrix.shape[:2] != (1, 1):
        raise Unsupported("triangular_solve with a matrix that varies")
    matrix = matrix[0, 0] if varies[0] else matrix
    matrix = np.tril(matrix) if params["lower"] else np.triu(matrix)
    if params["unit_diagonal"]:
        matrix = matrix - np.diag(np.diag(matrix)) + np.eye(len(matrix))
    inverse = np.linalg.inv(matrix.T if params["transpose_a"] else matrix)
    multiply = (lambda b, m: np.matmul(m, b)) if params["left_side"] else np.matmul
    b = operands[1] if varies[1] else operands[1][None, None]
    return [_product([b, inverse], [True, False], multiply)]


def _cumulative_product(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    axis = 2 + params["axis"]
    parts = list(np.moveaxis(operands[0], axis, 0))
    parts = parts[::-1] if params["reverse"] else parts
    for index in range(1, len(parts)):
        parts[index] = _product([parts[index - 1], parts[index]], [True, True])
    return [np.stack(parts[::-1] if params["reverse"] else parts, axis)]


def _logical(reduce: Callable) -> Callable:
    return lambda params, operands, shapes, varies: [reduce(operands[0], axis=tuple(2 + d for d in params["axes"]))]


def _iota(params: dict, operands: Any, shapes: Any, varies: Any):
    along = [-1 if d == params["dimension"] else 1 for d in range(len(params["shape"]))]
    numbers = np.arange(params["shape"][params["dimension"]], dtype=np.dtype(params["dtype"]))
    return [np.broadcast_to(numbers.reshape(along), params["shape"])[None, None]]


_OTHERS: dict[str, Callable] = {
    "dot_general": _dot_general,
    "reduce_max": _extreme(1),
    "reduce_min": _extreme(-1),
    "argmax": _position(1),
    "argmin": _position(-1),
    "cummax": _running_extreme(1),
    "cummin": _running_extreme(-1),
    "sort": _sort,
    "top_k": _top,
    "reduce_prod": _reduce_product,
    "reduce_and": _logical(np.all),
    "reduce_or": _logical(np.any),
    "iota": _iota,
    "triangular_solve": _triangular_solve,
    "cumprod": _cumulative_product,
}

#: The operations that are known here.
KNOWN = frozenset().union(_UNARY, _STEPS, _ELEMENTWISE, _REARRANGED, _OTHERS)
