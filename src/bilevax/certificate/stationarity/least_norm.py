"""Least-norm programs: the shortest vector under equations, and under sign conditions too by Clarabel."""

import dataclasses
from typing import Any

import clarabel
import numpy as np
import qdldl
import scipy.sparse as sp

from bilevax._support import clock
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

    The residual is added, so it is never less than the least norm; infinite where the equations are not solved. They
    are one linear system. Where a sparse one is not solved to rounding, Clarabel is asked.
    """
    count, total = matrix.shape
    square, sparse = np.repeat([1.0, 0.0], [leading, total - leading]), not isinstance(matrix, np.ndarray)
    if sparse:
        solution = _sparse_shortest(square, sp.csr_matrix(matrix), right)
    else:
        curved = sp.diags(square, format="csc")
        solution, _ = solve_saddle_point(curved, matrix, np.full(count, -1), np.zeros(total), right)
    wrong = np.abs(matrix @ solution - right).max(initial=0.0)
    allowed = TOLERANCES.least_norm_rounding if sparse else TOLERANCES.least_norm_residual
    if np.isfinite(solution).all() and wrong <= allowed * (1 + np.abs(solution).max(initial=0.0)):
        return float(np.linalg.norm(solution[:leading]) + wrong)
    answer = least_norm(leading, matrix, right, np.zeros(0, int)) if sparse else None
    return np.inf if answer is None else answer.distance


def _sparse_shortest(square: np.ndarray, matrix: sp.csr_matrix, right: np.ndarray) -> np.ndarray:
    """Return the unknowns for which their weighted squares are least, by the optimality conditions.

    They are regularised to be quasi-definite, which refinement takes out again; NaN where they have no factor then.
    """
    (count, total), transposed, factor = matrix.shape, matrix.T.tocsr(), None
    for regular in STATIONARITY.regularisations:
        clock.check()
        curved, lower = sp.diags(np.maximum(square, regular)), -regular * sp.eye(count)
        try:
            factor = qdldl.Solver(sp.csc_matrix(sp.bmat([[curved, transposed], [None, lower]])), upper=True)
            break
        except RuntimeError:
            continue  # by rounding it is not quasi-definite
    if factor is None:
        return np.full(total, np.nan)
    solution, left = np.zeros(total + count), np.concatenate([np.zeros(total), right])
    while True:
        trial = solution + factor.solve(left)
        u, dual = np.split(trial, [total])
        error = np.concatenate([-(square * u + transposed @ dual), right - matrix @ u])
        if not np.abs(error).max(initial=0.0) < np.abs(left).max(initial=0.0):
            return solution[:total]
        solution, left = trial, error


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
