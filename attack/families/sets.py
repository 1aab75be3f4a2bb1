"""Balls and simplices as X and as Y, around quadratic lower levels."""

import numpy as np

from attack.families import family
from attack.judge.enumeration import standard
from attack.judge.followers import BallQuadratic, Quadratic
from attack.model import Ball, Box, Case, Follower, Problem, Region, Rows, Simplex, free
from attack.objectives import leader, leader_data, quadratic

SHAPES = ((2, 2), (3, 3))


def problem(random: np.random.Generator, x_set: Region, y_set: Region, rows: Rows | None = None) -> Case:
    """Return a quadratic problem over these sets."""
    n, m = x_set.size, y_set.size
    root = random.standard_normal((m, m))
    H = root @ root.T / m + 0.3 * np.eye(m)
    data = leader_data(random, n, m) | {
        "H": H,
        "R": random.standard_normal((m, n)),
        "c": random.standard_normal(m),
    }
    follower: Follower
    if isinstance(y_set, Ball):
        follower = BallQuadratic(H, data["R"], data["c"], y_set.radius, y_set.center)
    else:
        follower = Quadratic(H, data["R"], data["c"], standard(n, rows, y_set))
    x0 = x_set.project(random.uniform(-1, 1, n))
    return Case(Problem(leader, quadratic, data, x_set, y_set, x0, follower, rows))


def one_row(random: np.random.Generator, n: int, m: int) -> Rows:
    """Return a row with room at 0."""
    high = random.uniform(0.3, 1.0, 1)
    return Rows(random.standard_normal((1, m)), random.standard_normal((1, n)), np.array([-np.inf]), high)


def ball(random: np.random.Generator, size: int) -> Ball:
    """Return a ball, around 0 or elsewhere."""
    return Ball(random.uniform(0.5, 1.5), random.uniform(-0.5, 0.5, size) * random.integers(0, 2))


@family("ball-x")
def ball_x(random: np.random.Generator) -> Case:
    """X a ball."""
    n, m = SHAPES[random.integers(len(SHAPES))]
    return problem(random, ball(random, n), free(m), one_row(random, n, m))


@family("ball-y")
def ball_y(random: np.random.Generator) -> Case:
    """Y a ball."""
    n, m = SHAPES[random.integers(len(SHAPES))]
    return problem(random, Box(np.full(n, -2.0), np.full(n, 2.0)), ball(random, m))


@family("simplex-x")
def simplex_x(random: np.random.Generator) -> Case:
    """X a simplex."""
    n, m = SHAPES[random.integers(len(SHAPES))]
    return problem(random, Simplex(random.uniform(0.5, 2), n), free(m), one_row(random, n, m))


@family("simplex-y")
def simplex_y(random: np.random.Generator) -> Case:
    """Y a simplex."""
    n, m = SHAPES[random.integers(len(SHAPES))]
    return problem(random, Box(np.full(n, -2.0), np.full(n, 2.0)), Simplex(random.uniform(0.5, 2), m))


@family("balls")
def balls(random: np.random.Generator) -> Case:
    """Both balls."""
    n, m = SHAPES[random.integers(len(SHAPES))]
    return problem(random, ball(random, n), ball(random, m))
