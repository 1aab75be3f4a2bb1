"""Convex quadratic programs in a box, by Newton steps projected onto it."""

import numpy as np

from bilevax.solvers.default.programs.cholesky import factorise, solve_factored
from bilevax.solvers.default.settings import PROGRAMS


def box_step(gradient: np.ndarray, hessian: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """Return the minimiser of a convex quadratic model within a box that holds 0, by Newton steps projected onto it.

    A hundred times faster than an interior point where it works; None where it gets stuck between bounds.
    """
    model = lambda step: float(gradient @ step + 0.5 * step @ (hessian @ step))
    step, value = np.zeros(len(gradient)), 0.0
    for _ in range(PROGRAMS.box_rounds):
        slope = gradient + hessian @ step
        free = ~(((step <= low) & (slope > 0)) | ((step >= high) & (slope < 0)))
        if np.abs(slope[free]).max(initial=0.0) <= 1e-10 * np.abs(gradient).max(initial=0.0):
            return step
        try:
            factor = factorise(hessian[np.ix_(free, free)])
        except np.linalg.LinAlgError:
            return None
        along = np.zeros(len(step))
        along[free] = -solve_factored(factor, slope[free])
        for length in _LENGTHS:
            trial = np.clip(step + length * along, low, high)
            if model(trial) <= value + 1e-4 * float(slope @ (trial - step)) < value:
                break
        else:
            return None
        step, value = trial, model(trial)
    return None


_LENGTHS = 0.5 ** np.arange(12)
