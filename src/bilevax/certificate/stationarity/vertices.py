"""All vertices of a small set of multiplier vectors: with these at hand no linear program is needed."""

import itertools
import math

import numpy as np
from scipy.optimize import nnls

from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.tolerances import TOLERANCES


def vertices(a: np.ndarray, equality: np.ndarray, balance: np.ndarray) -> np.ndarray | None:
    """Return the vertices of {lambda : a' lambda = balance, lambda >= 0 but for equalities}, one a row.

    None where the set is not clearly bounded, where there may be too many vertices, or where it is a matter of rounding
    which rows are independent.
    """
    signed = np.flatnonzero(~equality)
    # The parts of rows and balance that no equality can take.
    orthogonal = np.linalg.qr(a[equality].T)[0]
    rows, target = a[signed] - (a[signed] @ orthogonal) @ orthogonal.T, balance - orthogonal @ (orthogonal.T @ balance)
    if not len(signed) or not _clearly_bounded(rows):
        return None
    sizes, basis = np.linalg.svd(rows)[1:]
    rank = int(np.sum(sizes > TOLERANCES.clearly_independent))
    if np.any(sizes[rank:] > TOLERANCES.clearly_dependent) or math.comb(len(signed), rank) > STATIONARITY.vertices:
        return None
    reduced, wanted = rows @ basis[:rank].T, basis[:rank] @ target
    sets = np.array(list(itertools.combinations(range(len(signed)), rank)), int)
    smallest = np.linalg.svd(reduced[sets], compute_uv=False)[:, -1]
    independent = smallest > TOLERANCES.clearly_independent
    if np.any(~independent & (smallest > TOLERANCES.clearly_dependent)):
        return None
    sets = sets[independent]
    systems = np.swapaxes(reduced[sets], 1, 2)
    basic = np.linalg.solve(systems, np.broadcast_to(wanted[:, None], (len(sets), rank, 1)))[:, :, 0]
    zero = TOLERANCES.positive_multiplier * (1 + np.abs(basic).max(initial=0.0))
    feasible = np.all(basic >= -zero, axis=1)
    found = np.zeros((int(feasible.sum()), len(equality)))
    np.put_along_axis(found, signed[sets[feasible]], np.where(basic > zero, basic, 0.0)[feasible], axis=1)
    rest = (balance - found @ a) @ orthogonal
    found[:, equality] = np.linalg.lstsq(a[equality].T @ np.eye(int(equality.sum())), orthogonal @ rest.T, rcond=None)[
        0
    ].T
    missed = np.abs(found @ a - balance).max(initial=0.0)
    return found if len(found) and missed <= zero else None


def _clearly_bounded(rows: np.ndarray) -> bool:
    """Return whether no nonnegative combination of the rows is anywhere near zero."""
    lengths = np.linalg.norm(rows, axis=1)
    if lengths.min() <= TOLERANCES.clearly_independent:
        return False
    unit = rows / lengths[:, None]
    try:
        weights = nnls(np.vstack([unit.T, np.ones(len(unit))]), np.r_[np.zeros(rows.shape[1]), 1.0])[0]
    except RuntimeError:  # too many iterations
        return False
    return float(np.linalg.norm(weights @ unit)) > TOLERANCES.clearly_independent * weights.sum()


def extreme(points: np.ndarray) -> np.ndarray:
    """Return which points are not in the convex hull of the others, or so close to it that they may not be."""
    found = np.ones(len(points), bool)
    size = 1 + np.abs(points).max(initial=0.0)
    for index, point in enumerate(points):
        others = np.delete(points, index, axis=0)
        if len(others):
            system = np.vstack([(others - point).T / size, np.ones(len(others))])
            try:
                weights = nnls(system, np.r_[np.zeros(points.shape[1]), 1.0])[0]
            except RuntimeError:  # too many iterations: it may be one
                continue
            nearest = weights @ system[:-1].T / weights.sum()
            found[index] = np.linalg.norm(nearest) > TOLERANCES.clearly_dependent
    return found
