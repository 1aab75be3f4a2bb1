"""Operations that combine many entries, or choose among them: products of tensors, extremes, orders, solves."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bilevax.model.analysis.jets.components import Unsupported, axes_in_front
from bilevax.model.analysis.jets.elementwise import leibniz_rule

# Entries of a matrix from which on it pays to look whether nearly all of them are zero.
_MANY_ENTRIES = 100_000


def dot_general(a: np.ndarray, b: np.ndarray, params: dict, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return JAX's product of tensors; operands may have axes in front, which are broadcast."""
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    leads = axes_in_front(a, shapes[0]), axes_in_front(b, shapes[1])
    if not left_batch and 0 in leads:  # all in one matrix product
        axes = [leads[0] + d for d in left], [leads[1] + d for d in right]
        out = _tensordot(a, b, *axes)
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


def _tensordot(a: np.ndarray, b: np.ndarray, left: Sequence[int], right: Sequence[int]) -> np.ndarray:
    """Return a product of tensors; the zeros of many unit vectors are not multiplied."""
    if max(a.size, b.size) <= _MANY_ENTRIES:
        return np.tensordot(a, b, (left, right))
    rows, columns = (
        np.moveaxis(array, axes, range(-len(axes), 0)).reshape(-1, int(np.prod([array.shape[d] for d in axes])))
        for array, axes in ((a, left), (b, right))
    )
    out = _picked(rows, columns)
    out = np.transpose(other) if out is None and (other := _picked(columns, rows)) is not None else out
    out = rows @ columns.T if out is None else out
    free = [n for array, axes in ((a, left), (b, right)) for d, n in enumerate(array.shape) if d not in axes]
    return out.reshape(free)


def _picked(units: np.ndarray, matrix: np.ndarray) -> np.ndarray | None:
    """Return ``units @ matrix.T`` if there are many units with at most one entry each that is not zero, else None."""
    if units.size <= _MANY_ENTRIES or np.count_nonzero(units) > len(units):
        return None
    row, column = np.nonzero(units)
    if len(row) > 1 and np.any(row[1:] == row[:-1]):
        return None
    out = np.zeros((len(units), len(matrix)))
    out[row] = (matrix[:, column] * units[row, column]).T
    return out


def _dot_general(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    return [leibniz_rule(list(operands), varies, lambda a, b: dot_general(a, b, params, shapes))]


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
            a = leibniz_rule([a, part], [True, True])
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
    return [leibniz_rule([b, inverse], [True, False], multiply)]


def _cumulative_product(params: dict, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Any):
    axis = 2 + params["axis"]
    parts = list(np.moveaxis(operands[0], axis, 0))
    parts = parts[::-1] if params["reverse"] else parts
    for index in range(1, len(parts)):
        parts[index] = leibniz_rule([parts[index - 1], parts[index]], [True, True])
    return [np.stack(parts[::-1] if params["reverse"] else parts, axis)]


def _logical(reduce: Callable) -> Callable:
    return lambda params, operands, shapes, varies: [reduce(operands[0], axis=tuple(2 + d for d in params["axes"]))]


def _iota(params: dict, operands: Any, shapes: Any, varies: Any):
    along = [-1 if d == params["dimension"] else 1 for d in range(len(params["shape"]))]
    numbers = np.arange(params["shape"][params["dimension"]], dtype=np.dtype(params["dtype"]))
    return [np.broadcast_to(numbers.reshape(along), params["shape"])[None, None]]


COMBINING: dict[str, Callable] = {
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
