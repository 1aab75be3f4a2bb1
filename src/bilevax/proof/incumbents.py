"""`Incumbent`: a point of the bilevel problem, evaluated exactly by code that the search does not use."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax.exact.lower import constraints_at, objective_at
from bilevax.exact.phi import Phi, evaluate
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem
from bilevax.model.scales import Scales
from bilevax.proof.program import ComplementarityProgram
from bilevax.proof.settings import PROOF


@dataclasses.dataclass(frozen=True)
class Incumbent:
    """A point with its value, in natural units, and the multipliers of the lower level's rows and those of Y.

    ``phi`` is the evaluation of Phi from which they are; None where they were checked, and not found by it.
    """

    value: float
    x: np.ndarray
    y: np.ndarray
    multipliers: np.ndarray
    phi: Phi | None = None


def incumbent_at(flat: FlatProblem, x: np.ndarray, start: np.ndarray | None = None) -> Incumbent | None:
    """Return x with its lower level solved exactly; None where x is not in X, or there is no proven minimiser.

    A start for y saves time where the minimiser is the only one. Where it is not, the start would choose among them.
    """
    x = np.where(np.abs(x) <= PROOF.feasible * (1 + np.abs(x).max()), 0.0, x)
    x = np.clip(x, *flat.x_rows.intervals())  # where minimisers tie, rounding would choose among them
    if flat.x_rows.violation(x) > PROOF.on_x_set:
        return None
    phi = evaluate(flat, x, start)
    if start is not None and not phi.lower.unique:
        phi = evaluate(flat, x)
    if not (phi.solved and np.isfinite(phi.value)) or upper_rows_at(flat, x, phi.lower.y).violation > PROOF.on_x_set:
        return None
    return Incumbent(phi.value, x, phi.lower.y, phi.lower.multipliers, phi)


def best_incumbent(flat: FlatProblem, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray) -> Incumbent | None:
    """Return the better of x with its lower level solved exactly, and (x, y) if y is a minimiser to all its digits.

    They differ where several minimisers tie at x: the leader has the choice, and rounding of x may take it away.
    """
    solved = incumbent_at(flat, x, y)
    outside = max(flat.x_rows.violation(x), upper_rows_at(flat, x, y).violation)
    if flat.problem.choice != "optimistic" or outside > PROOF.on_x_set:
        return solved
    value = flat.value("upper", x, y)
    if solved is not None and value >= solved.value - PROOF.feasible * (1 + abs(value)):
        return solved
    return Incumbent(value, x, y, multipliers) if _solves_lower_level(flat, x, y, multipliers) else solved


class Exactly:
    """What a point of a program is worth, by `best_incumbent` of its problem; it may travel to other processes."""

    def __init__(self, flat: FlatProblem, program: ComplementarityProgram):
        self._flat, self._program = flat, program

    def __call__(self, z: np.ndarray) -> Incumbent | None:
        return best_incumbent(self._flat, *self._program.parts(z))

    def __reduce__(self) -> tuple[Any, ...]:
        flat = self._flat
        return _exactly, (flat.problem, flat.x_like, flat.y_like, flat.scales, self._program)


def _exactly(problem: BilevelProblem, x_like: PyTree, y_like: PyTree, scales: Scales, program: Any) -> Exactly:
    return Exactly(FlatProblem(problem, x_like, y_like).in_units(scales), program)


def _solves_lower_level(flat: FlatProblem, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray) -> bool:
    """Return whether y and its multipliers satisfy the lower level's optimality conditions, in natural units."""
    rows, gradient = constraints_at(flat, x), objective_at(flat, x).gradient(y)
    value = rows.matrix @ y
    bound = np.where(multipliers > 0, rows.upper, rows.lower)
    slack = np.where(multipliers == 0, 0.0, np.abs(bound - value))
    off = (
        np.abs(gradient + rows.matrix.T @ multipliers).max() / (1 + np.abs(gradient).max()),
        np.maximum(rows.lower - value, value - rows.upper).max(initial=0.0) / (1 + np.abs(y).max()),
        np.minimum(np.abs(multipliers), slack).max(initial=0.0),
    )
    return max(off) <= PROOF.feasible
