"""Problems made from a user's: the same but for some parts, whose numbers change from one to the next.

What f and g are, their kinks, their convexity and their degree, is found out on their jaxprs, which takes a thousand
times as long as an evaluation. A family of problems that differ in numbers only shares what is found out about one.
"""

import dataclasses
from typing import Any

import equinox as eqx

from bilevax.model.problem import BilevelProblem, Level


class Family:
    """The problems that stand for all of a family, for f and for g: what is found out about theirs holds for all."""

    def __init__(self, upper: BilevelProblem, lower: BilevelProblem):
        self.of: dict[Level, BilevelProblem] = {"upper": upper, "lower": lower}


class DerivedProblem(BilevelProblem):
    """A problem of a family."""

    family: Family = eqx.field(static=True)

    def __init__(self, family: Family, parts: dict[str, Any]):
        super().__init__(**parts)
        self.family = family


def derived(problem: BilevelProblem, family: Family | None = None, **changes: Any) -> BilevelProblem:
    """Return a problem with other parts, of its own family or of none."""
    names = [
        field.name
        for field in dataclasses.fields(problem)
        if field.name != "family" and not field.name.endswith("_form")
    ]
    parts = {name: getattr(problem, name) for name in names}
    forms = {"coupling": problem.coupling_form, "upper_rows": problem.upper_rows_form}
    parts |= {name: form.restore(parts[name]) for name, form in forms.items()} | changes
    return BilevelProblem(**parts) if family is None else DerivedProblem(family, parts)


def representative(problem: BilevelProblem, level: Level) -> BilevelProblem:
    """Return the problem whose objective is looked at to find out about that of this one."""
    return problem.family.of[level] if isinstance(problem, DerivedProblem) else problem
