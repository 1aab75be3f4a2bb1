"""What an operation tells of curvature: the rules of disciplined convex programming, one a kind of operation."""

import dataclasses

import numpy as np

from bilevax.model.analysis import intervals, jets
from bilevax.model.analysis.convexity import prove_by_hessian
from bilevax.model.analysis.facts.curvature import (
    AFFINE,
    CONCAVE,
    CONVEX,
    all_norms,
    compose,
    flip,
    log_bits,
    log_interval,
    meet,
    meet_of_logs,
    scaled,
    squares_to_norm,
)
from bilevax.model.analysis.facts.fact import Fact, Known
from bilevax.model.analysis.facts.shapes import SHAPES, power_shape
from bilevax.model.analysis.facts.terms import factor_of_line, only_number, same_sign
from bilevax.model.analysis.intervals import Interval
from bilevax.model.analysis.program import Op


def curved(known: Known, op: Op, operands: list[Fact], interval: Interval) -> Fact:
    """Return a fact with what the operation tells of curvature; the rest is added later."""
    name, first = op.name, operands[0]
    if name in SHAPES:
        return _composed(op, first, interval)
    if name in ("add", "add_any", "sub"):
        return _sum(known, op, operands, interval)
    if name in ("mul", "dot_general", "conv_general_dilated"):
        return _product(known, op, operands, interval)
    if name == "div":
        return _quotient(operands, interval)
    if name == "pow":
        return _power(operands, interval)
    if name in jets.LINEAR or name in ("reduce_window_sum",):
        return _linear(known, op, operands, interval)
    if name in ("triangular_solve", "custom_linear_solve") and all(fact.constant for fact in operands[:-1]):
        return Fact(interval, curvature=AFFINE if operands[-1].curvature == AFFINE else 0)
    if name in ("max", "reduce_max", "cummax", "logaddexp", "cumlogsumexp"):
        convex = CONVEX & meet(operands)
        extreme = name in ("max", "reduce_max", "cummax")
        log_curvature = CONVEX & meet(operands, "log_curvature") if extreme else 0
        return Fact(interval, curvature=convex, log_curvature=log_curvature, norm=all_norms(operands) and extreme)
    if name in ("min", "reduce_min", "cummin"):
        return Fact(interval, curvature=CONCAVE & meet(operands), log_curvature=CONCAVE & meet_of_logs(operands))
    if name == "clamp":
        return _clamped(operands, interval)
    if name == "select_n":
        return _selected(operands, interval)
    if name == "xlogy" and first.constant:
        return Fact(interval, curvature=scaled(log_bits(operands[1]), first.interval))
    if name == "xlogy" and operands[1].constant:
        return Fact(interval, curvature=scaled(first.curvature, log_interval(operands[1].interval)))
    return Fact(interval)


def _composed(op: Op, inner: Fact, interval: Interval) -> Fact:
    """Return a function of one number of a value: convex if convex and rising of convex, and so on."""
    if op.name == "abs" and inner.interval.least >= 0:
        return dataclasses.replace(inner, interval=interval)
    shape, slope = SHAPES[op.name](inner.interval.least, inner.interval.most, op.params)
    curvature = compose(shape, slope, inner.curvature)
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
        log_curvature = flip(inner.log_curvature)
    elif op.name in ("integer_pow", "square"):
        power = op.params.get("y", 2)
        log_curvature = inner.log_curvature if power > 0 else flip(inner.log_curvature)
        norm = power >= 2 and (power % 2 == 0 or inner.interval.least >= 0) and squares_to_norm(inner)
    return Fact(interval, curvature=curvature, log_curvature=log_curvature, norm=norm)


def _sum(known: Known, op: Op, operands: list[Fact], interval: Interval) -> Fact:
    a, b = operands
    if op.name == "sub":
        maker = known.program.maker.get(op.inputs[1])
        if maker is not None and maker.name == "logistic" and a.interval.least == a.interval.most == 1.0:
            falling = known[maker.inputs[0]].curvature & CONVEX  # 1 - s(u) = s(-u), concave in logarithms
            return Fact(interval, curvature=flip(b.curvature), log_curvature=CONCAVE if falling else 0)
        return Fact(interval, curvature=a.curvature & flip(b.curvature))
    curvature, log_curvature = meet(operands), CONVEX & meet_of_logs(operands)
    return Fact(interval, curvature=curvature, log_curvature=log_curvature, norm=all_norms(operands))


def _product(known: Known, op: Op, operands: list[Fact], interval: Interval) -> Fact:
    a, b = operands
    if a.constant or b.constant:
        factor, value = (a, b) if a.constant else (b, a)
        logs = value.log_curvature if op.name == "mul" else CONVEX & value.log_curvature
        return Fact(
            interval,
            curvature=scaled(value.curvature, factor.interval),
            log_curvature=logs if factor.interval.least >= 0 else 0,
            norm=value.norm and factor.interval.least >= 0,
        )
    if op.name == "mul":
        return Fact(interval, log_curvature=meet_of_logs(operands))
    if op.name == "dot_general" and a.terms and b.terms and a.terms[0] == b.terms[0]:
        (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
        aligned = tuple(left) == tuple(right) and tuple(left_batch) == tuple(right_batch)
        whole = len(left) + len(left_batch) == len(known.program.shapes[op.inputs[0]])
        first, second = factor_of_line(a.terms[1]), factor_of_line(b.terms[1])
        if aligned and whole and first and second and same_sign(first, second):
            norm = squares_to_norm(known[a.terms[0]])
            return Fact(interval, curvature=CONVEX if norm else 0, norm=norm)
    return Fact(interval, curvature=_form_curvature(known, op))


def _form_curvature(known: Known, op: Op) -> int:
    """Return the curvature of ``u @ H @ u`` with a constant matrix H, by its eigenvalues."""
    for left, right in (op.inputs, op.inputs[::-1]):
        inner = known.program.maker.get(left)
        if inner is None or inner.name != "dot_general" or known.program.shapes[op.outputs[0]]:
            continue
        matrix = next((known.program.constants[slot] for slot in inner.inputs if slot in known.program.constants), None)
        vector = next((slot for slot in inner.inputs if slot not in known.program.constants), None)
        if matrix is None or vector is None or matrix.ndim != 2 or len(known.program.shapes[vector]) != 1:
            continue
        a, b = known[vector], known[right]
        if a.terms is None or b.terms is None or a.terms[0] != b.terms[0] or matrix.shape[0] != matrix.shape[1]:
            continue
        first, second = factor_of_line(a.terms[1]), factor_of_line(b.terms[1])
        if first is None or second is None or first[0] != first[1] or second[0] != second[1]:
            continue  # not one number for all entries
        if known[a.terms[0]].curvature != AFFINE:
            continue
        symmetric = matrix + matrix.T
        symmetric *= first[0] * second[0]
        if prove_by_hessian(symmetric)[0] == "proven":
            return CONVEX
        return CONCAVE if prove_by_hessian(-symmetric)[0] == "proven" else 0
    return 0


def _quotient(operands: list[Fact], interval: Interval) -> Fact:
    a, b = operands
    inverse = intervals.reciprocal(b.interval)
    if b.constant:
        return Fact(
            interval,
            curvature=scaled(a.curvature, inverse),
            log_curvature=a.log_curvature if b.interval.least >= 0 else 0,
            norm=a.norm and b.interval.least >= 0,
        )
    if b.interval.least < 0 and b.interval.most > 0:
        return Fact(interval)
    positive = b.interval.least >= 0
    log_curvature = a.log_curvature & flip(b.log_curvature)
    curvature = 0
    if a.constant:
        shape = CONVEX if positive else CONCAVE
        curvature = scaled(compose(shape, -1, b.curvature), a.interval)
    elif a.norm and positive and b.curvature & CONCAVE:
        curvature = CONVEX
    return Fact(interval, curvature=curvature, log_curvature=log_curvature)


def _power(operands: list[Fact], interval: Interval) -> Fact:
    base, exponent = operands
    if base.constant:  # c^u = exp(u log c)
        if base.interval.least <= 0:
            return Fact(interval)
        logs = Interval(np.log(base.interval.lower), np.log(base.interval.upper))
        curvature = scaled(exponent.curvature, logs)
        return Fact(interval, curvature=curvature & CONVEX, log_curvature=curvature)
    p = only_number(exponent.interval)
    if p is None:
        return Fact(interval)
    shape, slope = power_shape(p, base.interval.least, base.interval.most)
    curvature = compose(shape, slope, base.curvature)
    if base.norm and p >= 0.5:
        curvature |= CONVEX
    norm = p >= 2 and squares_to_norm(base) and (base.interval.least >= 0 or p % 2 == 0)
    log_curvature = base.log_curvature if p > 0 else flip(base.log_curvature)
    return Fact(interval, curvature=curvature, log_curvature=log_curvature, norm=norm or (base.norm and p >= 1))


def _linear(known: Known, op: Op, operands: list[Fact], interval: Interval) -> Fact:
    """Entries moved, repeated, left out or added up, with coefficients that are not negative."""
    moved = [fact for index, fact in enumerate(operands) if jets.may_vary(op, index)]
    if any(not fact.constant for index, fact in enumerate(operands) if not jets.may_vary(op, index)):
        return Fact(interval)
    if any(not known.program.floating[slot] and not known[slot].constant for slot in op.inputs):
        return Fact(interval)
    added = op.name in ("reduce_sum", "cumsum", "scatter-add", "scatter_add", "reduce_window_sum")
    logs = meet_of_logs(moved)
    return Fact(
        interval,
        curvature=meet(moved),
        log_curvature=CONVEX & logs if added else logs,
        norm=all_norms(moved),
    )


def _clamped(operands: list[Fact], interval: Interval) -> Fact:
    low, value, high = operands
    curvature = 0
    if value.interval.most <= high.interval.least:
        curvature |= CONVEX & value.curvature & low.curvature
    if value.interval.least >= low.interval.most:
        curvature |= CONCAVE & value.curvature & high.curvature
    return Fact(interval, curvature=curvature)


def _selected(operands: list[Fact], interval: Interval) -> Fact:
    index, *cases = operands
    if not index.constant:
        return Fact(interval)
    return Fact(interval, curvature=meet(cases), log_curvature=meet_of_logs(cases), norm=all_norms(cases))
