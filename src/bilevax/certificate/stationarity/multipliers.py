"""What the multipliers of the active rows can be, where they are not unique.

As x moves in a direction d, y follows as told by any multiplier vector lambda with the largest ``lambda' b d``. If
``b' lambda`` is the same for all multiplier vectors, the one at hand therefore serves every direction. Otherwise the
vectors that count change with d, and a row is strongly active for all d only if its multiplier is positive on every
such face {lambda : ``lambda' b d`` is largest} of the set of multiplier vectors.

A row's multiplier is zero on the whole face with the largest ``lambda' cost`` exactly if some v has, by duality,

    a_i v > cost_i,   a v >= cost on all rows,   a v = cost on equalities and where some multiplier of the face is > 0,

so one linear program decides it for all rows. Small sets have few vertices: these tell the same of all faces, without
linear programs (`vertices`). Of large sets the faces that are examined belong to each entry of x along which the
vectors differ, both ways, and to random directions; a row whose multiplier is zero on none of them counts as strongly
active.
"""

import functools

import numpy as np
import scipy.sparse as sp
from scipy.optimize import OptimizeResult

from bilevax._support.programs import linprog
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.stationarity.vertices import extreme, vertices
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.active_rows import ActiveRows, project_out
from bilevax.exact.settings import EXACT_SETTINGS


def unique_multipliers(a: sp.csr_matrix) -> np.ndarray:
    """Return which rows have a unique multiplier: those with a zero in a random vector of the null space of a'.

    Where the rows are too many for dense algebra, no multiplier counts as unique.
    """
    if a.shape[0] * a.shape[1] > EXACT_SETTINGS.dense_entries:
        return np.zeros(a.shape[0], bool)
    random = np.random.default_rng(0).standard_normal(a.shape[0])
    return np.abs(project_out(sp.csr_matrix(a.T), random)) <= TOLERANCES.unique_multiplier


class MultiplierSet:
    """The multiplier vectors of the active rows, where multipliers within the margin of zero count as zero."""

    def __init__(self, active: ActiveRows):
        self.active = active
        self.known = np.where(active.weak, 0.0, active.multiplier)
        self.balance = active.a.T @ self.known

    @functools.cached_property
    def _vertices(self) -> np.ndarray | None:
        """All vertices of the set, where it is small."""
        active = self.active
        if active.a.shape[0] * active.a.shape[1] > STATIONARITY.vertices:
            return None
        return vertices(active.a.toarray(), active.equality, self.balance)

    def resolve(self, unique: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows are weakly active, and which are strongly active for some directions of x only."""
        active, random = self.active, np.random.default_rng(0)
        nowhere = np.zeros(len(unique), bool)
        if unique.all() or self._same_on_coupled_rows():
            return active.weak, nowhere
        if self._vertices is not None:
            return self._from_vertices(self._vertices)
        weak = self._vanishing(self.known, np.zeros(len(self.known)))
        # A random change of the multipliers that can be positive tells along which entries of x the vectors differ.
        change = project_out(sp.csr_matrix(active.a[~weak].T), random.standard_normal(int((~weak).sum())))
        coordinates = np.flatnonzero(np.abs(active.b[~weak].T @ change) > TOLERANCES.same_multipliers)
        strictest = weak, ~weak & ~active.equality
        if len(coordinates) > STATIONARITY.multiplier_directions:
            return strictest
        one_by_one, size = np.zeros((len(coordinates), active.b.shape[1])), len(coordinates)
        one_by_one[np.arange(size), coordinates] = 1.0
        many = active.a.shape[1] > STATIONARITY.many_variables
        count = STATIONARITY.random_directions_many if many else STATIONARITY.random_directions
        mixed = random.standard_normal((count, active.b.shape[1]))
        sometimes = nowhere
        for direction in (*one_by_one, *-one_by_one, *(mixed if size > 1 else ())):
            cost = active.b @ direction
            top = self._least(-cost)
            if top.status != 0:
                return strictest
            sometimes = sometimes | (~weak & self._vanishing(top.x, cost))
        return weak, sometimes

    def _from_vertices(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `resolve` does, for all directions of x: each corner of all ``b' lambda`` belongs to some."""
        weak = ~self.active.equality & np.all(known == 0, axis=0)
        sometimes = np.zeros(len(weak), bool)
        images = known @ self.active.b.toarray()
        size = 1 + np.abs(images).max(initial=0.0)
        same = np.abs(images[:, None] - images).max(axis=2, initial=0.0) <= TOLERANCES.same_multipliers * size
        first = np.unique(same.argmax(axis=1))
        for corner in first[extreme(images[first])]:
            sometimes |= np.all(known[same[corner]] == 0, axis=0)
        return weak, sometimes & ~weak & ~self.active.equality

    def can_vanish(self, rows: np.ndarray) -> bool:
        """Return whether some vector is zero on all these rows."""
        if self._vertices is not None:
            return bool(np.any(np.all(self._vertices[:, rows] == 0, axis=1)))
        return self._least(np.zeros(len(self.known)), rows).status != 2  # 2: proven infeasible

    def _vanishing(self, multiplier: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """Return which multipliers are zero on the whole face with the largest ``lambda' cost``, given one vector."""
        a, equality = self.active.a, self.active.equality
        positive = equality | (multiplier > TOLERANCES.positive_multiplier * (1 + np.abs(multiplier).max()))
        others = np.flatnonzero(~positive)
        # Unknowns: v, a factor of at least 1 on the cost, and by how much a v - cost falls short of 1 in each row.
        of_positive = sp.hstack([a[positive], -cost[positive][:, None], sp.csr_matrix((positive.sum(), len(others)))])
        of_others = sp.hstack([-a[others], cost[others][:, None], -sp.eye(len(others))])
        n_y = a.shape[1]
        apart = linprog(
            np.r_[np.zeros(n_y + 1), np.ones(len(others))],
            A_eq=of_positive,
            b_eq=np.zeros(int(positive.sum())),
            A_ub=of_others,
            b_ub=-np.ones(len(others)),
            bounds=[(None, None)] * n_y + [(1, None)] + [(0, 1)] * len(others),
            method="highs",
        )
        vanishing = ~positive
        if apart.status == 0:
            vanishing[others] = apart.x[n_y + 1 :] < 0.5  # each is 0 or 1
        return vanishing

    def _same_on_coupled_rows(self) -> bool:
        """Return whether all vectors have the same ``b' lambda``, judged by its product with a random direction."""
        active = self.active
        cost = active.b @ np.random.default_rng(0).standard_normal(active.b.shape[1])
        # If y can follow x with all rows kept active, a v = cost, then lambda' cost = (a' lambda)' v for all vectors.
        consistent = TOLERANCES.consistent_rows * (1 + np.abs(cost).max(initial=0.0))
        if np.abs(_off_range(active.a, cost)).max(initial=0.0) <= consistent:
            return True
        size = TOLERANCES.same_multipliers * (1 + np.abs(cost) @ np.abs(active.multiplier))
        if self._vertices is not None:
            return float(np.ptp(self._vertices @ cost)) <= size
        least, largest = self._least(cost), self._least(-cost)
        return least.status == 0 and largest.status == 0 and -largest.fun - least.fun <= size

    def _least(self, cost: np.ndarray, zero: np.ndarray | None = None) -> OptimizeResult:
        """Minimise ``lambda' cost`` over all vectors, or over those that are zero on some rows."""
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
    """Return the least-squares residual ``right - a v``; rows of one entry with right-hand side 0 eliminate theirs."""
    single = np.flatnonzero((np.diff(a.indptr) == 1) & (right == 0))
    free = np.ones(a.shape[1], bool)
    free[a.indices[a.indptr[single]]] = False
    rest = sp.csr_matrix(a[:, free])
    asked = (np.diff(rest.indptr) > 0) | (right != 0)
    return project_out(sp.csr_matrix(rest[asked].T), right[asked])
