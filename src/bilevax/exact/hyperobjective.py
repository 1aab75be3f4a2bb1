"""Phi as a function of x: the lower level solved exactly at each point, without a certificate."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax._support.threads import blas_threads
from bilevax.convex.problem import Outcome
from bilevax.exact.lower import smallest_relaxation_at
from bilevax.exact.phi import evaluate
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.prices import usual
from bilevax.model.problem import BilevelProblem, validate


class Evaluation(NamedTuple):
    """Phi at a point.

    Attributes
    ----------
    value, y
        Phi(x) and the lower level's minimiser. Where none is proven, ``value`` is NaN and ``y`` is not a minimiser.
    outcome
        What was found of the lower level.
    infeasibility
        The smallest relaxation of the rows for which the lower level is feasible; 0 where it is.
    """

    value: float
    y: PyTree
    outcome: Outcome
    infeasibility: float


class Hyperobjective:
    """Phi of a problem as a function of x, on the host in float64: the value that `certify` would give.

    Parameters
    ----------
    problem
        The problem.
    x_like
        An example of x.
    y_like
        An example of y, where the problem does not tell its shape.
    """

    def __init__(self, problem: BilevelProblem, x_like: PyTree, y_like: PyTree = None):
        self._asked = usual(problem, x_like, y_like)
        with float64():
            x, shapes, _ = validate(self._asked.problem, x_like, self._asked.start(y_like))
        self._flat = equilibrated(FlatProblem(self._asked.problem, x, shapes), x)

    def __call__(self, x: PyTree) -> Evaluation:
        """Solve the lower level at x, and evaluate f there."""
        flat = self._flat
        point = flat.x_flat(x)
        with blas_threads(max(flat.n_y, min(trees.size(flat.row_shapes), 2 * flat.n_y))):
            phi = evaluate(flat, point)
        outcome = phi.lower.outcome
        missing = smallest_relaxation_at(flat, point) if outcome is Outcome.INFEASIBLE else 0.0
        value = phi.value / flat.scales.upper if phi.solved else np.nan
        return Evaluation(value, self._asked.y(flat.y_tree(phi.lower.y)), outcome, missing)

    def upper(self, x: PyTree, y: Any) -> float:
        """Return f(x, y), whatever y: the value that a method reports before the lower level is solved exactly.

        NaN where f depends on the multipliers, too.
        """
        flat = self._flat
        if flat.n_y != len(trees.flatten_host(y)):
            return np.nan
        return flat.value("upper", flat.x_flat(x), flat.y_flat(y)) / flat.scales.upper
