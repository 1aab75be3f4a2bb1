"""`Incumbent`: a point of the bilevel problem, evaluated exactly by code that the search does not use."""

import dataclasses

import numpy as np

from bilevax.exact.lower import constraints_at, objective_at
from bilevax.exact.phi import Phi, evaluate
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem
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


def incumbent_at(flat: FlatProblem, x: np.ndarray) -> Incumbent | None:
    """Return x with its lower level solved exactly; None where x is not in X, or there is no proven minimiser."""
    x = np.where(np.abs(x) <= PROOF.feasible * (1 + np.abs(x).max()), 0.0, x)
    x = np.clip(x, *flat.x_rows.intervals())  # where minimisers tie, rounding would choose among them
    if flat.x_rows.violation(x) > PROOF.on_x_set:
        return None
    phi = evaluate(flat, x)
    if not (phi.solved and np.isfinite(phi.value)) or upper_rows_at(flat, x, phi.lower.y).violation > PROOF.on_x_set:
        return None
    return Incumbent(phi.value, x, phi.lower.y, phi.lower.multipliers, phi)


def best_incumbent(flat: FlatProblem, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray) -> Incumbent | None:
    """Return the better of x with its lower level solved exactly, and (x, y) if y is a minimiser to all its digits.

    They differ where several minimisers tie at x: the leader has the choice, and rounding of x may take it away.
    """
    solved = incumbent_at(flat, x)
    outside = max(flat.x_rows.violation(x), upper_rows_at(flat, x, y).violation)
    if flat.problem.choice != "optimistic" or outside > PROOF.on_x_set:
        return solved
    value = flat.value("upper", x, y)
    if solved is not None and value >= solved.value - PROOF.feasible * (1 + abs(value)):
        return solved
    return Incumbent(value, x, y, multipliers) if _solves_lower_level(flat, x, y, multipliers) else solved


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
