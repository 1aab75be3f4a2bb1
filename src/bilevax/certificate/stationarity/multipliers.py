"""What the multipliers of the active rows can be, where they are not unique.

The response of y to a direction d of x comes from the multiplier vectors with the largest ``lambda' b d``, and any one
of those tells it. Where ``b' lambda`` is the same for all vectors, the one at hand therefore serves every direction.
Otherwise the vectors change with d, and a row is held whatever d only if no face of them silences it.

A row's multiplier vanishes on the whole face of vectors with the largest ``lambda' cost`` exactly where some v has

    a_i v > cost_i,   a v >= cost on all rows,   a v = cost on equalities and on rows that carry a force on that face,

so one linear program tells of all rows at once. A row that is silent on none of the faces looked at counts as held:
those of each x along which the vectors differ, both ways, and random ones.
"""

import functools

import numpy as np
import scipy.sparse as sp
from scipy.optimize import OptimizeResult

from bilevax.convex.programs import linprog
from bilevax.exact.active_rows import MAX_DENSE, ActiveRows, project_out

_MAX_COORDINATES = 40
_RANDOM_FACES = 64, 8  # with few variables, with many
_MANY = 2000


def unique_multipliers(a: sp.csr_matrix) -> np.ndarray:
    """Return which rows have a unique multiplier: those that vanish in a random vector of the null space of a'.

    None are known to, where the rows are too many for dense algebra.
    """
    if a.shape[0] * a.shape[1] > MAX_DENSE:
        return np.zeros(a.shape[0], bool)
    random = np.random.default_rng(0).standard_normal(a.shape[0])
    return np.abs(project_out(sp.csr_matrix(a.T), random)) <= 1e-7


class MultiplierSet:
    """All multiplier vectors of the active rows, once multipliers within the margin of zero are zero."""

    def __init__(self, active: ActiveRows):
        self.active = active
        self.known = np.where(active.weak, 0.0, active.multiplier)
        self.balance = active.a.T @ self.known

    def resolve(self, unique: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows count as weak, and which are held for some directions only."""
        active, random = self.active, np.random.default_rng(0)
        nowhere = np.zeros(len(unique), bool)
        if unique.all() or self._same_on_coupled_rows():
            return active.weak, nowhere
        weak = self._vanishing(self.known, np.zeros(len(self.known)))
        # Along which x the vectors differ: a random change of them, on the rows that carry a force at all, tells.
        change = project_out(sp.csr_matrix(active.a[~weak].T), random.standard_normal(int((~weak).sum())))
        coordinates = np.flatnonzero(np.abs(active.b[~weak].T @ change) > 1e-7)
        strictest = weak, ~weak & ~active.equality
        if len(coordinates) > _MAX_COORDINATES:
            return strictest
        one_by_one, size = np.zeros((len(coordinates), active.b.shape[1])), len(coordinates)
        one_by_one[np.arange(size), coordinates] = 1.0
        mixed = random.standard_normal((_RANDOM_FACES[active.a.shape[1] > _MANY], active.b.shape[1]))
        sometimes = nowhere
        for direction in (*one_by_one, *-one_by_one, *(mixed if size > 1 else ())):
            cost = active.b @ direction
            top = self._least(-cost)
            if top.status != 0:
                return strictest
            sometimes = sometimes | (~weak & self._vanishing(top.x, cost))
        return weak, sometimes

    def can_vanish(self, rows: np.ndarray) -> bool:
        """Return whether some vector is zero on all these rows."""
        return self._least(np.zeros(len(self.known)), rows).status != 2  # 2: proven infeasible

    def _vanishing(self, multiplier: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """Return the rows without force on the face of vectors with the largest ``lambda' cost``, one of them given."""
        a, equality = self.active.a, self.active.equality
        carrying = equality | (multiplier > 1e-9 * (1 + np.abs(multiplier).max()))
        silent = np.flatnonzero(~carrying)
        # Unknowns: v, a factor of at least 1 on the cost, and what a row lacks of a distance of 1.
        of_carrying = sp.hstack([a[carrying], -cost[carrying][:, None], sp.csr_matrix((carrying.sum(), len(silent)))])
        of_silent = sp.hstack([-a[silent], cost[silent][:, None], -sp.eye(len(silent))])
        n_y = a.shape[1]
        apart = linprog(
            np.r_[np.zeros(n_y + 1), np.ones(len(silent))],
            A_eq=of_carrying,
            b_eq=np.zeros(int(carrying.sum())),
            A_ub=of_silent,
            b_ub=-np.ones(len(silent)),
            bounds=[(None, None)] * n_y + [(1, None)] + [(0, 1)] * len(silent),
            method="highs",
        )
        vanishing = ~carrying
        if apart.status == 0:
            vanishing[silent] = apart.x[n_y + 1 :] < 0.5
        return vanishing

    def _same_on_coupled_rows(self) -> bool:
        """Return whether all vectors have the same ``b' lambda``: a random part of it decides."""
        active = self.active
        cost = active.b @ np.random.default_rng(0).standard_normal(active.b.shape[1])
        # If y can follow x with all rows held, a v = cost, then lambda' cost = (a' lambda)' v is known.
        if np.abs(_off_range(active.a, cost)).max(initial=0.0) <= 1e-9 * (1 + np.abs(cost).max(initial=0.0)):
            return True
        least, largest = self._least(cost), self._least(-cost)
        size = 1e-7 * (1 + np.abs(cost) @ np.abs(active.multiplier))
        return least.status == 0 and largest.status == 0 and -largest.fun - least.fun <= size

    def _least(self, cost: np.ndarray, zero: np.ndarray | None = None) -> OptimizeResult:
        """Minimise over the vectors, over those that are zero on some rows where asked."""
        low = np.where(self.active.equality, -np.inf, 0.0)
        high = np.full(len(low), np.inf)
        high[[] if zero is None else zero] = 0.0
        return linprog(
            cost, A_eq=self._transposed, b_eq=self.balance, bounds=np.column_stack([low, high]), method="highs"
        )

    @functools.cached_property
    def _transposed(self) -> sp.csc_matrix:
        return sp.csc_matrix(self.active.a.T)


def _off_range(a: sp.csr_matrix, right: np.ndarray) -> np.ndarray:
    """Return what no v removes from ``right - a v``; rows of one entry that ask for zero fix their column first."""
    single = np.flatnonzero((np.diff(a.indptr) == 1) & (right == 0))
    free = np.ones(a.shape[1], bool)
    free[a.indices[a.indptr[single]]] = False
    rest = sp.csr_matrix(a[:, free])
    asked = (np.diff(rest.indptr) > 0) | (right != 0)
    return project_out(sp.csr_matrix(rest[asked].T), right[asked])
