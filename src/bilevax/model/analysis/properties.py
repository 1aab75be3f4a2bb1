"""`analyse`: what a function of (x, y) is, found out on its jaxpr instead of believed."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from bilevax._support import trees
from bilevax.model.analysis import jets
from bilevax.model.analysis.convexity import (
    Convexity,
    ConvexityTest,
    Counterexample,
    hessian_at,
    prove_by_hessian,
    refute_convexity,
)
from bilevax.model.analysis.domain import DomainRow, domain_rows, required_positive
from bilevax.model.analysis.facts import CONVEX, Facts
from bilevax.model.analysis.kinks import Kink, Region, find_kinks, irrelevant_stops, stopped
from bilevax.model.analysis.program import Program
from bilevax.model.analysis.tracing import trace
from bilevax.model.problem import BilevelProblem, placed_objectives

Smoothness = Literal["smooth", "C1", "nonsmooth", "unknown"]
Bounds = tuple[np.ndarray, np.ndarray]

#: Up to this many variables the constant Hessian of a quadratic function is computed here.
_FEW_VARIABLES = 40


@dataclasses.dataclass(frozen=True)
class FunctionProperties:
    """What is known of a function of (x, y).

    Attributes
    ----------
    smoothness
        "smooth": twice continuously differentiable as far as was seen; "C1": the gradient is continuous, the Hessian
        jumps; "nonsmooth": the gradient, or the value, jumps somewhere; "unknown": it could not be evaluated.
    kinks
        Every place with branches, with a verdict of its own; those that make the function "nonsmooth" are `refused`.
    convexity
        In y, for every x within its bounds: "proven" by rules, or by a constant Hessian up to rounding; "refuted" by a
        direction of negative curvature; else "unknown", for `refute_convexity`.
    reason
        Of that, in words.
    counterexample
        Where it is refuted.
    quadratic, hessian_depends_on_x
        Whether the function is a polynomial of degree two at most in y, and whether its Hessian in y depends on x.
    affine
        Whether it is of degree one at most in y.
    degree
        As a polynomial in x and y together; None if it is none.
    domain
        What its logarithms, roots and quotients ask for.
    program
        The function as a list of operations.
    """

    smoothness: Smoothness
    kinks: tuple[Kink, ...]
    convexity: Convexity
    reason: str
    counterexample: Counterexample | None
    quadratic: bool
    hessian_depends_on_x: bool
    affine: bool
    degree: int | None
    domain: tuple[DomainRow, ...]
    program: Program = dataclasses.field(repr=False)

    @property
    def refused(self) -> tuple[Kink, ...]:
        """The kinks that make the function nonsmooth."""
        return tuple(kink for kink in self.kinks if kink.verdict in ("nonsmooth", "discontinuous"))

    def refute_convexity(self, x: np.ndarray, points: np.ndarray, **options: Any) -> ConvexityTest:
        """Look for a counterexample at feasible points; see `bilevax.model.analysis.refute_convexity`."""
        return refute_convexity(self.program, np.asarray(x, np.float64), points, **options)

    def with_hessian(self, hessian: Any) -> "FunctionProperties":
        """Return the properties with what a constant Hessian in y, computed elsewhere, proves or refutes."""
        if self.convexity != "unknown" or not self.quadratic or self.hessian_depends_on_x:
            return self
        convexity, eigenvalue, direction = prove_by_hessian(hessian)
        zero = [np.zeros(self.program.shapes[slot]) for slot in (self.program.x, self.program.y)]
        return _settled(self, convexity, eigenvalue, direction, zero[0], zero[1])


def analyse(
    fn: Callable[[Any, Any], Any],
    n_x: int,
    n_y: int,
    *,
    x_bounds: Bounds | None = None,
    y_bounds: Bounds | None = None,
    points: tuple[np.ndarray, np.ndarray] | None = None,
) -> FunctionProperties:
    """Find out what a scalar function of flat vectors x and y is: smooth, convex in y, where defined.

    Nothing is compiled: the function is traced once and followed in NumPy, and only if it has branches.

    Parameters
    ----------
    fn
        A JAX function ``fn(x, y)``; its data are closed over.
    n_x, n_y
        Sizes of x and y.
    x_bounds, y_bounds
        (lower, upper), infinite where there are none; they tell signs.
    points
        Feasible (x, y), one a row each, where such are known: kinks are then looked for between them, in their units.
    """
    program = Program(trace(fn, n_x, n_y))
    free = lambda size: (np.full(size, -np.inf), np.full(size, np.inf))
    x_bounds, y_bounds = _bounds(x_bounds, n_x, free), _bounds(y_bounds, n_y, free)
    region = Region(
        np.concatenate([x_bounds[0], y_bounds[0]]),
        np.concatenate([x_bounds[1], y_bounds[1]]),
        None if points is None else np.hstack([np.atleast_2d(part) for part in points]),
    )
    parameters, misleading = irrelevant_stops(program, region)
    facts = Facts(program, x_bounds, y_bounds, parameters)
    domain = tuple(domain_rows(program, facts))
    positive = required_positive(program, facts)
    if positive:
        facts = Facts(program, x_bounds, y_bounds, parameters, positive)
    kinks = [stopped(op, program) for op in misleading] + find_kinks(program, facts, region, parameters)
    result = facts[program.result]
    proven = bool(result.curvature & CONVEX)
    degrees = result.degrees
    properties = FunctionProperties(
        smoothness=_smoothness(kinks),
        kinks=tuple(kinks),
        convexity="proven" if proven else "unknown",
        reason="composition rules" if proven else _first_unknown(program, facts),
        counterexample=None,
        quadratic=degrees is not None,
        hessian_depends_on_x=degrees is not None and degrees[2] == 2,
        affine=degrees is not None and degrees[2] == 0,
        degree=result.degree,
        domain=domain,
        program=program,
    )
    if not proven and properties.quadratic and not properties.hessian_depends_on_x and n_y <= _FEW_VARIABLES:
        return _by_hessian(properties, region)
    return properties


def analyse_objective(
    problem: BilevelProblem,
    level: Literal["upper", "lower"],
    x_like: Any,
    y_like: Any,
    *,
    points: tuple[np.ndarray, np.ndarray] | None = None,
    jointly: bool = False,
) -> FunctionProperties:
    """Return what f ("upper") or g ("lower") of a problem is, with the bounds of its sets, as `analyse` does.

    ``x_like`` and ``y_like`` are shapes in the user's structure. If ``jointly``, it is that of the function of y alone
    whose y is x and y together.
    """
    fn = on_flat_vectors(problem, level, x_like, y_like)
    bounds = [
        part.rows(like).intervals()
        for part, like in ((problem.x_set, x_like), (problem.y_set, y_like))  #
    ]
    sizes = trees.size(x_like), trees.size(y_like)
    if jointly:
        (x_low, x_high), (y_low, y_high) = bounds
        both = np.concatenate([x_low, y_low]), np.concatenate([x_high, y_high])
        return analyse(lambda _, v: fn(v[: sizes[0]], v[sizes[0] :]), 0, sum(sizes), y_bounds=both)
    return analyse(fn, *sizes, x_bounds=bounds[0], y_bounds=bounds[1], points=points)


def on_flat_vectors(
    problem: BilevelProblem, level: Literal["upper", "lower"], x_like: Any, y_like: Any
) -> Callable[[Any, Any], Any]:
    """Return f ("upper") or g ("lower") of a problem as a function of flat vectors, its data closed over."""
    upper, lower, data = placed_objectives(problem)
    bare = BilevelProblem(upper, lower, data=data)
    value = bare.upper_value if level == "upper" else bare.lower_value
    return lambda x, y: value(trees.unflatten(x, x_like), trees.unflatten(y, y_like))


def _bounds(bounds: Bounds | None, size: int, free: Callable[[int], Bounds]) -> Bounds:
    if bounds is None:
        return free(size)
    lower, upper = (np.broadcast_to(np.asarray(side, np.float64), (size,)) for side in bounds)
    return lower, upper


def _smoothness(kinks: list[Kink]) -> Smoothness:
    verdicts = {kink.verdict for kink in kinks}
    if verdicts & {"nonsmooth", "discontinuous"}:
        return "nonsmooth"
    if "undecided" in verdicts:
        return "unknown"
    return "C1" if "C1" in verdicts else "smooth"


def _first_unknown(program: Program, facts: Facts) -> str:
    """Return where the rules lose sight of the curvature."""
    for op in program.ops:
        known = all(facts[slot].curvature or not program.floating[slot] for slot in op.inputs)
        unknown = lambda fact: not (fact.curvature or fact.log_curvature)
        lost = [slot for slot in op.outputs if program.floating[slot] and unknown(facts[slot])]
        if known and lost:
            where = op.where()
            return f"no rule for {op.name}" + (f" at {where}" if where else "")
    return "not convex by the rules"


def _by_hessian(properties: FunctionProperties, region: Region) -> FunctionProperties:
    """Settle a quadratic function by its Hessian, evaluated here, among the variables that are not fixed."""
    program = properties.program
    split = program.shapes[program.x][0]
    base, direction, _ = region.lines(np.random.default_rng(2), 24, 9)
    place = np.clip(base[-1] + 0.3 * direction[-1], region.lower, region.upper)
    x, y = place[:split], place[split:]
    moving = region.lower[split:] < region.upper[split:]
    try:
        hessian, _ = hessian_at(program, x, y, np.eye(len(y))[:, moving])
    except jets.Unsupported:
        return properties
    if not np.isfinite(hessian).all():
        return properties
    convexity, eigenvalue, along = prove_by_hessian(hessian)
    if along is not None:
        along = np.eye(len(y))[:, moving] @ along
    return _settled(properties, convexity, eigenvalue, along, x, y)


def _settled(
    properties: FunctionProperties,
    convexity: Convexity,
    eigenvalue: float,
    direction: np.ndarray | None,
    x: np.ndarray,
    y: np.ndarray,
) -> FunctionProperties:
    change = functools.partial(dataclasses.replace, properties)
    if convexity == "proven":
        return change(convexity="proven", reason=f"constant Hessian, smallest eigenvalue {eigenvalue:.2g} when scaled")
    if convexity == "refuted" and direction is not None:
        example = Counterexample(x, y, direction, eigenvalue, eigenvalue)
        return change(convexity="refuted", reason="constant Hessian with negative curvature", counterexample=example)
    return properties
