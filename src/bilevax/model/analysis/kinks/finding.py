"""`find_kinks`: the candidates of a function with a verdict on each."""

import dataclasses

import numpy as np

from bilevax.model.analysis import advice, jets
from bilevax.model.analysis.facts import Facts
from bilevax.model.analysis.kinks.branches import is_candidate
from bilevax.model.analysis.kinks.crossings import Sample, Verdict, follow_to_crossings
from bilevax.model.analysis.kinks.norms import is_norm, look_at_zeros
from bilevax.model.analysis.kinks.region import Region
from bilevax.model.analysis.program import Op, Program

#: From bad to good: the verdict on a candidate is the worst of what was seen of it.
_ORDER: tuple[Verdict, ...] = ("discontinuous", "nonsmooth", "C1", "smooth", "guard")


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
    candidates = [op for op in ops if is_candidate(op, program, facts)]
    norms = [op for op in ops if is_norm(op, program, facts)]
    if not candidates and not norms:
        return []
    random = np.random.default_rng(0)
    try:
        found = follow_to_crossings(program, candidates, region, random) | look_at_zeros(program, norms, region, random)
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


def _kink(op: Op, program: Program, verdict: Verdict, sample: Sample | None = None) -> Kink:
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
