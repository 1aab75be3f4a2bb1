"""What the leader has to satisfy at (x, y*(x)), around a point: rows of unit length in natural units."""

import dataclasses
import functools

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.model.compressed_rows import picked, row_squares, scaled
from bilevax.model.flat import FlatProblem
from bilevax.model.row_functions import upper_rows_of


@dataclasses.dataclass(frozen=True)
class UpperSides:
    """The sides of upper rows that are active at a point.

    Attributes
    ----------
    x, y
        Their outward normals, one a row.
    free
        Which belong to equalities: their multipliers may have any sign.
    slack
        How far the point is from them.
    origin, factor
        The row of each, and what turns its multiplier into one of the user's row.
    rows
        How many rows there are in all.
    """

    x: sp.csr_matrix
    y: sp.csr_matrix
    free: np.ndarray
    slack: np.ndarray
    origin: np.ndarray
    factor: np.ndarray

    rows: int

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.free)

    def multipliers(self, of_sides: np.ndarray) -> np.ndarray:
        """Return the multipliers of all the user's rows, given those of the active sides."""
        return np.bincount(self.origin, of_sides * self.factor, minlength=self.rows)


@dataclasses.dataclass(frozen=True)
class UpperRows:
    """The upper rows at a point: ``lower <= value <= upper`` with derivatives (x, y) of length 1, or 0.

    ``length`` is what the user's rows were divided by, ``terms`` the size of what is added up in a row.
    """

    x: sp.csr_matrix
    y: sp.csr_matrix
    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    terms: np.ndarray
    length: np.ndarray

    @property
    def violation(self) -> float:
        """The largest violation, relative to the size of the terms of its row."""
        beyond = np.maximum(self.lower - self.value, self.value - self.upper)
        return float(np.maximum(beyond / self.terms, 0.0).max(initial=0.0))

    def active(self, margin: float) -> UpperSides:
        """Return the sides that are active within a margin, equalities first."""
        if not len(self.value):
            none = np.zeros(0)
            return UpperSides(self.x, self.y, np.zeros(0, bool), none, np.zeros(0, int), none, 0)
        near = margin * self.terms
        above, below = self.upper - self.value, self.value - self.lower
        at_upper, at_lower = above <= near, below <= near
        both = at_upper & at_lower
        index = [np.flatnonzero(which) for which in (both, at_upper & ~both, at_lower & ~both)]
        origin, sign = np.concatenate(index), np.repeat([1.0, 1.0, -1.0], [len(part) for part in index])
        slack = np.concatenate([np.zeros(len(index[0])), above[index[1]], below[index[2]]])
        outward = lambda part: picked(part, origin, sign)
        return UpperSides(
            x=outward(self.x),
            y=outward(self.y),
            free=np.arange(len(origin)) < len(index[0]),
            slack=np.maximum(slack, 0.0),
            origin=origin,
            factor=sign / self.length[origin],
            rows=len(self.value),
        )


@functools.lru_cache(maxsize=16)
def _no_rows(n_x: int, n_y: int) -> UpperRows:
    """Return what there is where the leader has no rows, which is asked for again and again."""
    none = np.zeros(0)
    return UpperRows(sp.csr_matrix((0, n_x)), sp.csr_matrix((0, n_y)), none, none, none, none, none)


def upper_rows_at(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> UpperRows:
    """Return the upper rows at (x, y)."""
    if not flat.problem.upper_rows:
        return _no_rows(flat.n_x, flat.n_y)
    rows, scales = upper_rows_of(flat.problem, *flat.shapes), flat.scales
    value = rows.values(x * scales.x, y * scales.y)
    slopes = [
        scaled(part, np.ones(rows.count), unit)
        for part, unit in zip(rows.jacobian(x * scales.x, y * scales.y), (scales.x, scales.y), strict=True)
    ]
    length = positive(np.sqrt(sum(row_squares(part) for part in slopes)))
    unit = [scaled(part, 1 / length, np.ones(part.shape[1])) for part in slopes]
    sides = [np.where(np.isfinite(side), side, 0.0) / length for side in (rows.lower, rows.upper)]
    terms = 1 + abs(unit[0]) @ np.abs(x) + abs(unit[1]) @ np.abs(y) + np.maximum(*np.abs(sides))
    return UpperRows(unit[0], unit[1], value / length, rows.lower / length, rows.upper / length, terms, length)
