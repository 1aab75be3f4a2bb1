"""Norms: roots of sums of squares, which no line meets at zero."""

import numpy as np
from scipy import optimize

from bilevax.model.analysis import jets
from bilevax.model.analysis.facts import Facts
from bilevax.model.analysis.kinks.crossings import BUDGET, Sample, compare_sides
from bilevax.model.analysis.kinks.region import Region
from bilevax.model.analysis.program import Op, Program


def is_norm(op: Op, program: Program, facts: Facts) -> bool:
    """Return whether an operation is a root of what may vanish."""
    if op.name not in ("sqrt", "pow") or not program.varies(op.inputs[0]):
        return False
    if op.name == "pow" and float(facts[op.inputs[1]].interval.least).is_integer():
        return False
    fact = facts[op.inputs[0]]
    return fact.interval.least == 0.0 and fact.degree != 1  # at zero a line leaves the domain


def look_at_zeros(
    program: Program, ops: list[Op], region: Region, random: np.random.Generator
) -> dict[Op, list[Sample]]:
    """Return what happens where the arguments of roots vanish, on lines through such points."""
    found: dict[Op, list[Sample]] = {}
    for op in ops:
        zero = _common_zero(program, _squared(program, op.inputs[0]), region, random)
        if zero is None:
            continue
        width = np.where(np.isfinite(region.upper - region.lower), region.upper - region.lower, 1.0)
        direction = random.standard_normal((4, len(zero))) * width
        none = np.zeros(4)
        samples = compare_sides(program, [op], none.astype(int), np.tile(zero, (4, 1)), direction, none, none)
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
    if size * max(total, program.sizes()) > BUDGET:  # too large for a matrix: the usual zero
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
