"""The tangent problem: rows that are not affine replaced by their tangents at a point, their curvature moved into g.

Let ``h(x, y) <= upper`` be such rows and (y, multipliers) solve the lower level at x. The tangent problem there has the
rows ``h + h_x dx + h_y dy <= upper`` and the lower objective

    g(x, y) + multipliers' (h(x, y) - tangents of h),

which is convex in y as g and h are. At the point both problems have the same minimiser, the same multipliers and the
same derivatives of the KKT conditions, so y*(x) and Phi agree to first order, kinks included: what is stationary for
one is for the other. And since tangents of convex rows contain the rows' own feasible set, a lower level whose tangents
contradict each other is infeasible.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.memory import Frozen, remembered
from bilevax.model.coupling import Coupling, LinearCoupling
from bilevax.model.derived import Family, derived, representative
from bilevax.model.objectives import properties_of
from bilevax.model.problem import BilevelProblem
from bilevax.model.row_functions import bent_rows_of
from bilevax.model.straight import weighted


class Bent(eqx.Module):
    """A lower objective with the curvature of rows: ``g + multipliers' (h - tangents of h)``."""

    lower: Any
    rows: tuple[Coupling, ...]
    x: PyTree
    y: PyTree
    multipliers: tuple[np.ndarray, ...]

    def __call__(self, x: PyTree, y: PyTree, *data: PyTree) -> Any:
        numbers = data[0] if data else None
        total = self.lower(x, y, *data)
        steps = trees.subtract(x, self.x), trees.subtract(y, self.y)
        for part, weights in zip(self.rows, self.multipliers, strict=True):
            value = lambda x, y, part=part: trees.flatten(part.value(x, y, numbers))
            there, slope = jax.jvp(value, (self.x, self.y), steps)
            total = total + weights @ (value(x, y) - there - slope)
        return total


@remembered
def upper_row_kinks(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> tuple[Any, ...]:
    """Return the kinks of the upper rows that are not affine."""
    found = []
    for part in problem.upper_rows:
        if not part.affine:
            alone = derived(problem, upper=weighted(part, problem, x_like, y_like))
            found += properties_of(alone, "upper", x_like, y_like).refused
    return tuple(found)


def tangent_problem(
    problem: BilevelProblem, x: PyTree, y: PyTree, multipliers: tuple[np.ndarray, ...]
) -> BilevelProblem:
    """Return the tangent problem at (x, y), given the flat multipliers of each coupling (affine ones need none).

    Its couplings are those of the problem, in their order, with a `LinearCoupling` for each that is not affine.
    """
    flat_x, flat_y = trees.flatten_host(x), trees.flatten_host(y)
    shapes = Frozen(trees.shapes(x)), Frozen(trees.shapes(y))
    coupling, bent, weights = [], [], []
    for part, rows, multiplier in zip(problem.coupling, bent_rows_of(problem, *shapes), multipliers, strict=True):
        if rows is None:
            coupling.append(part)
            continue
        b, a = rows.jacobian(flat_x, flat_y)
        shift = rows.values(flat_x, flat_y) - b @ flat_x - a @ flat_y
        coupling.append(LinearCoupling(a.toarray(), b.toarray(), upper=rows.upper - shift))
        bent.append(part)
        weights.append(np.maximum(multiplier, 0.0))
    host = lambda tree: jax.tree.map(np.asarray, tree)
    lower = Bent(problem.lower, tuple(bent), host(x), host(y), tuple(weights))
    return derived(problem, _family(problem, *shapes), lower=lower, coupling=tuple(coupling))


@remembered
def _family(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> Family:
    """Return the family of all tangent problems of a problem: any numbers that are not special stand for all."""
    random = np.random.default_rng(0)
    x, y = (jax.tree.map(lambda leaf: random.uniform(0.1, 0.9, leaf.shape), like.tree) for like in (x_like, y_like))
    bent = tuple(part for part in problem.coupling if not part.affine)
    sizes = (trees.size(part.shapes(x_like.tree, y_like.tree, problem.data)) for part in bent)
    typical = Bent(problem.lower, bent, x, y, tuple(np.ones(size) for size in sizes))
    return Family(representative(problem, "upper"), derived(problem, lower=typical, coupling=None))
