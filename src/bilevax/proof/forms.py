"""Polynomials of degree two at most in numbered variables, and elementary functions of them: a factorable program.

Whatever is more than that gets a variable of its own, defined by an equation: ``exp(x y) z y`` is ``e p`` with the
variables e = exp(x y) and p = z y. Global solvers want functions in this shape, and anybody can evaluate it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bilevax.model.analysis.intervals import Interval, power, product


class Form:
    """A polynomial of degree two at most: coefficients of the sets of variables that are multiplied."""

    __slots__ = ("program", "terms")

    def __init__(self, program: "Factorable", terms: dict[tuple[int, ...], float]):
        self.program, self.terms = program, terms

    @property
    def degree(self) -> int:
        """Of the polynomial."""
        return max(map(len, self.terms), default=0)

    @property
    def key(self) -> tuple:
        """What is equal for equal polynomials."""
        return tuple(sorted(self.terms.items()))

    def _combined(self, other: Any, sign: float) -> "Form | float":
        terms = dict(self.terms)
        for powers, factor in other.terms.items() if isinstance(other, Form) else (((), float(other)),):
            terms[powers] = terms.get(powers, 0.0) + sign * factor
        return self.program.form(terms)

    def __add__(self, other: Any) -> "Form | float":
        return self._combined(other, 1.0)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Form | float":
        return self._combined(other, -1.0)

    def __rsub__(self, other: Any) -> "Form | float":
        return -self + other

    def __neg__(self) -> "Form | float":
        return self * -1.0

    def __mul__(self, other: Any) -> "Form | float":
        if not isinstance(other, Form):
            return self.program.form({powers: float(other) * factor for powers, factor in self.terms.items()})
        first, second = (each if each.degree < 2 else self.program.named(each) for each in (self, other))
        terms: dict[tuple[int, ...], float] = {}
        for one, factor in first.terms.items():
            for two, by in second.terms.items():
                powers = tuple(sorted(one + two))
                terms[powers] = terms.get(powers, 0.0) + factor * by
        return self.program.form(terms)

    __rmul__ = __mul__


@dataclasses.dataclass(frozen=True)
class Definition:
    """A variable that is a function of a polynomial; ``function`` is a name of `FUNCTIONS`, or "same", or "power"."""

    variable: int
    function: str
    argument: Form
    exponent: float = 1.0


#: The functions that a definition may use, besides powers.
FUNCTIONS = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "abs": np.abs, "sin": np.sin, "cos": np.cos}


#: Between what they lie where their argument lies in an interval.
_RANGES: dict[str, Callable[[Interval, float], tuple[Any, Any]]] = {
    "same": lambda a, _: a,
    "power": power,
    "exp": lambda a, _: (np.exp(a.lower), np.exp(a.upper)),
    "log": lambda a, _: (np.log(np.maximum(a.lower, 0.0)), np.log(np.maximum(a.upper, 0.0))),
    "sqrt": lambda a, _: (np.sqrt(np.maximum(a.lower, 0.0)), np.sqrt(np.maximum(a.upper, 0.0))),
    "abs": lambda a, _: (np.maximum(np.maximum(a.lower, -a.upper), 0.0), np.maximum(np.abs(a.lower), np.abs(a.upper))),
    **dict.fromkeys(("sin", "cos"), lambda a, _: (-np.ones(1), np.ones(1))),
}
_ROUNDING = 1e-9  # relative: by so much bounds of defined variables are wider than computed


class Factorable:
    """Variables with bounds, and the definitions of some of them, in an order in which they can be evaluated."""

    def __init__(self) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.definitions: list[Definition] = []
        self._known: dict[tuple, Form] = {}

    def variables(self, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """Return new variables with these bounds."""
        first = len(self.lower)
        self.lower += map(float, lower)
        self.upper += map(float, upper)
        forms = np.empty(len(lower), object)
        forms[:] = [Form(self, {(first + k,): 1.0}) for k in range(len(lower))]
        return forms

    def form(self, terms: dict[tuple[int, ...], float]) -> Form | float:
        """Return a polynomial; a number where it is constant."""
        terms = {powers: factor for powers, factor in terms.items() if factor != 0.0}
        return Form(self, terms) if any(terms) else terms.get((), 0.0)

    def affine(self, matrix: np.ndarray, forms: np.ndarray) -> np.ndarray:
        """Return ``matrix forms``, the forms being single variables."""
        columns = [next(iter(form.terms)) for form in forms]
        rows = np.empty(len(matrix), object)
        rows[:] = [self.form({columns[k]: float(row[k]) for k in np.flatnonzero(row)}) for row in matrix]
        return rows

    def named(self, form: Form) -> Form:
        """Return a variable that is equal to a polynomial; itself where it is one."""
        if len(form.terms) == 1 and form.degree == 1 and next(iter(form.terms.values())) == 1.0:
            return form
        return self._defined("same", form)

    def function(self, name: str, argument: Any) -> Form | float:
        """Return a function of a polynomial, or of a number."""
        if not isinstance(argument, Form):
            return float(FUNCTIONS[name](argument))
        return self._defined(name, argument)

    def power(self, argument: Any, exponent: float) -> Form | float:
        """Return a power with a constant exponent."""
        if not isinstance(argument, Form):
            return float(np.float64(argument) ** exponent)
        if exponent == 0.0:
            return 1.0
        if exponent in (1.0, 2.0):
            return argument if exponent == 1.0 else argument * argument
        return self._defined("power", self.named(argument), exponent)

    def _defined(self, function: str, argument: Form, exponent: float = 1.0) -> Form:
        key = (function, exponent, argument.key)
        if key not in self._known:
            definition = Definition(len(self.lower), function, argument, exponent)
            (self._known[key],) = self.variables(*self._bounds(definition))
            self.definitions.append(definition)
        return self._known[key]

    def _bounds(self, definition: Definition) -> Interval:
        """Return between what the function lies that a variable is defined by, a little more for rounding."""
        of = lambda k: Interval(np.array([self.lower[k]]), np.array([self.upper[k]]))
        total = Interval(np.zeros(1), np.zeros(1))
        with np.errstate(all="ignore"):
            for powers, factor in definition.argument.terms.items():
                term = Interval(np.array([factor]), np.array([factor]))
                square = len(powers) == 2 and powers[0] == powers[1]
                for each in (power(of(powers[0]), 2.0),) if square else map(of, powers):
                    term = product(term, each)
                total = Interval(total.lower + term.lower, total.upper + term.upper)
            low, high = _RANGES[definition.function](total, definition.exponent)
        low, high = np.nan_to_num(low, nan=-np.inf, neginf=-np.inf), np.nan_to_num(high, nan=np.inf, posinf=np.inf)
        return Interval(low - _ROUNDING * np.abs(low), high + _ROUNDING * np.abs(high))

    def evaluate(self, values: np.ndarray, forms: np.ndarray) -> np.ndarray:
        """Return forms where the variables that are not defined have these values, in their order."""
        defined = {each.variable: each for each in self.definitions}
        given, point = iter(values), np.empty(len(self.lower))
        for k in range(len(point)):
            point[k] = _value(defined[k], point) if k in defined else next(given)
        return np.array([at(form, point) for form in forms])


def at(form: Any, point: np.ndarray) -> float:
    """Return a polynomial, or a number, at a point of all variables."""
    if not isinstance(form, Form):
        return float(form)
    return sum(factor * math.prod(point[k] for k in powers) for powers, factor in form.terms.items())


def _value(definition: Definition, point: np.ndarray) -> float:
    argument = at(definition.argument, point)
    if definition.function == "same":
        return argument
    if definition.function == "power":
        return float(np.float64(argument) ** definition.exponent)
    return float(FUNCTIONS[definition.function](argument))
