"""`SetRows`: a set described by rows and balls on the flattened variable, as exact solvers want it."""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax.convex.problem import Ball as BallConstraint
from bilevax.model.compressed_rows import row_largest, scaled


class SetRows(NamedTuple):
    """A set on the flattened variable v: ``lower <= matrix v <= upper`` and balls.

    ``unit`` is what the rows were multiplied by when the set was written in other units, None if it was not.
    """

    matrix: sp.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    balls: tuple[BallConstraint, ...] = ()
    unit: np.ndarray | None = None

    def in_units(self, scale: np.ndarray) -> "SetRows":
        """Return the set of all v for which ``scale * v`` is in this one, the largest entry of each row about 1."""
        if np.all(scale == 1.0):
            return self
        largest = row_largest(self.matrix, scale)
        unit = np.exp2(-np.round(np.log2(np.where(largest > 0, largest, 1.0))))  # a power of two: no rounding
        balls = tuple(
            dataclasses.replace(ball, center=ball.center / scale[ball.index], radius=ball.radius / scale[ball.index[0]])
            for ball in self.balls
        )
        return SetRows(scaled(self.matrix, unit, scale), unit * self.lower, unit * self.upper, balls, unit)

    def intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds that rows with a single entry put on each variable."""
        size = self.matrix.shape[1]
        lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
        first = self.matrix.indptr[:-1][np.diff(self.matrix.indptr) == 1]
        single = np.diff(self.matrix.indptr) == 1
        column, scale = self.matrix.indices[first], self.matrix.data[first]
        ends = np.sort(np.stack([self.lower[single] / scale, self.upper[single] / scale]), axis=0)
        np.maximum.at(lower, column, ends[0])
        np.minimum.at(upper, column, ends[1])
        return lower, upper

    def well_inside(self, v: np.ndarray) -> np.ndarray:
        """Return v moved well inside the variables' bounds, where functions with logarithms are defined."""
        lower, upper = self.intervals()
        inset = 0.1 * np.minimum(1.0, np.where(np.isfinite(upper - lower), upper - lower, 1.0))
        return np.clip(v, lower + inset, upper - inset)

    def violation(self, v: np.ndarray) -> float:
        """Return by how much v is outside: the largest violation of a row or a ball, relative to 1 + |v|."""
        image = self.matrix @ v
        rows = np.maximum(self.lower - image, image - self.upper).max(initial=0.0)
        balls = [np.linalg.norm(v[ball.index] - ball.center) - ball.radius for ball in self.balls]
        return float(max(rows, *balls, 0.0) / (1 + np.abs(v).max(initial=0.0)))

    def around(self, v: np.ndarray) -> "SetRows":
        """Return the set of steps that stay in this one from v; no step at all always does, whatever the rounding."""
        image = self.matrix @ v
        return self._replace(
            lower=np.minimum(self.lower - image, 0.0),
            upper=np.maximum(self.upper - image, 0.0),
            balls=tuple(dataclasses.replace(ball, center=ball.center - v[ball.index]) for ball in self.balls),
        )
