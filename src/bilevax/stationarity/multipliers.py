"""What the multipliers of the active rows can be, where they are not unique.

The response of y to a direction d of x comes from the multiplier vectors with the largest ``lambda' b d``, and any one
of those tells it. Where ``b' lambda`` is the same for all vectors, the one at hand therefore serves every direction.
Otherwise the vectors change with d, and a row is held only if its multiplier is positive in all of them.
"""

import numpy as np
import scipy.sparse as sp
from scipy.optimize import OptimizeResult, linprog

from bilevax.stationarity.rows import MAX_DENSE, ActiveRows, project_out

_ONE_BY_ONE = 300
_MAX_PROGRAM = 5000


def unique_multipliers(a: sp.csr_matrix) -> np.ndarray:
    """Return which rows have a unique multiplier: those that vanish in a random vector of the null space of a'.

    None are known to, where the rows are too many for dense algebra.
    """
    if a.shape[0] * a.shape[1] > MAX_DENSE:
        return np.zeros(a.shape[0], bool)
    random = np.random.default_rng(0).standard_normal(a.shape[0])
    return np.abs(project_out(sp.csr_matrix(a.T), random)) <= 1e-7


def resolve_multipliers(active: ActiveRows, unique: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows count as weak, and which are held for some directions only."""
    weak, sometimes = active.weak.copy(), np.zeros(len(unique), bool)
    undecided = np.flatnonzero(~unique & ~active.equality)
    if len(undecided) == 0 or _same_on_coupled_rows(active):
        return weak, sometimes
    sometimes[undecided] = True
    if len(undecided) > _ONE_BY_ONE:
        return weak, sometimes  # too many to ask one by one: the stricter condition stays sufficient
    positive = 1e-7 * (1 + np.abs(active.multiplier).max())
    for row in undecided:
        cost = np.zeros(len(unique))
        cost[row] = 1.0
        # The vector at hand has already answered one of the two questions.
        if active.multiplier[row] > positive:
            least = _over_multipliers(active, cost)
            weak[row], sometimes[row] = False, not (least.status == 0 and least.fun > positive)
        else:
            largest = _over_multipliers(active, -cost)
            weak[row] = largest.status == 0 and -largest.fun <= positive
            sometimes[row] = not weak[row]
    return weak, sometimes


def _same_on_coupled_rows(active: ActiveRows) -> bool:
    """Return whether all multiplier vectors have the same ``b' lambda``: a random part of it decides."""
    cost = active.b @ np.random.default_rng(0).standard_normal(active.b.shape[1])
    # If y can follow x with all rows held, a v = cost, then lambda' cost = (a' lambda)' v is known.
    if np.abs(_off_range(active.a, cost)).max(initial=0.0) <= 1e-9 * (1 + np.abs(cost).max(initial=0.0)):
        return True
    if active.a.shape[1] > _MAX_PROGRAM:
        return False
    least, largest = _over_multipliers(active, cost), _over_multipliers(active, -cost)
    size = 1e-7 * (1 + np.abs(cost) @ np.abs(active.multiplier))
    return least.status == 0 and largest.status == 0 and -largest.fun - least.fun <= size


def _off_range(a: sp.csr_matrix, right: np.ndarray) -> np.ndarray:
    """Return what no v removes from ``right - a v``; rows of one entry that ask for zero fix their column first."""
    single = np.flatnonzero((np.diff(a.indptr) == 1) & (right == 0))
    free = np.ones(a.shape[1], bool)
    free[a.indices[a.indptr[single]]] = False
    rest = sp.csr_matrix(a[:, free])
    asked = (np.diff(rest.indptr) > 0) | (right != 0)
    return project_out(sp.csr_matrix(rest[asked].T), right[asked])


def _over_multipliers(active: ActiveRows, cost: np.ndarray) -> OptimizeResult:
    bounds = [(None, None) if free else (0, None) for free in active.equality]
    balance = active.a.T @ active.multiplier
    return linprog(cost, A_eq=active.a.T, b_eq=balance, bounds=bounds, method="highs")
