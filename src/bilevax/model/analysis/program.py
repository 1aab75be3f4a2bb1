"""A traced function as a straight list of operations, calls and short loops written out.

Equal operations on equal operands are one operation, what depends on no variable is a constant, and what the result
does not need is left out; so ``(y - x) @ (y - x)`` is seen to be a square, and a sign nobody asks for is no kink.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from bilevax._support.precision import float64
from bilevax.model.analysis import jets

#: Loops are written out up to this many operations; longer ones are operations of their own, of which little is known.
_LONGEST_LOOP = 4000

#: Functions of JAX that are smooth although their code branches, by name and the primitives of their code.
_ATOMS = {
    "logaddexp": ("logaddexp", ("max", "sub", "ne", "add", "abs", "neg", "exp", "log1p", "add", "select_n")),
    "xlogy": ("xlogy", ("ne", "ne", "or", "log", "mul", "broadcast_in_dim", "select_n")),
    "_xlogx": ("xlogx", ("ne", "ne", "or", "log", "mul", "broadcast_in_dim", "select_n")),
    "xlog1py": ("xlog1py", ("ne", "ne", "or", "log1p", "mul", "broadcast_in_dim", "select_n")),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """One operation: ``outputs = name(inputs)``; inputs and outputs are slots of a `Program`.

    ``calls`` are the names of the functions around it, from the outside in, ``source`` is where the user called.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: dict[str, Any]
    calls: tuple[str, ...] = ()
    source: Any = None

    def where(self) -> str:
        """Return the place in the user's code, such as ``problem.py:12 (loss)``; empty where JAX does not know."""
        try:
            from jax._src import source_info_util  # no public way exists

            frame = source_info_util.user_frame(self.source.traceback)
        except Exception:  # a convenience: never a reason to fail
            return ""
        return f"{frame.file_name}:{frame.start_line} ({frame.function_name})" if frame else ""


class Program:
    """A function of flat vectors x and y with one result, as a list of operations on numbered slots.

    Attributes
    ----------
    ops
        In an order in which they can be evaluated.
    shapes, floating
        Of each slot.
    constants
        Values of the slots that depend on no variable.
    x, y, result
        Slots of the arguments and of the result.
    on_x, on_y
        Whether each slot depends on x, on y.
    """

    def __init__(self, closed: ClosedJaxpr):
        self.ops: list[Op] = []
        self.shapes: list[tuple[int, ...]] = []
        self.floating: list[bool] = []
        self.constants: dict[int, np.ndarray] = {}
        self.on_x: list[bool] = []
        self.on_y: list[bool] = []
        self._known: dict[Any, tuple[int, ...]] = {}
        self._recognised: list[Any] = []  # kept, so that no other object gets the identity of one of them
        self.x, self.y = (self._slot(var.aval.shape, True) for var in closed.jaxpr.invars)
        self.on_x[self.x] = self.on_y[self.y] = True
        (self.result,) = self._inline(closed.jaxpr, closed.consts, [self.x, self.y], (), None)
        self._recognised.clear()
        self.maker = {slot: op for op in self.ops for slot in op.outputs}
        self.ops = self.needed([self.result])

    def varies(self, slot: int) -> bool:
        """Return whether a slot depends on a variable."""
        return self.on_x[slot] or self.on_y[slot]

    def needed(self, slots: Iterable[int]) -> list[Op]:
        """Return the operations that some slots need, in order."""
        wanted, ops = set(slots), []
        for op in reversed(self.ops):
            if not wanted.isdisjoint(op.outputs):
                ops.append(op)
                wanted.update(op.inputs)
        return ops[::-1]

    def sizes(self) -> int:
        """Return the number of entries of all slots that depend on a variable: the cost of an evaluation."""
        slots = [self.x, self.y, *(slot for op in self.ops for slot in op.outputs)]
        return sum(int(np.prod(self.shapes[slot])) for slot in slots)

    def evaluate(self, x: np.ndarray, y: np.ndarray, slots: Sequence[int], scale: dict[int, float] | None = None):
        """Return the values of slots at a batch of points, or their jets along a batch of lines.

        Parameters
        ----------
        x, y
            Of shape (1, batch, size) for values, (5, batch, size) for jets; see `jets`.
        slots
            What is wanted.
        scale
            Factors by which the values of some slots are multiplied before they are used.

        Raises
        ------
        jets.Unsupported
            Where an operation is not known to NumPy.
        """
        values: dict[int, np.ndarray] = {self.x: x, self.y: y}
        with np.errstate(all="ignore"):
            for op in self.needed(slots):
                operands = [self.constants[slot] if slot in self.constants else values[slot] for slot in op.inputs]
                shapes = [self.shapes[slot] for slot in op.inputs]
                varies = [self.varies(slot) for slot in op.inputs]
                for slot, value in zip(op.outputs, jets.apply(op, operands, shapes, varies), strict=True):
                    values[slot] = value * scale[slot] if scale and slot in scale else value
        lead = (x.shape[0], max(x.shape[1], y.shape[1]))
        constant = lambda slot: np.broadcast_to(self.constants[slot], (1, lead[1], *self.shapes[slot]))
        return [values[slot] if slot in values else constant(slot) for slot in slots]

    def _slot(self, shape: Sequence[int], floating: bool) -> int:
        self.shapes.append(tuple(shape))
        self.floating.append(floating)
        self.on_x.append(False)
        self.on_y.append(False)
        return len(self.shapes) - 1

    def _constant(self, value: Any) -> int:
        array = np.asarray(value)
        array = array.astype(np.float64, copy=False) if array.dtype.kind not in "biu" else array
        small = (array.tobytes(), array.shape, array.dtype.kind) if array.size <= 64 else id(value)
        if small not in self._known:
            slot = self._slot(array.shape, array.dtype.kind not in "biu")
            self.constants[slot] = array
            self._known[small] = (slot,)
            self._recognised.append(value)
        return self._known[small][0]

    def _inline(
        self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[int], calls: tuple[str, ...], source: Any
    ) -> list[int]:
        """Add the operations of a jaxpr and return the slots of its results."""
        env: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        env.update({var: self._constant(value) for var, value in zip(jaxpr.constvars, consts, strict=True)})
        read = lambda atom: self._constant(atom.val) if isinstance(atom, Literal) else env[atom]
        for eqn in jaxpr.eqns:
            slots = self._equation(eqn, [read(atom) for atom in eqn.invars], calls, source or eqn.source_info)
            env.update(zip(eqn.outvars, slots, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[int], calls: tuple[str, ...], source: Any) -> Sequence[int]:
        name, params = eqn.primitive.name, eqn.params
        if name == "cond":
            return self._cond(eqn, inputs, calls, source)
        if name == "scan" and params["length"] * len(params["jaxpr"].eqns) <= _LONGEST_LOOP:
            return self._scan(params, inputs, calls, source)
        if name == "split":
            return self._split(params["axis"], params["sizes"], inputs[0], eqn, calls, source)
        if name == "unstack":
            axis = params["axis"]
            rows = self._split(axis, [1] * len(eqn.outvars), inputs[0], eqn, calls, source)
            return [self._reshape(row, var.aval, calls, source) for row, var in zip(rows, eqn.outvars, strict=True)]
        if name == "custom_linear_solve":
            lengths, solve = params["const_lengths"], params["jaxprs"].solve
            first = lengths.matvec + lengths.vecmat
            matrix, factors = inputs[: lengths.matvec], inputs[first : first + lengths.solve]
            arguments = [self._factored(slot, matrix) for slot in factors] + inputs[sum(lengths) :]
            return self._inline(solve.jaxpr, solve.consts, arguments, calls, source)
        inner = next((params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None)
        if inner is not None and name not in ("scan", "while"):
            body, consts = (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())
            called = params.get("name") or getattr(getattr(body, "debug_info", None), "func_name", None) or name
            atom, pattern = _ATOMS.get(called, (None, None))
            if atom is None or _primitives(body) != pattern:
                return self._inline(body, consts, inputs, (*calls, called), source)
            name, params = atom, {}
        return self._add(name, inputs, params, [var.aval for var in eqn.outvars], calls, source, eqn)

    def _add(
        self,
        name: str,
        inputs: Sequence[int],
        params: dict[str, Any],
        avals: Sequence[Any],
        calls: tuple[str, ...] = (),
        source: Any = None,
        eqn: Any = None,
    ) -> tuple[int, ...]:
        """Add an operation, unless it is there already or a constant; return the slots of its results."""
        try:
            key = (name, tuple(inputs), tuple(sorted((k, v) for k, v in params.items() if "jaxpr" not in k)))
            if key in self._known:
                return self._known[key]
        except TypeError:  # parameters without a hash or an order: taken to be unique
            key = None
        if not any(map(self.varies, inputs)):
            folded = self._fold(name, inputs, params, eqn)
            if folded is not None:
                return tuple(map(self._constant, folded))
        outputs = tuple(self._slot(aval.shape, np.dtype(aval.dtype).kind == "f") for aval in avals)
        for slot in outputs:
            self.on_x[slot] = any(self.on_x[i] for i in inputs)
            self.on_y[slot] = any(self.on_y[i] for i in inputs)
        op = Op(name, tuple(inputs), outputs, params, calls, source)
        self.ops.append(op)
        if key is not None:
            self._known[key] = outputs
        return outputs

    def _fold(self, name: str, inputs: Sequence[int], params: dict[str, Any], eqn: Any) -> list[Any] | None:
        """Return the values of an operation on constants, by NumPy or else by JAX."""
        if not all(slot in self.constants for slot in inputs):
            return None
        values = [self.constants[slot] for slot in inputs]
        op = Op(name, tuple(inputs), (), params)
        try:
            with np.errstate(all="ignore"):
                lifted = [value[None, None] for value in values]  # a batch of one
                shapes = [self.shapes[slot] for slot in inputs]
                varies = [jets.may_vary(op, index) for index in range(len(inputs))]
                operands = [a if free else b for a, b, free in zip(lifted, values, varies, strict=True)]
                return [value[0, 0] for value in jets.apply(op, operands, shapes, varies)]
        except jets.Unsupported:
            pass
        try:
            with float64():
                types = [atom.aval.dtype for atom in eqn.invars]
                arguments = [jax.numpy.asarray(value, dtype) for value, dtype in zip(values, types, strict=True)]
                found = eqn.primitive.bind(*arguments, **eqn.params)
            return list(found) if eqn.primitive.multiple_results else [found]
        except Exception:
            return None

    def _factored(self, slot: int, matrix: Sequence[int]) -> int:
        """Return a factor of the matrix, without the ``stop_gradient`` before it: what JAX derives is the equation."""
        makers = {out: op for op in self.ops for out in op.outputs}
        if (op := makers.get(slot)) is None:
            return slot
        stopped = {each: makers[each].inputs[0] for each in op.inputs if _stops(makers.get(each))}
        inputs = [stopped[each] if stopped.get(each) in matrix else each for each in op.inputs]
        types = [jax.ShapeDtypeStruct(self.shapes[out], float if self.floating[out] else int) for out in op.outputs]
        return self._add(op.name, inputs, op.params, types, op.calls, op.source)[op.outputs.index(slot)]

    def _cond(self, eqn: Any, inputs: list[int], calls: tuple[str, ...], source: Any) -> Sequence[int]:
        """Add all branches and a choice between their results; functions without effects do not tell the difference."""
        branches = eqn.params["branches"]
        index, arguments = inputs[0], inputs[1:]
        if index in self.constants:
            taken = branches[int(np.clip(self.constants[index], 0, len(branches) - 1))]
            return self._inline(taken.jaxpr, taken.consts, arguments, calls, source)
        found = [self._inline(branch.jaxpr, branch.consts, arguments, calls, source) for branch in branches]
        avals = [var.aval for var in eqn.outvars]
        return [
            self._add("select_n", (index, *cases), {}, [aval], (*calls, "cond"), source, eqn)[0]
            for cases, aval in zip(zip(*found, strict=True), avals, strict=True)
        ]

    def _scan(self, params: dict[str, Any], inputs: list[int], calls: tuple[str, ...], source: Any) -> list[int]:
        """Add the steps of a loop one after the other."""
        body, n_consts, n_carry, length = (params[key] for key in ("jaxpr", "num_consts", "num_carry", "length"))
        consts, carry, rows = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]
        stacked: list[list[int]] = []
        for step in reversed(range(length)) if params["reverse"] else range(length):
            entries = [self._row(slot, step, calls, source) for slot in rows]
            out = self._inline(body.jaxpr, body.consts, [*consts, *carry, *entries], calls, source)
            carry = out[:n_carry]
            stacked.append(out[n_carry:])
        if params["reverse"]:
            stacked.reverse()
        avals = body.out_avals[n_carry:]
        return [*carry, *(self._stack([s[i] for s in stacked], aval) for i, aval in enumerate(avals))]

    def _row(self, slot: int, step: int, calls: tuple[str, ...], source: Any) -> int:
        shape = self.shapes[slot]
        aval = lambda shape: jax.ShapeDtypeStruct(shape, np.float64 if self.floating[slot] else np.int64)
        limits = {"start_indices": (step,) + (0,) * (len(shape) - 1), "limit_indices": (step + 1, *shape[1:])}
        (row,) = self._add("slice", [slot], {**limits, "strides": None}, [aval((1, *shape[1:]))], calls, source)
        return self._reshape(row, aval(shape[1:]), calls, source)

    def _stack(self, slots: list[int], aval: Any) -> int:
        entry = jax.ShapeDtypeStruct((1, *aval.shape), aval.dtype)
        rows = [self._reshape(slot, entry, (), None) for slot in slots]
        if not rows:
            return self._constant(np.zeros((0, *aval.shape)))
        whole = jax.ShapeDtypeStruct((len(rows), *aval.shape), aval.dtype)
        return self._add("concatenate", rows, {"dimension": 0}, [whole])[0]

    def _split(
        self, axis: int, sizes: Sequence[int], slot: int, eqn: Any, calls: tuple[str, ...], source: Any
    ) -> list[int]:
        """Add a slice for each part."""
        out, start, shape = [], 0, self.shapes[slot]
        for size, var in zip(sizes, eqn.outvars, strict=True):
            first = tuple(start if d == axis else 0 for d in range(len(shape)))
            last = tuple(start + size if d == axis else n for d, n in enumerate(shape))
            limits = {"start_indices": first, "limit_indices": last, "strides": None}
            part = jax.ShapeDtypeStruct(np.subtract(last, first), var.aval.dtype)
            out += self._add("slice", [slot], limits, [part], calls, source)
            start += size
        return out

    def _reshape(self, slot: int, aval: Any, calls: tuple[str, ...], source: Any) -> int:
        return self._add("reshape", [slot], {"new_sizes": aval.shape}, [aval], calls, source)[0]


def _stops(op: Op | None) -> bool:
    return op is not None and op.name == "stop_gradient"


def _primitives(jaxpr: Jaxpr) -> tuple[str, ...]:
    """Return the names of all primitives of a jaxpr, calls written out."""
    names: list[str] = []
    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        names += [eqn.primitive.name] if inner is None else _primitives(getattr(inner, "jaxpr", inner))
    return tuple(names)
