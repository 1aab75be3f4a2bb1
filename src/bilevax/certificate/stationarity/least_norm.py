"""Least-norm programs: the shortest vector under equations and sign conditions, by Clarabel."""

import dataclasses

import clarabel
import numpy as np
import scipy.sparse as sp

from bilevax._support.programs import conic
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.tolerances import TOLERANCES


@dataclasses.dataclass(frozen=True)
class LeastNorm:
    """The least norm, with the solution's residual added; the unknowns; the duals of the equations and of the signs."""

    distance: float
    unknowns: np.ndarray
    of_equations: np.ndarray
    of_signs: np.ndarray


def least_norm(
    leading: int,
    total: int,
    equations: list[tuple[sp.spmatrix, np.ndarray]],
    nonnegative: np.ndarray,
) -> LeastNorm | None:
    """Return the least norm of the first ``leading`` of ``total`` unknowns.

    The unknowns satisfy the equations, pairs of a matrix and a right-hand side, and those listed in ``nonnegative`` are
    nonnegative. None where these conditions contradict each other, or Clarabel does not solve the program.
    """
    matrix = sp.vstack([left for left, _ in equations], format="csr")
    right = np.concatenate([value for _, value in equations])
    scale = max(1.0, np.abs(right).max(initial=0.0))
    signs = sp.eye(total, format="csr")[nonnegative]
    cones = [clarabel.ZeroConeT(matrix.shape[0])]
    if signs.shape[0]:
        cones.append(clarabel.NonnegativeConeT(signs.shape[0]))
    # The norm itself is minimised, |v| <= t as a cone with t last: its square to 1e-11 would give it to 3e-6 only.
    cones.append(clarabel.SecondOrderConeT(leading + 1))
    bound = sp.csr_matrix(([1.0], ([0], [total])), shape=(1, total + 1))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = STATIONARITY.conic_accuracy
    settings.max_iter = STATIONARITY.conic_iterations
    rows = sp.vstack([matrix, -signs])
    everything = sp.vstack(
        [sp.hstack([rows, sp.csr_matrix((rows.shape[0], 1))]), -bound, -sp.eye(leading, total + 1)], format="csc"
    )
    bounds = np.concatenate([right / scale, np.zeros(signs.shape[0] + leading + 1)])
    cost, linear = sp.csc_matrix((total + 1, total + 1)), np.r_[np.zeros(total), 1.0]
    answer = conic(cost, linear, everything, bounds, cones, settings=settings)
    solution, dual = np.array(answer.x)[:total], np.array(answer.z)
    # What counts is the residual of the answer, not the status that the solver reports.
    wrong = np.abs(matrix @ solution - right / scale).max(initial=0.0) + np.maximum(-(signs @ solution), 0).max(
        initial=0.0
    )
    if not np.isfinite(solution).all() or not wrong <= TOLERANCES.least_norm_residual * (1 + np.abs(solution).max()):
        return None
    distance = float(np.linalg.norm(solution[:leading]) + wrong) * scale
    split = matrix.shape[0]
    return LeastNorm(distance, scale * solution, dual[:split], dual[split : split + signs.shape[0]])
