"""Kinks: operations with branches, and what the branches do to the function.

An operation such as ``abs`` or ``max`` is only a candidate: ``abs(y) ** 2`` and ``logaddexp`` are smooth. So the
function is followed along lines until the candidate takes another branch, the crossing is found by bisection, and
value, slope and curvature of the whole function are compared on its two sides, ever closer to it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy import optimize

from bilevax.model.analysis import advice, jets
from bilevax.model.analysis.facts import Facts
from bilevax.model.analysis.program import Op, Program

Verdict = Literal["discontinuous", "nonsmooth", "C1", "smooth", "guard", "not met", "undecided"]

#: From bad to good: the verdict on a candidate is the worst of what was seen of it.
_ORDER: tuple[Verdict, ...] = ("discontinuous", "nonsmooth", "C1", "smooth", "guard")

_LINES, _STOPS, _SAMPLES = 32, 83, 16
_BUDGET = 4_000_000  # entries evaluated at once
_FEW = 16  # entries that move on a line where there are many variables
_DISTANCES = 10.0 ** -np.arange(3, 16, 2)  # from a crossing, of the step of the line in which it lies
_JUMP = 1e-11  # of what was added up: less is rounding


@dataclasses.dataclass(frozen=True)
class Kink:
    """A place where a function may fail to be smooth.

    Attributes
    ----------
    primitive
        What was called there: "abs", "max", "relu", "where", "norm" ...
    verdict
        "nonsmooth": the gradient jumps; "discontinuous": the value jumps; "C1": the gradient is continuous, the Hessian
        jumps; "smooth": nothing jumps; "guard": one side is outside of the function's domain; "not met" on any line, or
        "undecided" because the function contains what cannot be evaluated here.
    where
        The place in the user's code; empty where it is not known.
    advice
        What is usually done about it.
    on_x, on_y
        Whether the branch depends on x, on y.
    x, y
        A point at the kink, where one was met.
    jump
        Of the slope (value, curvature) across it, relative to the terms that make it up.
    """

    primitive: str
    verdict: Verdict
    where: str
    advice: str
    on_x: bool
    on_y: bool
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    jump: float = 0.0

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.primitive}{place}: {self.advice}"


@dataclasses.dataclass(frozen=True)
class Region:
    """Where a function is looked at: a box, lines through points of it where such are known.

    Attributes
    ----------
    lower, upper
        Bounds of (x, y) in one vector.
    points
        Points of the feasible set, one a row, or None; lines then run from one to another.
    """

    lower: np.ndarray
    upper: np.ndarray
    points: np.ndarray | None = None

    def lines(self, random: np.random.Generator, lines: int, stops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return bases, directions (lines, size) and stops (lines, stops), the multiples of the directions."""
        if self.points is not None and len(self.points) > 1:
            ends = self.points[random.integers(len(self.points), size=(2, lines))]
            grid = np.broadcast_to(np.linspace(0.0, 1.0, stops), (lines, stops))
            return ends[0], ends[1] - ends[0], grid
        base, direction = self._drawn(random, lines)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.stack([(self.lower - base) / direction, (self.upper - base) / direction])
        ends = np.where(np.isnan(ends) | (direction == 0), np.array([-np.inf, np.inf]).reshape(2, 1, 1), ends)
        first, last = np.minimum(*ends).max(-1), np.maximum(*ends).min(-1)
        few = stops // 5
        many = (stops - few - 1) // 2
        decades = np.geomspace(1e-8, 1e8, many) if many > 16 else np.geomspace(1e-2, 1e2, many)
        near = np.linspace(np.maximum(first, -8.0), np.minimum(last, 8.0), few, axis=1)
        grid = np.broadcast_to(np.concatenate([-decades, [0.0], decades]), (lines, 2 * many + 1))
        return base, direction, np.sort(np.clip(np.hstack([near, grid]), first[:, None], last[:, None]), axis=1)

    def _drawn(self, random: np.random.Generator, lines: int) -> tuple[np.ndarray, np.ndarray]:
        """Return random bases and directions.

        Units are not known: half of the lines follow one variable, and half have entries of sizes of many decades, or,
        if they follow one variable, the others at zero or where their bounds allow.
        """
        size = len(self.lower)
        width = self.upper - self.lower
        bounded = np.isfinite(width)
        kind = np.arange(lines) % 4  # one from zero, all in one size, one in many sizes, all in many sizes
        wild = (kind >= 2)[:, None] & ~bounded
        scale = np.where(wild, 10.0 ** random.uniform(-6, 3, (lines, size)), np.where(bounded, width, 1.0))
        base = np.where((kind == 0)[:, None], 0.0, random.standard_normal((lines, size)) * scale)
        below, above = np.isfinite(self.lower), np.isfinite(self.upper)
        base = np.where(below, self.lower + np.abs(base), np.where(above, self.upper - np.abs(base), base))
        base = np.where(
            bounded, self.lower + random.uniform(0.1, 0.9, base.shape) * np.where(bounded, width, 0.0), base
        )
        direction = random.standard_normal((lines, size)) * scale
        if size > 4 * _FEW:  # what one entry does is not to be lost among thousands
            direction[random.random(direction.shape) > _FEW / size] = 0.0
        single = np.flatnonzero(kind % 2 == 0)
        followed = random.permutation(size)[np.arange(len(single)) % size]
        direction[single] = 0.0
        direction[single, followed] = scale[single, followed]
        return base, direction


def find_kinks(program: Program, facts: Facts, region: Region, parameters: frozenset[int] = frozenset()) -> list[Kink]:
    """Return the candidates with their verdicts, in the order of the program.

    Parameters
    ----------
    program, facts
        The function.
    region
        Where to look.
    parameters
        Slots on which the result does not depend in truth, such as the shift in ``logsumexp``; what is behind them is
        not looked at.
    """
    ops = _needed(program, parameters)
    candidates = [op for op in ops if _is_candidate(op, program, facts)]
    norms = [op for op in ops if _is_norm(op, program, facts)]
    if not candidates and not norms:
        return []
    random = np.random.default_rng(0)
    try:
        found = _follow(program, candidates, region, random) | _at_zeros(program, norms, region, random)
    except jets.Unsupported:
        return [_kink(op, program, "undecided") for op in (*candidates, *norms)]
    kinks = []
    for op in (*candidates, *norms):
        seen = sorted(found.get(op, []), key=lambda sample: (_ORDER.index(sample.verdict), -sample.jump))
        sample = seen[0] if seen else None
        kinks.append(_kink(op, program, sample.verdict if sample else "not met", sample))
    return kinks


def irrelevant_stops(program: Program, region: Region) -> tuple[frozenset[int], list[Op]]:
    """Return the results of ``stop_gradient`` on which the function does not depend, and the others.

    ``logsumexp`` and ``softmax`` subtract the largest entry and add it back, or divide it away: a parameter in truth.
    Where the function does depend on such a value, JAX's derivative is not that of the function.
    """
    stops = [op for op in program.ops if op.name == "stop_gradient" and program.varies(op.outputs[0])]
    if not stops:
        return frozenset(), []
    base, direction, _ = region.lines(np.random.default_rng(1), 12 if program.sizes() < 10_000 else 3, 9)
    points = (base + 0.3 * direction) * 10.0 ** -(np.arange(len(base))[:, None] % 7)  # exponentials overflow
    points = np.clip(points, region.lower, region.upper)
    split = program.shapes[program.x][0]
    irrelevant, relevant = set(), []
    for op in stops:
        try:
            values = [
                program.evaluate(points[None, :, :split], points[None, :, split:], [program.result], scale)[0][0]
                for scale in ({}, {op.outputs[0]: 1 + 2.0**-10})
            ]
        except jets.Unsupported:
            relevant.append(op)
            continue
        first, second = (value[np.isfinite(values[0]) & np.isfinite(values[1])] for value in values)
        if (
            len(first) and np.mean(np.abs(second - first) <= 1e-10 * np.abs(first)) > 0.5
        ):  # the others over- or underflow
            irrelevant.add(op.outputs[0])
        else:
            relevant.append(op)
    return frozenset(irrelevant), relevant


def stopped(op: Op, program: Program) -> Kink:
    """Return the kink of a ``stop_gradient`` that matters."""
    return _kink(op, program, "nonsmooth")


@dataclasses.dataclass(frozen=True)
class _Sample:
    """What was seen at one crossing."""

    verdict: Verdict
    jump: float
    point: np.ndarray


def _kink(op: Op, program: Program, verdict: Verdict, sample: _Sample | None = None) -> Kink:
    name = advice.called(op)
    split = program.shapes[program.x][0]
    on_x, on_y = (any(on[slot] for slot in op.inputs) for on in (program.on_x, program.on_y))
    x, y = (None, None) if sample is None else (sample.point[:split], sample.point[split:])
    jump = 0.0 if sample is None else sample.jump
    return Kink(name, verdict, op.where(), advice.rewriting(name), on_x, on_y, x, y, jump)


def _needed(program: Program, parameters: frozenset[int]) -> list[Op]:
    """Return the operations that the result needs other than through parameters."""
    wanted, ops = {program.result}, []
    for op in reversed(program.ops):
        if not (wanted - parameters).isdisjoint(op.outputs):
            ops.append(op)
            wanted.update(op.inputs)
    return ops[::-1]


# Candidates, and which branch they take


def _is_candidate(op: Op, program: Program, facts: Facts) -> bool:
    if not any(map(program.varies, op.inputs)):
        return False
    if op.name not in _STATES:
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
_STATES: dict[str, Callable[..., np.ndarray]] = {
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


def _states(program: Program, ops: Sequence[Op], points: np.ndarray) -> list[np.ndarray]:
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
            out.append(_STATES.get(op.name, _unsupported)(op, *aligned).reshape(len(points), -1))
    return out


# Lines, crossings, and the function on both sides of them


def _follow(program: Program, ops: list[Op], region: Region, random: np.random.Generator) -> dict[Op, list[_Sample]]:
    """Return what happens where candidates change their branch along lines."""
    if not ops:
        return {}
    points = int(np.clip(_BUDGET // max(program.sizes(), 1), 27, _LINES * _STOPS))
    lines = int(np.clip(points // 9, 3, _LINES))
    base, direction, stops = region.lines(random, lines, points // lines)
    at = base[:, None] + stops[..., None] * direction[:, None]
    crossings: list[tuple[int, int, int, int]] = []  # candidate, entry, line, stop
    for number, states in enumerate(_states(program, ops, at.reshape(-1, at.shape[-1]))):
        states = states.reshape(lines, stops.shape[1], -1)
        line, stop, entry = np.nonzero(states[:, 1:] != states[:, :-1])
        chosen = _spread(random, line, _SAMPLES if points >= 200 else 2)
        crossings += [(number, int(entry[i]), int(line[i]), int(stop[i])) for i in chosen]
    if not crossings:
        return {}
    which, entry, line, stop = np.array(crossings).T
    left, right = stops[line, stop], stops[line, stop + 1]
    width = right - left
    left, right = _bisect(program, ops, which, entry, base[line], direction[line], left, right)
    kinds = _sides(program, ops, which, base[line], direction[line] * width[:, None], left / width, right / width)
    found: dict[Op, list[_Sample]] = {}
    for number, sample in zip(which, kinds, strict=True):
        if sample is not None:
            found.setdefault(ops[number], []).append(sample)
    return found


def _spread(random: np.random.Generator, line: np.ndarray, most: int) -> np.ndarray:
    """Return a few crossings, at random, from as many lines as possible."""
    order = random.permutation(len(line))
    by_line = order[np.argsort(line[order], kind="stable")]
    first = np.flatnonzero(np.diff(line[by_line], prepend=-1))
    count = np.arange(len(line)) - np.repeat(first, np.diff(np.append(first, len(line))))
    return by_line[np.argsort(count, kind="stable")][:most]


def _bisect(
    program: Program,
    ops: list[Op],
    which: np.ndarray,
    entry: np.ndarray,
    base: np.ndarray,
    direction: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of intervals shrunk around the crossings, cut into many parts at once where that is cheap."""
    cuts = int(np.clip(_BUDGET // (max(program.sizes(), 1) * len(which)), 1, 31))
    bits = 56 if cuts > 1 else 40
    parts = np.arange(1, cuts + 1) / (cuts + 1)
    many = [np.repeat(array, cuts, axis=0) for array in (which, entry, base, direction)]

    def state(at: np.ndarray, which: np.ndarray, entry: np.ndarray, base: np.ndarray, along: np.ndarray) -> np.ndarray:
        states = _states(program, ops, base + at[:, None] * along)
        out = np.empty(len(at))
        for number, values in enumerate(states):
            rows = np.flatnonzero(which == number)
            out[rows] = values[rows, entry[rows]]
        return out

    first = state(left, which, entry, base, direction)
    for _ in range(int(np.ceil(bits / np.log2(cuts + 1)))):
        middle = left[:, None] + parts * (right - left)[:, None]
        changed = state(middle.ravel(), *many).reshape(middle.shape) != first[:, None]
        ends = np.concatenate([left[:, None], middle, right[:, None]], axis=1)
        place = np.where(changed.any(1), changed.argmax(1), cuts)
        rows = np.arange(len(left))
        if np.array_equal(left, ends[rows, place]) and np.array_equal(right, ends[rows, place + 1]):
            break
        left, right = ends[rows, place], ends[rows, place + 1]
    return left, right


def _sides(
    program: Program,
    ops: list[Op],
    which: np.ndarray,
    base: np.ndarray,
    direction: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
) -> list[_Sample | None]:
    """Return verdicts from the function left and right of crossings; None where it is not defined on either side."""
    count, split = len(which), program.shapes[program.x][0]
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.abs(base + right[:, None] * direction) / np.abs(direction)
    rounding = np.where(direction != 0, places, 0.0).max(1) * np.finfo(np.float64).eps
    # As near as the crossing is known, and as rounding of the point allows.
    ladder = _DISTANCES if count * program.sizes() <= _BUDGET // 20 else _DISTANCES[[0, 2, 3]]
    usable = 64 * np.maximum(right - left, rounding)[:, None] <= ladder
    distances = np.where(usable, ladder, ladder[0])
    at = np.concatenate([left[:, None] - distances, right[:, None] + distances], axis=1)
    points = base[:, None] + at[..., None] * direction[:, None]
    flat = points.reshape(-1, points.shape[-1])
    jet = jets.line_jet(flat, np.repeat(direction, at.shape[1], axis=0))
    guards = sorted({slot for op in ops if op.name == "select_n" for slot in op.inputs[1:] if program.varies(slot)})
    result, *cases = program.evaluate(jet[..., :split], jet[..., split:], [program.result, *guards])
    result = np.concatenate([result, np.zeros((5 - len(result), *result.shape[1:]))])
    result = result.reshape(5, count, 2, len(ladder))
    finite = {
        slot: np.isfinite(case[0]).reshape(count, at.shape[1], -1).all((1, 2))
        for slot, case in zip(guards, cases, strict=True)
    }
    samples: list[_Sample | None] = []
    for row in range(count):
        op, point = ops[which[row]], base[row] + right[row] * direction[row]
        # A branch without a meaning beside one that is only a number: ``where(y > 0, y * log(y), 0)``.
        filled = op.name == "select_n" and not all(map(program.varies, op.inputs[1:]))
        guard = filled and not all(finite[slot][row] for slot in op.inputs[1:] if slot in finite)
        last = int(usable[row].sum()) - 1
        samples.append(_judge(result[:, row, :, : last + 1], point, guard) if last > 0 else None)
    return samples


def _judge(sides: np.ndarray, point: np.ndarray, guard: bool) -> _Sample | None:
    """Return the verdict on one crossing.

    Parameters
    ----------
    sides
        Jets of the function, of shape (5, side, distance).
    point
        At the crossing.
    guard
        Whether the branch that is not taken is not defined.
    """
    defined = np.isfinite(sides[:3]).all((0, 2))
    if not defined.any():
        return None
    if guard or not defined.all():
        return _Sample("guard", 0.0, point)
    slope = sides[3].max()
    sizes = np.abs(sides[0]).max() + slope, slope, sides[4].max()
    names: tuple[Verdict, ...] = ("discontinuous", "nonsmooth", "C1")
    for component, (name, size) in enumerate(zip(names, sizes, strict=True)):
        jump = np.abs(sides[component, 1] - sides[component, 0])
        # What is continuous shrinks with the distance, a hundredfold here; rounding is judged by what was added up.
        if jump[-1] >= 0.5 * jump[-2] and jump[-1] > _JUMP * size:
            return _Sample(name, float(jump[-1] / size), point)
    return _Sample("smooth", 0.0, point)


# Norms: roots of sums of squares, which no line meets at zero


def _is_norm(op: Op, program: Program, facts: Facts) -> bool:
    if op.name not in ("sqrt", "pow") or not program.varies(op.inputs[0]):
        return False
    if op.name == "pow" and float(facts[op.inputs[1]].interval.least).is_integer():
        return False
    fact = facts[op.inputs[0]]
    return fact.interval.least == 0.0 and fact.degree != 1  # at zero a line leaves the domain


def _at_zeros(program: Program, ops: list[Op], region: Region, random: np.random.Generator) -> dict[Op, list[_Sample]]:
    """Return what happens where the arguments of roots vanish, on lines through such points."""
    found: dict[Op, list[_Sample]] = {}
    for op in ops:
        zero = _common_zero(program, _squared(program, op.inputs[0]), region, random)
        if zero is None:
            continue
        width = np.where(np.isfinite(region.upper - region.lower), region.upper - region.lower, 1.0)
        direction = random.standard_normal((4, len(zero))) * width
        none = np.zeros(4)
        samples = _sides(program, [op], none.astype(int), np.tile(zero, (4, 1)), direction, none, none)
        found[op] = [sample for sample in samples if sample is not None]
    return found


def _squared(program: Program, slot: int) -> list[int]:
    """Return the values of whose squares a value is the sum; empty where it is not seen to be one."""
    op = program.maker.get(slot)
    if op is None:
        return []
    if op.name in ("square", "abs") or (op.name == "integer_pow" and op.params["y"] % 2 == 0):
        return [op.inputs[0]]
    if op.name in ("mul", "dot_general") and op.inputs[0] == op.inputs[1]:
        return [op.inputs[0]]
    if op.name in ("add", "add_any", "mul", "div", "select_n") or op.name in jets.LINEAR:
        varying = [i for i in op.inputs if program.varies(i)]
        return [root for i in varying for root in _squared(program, i)]
    return []


def _common_zero(program: Program, slots: list[int], region: Region, random: np.random.Generator) -> np.ndarray | None:
    """Return a point where values vanish, by Newton's method within the bounds, or None."""
    size, split = len(region.lower), program.shapes[program.x][0]
    total = sum(int(np.prod(program.shapes[slot])) for slot in slots)
    if not slots:
        return None
    if size * max(total, program.sizes()) > _BUDGET:  # too large for a matrix: the usual zero
        point, steps = np.clip(np.zeros(size), region.lower, region.upper), 0
    else:
        base, direction, _ = region.lines(random, 1, 9)
        point, steps = np.clip(base[0] + 0.1 * direction[0], region.lower, region.upper), 6

    def residual(jet: np.ndarray) -> np.ndarray:
        values = program.evaluate(jet[..., :split], jet[..., split:], slots)
        return np.concatenate([v.reshape(*v.shape[:2], -1) for v in values], axis=2)

    start = np.abs(residual(point[None, None])[0, 0]).max(initial=0.0)
    for _ in range(steps):
        jet = residual(jets.line_jet(np.tile(point, (size, 1)), np.eye(size)))
        if not np.isfinite(jet).all():
            return None
        lower, upper = region.lower - point, region.upper - point
        if np.isfinite(lower).any() or np.isfinite(upper).any():
            room = np.maximum(upper, lower + 1e-12)
            step = optimize.lsq_linear(jet[1].T, -jet[0, 0], (lower - 1e-12, room)).x
        else:
            step = np.linalg.lstsq(jet[1].T, -jet[0, 0])[0]
        point = point + step
        if np.abs(residual(point[None, None])[0, 0]).max(initial=0.0) <= 1e-14 * start:
            break
    left = np.abs(residual(point[None, None])[0, 0]).max(initial=0.0)
    return point if left <= 1e-10 * start or left == 0.0 else None
