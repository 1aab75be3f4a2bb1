"""The numbers of a quadratic function, read off its operations: each value is affine, or a sum of products of two such.

Differentiating along every unit vector multiplies matrices that are there already. Here a value of many variables is
known by its derivative, which is a part of a constant of the user's or a choice of variables as long as it can be, and
only the products that end up in the Hessian are made.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.linalg import blas

from bilevax._support import clock
from bilevax.model.analysis.jets.components import Unsupported
from bilevax.model.analysis.program import Op, Program

_BLOCK = 256  # rows and columns of a matrix that are looked at together
_WORK = 4_000_000_000  # products between two looks at the clock


@dataclasses.dataclass(frozen=True)
class _Picked:
    """Some entries of a value are multiples of single variables: ``value[rows] = factors * variables[columns]``."""

    rows: np.ndarray
    columns: np.ndarray
    factors: np.ndarray

    def scaled(self, by: np.ndarray) -> "_Picked":
        return dataclasses.replace(self, factors=self.factors * by[self.rows])

    def multiplied(self, matrix: np.ndarray) -> "_Full":
        """Return the derivative of ``matrix @ value``."""
        first, last = int(self.columns.min()), int(self.columns.max()) + 1
        whole = np.array_equal(self.columns, np.arange(first, last))
        rows = slice(int(self.rows[0]), int(self.rows[-1]) + 1)
        together = rows.stop - rows.start == len(self.rows) and np.all(np.diff(self.rows) == 1)
        part = matrix[:, rows] if together else matrix[:, self.rows]
        part = part if np.all(self.factors == 1.0) else part * self.factors
        if whole:
            return _Full(slice(0, len(matrix)), slice(first, last), part)
        out = np.zeros((len(matrix), last - first))
        np.add.at(out.T, self.columns - first, part.T)
        return _Full(slice(0, len(matrix)), slice(first, last), out)


@dataclasses.dataclass(frozen=True)
class _Full:
    """Some entries of a value depend on some variables by a matrix: ``value[rows] = matrix @ variables[columns]``."""

    rows: slice
    columns: slice
    matrix: np.ndarray

    def scaled(self, by: np.ndarray) -> "_Full":
        return dataclasses.replace(self, matrix=self.matrix * by[self.rows, None])

    def multiplied(self, matrix: np.ndarray) -> "_Full":
        """Return the derivative of ``matrix @ value``."""
        clock.check()
        return _Full(slice(0, len(matrix)), self.columns, matrix[:, self.rows] @ self.matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A vector, or a number as a vector of one entry, that is a quadratic of the variables.

    ``constant`` plus the linear ``parts`` plus the ``products``, each of them weights times two affine values, entry by
    entry. The products of a number may be of longer values: they are added up. Of their constants nothing is added to
    ``constant``, since nobody asks for the function's value at zero.
    """

    constant: np.ndarray
    parts: tuple[_Picked | _Full, ...] = ()
    products: tuple[tuple[np.ndarray, "_Value", "_Value"], ...] = ()

    def scaled(self, by: np.ndarray) -> "_Value":
        if len(self.constant) == 1 and len(by) > 1:
            raise Unsupported("a number times a vector")
        along = lambda size: by if len(by) == size else np.broadcast_to(by, size)
        own = along(len(self.constant))
        return _Value(
            own * self.constant,
            tuple(part.scaled(own) for part in self.parts),
            tuple((along(len(weights)) * weights, a, b) for weights, a, b in self.products),
        )

    def affine(self) -> "_Value":
        if self.products:
            raise Unsupported("a product of more than two")
        return self


def quadratic_form(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient at zero and Hessian in (x, y) of a function of degree two; `Unsupported` where that fails."""
    n_x, n_y = program.shapes[program.x][0], program.shapes[program.y][0]
    values: dict[int, Any] = dict(program.constants)
    for slot, first, size in ((program.x, 0, n_x), (program.y, n_x, n_y)):
        chosen = _Picked(np.arange(size), np.arange(first, first + size), np.ones(size))
        values[slot] = _Value(np.zeros(size), (chosen,) if size else ())
    for op in program.ops:
        if op.name not in _RULES or len(op.outputs) != 1:
            raise Unsupported(op.name)
        slots = [*op.inputs, op.outputs[0]]
        if any(len(program.shapes[slot]) > 1 for slot in slots if program.varies(slot)):
            raise Unsupported(f"{op.name} of a matrix that varies")
        values[op.outputs[0]] = _RULES[op.name](op, [values[slot] for slot in op.inputs])
    result = values[program.result]
    if not isinstance(result, _Value) or len(result.constant) != 1:
        raise Unsupported("a function that does not vary")
    return _derivatives(result, n_x + n_y)


def _derivatives(result: _Value, size: int) -> tuple[np.ndarray, np.ndarray]:
    gradient, half = np.zeros(size), np.zeros((size, size))  # the other half follows by symmetry
    for part in result.parts:
        _add_linear(gradient, part, np.ones(1))
    for weights, a, b in result.products:
        for value, other in ((a, b), (b, a)):
            for part in value.parts:
                _add_linear(gradient, part, weights * other.constant)
        for p in a.parts:
            for q in b.parts:
                clock.check()
                _add_product(half, weights, p, q)
    clock.check()
    _add_transpose(half)
    return gradient, half


def _add_transpose(half: np.ndarray) -> None:
    """Add its own transpose to a matrix, block by block: as long as both blocks are in the cache."""
    starts = range(0, len(half), _BLOCK)
    for i in starts:
        for j in starts[: i // _BLOCK + 1]:
            lower, upper = half[i : i + _BLOCK, j : j + _BLOCK], half[j : j + _BLOCK, i : i + _BLOCK]
            both = lower + upper.T
            lower[:], upper[:] = both, both.T


def _add_linear(gradient: np.ndarray, part: _Picked | _Full, weights: np.ndarray) -> None:
    """Add the derivative of the sum of a value's entries with these weights."""
    if isinstance(part, _Picked):
        np.add.at(gradient, part.columns, weights[part.rows] * part.factors)
    else:
        gradient[part.columns] += weights[part.rows] @ part.matrix


def _add_product(half: np.ndarray, weights: np.ndarray, p: _Picked | _Full, q: _Picked | _Full) -> None:
    """Add the derivative of one value times weights times that of another; the other half follows by symmetry."""
    if isinstance(p, _Picked) and isinstance(q, _Picked):
        _, own, its = np.intersect1d(p.rows, q.rows, assume_unique=True, return_indices=True)
        np.add.at(half, (p.columns[own], q.columns[its]), weights[p.rows[own]] * p.factors[own] * q.factors[its])
    elif isinstance(p, _Picked) and isinstance(q, _Full):
        _add_rows(half, weights, p, q)
    elif isinstance(p, _Full) and isinstance(q, _Picked):
        _add_rows(half, weights, q, p)
    elif isinstance(p, _Full) and isinstance(q, _Full):
        rows = slice(max(p.rows.start, q.rows.start), min(p.rows.stop, q.rows.stop))
        if rows.stop <= rows.start:
            return
        first, second = (part.matrix[rows.start - part.rows.start : rows.stop - part.rows.start] for part in (p, q))
        by = weights[rows]
        if p.matrix is q.matrix and (np.all(by >= 0) or np.all(by <= 0)):
            _add_square(half, p.columns, np.sqrt(np.abs(by)), first, 1.0 if np.all(by >= 0) else -1.0)
        else:
            half[p.columns, q.columns] += first.T @ (by[:, None] * second)


def _add_rows(half: np.ndarray, weights: np.ndarray, p: _Picked, q: _Full) -> None:
    """Add the product of single variables and a matrix: its rows."""
    inside = (p.rows >= q.rows.start) & (p.rows < q.rows.stop)
    rows, columns = p.rows[inside], p.columns[inside]
    factors = weights[rows] * p.factors[inside]
    ordered = len(rows) == len(q.matrix) and np.all(np.diff(rows) == 1)
    matrix = q.matrix if ordered else q.matrix[rows - q.rows.start]
    matrix = matrix if np.all(factors == 1.0) else factors[:, None] * matrix
    if len(columns) and np.all(np.diff(columns) == 1):
        half[columns[0] : columns[-1] + 1, q.columns] += matrix
    else:
        np.add.at(half[:, q.columns], columns, matrix)


def _add_square(half: np.ndarray, columns: slice, roots: np.ndarray, matrix: np.ndarray, sign: float) -> None:
    """Add ``sign (roots matrix)' (roots matrix)``: half the work of a product, some rows at a time."""
    count = max(_BLOCK, _WORK // matrix.shape[1] ** 2)
    for first in range(0, len(matrix), count):
        root = roots[first : first + count, None] * matrix[first : first + count]
        with clock.work(matrix.shape[1] * root.size):
            if columns != slice(0, len(half)):
                half[columns, columns] += sign * (root.T @ root)
                continue
            # One triangle alone, twice, which symmetry makes whole again.
            blas.dsyrk(2 * sign, root.T, beta=1.0, c=half.T, overwrite_c=1)
        half.ravel()[:: len(half) + 1] -= sign * np.einsum("ij,ij->j", root, root)


def _as_value(operand: Any) -> _Value:
    return operand if isinstance(operand, _Value) else _Value(np.array(operand, float).reshape(-1))


def _add(sign: float) -> Callable[[Op, Sequence[Any]], _Value]:
    def rule(op: Op, operands: Sequence[Any]) -> _Value:
        a, b = (_as_value(operand) for operand in operands)
        b = b if sign > 0 else b.scaled(np.array([sign]))
        if len(a.constant) != len(b.constant):
            grows = [value.parts or value.products for value in (a, b) if len(value.constant) == 1]
            if any(grows):
                raise Unsupported("a number plus a vector")
        return _Value(a.constant + b.constant, a.parts + b.parts, a.products + b.products)

    return rule


def _multiply(op: Op, operands: Sequence[Any]) -> _Value:
    a, b = operands
    if isinstance(a, _Value) and isinstance(b, _Value):
        if len(a.constant) != len(b.constant):
            raise Unsupported("a number times a vector")
        return _Value(np.zeros_like(a.constant), (), ((np.ones(len(a.constant)), a.affine(), b.affine()),))
    value, by = (a, b) if isinstance(a, _Value) else (b, a)
    return value.scaled(np.asarray(by, float).reshape(-1))


def _divide(op: Op, operands: Sequence[Any]) -> _Value:
    if isinstance(operands[1], _Value):
        raise Unsupported("a quotient")
    return operands[0].scaled(1 / np.asarray(operands[1], float).reshape(-1))


def _square(op: Op, operands: Sequence[Any]) -> _Value:
    if op.name == "integer_pow" and op.params["y"] != 2:
        raise Unsupported("a power")
    return _multiply(op, [operands[0], operands[0]])


def _dot(op: Op, operands: Sequence[Any]) -> _Value:
    (left, right), batch = op.params["dimension_numbers"]
    if any(batch) or len(left) != 1 or any(np.ndim(a) > 2 for a in operands):
        raise Unsupported("a product of tensors")
    a, b = operands
    if isinstance(a, _Value) and isinstance(b, _Value):
        return _summed(_multiply(op, [a, b]))
    value, constant, axis = (a, b, right[0]) if isinstance(a, _Value) else (b, a, left[0])
    constant = np.asarray(constant, float)
    if constant.ndim == 1:
        return _summed(value.scaled(constant))
    value, matrix = value.affine(), constant.T if axis == 0 else constant
    return _Value(matrix @ value.constant, tuple(part.multiplied(matrix) for part in value.parts))


def _summed(value: _Value) -> _Value:
    """Return the sum of the entries."""
    ones = np.ones((1, len(value.constant)))
    return _Value(ones @ value.constant, tuple(part.multiplied(ones) for part in value.parts), value.products)


def _slice(op: Op, operands: Sequence[Any]) -> _Value:
    (value,), strides = operands, op.params["strides"]
    if strides is not None and set(strides) != {1}:
        raise Unsupported("a slice with strides")
    first, last = op.params["start_indices"][0], op.params["limit_indices"][0]
    parts: list[_Picked | _Full] = []
    for part in value.affine().parts:
        if isinstance(part, _Picked):
            inside = (part.rows >= first) & (part.rows < last)
            if inside.any():
                parts.append(_Picked(part.rows[inside] - first, part.columns[inside], part.factors[inside]))
        else:
            low, high = max(part.rows.start, first), min(part.rows.stop, last)
            if low < high:
                matrix = part.matrix[low - part.rows.start : high - part.rows.start]
                parts.append(_Full(slice(low - first, high - first), part.columns, matrix))
    return _Value(value.constant[first:last], tuple(parts))


def _concatenate(op: Op, operands: Sequence[Any]) -> _Value:
    values = [_as_value(operand).affine() for operand in operands]
    starts = np.cumsum([0, *(len(value.constant) for value in values)])
    full, picked = [], []
    for value, start in zip(values, starts, strict=False):
        for part in value.parts:
            if isinstance(part, _Picked):
                picked.append(dataclasses.replace(part, rows=part.rows + start))
            else:
                rows = slice(part.rows.start + start, part.rows.stop + start)
                full.append(dataclasses.replace(part, rows=rows))
    if picked and len(np.unique(np.concatenate([part.rows for part in picked]))) == sum(len(p.rows) for p in picked):
        joined = (np.concatenate([getattr(part, name) for part in picked]) for name in ("rows", "columns", "factors"))
        picked = [_Picked(*joined)]
    return _Value(np.concatenate([value.constant for value in values]), (*picked, *full))


def _same(op: Op, operands: Sequence[Any]) -> _Value:
    return operands[0]


def _broadcast(op: Op, operands: Sequence[Any]) -> _Value:
    if int(np.prod(op.params["shape"])) != len(operands[0].constant):
        raise Unsupported("a value that is repeated")
    return operands[0]


_RULES: dict[str, Callable[[Op, Sequence[Any]], _Value]] = {
    "add": _add(1.0),
    "add_any": _add(1.0),
    "sub": _add(-1.0),
    "neg": lambda op, operands: operands[0].scaled(np.array([-1.0])),
    "mul": _multiply,
    "div": _divide,
    "square": _square,
    "integer_pow": _square,
    "dot_general": _dot,
    "reduce_sum": lambda op, operands: _summed(operands[0]),
    "slice": _slice,
    "concatenate": _concatenate,
    "reshape": _same,
    "squeeze": _same,
    "copy": _same,
    "copy_p": _same,
    "convert_element_type": _same,
    "broadcast_in_dim": _broadcast,
}
