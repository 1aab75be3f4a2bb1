"""The problems that once were confirmed and wrong, with other constants: each is answered rightly or refused.

Lines 1 to 9 of the table in issue 12. Line 3, quadratic programs in bad units, is the units families.
"""

from typing import Any

import numpy as np

from attack.families import family
from attack.judge.enumeration import standard
from attack.judge.followers import Candidates, Leader, Quadratic
from attack.model import Box, Case, Expect, Objective, Problem, Region, Rows, free
from attack.objectives import Data

INTERVAL = Box(np.array([-3.0]), np.array([3.0]))


def row(A: list[float], B: list[float], low: float = -np.inf, high: float = np.inf) -> Rows:
    """Return a single row."""
    return Rows(np.array([A]), np.array([B]), np.array([low]), np.array([high]))


def closed_form(
    upper: Objective, lower: Objective, data: Data, candidates: Any, x_set: Region = INTERVAL, **others: Any
) -> Problem:
    """Return a problem in one y whose minimiser is among ``candidates(x)``, numbers."""
    g = lambda x, y: float(lower(np, x, y, data))
    f = lambda x, y: float(upper(np, x, y, data))
    follower = Candidates(lambda x: np.reshape(candidates(x), (-1, 1)), g, f)
    settings = {"y_set": free(1), "x0": np.zeros(x_set.size)} | others
    return Problem(upper, lower, data, x_set, follower=follower, **settings)


def line1_upper(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Fall with y, against an x0 of another size."""
    return ((x[0] - d["S"]) / d["S"]) ** 2 - y[0] + d["slope"] * x[1]


def line1_lower(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Follow x1."""
    return (y[0] - x[1]) ** 2


@family("table-1")
def large_neighbour(random: np.random.Generator) -> Case:
    """Certify a slope next to a large entry of x: rows far away must not count as active."""
    S, cap, slope = 10.0 ** random.uniform(3, 6), random.uniform(2, 4), random.uniform(0.2, 0.8)
    data = {"S": S, "slope": slope}
    problem = closed_form(
        line1_upper,
        line1_lower,
        data,
        lambda x: min(x[1], cap),
        Box(np.array([0.0, -50.0]), np.array([2 * S, 50.0])),
        rows=row([1.0], [0.0, 0.0], high=cap),
        x_scale=np.array([S, 1.0]),
        x0=np.array([S, 0.0]),
    )
    # From 1e-6 of S before the kink to beyond it: what S hides is sought.
    return Case(problem, Expect.EITHER, point=np.array([S, cap - 10.0 ** random.uniform(-2, 0.5)]))


def line2_upper(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Fall with y1, rise with x."""
    return -y[1] + d["slope"] * x[0]


def line2_lower(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A large multiplier on y0 >= 0 beside an idle y1 <= 0."""
    return d["K"] * y[0] + 0.5 * y[0] ** 2 + (y[1] - x[0]) ** 2


@family("table-2")
def large_multiplier(random: np.random.Generator) -> Case:
    """Certify a slope next to a large multiplier: a moderate one must not count as zero."""
    K, slope = 10.0 ** random.uniform(3, 6), random.uniform(0.2, 0.8)
    y_set = Box(np.array([0.0, -np.inf]), np.array([np.inf, 0.0]))
    follower = Quadratic(np.diag([1.0, 2.0]), np.array([[0.0], [-2.0]]), np.array([K, 0.0]), standard(1, None, y_set))
    data = {"K": K, "slope": slope}
    problem = Problem(line2_upper, line2_lower, data, INTERVAL, y_set, np.zeros(1), follower)
    return Case(problem, Expect.EITHER, point=np.array([10.0 ** random.uniform(-2, 0)]))


def target(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Squared distances of x and y from what the leader wants."""
    return (x[0] - d["b"]) ** 2 + (y[0] - d["a"]) ** 2


def absolute(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A kink in g itself."""
    return d["k"] * xp.abs(y[0] - x[0]) + 0.5 * y[0] ** 2


@family("table-4")
def absolute_value(random: np.random.Generator) -> Case:
    """A g that is convex but not smooth."""
    data = {"k": random.uniform(0.3, 2), "b": random.uniform(-2, 2), "a": random.uniform(-1, 1)}
    problem = closed_form(target, absolute, data, lambda x: [x[0], -data["k"], data["k"]], x0=random.uniform(-2, 2, 1))
    return Case(problem, Expect.EITHER)


def leader_sum(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Quadratic in x, linear in y."""
    return d["w"] * (x[0] - d["b"]) ** 2 + d["s"] * y[0]


def exponential(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Falls towards an infimum that is never reached."""
    return xp.exp(d["k"] * y[0]) + d["t"] * x[0]


@family("table-5")
def no_minimiser(random: np.random.Generator) -> Case:
    """Exp(y) has no minimiser."""
    data = {"k": random.choice([-1, 1]) * random.uniform(0.3, 3), "t": random.uniform(-1, 1)}
    data |= {"w": random.uniform(0.2, 2), "b": random.uniform(-1, 1), "s": random.uniform(-1, 1)}
    return Case(closed_form(leader_sum, exponential, data, lambda x: []), Expect.REFUSAL)


def flat_bottom(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Zero on an interval around x."""
    return xp.maximum(0.0, xp.abs(y[0] - x[0]) - d["width"]) ** 2


@family("table-6")
def flat(random: np.random.Generator) -> Case:
    """All y in an interval are optimal: the leader's favourite counts, or nothing does."""
    data = {"width": random.uniform(0.3, 1.5), "b": random.uniform(-2, 2), "a": random.uniform(-3, 3)}
    favourite = lambda x: np.clip(data["a"], x[0] - data["width"], x[0] + data["width"])
    return Case(closed_form(target, flat_bottom, data, favourite, x0=random.uniform(-2, 2, 1)), Expect.EITHER)


def margin_leader(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Wants certain weights and a certain margin."""
    return 0.5 * xp.sum((y - d["a"]) ** 2) + 0.5 * (x[0] - d["b"]) ** 2


def squared_hinge(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Zero wherever every example has margin x."""
    return xp.sum(xp.maximum(0.0, x[0] - d["examples"] @ y) ** 2)


@family("table-6-hinge")
def separable(random: np.random.Generator) -> Case:
    """The squared hinge on separable data is zero on a cone of weights."""
    weights = random.standard_normal(2)
    examples = random.standard_normal((4, 2))
    examples *= np.sign(examples @ weights)[:, None]
    data = {"examples": examples, "a": random.uniform(-2, 2, 2), "b": random.uniform(0, 3)}
    margins = Rows(examples, np.full((4, 1), -1.0), np.zeros(4), np.full(4, np.inf))
    follower = Quadratic(
        np.eye(2), np.zeros((2, 1)), -data["a"], standard(1, margins, None)
    )  # the leader's choice among weights with every margin: the nearest to a
    x_set = Box(np.array([0.1]), np.array([3.0]))
    problem = Problem(margin_leader, squared_hinge, data, x_set, free(2), np.ones(1), follower)
    return Case(problem, Expect.EITHER)


def leader_line(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Linear in y, hardly curved in x."""
    return d["s"] * y[0] + d["w"] * (x[0] - d["b"]) ** 2


def fourth_power(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Flat to third order at its minimiser."""
    return (y[0] - d["k"] * x[0]) ** 4


def sixth_power(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Flat to fifth order at its minimiser."""
    return (y[0] - d["k"] * x[0]) ** 6


def _power(random: np.random.Generator, lower: Objective) -> Case:
    data = {"k": random.uniform(0.3, 2), "s": random.choice([-1, 1]) * random.uniform(0.3, 2)}
    data |= {"w": random.choice([0.0, 0.5]), "b": random.uniform(-1, 1)}
    problem = closed_form(leader_line, lower, data, lambda x: data["k"] * x[0], x0=random.uniform(-2, 2, 1))
    return Case(problem, Expect.EITHER)


@family("table-7")
def sixth(random: np.random.Generator) -> Case:
    """A sixth power: a small gradient says little about y."""
    return _power(random, sixth_power)


@family("power-4")
def fourth(random: np.random.Generator) -> Case:
    """A fourth power likewise."""
    return _power(random, fourth_power)


def double_well(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Two valleys, of which x chooses the deeper."""
    return (y[0] ** 2 - d["r"]) ** 2 + d["k"] * x[0] * y[0]


@family("table-8")
def two_valleys(random: np.random.Generator) -> Case:
    """A nonconvex g with a local minimum at y0."""
    data = {"r": random.uniform(0.5, 1.5), "k": random.uniform(0.2, 0.8), "b": random.uniform(-2, 2)}
    data |= {"a": random.uniform(-1, 1)}

    def stationary(x: np.ndarray) -> np.ndarray:
        roots = np.roots([4.0, 0.0, -4 * data["r"], data["k"] * x[0]])
        real = roots[np.abs(roots.imag) < 1e-6].real
        for _ in range(3):
            real = real - (4 * real**3 - 4 * data["r"] * real + data["k"] * x[0]) / (12 * real**2 - 4 * data["r"])
        return real

    y0 = np.array([random.choice([-1, 1]) * 0.9])
    problem = closed_form(target, double_well, data, stationary, x0=random.uniform(-2, 2, 1), y0=y0)
    return Case(problem, Expect.EITHER)


def revenue(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Minus what the tolls bring in."""
    return -xp.sum(x * y[: x.shape[0]])


def travel(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Cost of the routes, the first ones with tolls."""
    n = x.shape[0]
    return xp.sum(d["cost"] * y) + xp.sum(x * y[:n])


@family("table-9")
def tolls(random: np.random.Generator) -> Case:
    """Toll setting: travellers choose among routes of equal cost as the leader likes, and so must everybody."""
    n, m, classes = 2, 4, int(random.integers(1, 3))
    whole = random.random() < 0.5
    cost = random.integers(1, 9, m).astype(float) if whole else random.uniform(1, 9, m)
    cost[n:] += 4.0
    demand = random.uniform(0.5, 2, classes)
    A = np.ones((1, m)) if classes == 1 else np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    rows = Rows(A, np.zeros((classes, n)), demand, demand)
    y_set = Box(np.zeros(m), np.full(m, 4.0))
    R = np.vstack([np.eye(n), np.zeros((m - n, n))])
    leader = Leader(np.zeros((m, m)), lambda x: np.r_[-x, np.zeros(m - n)])
    follower = Quadratic(np.zeros((m, m)), R, cost, standard(n, rows, y_set), leader)
    x_set = Box(np.zeros(n), np.full(n, 20.0))
    problem = Problem(revenue, travel, {"cost": cost}, x_set, y_set, random.uniform(0, 6, n), follower, rows)
    return Case(problem)
