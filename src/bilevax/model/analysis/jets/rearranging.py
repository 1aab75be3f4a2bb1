"""Operations that move entries or add them up: the same for every component."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bilevax.model.analysis.jets.components import axes_in_front, lift


def may_vary(op: Any, index: int) -> bool:
    """Return whether an operand may depend on variables; the indices of a ``gather`` may not."""
    places = {"gather": (0,), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1)}
    places |= dict.fromkeys(("scatter-add", "scatter_add", "scatter"), (0, 2))
    return op.name not in places or index in places[op.name]


def same_components(operands: Sequence[np.ndarray], varies: Sequence[bool], op: Any) -> list[np.ndarray]:
    """Return the operands of an operation that rearranges entries, all that may vary with the same axes in front."""
    free = [index for index in range(len(operands)) if may_vary(op, index)]
    components = max((len(operands[i]) for i in free if varies[i]), default=1)
    batch = max((operands[i].shape[1] for i in free if varies[i]), default=1)
    out = list(operands)
    for i in free:
        lifted = lift(operands[i], varies[i], components)
        out[i] = np.broadcast_to(lifted, (components, batch, *lifted.shape[2:]))
    return out


def _reshape(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], to: Any = None):
    (a,) = operands
    return a.reshape((*a.shape[: axes_in_front(a, shapes[0])], *(params["new_sizes"] if to is None else to)))


def _squeeze(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    gone = {d % len(shapes[0]) for d in params["dimensions"]}
    return _reshape(params, operands, shapes, [n for d, n in enumerate(shapes[0]) if d not in gone])


def _broadcast(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    a, target = operands[0], params["shape"]
    lead = a.shape[: axes_in_front(a, shapes[0])]
    spread = [1] * len(target)
    for own, position in enumerate(params["broadcast_dimensions"]):
        spread[position] = shapes[0][own]
    return np.broadcast_to(a.reshape((*lead, *spread)), (*lead, *target))


def _transpose(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    lead = axes_in_front(operands[0], shapes[0])
    return operands[0].transpose(*range(lead), *(lead + d for d in params["permutation"]))


def _reduce_sum(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    lead = axes_in_front(operands[0], shapes[0])
    return operands[0].sum(axis=tuple(lead + d for d in params["axes"]))


def _cumulative_sum(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    axis = axes_in_front(operands[0], shapes[0]) + params["axis"]
    if params["reverse"]:
        return np.flip(np.cumsum(np.flip(operands[0], axis), axis), axis)
    return np.cumsum(operands[0], axis)


def _slice(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    strides = params["strides"] or (1,) * len(shapes[0])
    return operands[0][(..., *map(slice, params["start_indices"], params["limit_indices"], strides))]


def _reverse(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    lead = axes_in_front(operands[0], shapes[0])
    return np.flip(operands[0], tuple(lead + d for d in params["dimensions"]))


def _concatenate(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.concatenate(operands, axes_in_front(operands[0], shapes[0]) + params["dimension"])


def _pad(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    a, filling = operands
    lead = a.shape[: axes_in_front(a, shapes[0])]
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
    taken = a.reshape(*a.shape[: axes_in_front(a, shapes[0])], -1)[..., flat]
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
    lead = a.shape[: axes_in_front(a, shapes[0])]
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


REARRANGED: dict[str, Callable] = {
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
    "stack": lambda params, operands, shapes: np.stack(
        operands, axes_in_front(operands[0], shapes[0]) + params["axis"]
    ),
    "tile": lambda params, operands, shapes: np.tile(
        operands[0], (1,) * axes_in_front(operands[0], shapes[0]) + params["reps"]
    ),
    **dict.fromkeys(("copy", "copy_p", "reduce_precision", "stop_gradient", "real", "optimization_barrier"), _identity),
    **dict.fromkeys(("device_put", "sharding_constraint", "name"), _identity),
}

#: Operations that are linear in what may vary: entries moved, repeated, left out or added up.
LINEAR = frozenset(REARRANGED)


def rearrange(op: Any, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return an operation of `LINEAR` on plain arrays."""
    return REARRANGED[op.name](op.params, operands, shapes)
