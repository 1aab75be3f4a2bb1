"""Quadratic lower levels: generic, with integers, kinks at the start and at the optimum."""

import dataclasses

import numpy as np

from attack.families import family
from attack.judge.enumeration import standard
from attack.judge.followers import Quadratic
from attack.model import Box, Case, Objective, Problem, Rows
from attack.objectives import leader, leader_data, leader_in_y, quadratic, wavy_leader

SHAPES = ((1, 2, 2), (2, 3, 3), (3, 4, 3))  # entries of x and y, rows


@dataclasses.dataclass
class Draft:
    """The numbers of a quadratic problem, open to change before they become a case."""

    data: dict
    rows: Rows
    x_box: Box
    y_box: Box
    x0: np.ndarray

    def case(self, upper: Objective = leader, **options) -> Case:
        """Return the finished case."""
        n = self.x0.size
        limits = standard(n, self.rows, self.y_box)
        ties = leader_in_y(self.data) if upper is leader else None
        follower = Quadratic(self.data["H"], self.data["R"], self.data["c"], limits, ties)
        problem = Problem(upper, quadratic, self.data, self.x_box, self.y_box, self.x0, follower, self.rows)
        return Case(problem, **options)


def draft(random: np.random.Generator, shape: tuple[int, int, int] | None = None) -> Draft:
    """Draw a strongly convex quadratic program whose rows have room at x = 0."""
    n, m, k = shape or SHAPES[random.integers(len(SHAPES))]
    root = random.standard_normal((m, m))
    data = leader_data(random, n, m) | {
        "H": root @ root.T / m + 0.3 * np.eye(m),
        "R": random.standard_normal((m, n)),
        "c": random.standard_normal(m),
    }
    A, B = random.standard_normal((k, m)), random.standard_normal((k, n))
    inside = A @ random.uniform(-0.5, 0.5, m)
    high = inside + random.uniform(0.1, 1.5, k)
    low = np.where(random.random(k) < 0.3, inside - random.uniform(0.1, 1.5, k), -np.inf)
    y_low = np.where(random.random(m) < 0.3, -random.uniform(0.6, 2, m), -np.inf)
    y_high = np.where(random.random(m) < 0.3, random.uniform(0.6, 2, m), np.inf)
    wide = random.random() < 0.3
    x_box = Box(np.full(n, -np.inf if wide else -3.0), np.full(n, np.inf if wide else 3.0))
    return Draft(data, Rows(A, B, low, high), x_box, Box(y_low, y_high), random.uniform(-1, 1, n))


def unconstrained(data: dict, x: np.ndarray) -> np.ndarray:
    """Return the lower level's minimiser without any rows."""
    return -np.linalg.solve(data["H"], data["R"] @ x + data["c"])


@family("qp")
def generic(random: np.random.Generator) -> Case:
    """Random quadratic programs, feasible around x = 0."""
    return draft(random).case()


@family("qp-waves")
def waves(random: np.random.Generator) -> Case:
    """The same under a nonconvex leader."""
    return draft(random).case(wavy_leader)


@family("qp-integer")
def integer(random: np.random.Generator) -> Case:
    """Small integers everywhere: degenerate vertices, kinks and ties of multipliers by design."""
    d = draft(random)
    n, m, k = d.x0.size, d.data["c"].size, len(d.rows.low)
    whole = lambda low, high, shape: random.integers(low, high + 1, shape).astype(float)
    root = whole(-1, 1, (m, m))
    d.data |= {"H": root @ root.T + np.eye(m), "R": whole(-1, 1, (m, n)), "c": whole(-1, 1, m)}
    d.data |= {"wx": whole(1, 2, n), "b": whole(-2, 2, n), "wy": whole(0, 1, m), "a": whole(-2, 2, m)}
    d.data |= {"cy": whole(-1, 1, m)}
    A = whole(-1, 1, (k, m))
    A[np.abs(A).sum(axis=1) == 0, 0] = 1.0
    low = np.where(np.isfinite(d.rows.low), -whole(0, 2, k), -np.inf)
    d.rows = Rows(A, whole(-1, 1, (k, n)), low, whole(1, 2, k))
    d.y_box = Box(np.ceil(d.y_box.lower) - 1, np.floor(d.y_box.upper) + 1)
    d.x0 = whole(-1, 1, n)
    return d.case()


def touch(d: Draft, x: np.ndarray) -> None:
    """Move the last row so that the minimiser of the others just touches it at x."""
    others = Rows(*(part[:-1] for part in d.rows))
    limits = standard(x.size, others, d.y_box)
    y = Quadratic(d.data["H"], d.data["R"], d.data["c"], limits).respond(x, 1e-9)
    if y is not None:
        d.rows.high[-1], d.rows.low[-1] = d.rows.A[-1] @ y + d.rows.B[-1] @ x, -np.inf


@family("kink-start")
def kink_start(random: np.random.Generator) -> Case:
    """The start lies exactly on a kink of Phi."""
    d = draft(random)
    touch(d, d.x0)
    return d.case()


def kink(random: np.random.Generator) -> tuple[Draft, np.ndarray]:
    """Draw a problem whose global minimum is a kink, and return it with its minimiser.

    With one row ``a'y + b'x <= r`` and b along the derivative of the free a'y(x), f = -a'y falls until the row stops y.
    """
    n, m, _ = SHAPES[random.integers(len(SHAPES))]
    d = draft(random, (n, m, 1))
    best = random.uniform(-1, 1, n)
    a = random.standard_normal(m)
    follow = -a @ np.linalg.solve(d.data["H"], d.data["R"])  # derivative of a'y(x)
    b = random.uniform(0.2, 2.0) * follow
    reach = a @ unconstrained(d.data, best) + b @ best
    d.rows = Rows(a[None], b[None], np.array([-np.inf]), np.array([reach]))
    d.y_box = Box(np.full(m, -np.inf), np.full(m, np.inf))
    d.data |= {"wy": np.zeros(m), "a": np.zeros(m), "cy": -a, "wx": random.uniform(0.05, 0.5, n), "b": best}
    return d, best


@family("kink-optimum")
def kink_optimum(random: np.random.Generator) -> Case:
    """The optimum lies on a kink of Phi."""
    return kink(random)[0].case()
