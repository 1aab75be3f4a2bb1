"""Where a function is looked at: a box or points of it, and lines through them."""

import dataclasses

import numpy as np

_FEW = 16  # entries that move on a line where there are many variables


@dataclasses.dataclass(frozen=True)
class Region:
    """Where a function is looked at: a box, lines through points of it where such are known.

    Attributes
    ----------
    lower, upper
        Bounds of (x, y) in one vector.
    points
        Points of the feasible set, one a row, or None; lines then run from one to another.
    """

    lower: np.ndarray
    upper: np.ndarray
    points: np.ndarray | None = None

    def lines(self, random: np.random.Generator, lines: int, stops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return bases, directions (lines, size) and stops (lines, stops), the multiples of the directions."""
        if self.points is not None and len(self.points) > 1:
            ends = self.points[random.integers(len(self.points), size=(2, lines))]
            grid = np.broadcast_to(np.linspace(0.0, 1.0, stops), (lines, stops))
            return ends[0], ends[1] - ends[0], grid
        base, direction = self._drawn(random, lines)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.stack([(self.lower - base) / direction, (self.upper - base) / direction])
        ends = np.where(np.isnan(ends) | (direction == 0), np.array([-np.inf, np.inf]).reshape(2, 1, 1), ends)
        first, last = np.minimum(*ends).max(-1), np.maximum(*ends).min(-1)
        few = stops // 5
        many = (stops - few - 1) // 2
        decades = np.geomspace(1e-8, 1e8, many) if many > 16 else np.geomspace(1e-2, 1e2, many)
        near = np.linspace(np.maximum(first, -8.0), np.minimum(last, 8.0), few, axis=1)
        grid = np.broadcast_to(np.concatenate([-decades, [0.0], decades]), (lines, 2 * many + 1))
        return base, direction, np.sort(np.clip(np.hstack([near, grid]), first[:, None], last[:, None]), axis=1)

    def _drawn(self, random: np.random.Generator, lines: int) -> tuple[np.ndarray, np.ndarray]:
        """Return random bases and directions.

        Units are not known: half of the lines follow one variable, and half have entries of sizes of many decades, or,
        if they follow one variable, the others at zero or where their bounds allow.
        """
        size = len(self.lower)
        width = self.upper - self.lower
        bounded = np.isfinite(width)
        kind = np.arange(lines) % 4  # one from zero, all in one size, one in many sizes, all in many sizes
        wild = (kind >= 2)[:, None] & ~bounded
        scale = np.where(wild, 10.0 ** random.uniform(-6, 3, (lines, size)), np.where(bounded, width, 1.0))
        base = np.where((kind == 0)[:, None], 0.0, random.standard_normal((lines, size)) * scale)
        below, above = np.isfinite(self.lower), np.isfinite(self.upper)
        base = np.where(below, self.lower + np.abs(base), np.where(above, self.upper - np.abs(base), base))
        base = np.where(
            bounded, self.lower + random.uniform(0.1, 0.9, base.shape) * np.where(bounded, width, 0.0), base
        )
        direction = random.standard_normal((lines, size)) * scale
        if size > 4 * _FEW:  # what one entry does is not to be lost among thousands
            direction[random.random(direction.shape) > _FEW / size] = 0.0
        single = np.flatnonzero(kind % 2 == 0)
        followed = random.permutation(size)[np.arange(len(single)) % size]
        direction[single] = 0.0
        direction[single, followed] = scale[single, followed]
        return base, direction
