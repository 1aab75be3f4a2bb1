"""Rows written as a `ConvexCoupling` that are affine after all: they are known by their jaxpr, and treated as such."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.memory import Frozen, remembered
from bilevax.model.coupling import AffineCoupling, ConvexCoupling, Coupling
from bilevax.model.derived import DerivedProblem, derived
from bilevax.model.objectives import properties_of
from bilevax.model.problem import BilevelProblem


class WeightedRows(eqx.Module):
    """A sum of rows as an objective."""

    rows: Coupling
    weights: np.ndarray

    def __call__(self, x: PyTree, y: PyTree, *data: PyTree) -> Any:
        return self.weights @ trees.flatten(self.rows.value(x, y, data[0] if data else None))


def weighted(part: Coupling, problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> WeightedRows:
    """Return the rows of a coupling in a sum in which they do not cancel."""
    count = trees.size(part.shapes(x_like.tree, y_like.tree, problem.data))
    return WeightedRows(part, np.random.default_rng(0).uniform(0.5, 1.5, count))


def straightened(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> BilevelProblem:
    """Return the problem with an `AffineCoupling` for each `ConvexCoupling` that is proven to be affine.

    One of a family was made from a problem that is straightened already.
    """
    if isinstance(problem, DerivedProblem):
        return problem
    bent = any(not part.affine for part in (*problem.coupling, *problem.upper_rows))
    return _straightened(problem, x_like, y_like) if bent else problem


@remembered
def _straightened(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> BilevelProblem:
    def straight(part: Coupling) -> Coupling:
        if not isinstance(part, ConvexCoupling):
            return part
        alone = derived(problem, lower=weighted(part, problem, x_like, y_like))
        degree = properties_of(alone, "lower", x_like, y_like).degree
        return part if degree is None or degree > 1 else AffineCoupling(part.fn, upper=part.upper)

    levels = problem.coupling, problem.upper_rows
    found = [tuple(map(straight, rows)) for rows in levels]
    if all(new is old for level, rows in zip(found, levels, strict=True) for new, old in zip(level, rows, strict=True)):
        return problem
    forms = problem.coupling_form, problem.upper_rows_form
    coupling, upper_rows = (form.restore(rows) for rows, form in zip(found, forms, strict=True))
    return derived(problem, coupling=coupling, upper_rows=upper_rows)
