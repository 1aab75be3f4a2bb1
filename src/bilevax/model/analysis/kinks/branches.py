"""Operations with branches, candidates for kinks: which they are, and which branch they take at a point."""

from collections.abc import Callable, Sequence

import numpy as np

from bilevax.model.analysis import jets
from bilevax.model.analysis.facts import Facts
from bilevax.model.analysis.program import Op, Program


def is_candidate(op: Op, program: Program, facts: Facts) -> bool:
    """Return whether an operation takes several branches within the bounds of its operands, or may do so."""
    if not any(map(program.varies, op.inputs)):
        return False
    if op.name not in _BRANCHES:
        return op.name not in jets.KNOWN and op.name not in _SMOOTH
    bounds = [facts[slot].interval for slot in op.inputs]
    if op.name in ("abs", "sign", "cbrt"):
        return bounds[0].least < 0 < bounds[0].most
    if op.name in ("max", "min"):
        a, b = bounds
        return not bool(np.all((a.lower >= b.upper) | (b.lower >= a.upper)))
    if op.name == "clamp":
        low, value, high = bounds
        return bool(np.any(value.lower < low.upper) or np.any(value.upper > high.lower))
    if op.name == "select_n":
        return program.varies(op.inputs[0]) and bool(np.any(bounds[0].lower < bounds[0].upper))
    if op.name == "convert_element_type":
        source, target = (program.floating[slot] for slot in (op.inputs[0], op.outputs[0]))
        return source != target and bool(np.any(bounds[0].lower < bounds[0].upper))
    if op.name in ("gather", "dynamic_slice"):
        return any(map(program.varies, op.inputs[1:]))
    shape = program.shapes[op.inputs[0]]
    if op.name in ("reduce_max", "reduce_min", "argmax", "argmin"):
        return int(np.prod([shape[d] for d in op.params["axes"]])) > 1
    return op.name in ("floor", "ceil", "round", "rem", "while", "scan") or int(np.prod(shape)) > 1


def _along(sign: int) -> Callable:
    def state(op: Op, a: np.ndarray) -> np.ndarray:
        axes = op.params["axes"]
        rank = a.ndim - 1
        kept = [d for d in range(rank) if d not in axes]
        moved = a.transpose(0, *(1 + d for d in kept), *(1 + d for d in axes))
        return (sign * moved.reshape(*moved.shape[: 1 + len(kept)], -1)).argmax(-1)

    return state


def _unsupported(op: Op, *operands: np.ndarray) -> np.ndarray:
    raise jets.Unsupported(op.name)


_positive = lambda op, a: a > 0
_which = lambda op, a, b: a > b

#: The branch an operation takes at each entry, from its operands' values with the batch in front.
_BRANCHES: dict[str, Callable[..., np.ndarray]] = {
    "abs": _positive,
    "sign": _positive,
    "cbrt": _positive,
    "max": _which,
    "min": _which,
    "clamp": lambda op, low, a, high: np.where(a < low, 0, np.where(a > high, 2, 1)),
    "select_n": lambda op, index, *cases: index,
    "convert_element_type": lambda op, a: np.trunc(a),
    "reduce_max": _along(1),
    "reduce_min": _along(-1),
    "argmax": _along(1),
    "argmin": _along(-1),
    "cummax": lambda op, a: a >= np.maximum.accumulate(a, 1 + op.params["axis"]),
    "cummin": lambda op, a: a <= np.minimum.accumulate(a, 1 + op.params["axis"]),
    "sort": lambda op, a, *others: np.argsort(a, 1 + op.params["dimension"], kind="stable"),
    "top_k": lambda op, a: np.argsort(-a, -1, kind="stable"),
    "floor": lambda op, a: np.floor(a),
    "ceil": lambda op, a: np.ceil(a),
    "round": lambda op, a: np.round(a),
    "rem": lambda op, a, b: np.trunc(a / b),
    **dict.fromkeys(("gather", "dynamic_slice", "while", "scan"), _unsupported),
}

#: Operations that are smooth where they are defined, although they cannot be evaluated here.
_SMOOTH = frozenset(
    {"atan2", "bessel_i0e", "bessel_i1e", "cholesky", "complex", "conj", "conv_general_dilated", "cumlogsumexp", "fft"}
    | {"householder_product", "igamma", "igammac", "imag", "lu", "polygamma", "qr", "ragged_dot_general", "zeta"}
    | {"reduce_window_sum", "regularized_incomplete_beta", "tridiagonal_solve"}
)


def branches_at(program: Program, ops: Sequence[Op], points: np.ndarray) -> list[np.ndarray]:
    """Return the branches that operations take at points, one row a point."""
    split = program.shapes[program.x][0]
    slots = sorted({slot for op in ops for slot in op.inputs})
    values = program.evaluate(points[None, :, :split], points[None, :, split:], slots)
    at = {slot: value[0] for slot, value in zip(slots, values, strict=True)}
    out = []
    with np.errstate(all="ignore"):
        for op in ops:
            operands = [at[slot] for slot in op.inputs]
            rank = max(operand.ndim for operand in operands)
            aligned = [a.reshape((*a.shape, *(1,) * (rank - a.ndim))) for a in operands]
            out.append(_BRANCHES.get(op.name, _unsupported)(op, *aligned).reshape(len(points), -1))
    return out
