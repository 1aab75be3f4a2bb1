"""What a case is: a problem in plain arrays and functions, in *base units*, and what is to be done with it.

Objectives are written once for both sides, ``fn(xp, x, y, data)`` with ``xp`` NumPy for the judge and ``jax.numpy`` for
bilevax. Base units are such that numbers of order 1 are natural for every entry of x and y, unless `Problem.x_scale`
says otherwise; bilevax may be given the problem in other `Units`, the judge never is.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

Objective = Callable[[Any, Any, Any, dict[str, Any]], Any]


class Abstain(Exception):
    """The judge cannot evaluate this accurately enough to speak."""


class Rows(NamedTuple):
    """The rows ``low <= B x + A y <= high``."""

    A: np.ndarray
    B: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def violation(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the largest violation, relative to the terms that are added up in that row."""
        value = self.A @ y + self.B @ x
        outside = np.maximum(self.low - value, value - self.high)
        side = np.where(self.low - value > value - self.high, self.low, self.high)
        terms = np.abs(self.A) @ np.abs(y) + np.abs(self.B) @ np.abs(x) + np.where(np.isfinite(side), np.abs(side), 0.0)
        bad = outside > 0
        return float((outside[bad] / terms[bad]).max(initial=0.0))


class Region(Protocol):
    """A convex set with its projection."""

    @property
    def size(self) -> int:
        """Number of entries."""
        ...

    def project(self, v: np.ndarray) -> np.ndarray:
        """Return the nearest point."""
        ...

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (matrix, low, high) where rows describe the set."""
        ...


@dataclasses.dataclass(frozen=True)
class Box:
    """Bounds entry by entry; infinite where there is none."""

    lower: np.ndarray
    upper: np.ndarray

    @property
    def size(self) -> int:
        return self.lower.size

    def project(self, v: np.ndarray) -> np.ndarray:
        return np.clip(v, self.lower, self.upper)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.eye(self.size), self.lower, self.upper


@dataclasses.dataclass(frozen=True)
class Simplex:
    """Nonnegative entries that add up to ``total``."""

    total: float
    size: int

    def project(self, v: np.ndarray) -> np.ndarray:
        ordered = np.sort(v)[::-1]
        shifts = (np.cumsum(ordered) - self.total) / np.arange(1, v.size + 1)
        return np.maximum(v - shifts[np.sum(ordered > shifts) - 1], 0.0)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        matrix = np.vstack([np.ones(self.size), np.eye(self.size)])
        return matrix, np.r_[self.total, np.zeros(self.size)], np.r_[self.total, np.full(self.size, np.inf)]


@dataclasses.dataclass(frozen=True)
class Ball:
    """Points within ``radius`` of ``center``."""

    radius: float
    center: np.ndarray

    @property
    def size(self) -> int:
        return self.center.size

    def project(self, v: np.ndarray) -> np.ndarray:
        offset = v - self.center
        length = np.linalg.norm(offset)
        return v if length <= self.radius else self.center + offset * (self.radius / length)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        raise TypeError("a ball is not described by rows")


def free(size: int) -> Box:
    """Return the set of all vectors."""
    return Box(np.full(size, -np.inf), np.full(size, np.inf))


class Follower(Protocol):
    """The judge's own lower level."""

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        """Return y*(x), the best for f where there are several; None where the lower level is infeasible.

        ``slack`` is how far rows and signs of multipliers may be off, relative: 1e-9 is strict, 1e-6 forgives an x
        that lies beside a border or a tie. Raises `Abstain` where y*(x) cannot be found to about 1e-11.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Problem:
    """A bilevel problem in base units, with the judge's lower level."""

    upper: Objective
    lower: Objective
    data: dict[str, Any]
    x_set: Region
    y_set: Region
    x0: np.ndarray
    follower: Follower
    rows: Rows | None = None
    x_scale: np.ndarray | None = None
    y0: np.ndarray | None = None
    bent_rows: Objective | None = None  # at most 0: rows of the lower level that are not affine
    leader_rows: Rows | None = None  # what only the leader has to satisfy,
    leader_bent: Objective | None = None  # at most 0: rows that are not affine
    multipliers: int = 0  # how many entries of y, the last ones, are the multipliers of the rows: f knows them

    @property
    def scale(self) -> np.ndarray:
        """The natural scale of each entry of x."""
        return np.ones(self.x0.size) if self.x_scale is None else self.x_scale

    def f(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return f(x, y) in NumPy."""
        return float(self.upper(np, x, y, self.data))

    def g(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return g(x, y) in NumPy."""
        return float(self.lower(np, x, y, self.data))

    def leader_violation(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return by how much (x, y) violates what the leader has to satisfy, relative."""
        affine = 0.0 if self.leader_rows is None else self.leader_rows.violation(x, y)
        bent = 0.0 if self.leader_bent is None else float(np.max(self.leader_bent(np, x, y, self.data)))
        return max(affine, bent, 0.0)

    def phi(self, x: np.ndarray, slack: float = 1e-9) -> float:
        """Return Phi(x); infinite where the lower level is infeasible."""
        y = self.follower.respond(x, slack)
        return np.inf if y is None else self.f(x, y)


@dataclasses.dataclass(frozen=True)
class Units:
    """What one unit of the user is in base units: ``x_base = x * x_user``; f, g and rows are multiplied."""

    x: np.ndarray
    y: np.ndarray
    rows: np.ndarray
    f: float = 1.0
    g: float = 1.0


class Expect(enum.Enum):
    """What an honest package does with a case."""

    SOLUTION = "there is a certifiable solution: no success is a miss"
    EITHER = "a right answer or a refusal"
    REFUSAL = "no answer exists: success is wrong"


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, the units it is given in, and whether it is to be solved, a point of it certified, or its best proven.

    ``optimum`` is the least value, in base units, where it is known: the case is then given to `prove`.
    """

    problem: Problem
    expect: Expect = Expect.SOLUTION
    units: Units | None = None
    point: np.ndarray | None = None
    note: str = ""
    optimum: float | None = None


class Claim(NamedTuple):
    """An answer that calls itself a success, in base units."""

    x: np.ndarray
    y: np.ndarray
    value: float
