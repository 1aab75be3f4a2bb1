"""`Facts`: what is known of all values of a program, one after the other."""

import dataclasses
from typing import Any

import numpy as np

from bilevax.model.analysis import intervals
from bilevax.model.analysis.facts.curvature import AFFINE, CONCAVE, CONVEX, squares_to_norm
from bilevax.model.analysis.facts.degrees import degrees_in_y, joint_degree
from bilevax.model.analysis.facts.fact import Fact
from bilevax.model.analysis.facts.rules import curved
from bilevax.model.analysis.facts.terms import ONE, only_number, terms_curvature, terms_of
from bilevax.model.analysis.intervals import Interval
from bilevax.model.analysis.program import Op, Program


class Facts:
    """The facts of a program's slots, by ``facts[slot]``.

    Parameters
    ----------
    program
        The function.
    x_bounds, y_bounds
        Lower and upper bounds of the flat variables.
    parameters
        Slots to be taken as parameters that do not depend on y.
    positive
        Slots that are nonnegative because the function is not defined elsewhere.
    """

    def __init__(
        self,
        program: Program,
        x_bounds: tuple[np.ndarray, np.ndarray],
        y_bounds: tuple[np.ndarray, np.ndarray],
        parameters: frozenset[int] = frozenset(),
        positive: frozenset[int] = frozenset(),
    ):
        self.program = program
        self._facts: dict[int, Fact] = {}
        self._positive = positive
        x = Interval(*x_bounds)
        logs = AFFINE if x.least > 0 else 0
        self._facts[program.x] = Fact(x, True, AFFINE, logs, x.least >= 0, (2, 0, 0), 1)
        own = (program.y, {(1.0, 0): ONE})
        y = Interval(*y_bounds)
        log_curvature = CONCAVE if y.least > 0 else 0
        y_fact = Fact(y, False, AFFINE, log_curvature, degrees=(0, 1, 0), degree=1, terms=own)
        self._facts[program.y] = self._floored(program.y, y_fact)
        for op in program.ops:
            for position, slot in enumerate(op.outputs):
                fact = self._fact(op, position, slot)
                operands = [self[i] for i in op.inputs]
                defined = all(part.defined for part in operands) and not any(
                    _leaves_domain(op, p) for p in operands[:1]
                )
                fact = fact if defined else dataclasses.replace(fact, defined=False)
                if slot in parameters:
                    fact = Fact(
                        fact.interval, True, AFFINE, AFFINE if fact.interval.least > 0 else 0, degrees=(2, 0, 0)
                    )
                self._facts[slot] = self._floored(slot, fact)

    def __getitem__(self, slot: int) -> Fact:
        if slot not in self._facts:
            value = self.program.constants[slot]
            value = value.astype(np.float64) if value.dtype.kind != "f" else value
            least = value.min(initial=np.inf)
            self._facts[slot] = Fact(
                Interval(value, value), True, AFFINE, AFFINE if least > 0 else 0, bool(least >= 0), (1, 0, 0), 0
            )
        return self._facts[slot]

    def _floored(self, slot: int, fact: Fact) -> Fact:
        if slot not in self._positive:
            return fact
        interval = Interval(np.maximum(fact.interval.lower, 0.0), fact.interval.upper)
        return dataclasses.replace(fact, interval=interval)

    def _fact(self, op: Op, position: int, slot: int) -> Fact:
        operands = [self[i] for i in op.inputs]
        shapes = [self.program.shapes[i] for i in op.inputs]
        shape = self.program.shapes[slot]
        polynomials = all(fact.degree is not None for fact in operands)
        interval = intervals.ANY if position else self._interval(op, operands, shapes, shape, polynomials)
        if interval is intervals.ANY:
            interval = Interval(np.broadcast_to(-np.inf, shape), np.broadcast_to(np.inf, shape))
        if op.name == "select_n" and (number := only_number(operands[0].interval)) is not None:
            chosen = operands[1 + int(number)]  # the only case there is
            return dataclasses.replace(chosen, interval=interval)
        degree = joint_degree(op, operands) if self.program.floating[slot] else None
        if all(fact.constant for fact in operands):
            coefficient = 2 if self.program.on_x[slot] else 1
            log_curvature = AFFINE if interval.least > 0 else 0
            return Fact(interval, True, AFFINE, log_curvature, interval.least >= 0, (coefficient, 0, 0), degree)
        if position or not self.program.floating[slot]:
            return Fact(interval, terms=(slot, {(1.0, 0): ONE}))
        fact = curved(self, op, operands, interval)
        terms = terms_of(op, operands) or (slot, {(1.0, 0): ONE})
        curvature = fact.curvature | terms_curvature(terms[1], self[terms[0]]) if terms[0] != slot else fact.curvature
        if fact.log_curvature & CONVEX:
            curvature |= CONVEX
        log_curvature = fact.log_curvature if interval.least > 0 else 0
        if curvature & CONCAVE and interval.least > 0:
            log_curvature |= CONCAVE
        root, parts = terms
        square = set(parts) == {(2.0, 0)} and parts[2.0, 0][0] >= 0 and squares_to_norm(self._facts.get(root, fact))
        degrees = degrees_in_y(op, operands)
        return dataclasses.replace(
            fact,
            curvature=curvature,
            log_curvature=log_curvature,
            norm=fact.norm or square,
            degrees=degrees,
            degree=degree,
            terms=terms,
        )

    def _interval(self, op: Op, operands: list[Fact], shapes: Any, shape: tuple[int, ...], polynomials: bool):
        found = intervals.of(op, [fact.interval for fact in operands], shapes, shape, polynomials)
        if op.name in intervals.RELATIONS and not all(fact.defined for fact in operands):
            return Interval(np.zeros(shape), np.ones(shape))  # NaN compares with nothing
        if op.name == "select_n" and op.inputs[0] in self.program.maker:
            return self._refined(op, found)
        return found

    def _refined(self, op: Op, found: Interval) -> Interval:
        """Return the interval of ``where(u > c, u, v)``: u is above c where it is taken."""
        relation = self.program.maker[op.inputs[0]]
        if relation.name not in ("gt", "ge", "lt", "le") or len(op.inputs) != 3:
            return found
        above = relation.name in ("gt", "ge")
        first, second = relation.inputs
        cases = [self[i].interval for i in op.inputs[1:]]
        for number, slot in enumerate(op.inputs[1:]):
            if slot not in (first, second):
                continue
            bound = self[second if slot == first else first].interval
            larger = above == (slot == first) if number == 1 else above != (slot == first)
            case = cases[number]
            if larger:
                cases[number] = Interval(np.maximum(case.lower, bound.lower), case.upper)
            else:
                cases[number] = Interval(case.lower, np.minimum(case.upper, bound.upper))
        lower, upper = np.minimum(cases[0].lower, cases[1].lower), np.maximum(cases[0].upper, cases[1].upper)
        return Interval(np.maximum(found.lower, lower), np.minimum(found.upper, upper))


def _leaves_domain(op: Op, inner: Fact) -> bool:
    """Return whether a function of a value within its bounds may be NaN."""
    if op.name in ("log", "sqrt", "rsqrt", "pow", "xlogx", "xlogy"):
        return inner.interval.least < 0
    if op.name in ("log1p", "asin", "acos", "atanh", "erf_inv"):
        return inner.interval.least < -1 or (op.name != "log1p" and inner.interval.most > 1)
    return op.name == "acosh" and inner.interval.least < 1
