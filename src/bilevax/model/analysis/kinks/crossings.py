"""Where candidates change their branch along lines, and what the function does on the two sides.

A crossing is found by bisection; value, slope and curvature are compared on its sides, ever closer to it.
"""

import dataclasses
from typing import Literal

import numpy as np

from bilevax.model.analysis import jets
from bilevax.model.analysis.kinks.branches import branches_at
from bilevax.model.analysis.kinks.region import Region
from bilevax.model.analysis.program import Op, Program

Verdict = Literal["discontinuous", "nonsmooth", "C1", "smooth", "guard", "not met", "undecided"]

_LINES, _STOPS, _SAMPLES = 32, 83, 16
BUDGET = 4_000_000  # entries evaluated at once
_DISTANCES = 10.0 ** -np.arange(3, 16, 2)  # from a crossing, of the step of the line in which it lies
_JUMP = 1e-11  # of what was added up: less is rounding


@dataclasses.dataclass(frozen=True)
class Sample:
    """What was seen at one crossing."""

    verdict: Verdict
    jump: float
    point: np.ndarray


def follow_to_crossings(
    program: Program, ops: list[Op], region: Region, random: np.random.Generator
) -> dict[Op, list[Sample]]:
    """Return what happens where candidates change their branch along lines."""
    if not ops:
        return {}
    points = int(np.clip(BUDGET // max(program.sizes(), 1), 27, _LINES * _STOPS))
    lines = int(np.clip(points // 9, 3, _LINES))
    base, direction, stops = region.lines(random, lines, points // lines)
    at = base[:, None] + stops[..., None] * direction[:, None]
    crossings: list[tuple[int, int, int, int]] = []  # candidate, entry, line, stop
    for number, states in enumerate(branches_at(program, ops, at.reshape(-1, at.shape[-1]))):
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
    kinds = compare_sides(
        program, ops, which, base[line], direction[line] * width[:, None], left / width, right / width
    )
    found: dict[Op, list[Sample]] = {}
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
    cuts = int(np.clip(BUDGET // (max(program.sizes(), 1) * len(which)), 1, 31))
    bits = 56 if cuts > 1 else 40
    parts = np.arange(1, cuts + 1) / (cuts + 1)
    many = [np.repeat(array, cuts, axis=0) for array in (which, entry, base, direction)]

    def state(at: np.ndarray, which: np.ndarray, entry: np.ndarray, base: np.ndarray, along: np.ndarray) -> np.ndarray:
        states = branches_at(program, ops, base + at[:, None] * along)
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


def compare_sides(
    program: Program,
    ops: list[Op],
    which: np.ndarray,
    base: np.ndarray,
    direction: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
) -> list[Sample | None]:
    """Return verdicts from the function left and right of crossings; None where it is not defined on either side."""
    count, split = len(which), program.shapes[program.x][0]
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.abs(base + right[:, None] * direction) / np.abs(direction)
    rounding = np.where(direction != 0, places, 0.0).max(1) * np.finfo(np.float64).eps
    # As near as the crossing is known, and as rounding of the point allows.
    ladder = _DISTANCES if count * program.sizes() <= BUDGET // 20 else _DISTANCES[[0, 2, 3]]
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
    samples: list[Sample | None] = []
    for row in range(count):
        op, point = ops[which[row]], base[row] + right[row] * direction[row]
        # A branch without a meaning beside one that is only a number: ``where(y > 0, y * log(y), 0)``.
        filled = op.name == "select_n" and not all(map(program.varies, op.inputs[1:]))
        guard = filled and not all(finite[slot][row] for slot in op.inputs[1:] if slot in finite)
        last = int(usable[row].sum()) - 1
        samples.append(_judge(result[:, row, :, : last + 1], point, guard) if last > 0 else None)
    return samples


def _judge(sides: np.ndarray, point: np.ndarray, guard: bool) -> Sample | None:
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
        return Sample("guard", 0.0, point)
    slope = sides[3].max()
    sizes = np.abs(sides[0]).max() + slope, slope, sides[4].max()
    names: tuple[Verdict, ...] = ("discontinuous", "nonsmooth", "C1")
    for component, (name, size) in enumerate(zip(names, sizes, strict=True)):
        jump = np.abs(sides[component, 1] - sides[component, 0])
        # What is continuous shrinks with the distance, a hundredfold here; rounding is judged by what was added up.
        if jump[-1] >= 0.5 * jump[-2] and jump[-1] > _JUMP * size:
            return Sample(name, float(jump[-1] / size), point)
    return Sample("smooth", 0.0, point)
