"""A convex program in coordinates in which its objective is half a squared distance.

Equality rows are eliminated, curved directions are stretched until the objective is ``constant + |s|^2 / 2``, and rows
have length one. Then any multipliers whatever bound the objective from below, without residuals: the minimum of
``|s|^2 / 2 + multipliers' (rows s - bounds)`` over all s is known in closed form. Directions in which the objective is
linear stay as they are; there, and only there, multipliers have to balance it.
"""

import dataclasses

import numpy as np
import scipy.linalg

from bilevax.proof.program import ComplementarityProgram
from bilevax.proof.settings import PROOF


class NotConvex(Exception):
    """The objective curves down on the equalities: a minimum of the relaxation is no bound that can be computed."""


class Contradiction(Exception):
    """The equalities contradict each other: the program has no feasible point."""


@dataclasses.dataclass(frozen=True)
class LeastDistance:
    """Minimise ``constant + |s_c|^2 / 2 + slope' s_f`` with ``lower <= rows s <= upper``, s = (s_c, s_f).

    ``curved`` is how many entries s_c has. A point is ``origin + basis s`` in the program's own coordinates.
    ``of_row`` tells which row here is which row there (-1: none, since it is no row but a constant).
    """

    curved: int
    constant: float
    slope: np.ndarray
    rows: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    origin: np.ndarray
    basis: np.ndarray
    of_row: np.ndarray

    def point(self, s: np.ndarray) -> np.ndarray:
        """Return the point in the program's own coordinates."""
        return self.origin + self.basis @ s


def reduce(program: ComplementarityProgram) -> LeastDistance:
    """Return a program in these coordinates; raise `NotConvex` or `Contradiction`."""
    equal = program.lower == program.upper
    start, space = _solutions(program.matrix[equal], program.lower[equal])
    curvature = space.T @ program.hessian @ space
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    largest = max(np.abs(values).max(initial=0.0), 1e-300)
    if values.min(initial=0.0) < -PROOF.negative * largest:
        raise NotConvex("f is not convex in x and y together")
    curved = values > PROOF.flat * largest
    order = np.concatenate([np.flatnonzero(curved), np.flatnonzero(~curved)])
    stretch = np.where(curved, 1 / np.sqrt(np.where(curved, values, 1.0)), 1.0)[order]
    basis, count = space @ (vectors[:, order] * stretch), int(curved.sum())
    gradient = basis.T @ (program.hessian @ start + program.cost)
    shift = -gradient[:count]  # the minimiser without rows is the origin
    origin = start + basis[:, :count] @ shift
    constant = program.constant + program.cost @ start + 0.5 * start @ program.hessian @ start - 0.5 * shift @ shift
    slope = gradient[count:]
    slope = np.where(np.abs(slope) > PROOF.rounding * (1 + np.abs(gradient).max(initial=0.0)), slope, 0.0)
    return _with_rows(program, np.flatnonzero(~equal), count, float(constant), slope, origin, basis)


def _with_rows(
    program: ComplementarityProgram,
    kept: np.ndarray,
    curved: int,
    constant: float,
    slope: np.ndarray,
    origin: np.ndarray,
    basis: np.ndarray,
) -> LeastDistance:
    """Return the program with its inequality rows, of length one each."""
    rows, offset = program.matrix[kept] @ basis, program.matrix[kept] @ origin
    lengths = np.linalg.norm(rows, axis=1)
    sizes = np.linalg.norm(program.matrix[kept], axis=1) * np.linalg.norm(basis, 2) if len(kept) else np.zeros(0)
    real = lengths > PROOF.rounding * sizes
    lower, upper = program.lower[kept] - offset, program.upper[kept] - offset
    slack = PROOF.feasible * (1 + np.abs(offset))
    if np.any(~real & ((lower > slack) | (upper < -slack))):
        raise Contradiction("the rows contradict each other")
    of_row = np.full(len(program.lower), -1)
    of_row[kept[real]] = np.arange(real.sum())
    unit = 1 / lengths[real]
    rows = rows[real] * unit[:, None]
    rows[np.abs(rows) <= PROOF.noise] = 0.0
    return LeastDistance(curved, constant, slope, rows, lower[real] * unit, upper[real] * unit, origin, basis, of_row)


def _solutions(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a solution of ``matrix z = right`` and an orthonormal basis of the directions that keep it one."""
    size = matrix.shape[1]
    if not len(matrix):
        return np.zeros(size), np.eye(size)
    full, triangle, order = scipy.linalg.qr(matrix.T, pivoting=True)
    diagonal = np.abs(np.diag(triangle))
    rank = int(np.sum(diagonal > PROOF.dependent * max(diagonal[0], 1e-300)))
    inner = scipy.linalg.solve_triangular(triangle[:rank, :rank], right[order[:rank]], trans="T")
    start, space = full[:, :rank] @ inner, full[:, rank:]
    sizes = np.abs(matrix) @ np.abs(start) + np.abs(right)
    if np.any(np.abs(matrix @ start - right) > PROOF.feasible * (1 + sizes)):
        raise Contradiction("the lower level's optimality conditions contradict each other")
    return start, space
