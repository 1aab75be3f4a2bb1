"""What is known of every value of a program: its sign, its degree as a polynomial, its curvature in y.

The rules are those of disciplined convex programming, on operations instead of formulas: x is a parameter, curvature is
that in y for fixed x. They prove, they never guess; what they do not know is of no known curvature.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bilevax.model.analysis import intervals, jets
from bilevax.model.analysis.convexity import prove_by_hessian
from bilevax.model.analysis.intervals import Interval
from bilevax.model.analysis.program import Op, Program

# Curvatures are sets of bits: affine is convex and concave, 0 is unknown.
CONVEX, CONCAVE, AFFINE = 1, 2, 3

#: Terms k u^p log(u)^q of one value u, as {(p, q): bounds of k}.
Terms = dict[tuple[float, int], tuple[float, float]]

_ONE = (1.0, 1.0)
_UNKNOWN = (-np.inf, np.inf)


@dataclasses.dataclass(frozen=True)
class Fact:
    """What is known of a value.

    Attributes
    ----------
    interval
        Bounds of its entries.
    constant
        Whether it does not depend on y.
    defined
        Whether it is a number wherever x and y are within their bounds.
    curvature, log_curvature
        Of it, and of its logarithm where it is known to be positive.
    norm
        Whether it is nonnegative and its square root is convex in y, as of a sum of squares.
    degrees
        As a polynomial in y of degree two at most: for the terms of degree 0, 1, 2 whether they are absent (0), have
        constant coefficients (1), or such that depend on x (2). None if it is no such polynomial.
    degree
        As a polynomial in x and y together; None if it is none.
    terms
        The value as k u^p log(u)^q summed, u another value, of the same shape, or itself.
    """

    interval: Interval
    constant: bool = False
    curvature: int = 0
    log_curvature: int = 0
    norm: bool = False
    degrees: tuple[int, int, int] | None = None
    degree: int | None = None
    terms: tuple[int, Terms] | None = None
    defined: bool = True


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
        own = (program.y, {(1.0, 0): _ONE})
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
        if op.name == "select_n" and (number := _number(operands[0].interval)) is not None:
            chosen = operands[1 + int(number)]  # the only case there is
            return dataclasses.replace(chosen, interval=interval)
        degree = _joint_degree(op, operands) if self.program.floating[slot] else None
        if all(fact.constant for fact in operands):
            coefficient = 2 if self.program.on_x[slot] else 1
            log_curvature = AFFINE if interval.least > 0 else 0
            return Fact(interval, True, AFFINE, log_curvature, interval.least >= 0, (coefficient, 0, 0), degree)
        if position or not self.program.floating[slot]:
            return Fact(interval, terms=(slot, {(1.0, 0): _ONE}))
        fact = self._curved(op, operands, interval)
        terms = self._terms(op, operands) or (slot, {(1.0, 0): _ONE})
        curvature = fact.curvature | self._terms_curvature(terms) if terms[0] != slot else fact.curvature
        if fact.log_curvature & CONVEX:
            curvature |= CONVEX
        log_curvature = fact.log_curvature if interval.least > 0 else 0
        if curvature & CONCAVE and interval.least > 0:
            log_curvature |= CONCAVE
        root, parts = terms
        square = set(parts) == {(2.0, 0)} and parts[2.0, 0][0] >= 0 and self._squares_to_norm(self._root(root, fact))
        degrees = _degrees(op, operands)
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

    def _root(self, slot: int, otherwise: Fact) -> Fact:
        return self._facts.get(slot, otherwise)

    def _squares_to_norm(self, fact: Fact) -> bool:
        rising = fact.curvature & CONVEX and fact.interval.least >= 0
        falling = fact.curvature & CONCAVE and fact.interval.most <= 0
        return bool(fact.curvature == AFFINE or rising or falling)

    # Curvature by the operation

    def _curved(self, op: Op, operands: list[Fact], interval: Interval) -> Fact:
        """Return a fact with what the operation tells of curvature; the rest is added later."""
        name, first = op.name, operands[0]
        if name in _SHAPES:
            return self._composed(op, first, interval)
        if name in ("add", "add_any", "sub"):
            return self._sum(op, operands, interval)
        if name in ("mul", "dot_general", "conv_general_dilated"):
            return self._product(op, operands, interval)
        if name == "div":
            return self._quotient(operands, interval)
        if name == "pow":
            return self._power(operands, interval)
        if name in jets.LINEAR or name in ("reduce_window_sum",):
            return self._linear(op, operands, interval)
        if name in ("triangular_solve", "custom_linear_solve") and all(fact.constant for fact in operands[:-1]):
            return Fact(interval, curvature=AFFINE if operands[-1].curvature == AFFINE else 0)
        if name in ("max", "reduce_max", "cummax", "logaddexp", "cumlogsumexp"):
            convex = CONVEX & _meet(operands)
            extreme = name in ("max", "reduce_max", "cummax")
            log_curvature = CONVEX & _meet(operands, "log_curvature") if extreme else 0
            return Fact(interval, curvature=convex, log_curvature=log_curvature, norm=_norms(operands) and extreme)
        if name in ("min", "reduce_min", "cummin"):
            return Fact(interval, curvature=CONCAVE & _meet(operands), log_curvature=CONCAVE & _logs(operands))
        if name == "clamp":
            return self._clamped(operands, interval)
        if name == "select_n":
            return self._selected(operands, interval)
        if name == "xlogy" and first.constant:
            return Fact(interval, curvature=_scaled(_log_bits(operands[1]), first.interval))
        if name == "xlogy" and operands[1].constant:
            return Fact(interval, curvature=_scaled(first.curvature, _log_interval(operands[1].interval)))
        return Fact(interval)

    def _composed(self, op: Op, inner: Fact, interval: Interval) -> Fact:
        """Return a function of one number of a value: convex if convex and rising of convex, and so on."""
        if op.name == "abs" and inner.interval.least >= 0:
            return dataclasses.replace(inner, interval=interval)
        shape, slope = _SHAPES[op.name](inner.interval.least, inner.interval.most, op.params)
        curvature = _compose(shape, slope, inner.curvature)
        log_curvature, norm = 0, False
        if op.name in ("exp", "exp2"):
            log_curvature = inner.curvature
        elif op.name == "log":
            curvature |= inner.log_curvature
        elif op.name == "log1p":
            curvature |= inner.log_curvature & CONVEX
        elif op.name == "logistic":
            log_curvature = inner.curvature & CONCAVE
        elif op.name == "sqrt":
            curvature |= CONVEX if inner.norm else 0
            log_curvature = inner.log_curvature
        elif op.name == "rsqrt":
            log_curvature = _flip(inner.log_curvature)
        elif op.name in ("integer_pow", "square"):
            power = op.params.get("y", 2)
            log_curvature = inner.log_curvature if power > 0 else _flip(inner.log_curvature)
            norm = power >= 2 and (power % 2 == 0 or inner.interval.least >= 0) and self._squares_to_norm(inner)
        return Fact(interval, curvature=curvature, log_curvature=log_curvature, norm=norm)

    def _sum(self, op: Op, operands: list[Fact], interval: Interval) -> Fact:
        a, b = operands
        if op.name == "sub":
            maker = self.program.maker.get(op.inputs[1])
            if maker is not None and maker.name == "logistic" and a.interval.least == a.interval.most == 1.0:
                falling = self[maker.inputs[0]].curvature & CONVEX  # 1 - s(u) = s(-u), concave in logarithms
                return Fact(interval, curvature=_flip(b.curvature), log_curvature=CONCAVE if falling else 0)
            return Fact(interval, curvature=a.curvature & _flip(b.curvature))
        curvature, log_curvature = _meet(operands), CONVEX & _logs(operands)
        return Fact(interval, curvature=curvature, log_curvature=log_curvature, norm=_norms(operands))

    def _product(self, op: Op, operands: list[Fact], interval: Interval) -> Fact:
        a, b = operands
        if a.constant or b.constant:
            factor, value = (a, b) if a.constant else (b, a)
            logs = value.log_curvature if op.name == "mul" else CONVEX & value.log_curvature
            return Fact(
                interval,
                curvature=_scaled(value.curvature, factor.interval),
                log_curvature=logs if factor.interval.least >= 0 else 0,
                norm=value.norm and factor.interval.least >= 0,
            )
        if op.name == "mul":
            return Fact(interval, log_curvature=_logs(operands))
        if op.name == "dot_general" and a.terms and b.terms and a.terms[0] == b.terms[0]:
            (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
            aligned = tuple(left) == tuple(right) and tuple(left_batch) == tuple(right_batch)
            whole = len(left) + len(left_batch) == len(self.program.shapes[op.inputs[0]])
            first, second = _pure(a.terms[1]), _pure(b.terms[1])
            if aligned and whole and first and second and _same_sign(first, second):
                norm = self._squares_to_norm(self[a.terms[0]])
                return Fact(interval, curvature=CONVEX if norm else 0, norm=norm)
        return Fact(interval, curvature=self._form_curvature(op))

    def _form_curvature(self, op: Op) -> int:
        """Return the curvature of ``u @ H @ u`` with a constant matrix H, by its eigenvalues."""
        for left, right in (op.inputs, op.inputs[::-1]):
            inner = self.program.maker.get(left)
            if inner is None or inner.name != "dot_general" or self.program.shapes[op.outputs[0]]:
                continue
            matrix = next(
                (self.program.constants[slot] for slot in inner.inputs if slot in self.program.constants), None
            )
            vector = next((slot for slot in inner.inputs if slot not in self.program.constants), None)
            if matrix is None or vector is None or matrix.ndim != 2 or len(self.program.shapes[vector]) != 1:
                continue
            a, b = self[vector], self[right]
            if a.terms is None or b.terms is None or a.terms[0] != b.terms[0] or matrix.shape[0] != matrix.shape[1]:
                continue
            first, second = _pure(a.terms[1]), _pure(b.terms[1])
            if first is None or second is None or first[0] != first[1] or second[0] != second[1]:
                continue  # not one number for all entries
            if self[a.terms[0]].curvature != AFFINE:
                continue
            symmetric = first[0] * second[0] * (matrix + matrix.T)
            if prove_by_hessian(symmetric)[0] == "proven":
                return CONVEX
            return CONCAVE if prove_by_hessian(-symmetric)[0] == "proven" else 0
        return 0

    def _quotient(self, operands: list[Fact], interval: Interval) -> Fact:
        a, b = operands
        inverse = intervals.reciprocal(b.interval)
        if b.constant:
            return Fact(
                interval,
                curvature=_scaled(a.curvature, inverse),
                log_curvature=a.log_curvature if b.interval.least >= 0 else 0,
                norm=a.norm and b.interval.least >= 0,
            )
        if b.interval.least < 0 and b.interval.most > 0:
            return Fact(interval)
        positive = b.interval.least >= 0
        log_curvature = a.log_curvature & _flip(b.log_curvature)
        curvature = 0
        if a.constant:
            shape = CONVEX if positive else CONCAVE
            curvature = _scaled(_compose(shape, -1, b.curvature), a.interval)
        elif a.norm and positive and b.curvature & CONCAVE:
            curvature = CONVEX
        return Fact(interval, curvature=curvature, log_curvature=log_curvature)

    def _power(self, operands: list[Fact], interval: Interval) -> Fact:
        base, exponent = operands
        if base.constant:  # c^u = exp(u log c)
            if base.interval.least <= 0:
                return Fact(interval)
            logs = Interval(np.log(base.interval.lower), np.log(base.interval.upper))
            curvature = _scaled(exponent.curvature, logs)
            return Fact(interval, curvature=curvature & CONVEX, log_curvature=curvature)
        p = _number(exponent.interval)
        if p is None:
            return Fact(interval)
        shape, slope = _power_shape(p, base.interval.least, base.interval.most)
        curvature = _compose(shape, slope, base.curvature)
        if base.norm and p >= 0.5:
            curvature |= CONVEX
        norm = p >= 2 and self._squares_to_norm(base) and (base.interval.least >= 0 or p % 2 == 0)
        log_curvature = base.log_curvature if p > 0 else _flip(base.log_curvature)
        return Fact(interval, curvature=curvature, log_curvature=log_curvature, norm=norm or (base.norm and p >= 1))

    def _linear(self, op: Op, operands: list[Fact], interval: Interval) -> Fact:
        """Entries moved, repeated, left out or added up, with coefficients that are not negative."""
        moved = [fact for index, fact in enumerate(operands) if jets.may_vary(op, index)]
        if any(not fact.constant for index, fact in enumerate(operands) if not jets.may_vary(op, index)):
            return Fact(interval)
        if any(not self.program.floating[slot] and not self[slot].constant for slot in op.inputs):
            return Fact(interval)
        added = op.name in ("reduce_sum", "cumsum", "scatter-add", "scatter_add", "reduce_window_sum")
        logs = _logs(moved)
        return Fact(
            interval,
            curvature=_meet(moved),
            log_curvature=CONVEX & logs if added else logs,
            norm=_norms(moved),
        )

    def _clamped(self, operands: list[Fact], interval: Interval) -> Fact:
        low, value, high = operands
        curvature = 0
        if value.interval.most <= high.interval.least:
            curvature |= CONVEX & value.curvature & low.curvature
        if value.interval.least >= low.interval.most:
            curvature |= CONCAVE & value.curvature & high.curvature
        return Fact(interval, curvature=curvature)

    def _selected(self, operands: list[Fact], interval: Interval) -> Fact:
        index, *cases = operands
        if not index.constant:
            return Fact(interval)
        return Fact(interval, curvature=_meet(cases), log_curvature=_logs(cases), norm=_norms(cases))

    # Values as terms k u^p log(u)^q

    def _terms(self, op: Op, operands: list[Fact]) -> tuple[int, Terms] | None:
        name = op.name
        first = operands[0]
        if name == "neg" and first.terms:
            return _times(first.terms, (-1.0, -1.0))
        if name in ("add", "add_any", "sub"):
            return self._added_terms(operands, -1.0 if name == "sub" else 1.0)
        if name in ("mul", "div"):
            return self._multiplied_terms(op, operands)
        if name in ("log", "integer_pow", "square", "sqrt", "rsqrt", "xlogx") or (name == "pow" and first.terms):
            return self._function_terms(op, operands)
        if name == "xlogy" and operands[1].constant:
            factor = _log_interval(operands[1].interval)
            return _times(first.terms, (factor.least, factor.most)) if first.terms else None
        if name == "xlogy":
            return self._products(first.terms, op.inputs[0], self._logarithm(op.inputs[1]), op.inputs[1])
        return None

    def _added_terms(self, operands: list[Fact], sign: float) -> tuple[int, Terms] | None:
        a, b = operands
        if a.constant or b.constant:
            value, factor = (b, sign) if a.constant else (a, 1.0)
            if value.terms is None or _pure(value.terms[1]) is not None:
                return None  # a line in u: a value to count from
            root, parts = _times(value.terms, (factor, factor))
            return root, {**parts, (0.0, 0): _UNKNOWN}
        if a.terms is None or b.terms is None or a.terms[0] != b.terms[0]:
            return None
        root, parts = a.terms
        total = dict(parts)
        for key, (low, high) in b.terms[1].items():
            low, high = sorted((sign * low, sign * high))
            old = total.get(key, (0.0, 0.0))
            total[key] = (old[0] + low, old[1] + high)
        return root, total

    def _multiplied_terms(self, op: Op, operands: list[Fact]) -> tuple[int, Terms] | None:
        a, b = operands
        if op.name == "div":
            if b.constant:
                factor = intervals.reciprocal(b.interval)
                return _times(a.terms, (factor.least, factor.most)) if a.terms else None
            line = _pure(b.terms[1]) if b.terms else None
            if line is None or (line[0] <= 0 <= line[1]) or b.terms is None:
                return None
            inverse: tuple[int, Terms] = (b.terms[0], {(-1.0, 0): (1 / line[1], 1 / line[0])})
            if a.constant:
                return _times(inverse, (a.interval.least, a.interval.most))
            return self._products(a.terms, op.inputs[0], inverse, op.inputs[1])
        if a.constant or b.constant:
            factor, value = (a, b) if a.constant else (b, a)
            return _times(value.terms, (factor.interval.least, factor.interval.most)) if value.terms else None
        return self._products(a.terms, op.inputs[0], b.terms, op.inputs[1])

    def _products(self, a: Any, slot_a: int, b: Any, slot_b: int) -> tuple[int, Terms] | None:
        """Return the terms of a product of values of the same u, which may be one of them."""
        for left in (a, (slot_a, {(1.0, 0): _ONE})):
            for right in (b, (slot_b, {(1.0, 0): _ONE})):
                if left is None or right is None or left[0] != right[0]:
                    continue
                total: Terms = {}
                for (p, q), k in left[1].items():
                    for (r, s), m in right[1].items():
                        if q + s > 1:
                            return None
                        old = total.get((p + r, q + s), (0.0, 0.0))
                        low, high = _scale(k, m)
                        total[p + r, q + s] = (old[0] + low, old[1] + high)
                return left[0], total
        return None

    def _logarithm(self, slot: int) -> tuple[int, Terms]:
        """Return log(value) in terms of u where the value is k u with k > 0."""
        terms = self[slot].terms
        line = _pure(terms[1]) if terms else None
        if terms is None or line is None or line[0] <= 0:
            return slot, {(0.0, 1): _ONE}
        return terms[0], {(0.0, 1): _ONE, **({} if line == _ONE else {(0.0, 0): _UNKNOWN})}

    def _function_terms(self, op: Op, operands: list[Fact]) -> tuple[int, Terms] | None:
        terms = operands[0].terms
        if op.name == "log":
            return self._logarithm(op.inputs[0])
        if op.name == "xlogx":
            return self._products(terms, op.inputs[0], self._logarithm(op.inputs[0]), op.inputs[0])
        line = _pure(terms[1]) if terms else None
        if terms is None or line is None:
            return None
        power = {"integer_pow": op.params.get("y"), "square": 2, "sqrt": 0.5, "rsqrt": -0.5}.get(op.name)
        power = _number(operands[1].interval) if op.name == "pow" else power
        if power is None:
            return None
        if power == int(power) and power > 0:
            bounds = intervals.power(Interval(np.asarray(line[0]), np.asarray(line[1])), float(power))
            return terms[0], {(float(power), 0): (bounds.least, bounds.most)}
        if line[0] <= 0:
            return None
        ends = line[0] ** power, line[1] ** power
        return terms[0], {(float(power), 0): (min(ends), max(ends))}

    def _terms_curvature(self, terms: tuple[int, Terms]) -> int:
        root = self[terms[0]]
        if root.curvature != AFFINE:
            return 0
        positive = root.interval.least >= 0 or any(q or p != int(p) for p, q in terms[1])
        curvature = AFFINE
        for (p, q), (low, high) in terms[1].items():
            if q:
                shape = {1.0: CONVEX, 0.0: CONCAVE}.get(p, 0)
            elif p in (0.0, 1.0):
                shape = AFFINE
            elif p > 0 and p % 2 == 0:
                shape = CONVEX
            else:
                shape = (CONVEX if p * (p - 1) > 0 else CONCAVE) if positive else 0
            curvature &= _scaled(shape, Interval(np.asarray(low), np.asarray(high)))
        return curvature


# Arithmetic of curvatures


def _flip(curvature: int) -> int:
    return ((curvature & CONVEX) << 1) | ((curvature & CONCAVE) >> 1)


def _meet(facts: Sequence[Fact], of: str = "curvature") -> int:
    curvature = AFFINE
    for fact in facts:
        curvature &= getattr(fact, of)
    return curvature


def _logs(facts: Sequence[Fact]) -> int:
    return _meet(facts, "log_curvature")


def _norms(facts: Sequence[Fact]) -> bool:
    return all(fact.norm for fact in facts)


def _scaled(curvature: int, factor: Interval) -> int:
    """Return the curvature of a value times a factor that does not depend on y."""
    if factor.least >= 0:
        return AFFINE if factor.most == 0 else curvature
    if factor.most <= 0:
        return _flip(curvature)
    return AFFINE if curvature == AFFINE else 0


def _compose(shape: int, slope: int, inner: int) -> int:
    """Return the curvature of a function of some shape and slope (1 rising, -1 falling, 0 neither) of a value."""
    curvature = 0
    for bit in (CONVEX, CONCAVE):
        if shape & bit and (inner == AFFINE or (slope > 0 and inner & bit) or (slope < 0 and _flip(inner) & bit)):
            curvature |= bit
    return curvature


def _leaves_domain(op: Op, inner: Fact) -> bool:
    """Return whether a function of a value within its bounds may be NaN."""
    if op.name in ("log", "sqrt", "rsqrt", "pow", "xlogx", "xlogy"):
        return inner.interval.least < 0
    if op.name in ("log1p", "asin", "acos", "atanh", "erf_inv"):
        return inner.interval.least < -1 or (op.name != "log1p" and inner.interval.most > 1)
    return op.name == "acosh" and inner.interval.least < 1


def _log_interval(interval: Interval) -> Interval:
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (np.log(np.maximum(side, 0.0)) for side in (interval.least, interval.most))
    return Interval(np.asarray(low), np.asarray(high))


def _log_bits(fact: Fact) -> int:
    return (fact.curvature & CONCAVE) | fact.log_curvature


# Shapes of functions of one number on an interval: (curvature, slope).

Shape = Callable[[float, float, dict[str, Any]], tuple[int, int]]


def _fixed(curvature: int, slope: int) -> Shape:
    return lambda low, high, params: (curvature, slope)


def _by_side(left: int, right: int, slope: int) -> Shape:
    """The shape of a rising (falling) function that bends at zero."""
    return lambda low, high, params: (right if low >= 0 else left if high <= 0 else 0, slope)


def _even(low: float, high: float, params: Any) -> tuple[int, int]:
    return CONVEX, 1 if low >= 0 else -1 if high <= 0 else 0


def _power_shape(p: float, low: float, high: float) -> tuple[int, int]:
    if p in (0, 1):
        return AFFINE, int(p)
    if p == int(p) and p > 0 and p % 2 == 0:
        return _even(low, high, None)
    if p == int(p) and high <= 0 and p > 0:
        return CONCAVE, 1
    if p == int(p) and low < 0:
        if high > 0:
            return 0, 1 if p > 0 else 0
        return (CONVEX, 1) if p % 2 == 0 else (CONCAVE, -1)  # p < 0 on the left of zero
    return (CONVEX if p * (p - 1) > 0 else CONCAVE), (1 if p > 0 else -1)


_SHAPES: dict[str, Shape] = {
    "neg": _fixed(AFFINE, -1),
    "exp": _fixed(CONVEX, 1),
    "exp2": _fixed(CONVEX, 1),
    "expm1": _fixed(CONVEX, 1),
    "log": _fixed(CONCAVE, 1),
    "log1p": _fixed(CONCAVE, 1),
    "sqrt": _fixed(CONCAVE, 1),
    "rsqrt": _fixed(CONVEX, -1),
    "acosh": _fixed(CONCAVE, 1),
    "abs": _even,
    "square": _even,
    "cosh": _even,
    "integer_pow": lambda low, high, params: _power_shape(params["y"], low, high),
    "logistic": _by_side(CONVEX, CONCAVE, 1),
    "tanh": _by_side(CONVEX, CONCAVE, 1),
    "erf": _by_side(CONVEX, CONCAVE, 1),
    "atan": _by_side(CONVEX, CONCAVE, 1),
    "asinh": _by_side(CONVEX, CONCAVE, 1),
    "cbrt": _by_side(CONVEX, CONCAVE, 1),
    "sinh": _by_side(CONCAVE, CONVEX, 1),
    "asin": _by_side(CONCAVE, CONVEX, 1),
    "atanh": _by_side(CONCAVE, CONVEX, 1),
    "erfc": _by_side(CONCAVE, CONVEX, -1),
    "lgamma": lambda low, high, params: (CONVEX if low >= 0 else 0, 0),
    "digamma": lambda low, high, params: (CONCAVE if low >= 0 else 0, 1 if low >= 0 else 0),
    "xlogx": lambda low, high, params: (CONVEX, 1 if low >= np.exp(-1) else 0),
}


# Arithmetic of terms


def _scale(k: tuple[float, float], m: tuple[float, float]) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        found = intervals.product(Interval(*map(np.asarray, k)), Interval(*map(np.asarray, m)))
    return found.least, found.most


def _times(terms: tuple[int, Terms], factor: tuple[float, float]) -> tuple[int, Terms]:
    return terms[0], {key: _scale(k, factor) for key, k in terms[1].items()}


def _pure(terms: Terms) -> tuple[float, float] | None:
    """Return the bounds of k where the value is k u."""
    return terms[1.0, 0] if len(terms) == 1 and (1.0, 0) in terms else None


def _same_sign(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return (a[0] >= 0 and b[0] >= 0) or (a[1] <= 0 and b[1] <= 0)


def _number(interval: Interval) -> float | None:
    """Return the one number an interval holds."""
    least, most = interval.least, interval.most
    return least if least == most and np.isfinite(least) else None


# Degrees of polynomials


def _joint_degree(op: Op, operands: list[Fact]) -> int | None:
    degrees = [fact.degree for fact in operands]
    known = [degree for degree in degrees if degree is not None]
    if len(known) < len(degrees):
        return None
    if all(degree == 0 for degree in known):
        return 0
    if op.name in ("add", "add_any", "sub", "neg"):
        return max(known)
    if op.name in jets.LINEAR:
        free = [d == 0 or jets.may_vary(op, index) for index, d in enumerate(known)]
        return max(known) if all(free) else None
    if op.name in ("mul", "dot_general", "conv_general_dilated"):
        return sum(known)
    if op.name == "div" or op.name in ("triangular_solve",):
        return (known[0] if known[1] == 0 else None) if op.name == "div" else (known[1] if known[0] == 0 else None)
    if op.name == "select_n":
        return max(known) if known[0] == 0 else None
    power = _power_of(op, operands)
    return None if power is None else power * known[0]


def _degrees(op: Op, operands: list[Fact]) -> tuple[int, int, int] | None:
    parts = [fact.degrees for fact in operands]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    largest = lambda many: tuple(max(column) for column in zip(*many, strict=True))
    if op.name in ("add", "add_any", "sub", "neg"):
        return largest(known)
    if op.name in jets.LINEAR:
        moved = [part for index, part in enumerate(known) if jets.may_vary(op, index)]
        places = [part for index, part in enumerate(known) if not jets.may_vary(op, index)]
        if any(part[1] or part[2] for part in places):
            return None
        return _on_x(largest(moved), any(part[0] == 2 for part in places))
    if op.name in ("mul", "dot_general", "conv_general_dilated"):
        return _multiplied(known[0], known[1])
    if op.name == "div":
        return _on_x(known[0], known[1][0] == 2) if operands[1].constant else None
    if op.name in ("triangular_solve", "custom_linear_solve") and all(fact.constant for fact in operands[:-1]):
        return _on_x(known[-1], any(part[0] == 2 for part in known[:-1]))
    if op.name == "select_n":
        return _on_x(largest(known[1:]), known[0][0] == 2) if operands[0].constant else None
    if _power_of(op, operands) == 2:
        return _multiplied(known[0], known[0])
    return None


def _power_of(op: Op, operands: list[Fact]) -> int | None:
    if op.name == "square":
        return 2
    if op.name == "integer_pow":
        return op.params["y"] if op.params["y"] >= 0 else None
    if op.name == "pow":
        p = _number(operands[1].interval)
        return int(p) if p is not None and p >= 0 and p == int(p) else None
    return None


def _on_x(degrees: Any, depends: bool) -> tuple[int, int, int]:
    """Return degrees with coefficients that depend on x, if they do."""
    return tuple(2 if part and depends else part for part in degrees)  # type: ignore[return-value]


def _multiplied(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int] | None:
    out = [0, 0, 0]
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            if left and right:
                if i + j > 2:
                    return None
                out[i + j] = max(out[i + j], left, right)
    return (out[0], out[1], out[2])
