"""Quadratic programs solved by trying every set of active rows: slow, simple, and exact."""

import itertools
from typing import NamedTuple

import numpy as np

from attack.model import Region, Rows

_SINGULAR = 1e-12
_ROUGH = 1e-4  # how far off a point may be before it is refined


class Standard(NamedTuple):
    """Rows and set of a lower level as ``A y <= b - B x`` and ``E y = e - F x``, rows normalised in y."""

    A: np.ndarray
    B: np.ndarray
    b: np.ndarray
    E: np.ndarray
    F: np.ndarray
    e: np.ndarray

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the right-hand sides (b, e) at x."""
        return self.b - self.B @ x, self.e - self.F @ x


def standard(n: int, rows: Rows | None, y_set: Region | None) -> Standard:
    """Collect rows and set; rows without y stay as conditions on x."""
    blocks = [] if rows is None else [rows]
    if y_set is not None:
        matrix, low, high = y_set.rows()
        blocks.append(Rows(matrix, np.zeros((len(low), n)), low, high))
    A, B, low, high = (np.concatenate([block[k] for block in blocks]) for k in range(4))
    size = np.linalg.norm(A, axis=1)
    size = np.where(size > 0, size, np.maximum(np.linalg.norm(B, axis=1), 1.0))
    A, B, low, high = A / size[:, None], B / size[:, None], low / size, high / size
    equal = low == high
    above, below = ~equal & np.isfinite(high), ~equal & np.isfinite(low)
    join = lambda part, negative: np.concatenate([part[above], -negative[below]])
    return Standard(join(A, A), join(B, B), join(high, low), A[equal], B[equal], high[equal])


class Points(NamedTuple):
    """KKT points of all active sets: y, multipliers of all inequality rows, and how wrong each is, relative."""

    y: np.ndarray
    multipliers: np.ndarray
    wrong: np.ndarray


class ActiveSets:
    """Minimise ``y'Hy/2 + q'y`` subject to ``A y <= b``, ``E y = e`` for many (q, b, e).

    A solution set with an extreme point holds one at which some independent set of active rows determines y, so
    the points with right signs are exactly the extreme solutions (H positive semidefinite).
    """

    def __init__(self, H: np.ndarray, A: np.ndarray, E: np.ndarray):
        self.H, self.A = H, A
        self.E = E[_independent(E)]
        self.kept = _independent(E)
        self.unit = np.abs(H).max(initial=0.0) or 1.0
        m, inequalities = H.shape[0], np.flatnonzero(np.linalg.norm(A, axis=1) > 0)
        self.groups = []
        for count in range(m - len(self.E) + 1):
            listed = list(itertools.combinations(inequalities, count))
            sets = np.array(listed, dtype=int).reshape(len(listed), count)
            size = m + len(self.E) + count
            system = np.zeros((len(sets), size, size))
            system[:, :m, :m] = H / self.unit
            system[:, m : m + len(self.E), :m] = self.E
            system[:, m + len(self.E) :, :m] = A[sets]
            system[:, :m, m:] = np.swapaxes(system[:, m:, :m], 1, 2)
            spectrum = np.linalg.svd(system, compute_uv=False)
            regular = spectrum[:, -1] > _SINGULAR
            if regular.any():
                self.groups.append((sets[regular], system[regular], np.linalg.inv(system[regular])))

    def points(self, q: np.ndarray, b: np.ndarray, e: np.ndarray, slack: float) -> Points:
        """Return the KKT points whose rows and signs are right to within ``slack``, refined in extended precision."""
        m, found = len(q), []
        fixed = np.r_[-q / self.unit, e[self.kept]]
        for sets, system, inverse in self.groups:
            right = np.concatenate([np.tile(fixed, (len(sets), 1)), b[sets]], axis=1)
            solved = np.einsum("kij,kj->ki", inverse, right)
            near = self._points(sets, solved, q, b).wrong <= slack + _ROUGH
            sets, right, solved, inverse, wide = (part[near] for part in (sets, right, solved, inverse, system))
            wide = wide.astype(np.longdouble)
            for _ in range(2):
                rest = right - np.einsum("kij,kj->ki", wide, solved.astype(np.longdouble))
                solved = solved + np.einsum("kij,kj->ki", inverse, rest.astype(float))
            found.append(self._points(sets, solved, q, b))
        if not found:
            return Points(np.empty((0, m)), np.empty((0, len(b))), np.empty(0))
        joined = Points(*(np.concatenate(part) for part in zip(*found, strict=True)))
        right = np.argsort(joined.wrong)[: np.sum(joined.wrong <= slack)]
        return Points(*(part[right] for part in joined))

    def _points(self, sets: np.ndarray, solved: np.ndarray, q: np.ndarray, b: np.ndarray) -> Points:
        m = len(q)
        y, multipliers = solved[:, :m], np.zeros((len(sets), len(b)))
        np.put_along_axis(multipliers, sets, solved[:, m + len(self.E) :] * self.unit, axis=1)
        outside = (y @ self.A.T - b).max(axis=1, initial=0.0)
        force = np.abs(q).max(initial=0.0) + np.abs(y @ self.H).max(axis=1, initial=0.0)
        against = -multipliers.min(axis=1, initial=0.0) / np.where(force > 0, force, 1.0)
        return Points(y, multipliers, np.maximum(outside, against))


def _independent(E: np.ndarray) -> np.ndarray:
    """Return the indices of independent rows, the first ones."""
    kept: list[int] = []
    for index in range(len(E)):
        if np.linalg.matrix_rank(E[[*kept, index]], tol=1e-9) > len(kept):
            kept.append(index)
    return np.array(kept, dtype=int)


def consistent(E: np.ndarray, e: np.ndarray, slack: float) -> bool:
    """Return whether ``E y = e`` has a solution."""
    if not len(E):
        return True
    y = np.linalg.lstsq(E, e, rcond=None)[0]
    return bool(np.abs(E @ y - e).max() <= slack)
