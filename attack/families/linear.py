"""Linear programs as lower levels: unique answers, answers that jump, and ties that the leader breaks."""

import numpy as np

from attack.families import family
from attack.judge.enumeration import standard
from attack.judge.followers import Quadratic
from attack.model import Box, Case, Problem, Rows
from attack.objectives import leader, leader_data, leader_in_y, linear

SHAPES = ((1, 2, 1), (2, 3, 2))


def program(
    random: np.random.Generator, R: np.ndarray, c: np.ndarray, k: int, coupled: bool, twins: bool = False
) -> Case:
    """Return a linear lower level ``min (Rx + c)'y`` over a box and k rows, with x in the rows or not.

    The rows do not tell the first two entries of y apart if these are ``twins``.
    """
    m, n = R.shape
    A = random.uniform(0.2, 1.0, (k, m))
    A[:, 0] = A[:, 1] if twins else A[:, 0]
    B = random.uniform(-0.4, 0.4, (k, n)) if coupled else np.zeros((k, n))
    rows = Rows(A, B, np.full(k, -np.inf), A.sum(axis=1) * random.uniform(0.4, 0.7, k))
    y_set, x_set = Box(np.zeros(m), np.ones(m)), Box(np.full(n, -1.0), np.ones(n))
    data = leader_data(random, n, m) | {"R": R, "c": c}
    follower = Quadratic(np.zeros((m, m)), R, c, standard(n, rows, y_set), leader_in_y(data))
    return Case(Problem(leader, linear, data, x_set, y_set, random.uniform(-1, 1, n), follower, rows))


@family("lp")
def vertices(random: np.random.Generator) -> Case:
    """Costs that do not depend on x: a unique vertex that x moves."""
    n, m, k = SHAPES[random.integers(len(SHAPES))]
    return program(random, np.zeros((m, n)), -random.uniform(0.3, 1.5, m), k, True)


@family("lp-jumps")
def jumps(random: np.random.Generator) -> Case:
    """Costs that depend on x: y*(x) jumps between vertices, and at the jump the leader chooses."""
    n, m, k = SHAPES[random.integers(len(SHAPES))]
    return program(random, random.standard_normal((m, n)), 0.5 * random.standard_normal(m), k, False)


@family("lp-ties")
def ties(random: np.random.Generator) -> Case:
    """Two variables of the same cost, or one without any: a whole face is optimal at every x."""
    n, m, k = SHAPES[random.integers(len(SHAPES))]
    c = -random.uniform(0.3, 1.5, m)
    c[0] = c[1] if random.random() < 0.5 else 0.0
    return program(random, np.zeros((m, n)), c, k, True, twins=True)
