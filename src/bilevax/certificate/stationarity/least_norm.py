"""Least-norm programs: the shortest vector under equations, and under sign conditions too by Clarabel."""

import dataclasses
from typing import Any

import clarabel
import numpy as np
import scipy.sparse as sp

from bilevax._support.programs import conic
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.convex.saddle_point import solve_saddle_point
from bilevax.model.compressed_rows import by_columns, put_together, unit_rows_at


@dataclasses.dataclass(frozen=True)
class LeastNorm:
    """The least norm, with the solution's residual added; the unknowns; the duals of the equations and of the signs."""

    distance: float
    unknowns: np.ndarray
    of_equations: np.ndarray
    of_signs: np.ndarray


def shortest(leading: int, matrix: Any, right: np.ndarray) -> float:
    """Return the least norm of the first ``leading`` unknowns, to rounding, under ``matrix unknowns = right``.

    The residual is added, so it is never less than the least norm; infinite where the equations are not solved. Full
    equations are one linear system; of a large sparse one Clarabel's factors are the sparser ones.
    """
    if not isinstance(matrix, np.ndarray):
        answer = least_norm(leading, matrix, right, np.zeros(0, int))
        return np.inf if answer is None else answer.distance
    count, total = matrix.shape
    square = sp.diags(np.concatenate([np.ones(leading), np.zeros(total - leading)]), format="csc")
    solution, _ = solve_saddle_point(square, matrix, np.full(count, -1), np.zeros(total), right)
    wrong = np.abs(matrix @ solution - right).max(initial=0.0)
    solved = np.isfinite(solution).all() and _negligible(wrong, solution)
    return float(np.linalg.norm(solution[:leading]) + wrong) if solved else np.inf


def least_norm(leading: int, matrix: Any, right: np.ndarray, nonnegative: np.ndarray) -> LeastNorm | None:
    """Return the least norm of the first ``leading`` unknowns, under the equations ``matrix unknowns = right``.

    The unknowns that are listed in ``nonnegative`` are nonnegative. None where these conditions contradict each other,
    or Clarabel does not solve the program.
    """
    count, total = matrix.shape
    scale = max(1.0, np.abs(right).max(initial=0.0))
    cones = [clarabel.ZeroConeT(count)]
    if len(nonnegative):
        cones.append(clarabel.NonnegativeConeT(len(nonnegative)))
    # The norm itself is minimised, |v| <= t as a cone with t last: its square to 1e-11 would give it to 3e-6 only.
    cones.append(clarabel.SecondOrderConeT(leading + 1))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = STATIONARITY.conic_accuracy
    settings.max_iter = STATIONARITY.conic_iterations
    signs = unit_rows_at(nonnegative, total)
    everything = put_together(
        [[matrix, None], [-signs, None], [None, -1.0], [-1.0, None]], [count, len(nonnegative), 1, leading], [total, 1]
    )
    if isinstance(everything, np.ndarray):
        everything = by_columns(everything)
    else:
        everything = sp.csc_matrix(everything)
        settings.direct_solve_method = "qdldl"  # faster on such sparse matrices than what Clarabel chooses
    bounds = np.concatenate([right / scale, np.zeros(len(nonnegative) + leading + 1)])
    cost, linear = sp.csc_matrix((total + 1, total + 1)), np.r_[np.zeros(total), 1.0]
    answer = conic(cost, linear, everything, bounds, cones, settings=settings)
    solution, dual = np.array(answer.x)[:total], np.array(answer.z)
    # What counts is the residual of the answer, not the status that the solver reports.
    negative = np.maximum(-solution[nonnegative], 0).max(initial=0.0)
    wrong = np.abs(matrix @ solution - right / scale).max(initial=0.0) + negative
    if not np.isfinite(solution).all() or not _negligible(wrong, solution):
        return None
    distance = float(np.linalg.norm(solution[:leading]) + wrong) * scale
    return LeastNorm(distance, scale * solution, dual[:count], dual[count : count + len(nonnegative)])


def _negligible(wrong: float, solution: np.ndarray) -> bool:
    return bool(wrong <= TOLERANCES.least_norm_residual * (1 + np.abs(solution).max(initial=0.0)))
