"""Global optima of functions that are no quadratics: exponentials, logarithms, roots, quotients; x is one number.

The lower level is a sum over the entries of y, each of which has an interval: the judge finds it by bisection, and the
least value of Phi on a line.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from attack.families import family
from attack.judge.followers import Formula
from attack.judge.line import least_on_line, root
from attack.model import Box, Case, Expect, Objective, Problem, Rows
from attack.objectives import Data
from attack.units import rescale

REACH = 2.0  # of x, and of the entries of y


def _costs(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Quadratic terms, and prices that depend on x."""
    return xp.sum(0.5 * d["h"] * y**2 - (d["r"] * x[0] + d["c"]) * y)


def exponential(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Exponentials."""
    return _costs(xp, x, y, d) + xp.sum(xp.exp(d["a"] * y))


def barrier(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Logarithms."""
    return _costs(xp, x, y, d) - xp.sum(xp.log(y + 3.0))


def quartic(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Powers."""
    return _costs(xp, x, y, d) + xp.sum(d["a"] ** 2 * y**4)


def quotient(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Squares divided by something that depends on x."""
    return _costs(xp, x, y, d) + xp.sum(y**2) / (2.5 + x[0])


def inverse(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Reciprocals of y."""
    return _costs(xp, x, y, d) + xp.sum(1 / (y + 2.5))


Slope = Callable[[np.ndarray, np.ndarray, float], np.ndarray]

#: Each with its derivative in an entry of y, but for `_costs`: of x, y and the entry's ``a``.
FOLLOWERS: tuple[tuple[Objective, Slope], ...] = (
    (exponential, lambda x, y, a: a * np.exp(a * y)),
    (barrier, lambda x, y, a: -1 / (y + 3.0)),
    (quartic, lambda x, y, a: 4 * a**2 * y**3),
    (quotient, lambda x, y, a: 2 * y / (2.5 + x)),
    (inverse, lambda x, y, a: -1 / (y + 2.5) ** 2),
)


def discounted(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """An exponential of both."""
    return xp.exp(d["p"] * x[0] - y[0]) + 0.3 * x[0] ** 2 + d["q"] * xp.sum(y)


def logarithm(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A logarithm with a valley, and a square."""
    return xp.log(0.1 + (x[0] - d["p"]) ** 2) + xp.sum((y - d["q"]) ** 2)


def ratio(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A quotient that is not convex."""
    return (x[0] - d["p"]) / (1 + xp.sum(y**2)) + 0.1 * x[0] ** 2


def distance(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A root."""
    return xp.sqrt(0.01 + (y[0] - d["p"]) ** 2) - d["q"] * xp.sqrt(3 + x[0])


def cubic(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A product of three, and a power."""
    return d["p"] * x[0] * xp.sum(y**2) + 0.1 * x[0] ** 4 + d["q"] * xp.sum(y)


def waves(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Sines: many valleys."""
    return xp.sin(3 * x[0] + d["p"]) + 0.3 * xp.sum((y - d["q"]) ** 2)


LEADERS: tuple[Objective, ...] = (discounted, logarithm, ratio, distance, cubic, waves)


def near_line(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Rows that curve in y: each entry stays near a line in x."""
    return (y - d["b"] * x[0]) ** 2 - d["width"] ** 2


def drawn(random: np.random.Generator, bent: bool) -> Case:
    """Return a problem, with rows that are affine or ``bent``, and its least value."""
    m = int(random.integers(1, 3))
    (lower, slope), upper = FOLLOWERS[random.integers(len(FOLLOWERS))], LEADERS[random.integers(len(LEADERS))]
    d = {
        "h": random.uniform(0.1, 1.0, m),
        "r": random.uniform(-3.0, 3.0, m),
        "c": random.uniform(-1.0, 1.0, m),
        "a": random.uniform(0.3, 1.2, m),
        "b": random.uniform(-0.4, 0.4, m),
        "width": random.uniform(0.3, 1.0, m),
        "p": float(random.uniform(-1.0, 1.0)),
        "q": float(random.uniform(-1.0, 1.0)),
    }
    slopes = random.uniform(-1.0, 1.0, m)
    ends = np.full(m, REACH)
    rows = None if bent else Rows(np.eye(m), -slopes[:, None], np.full(m, -np.inf), np.ones(m))

    def response(x: np.ndarray) -> np.ndarray:
        """Return y at many x, one a column."""
        found = []
        for k in range(m):
            low = np.maximum(-REACH, d["b"][k] * x - d["width"][k]) if bent else np.full(len(x), -REACH)
            high = np.minimum(REACH, d["b"][k] * x + d["width"][k] if bent else slopes[k] * x + 1.0)
            total = lambda y, k=k: slope(x, y, d["a"][k]) + d["h"][k] * y - d["r"][k] * x - d["c"][k]
            found.append(root(total, low, high))
        return np.array(found)

    def phi(x: np.ndarray) -> np.ndarray:
        return np.array([upper(np, np.array([t]), y, d) for t, y in zip(x, response(x).T, strict=True)], float)

    problem = Problem(
        *(upper, lower, d, Box(np.array([-REACH]), np.array([REACH])), Box(-ends, ends), random.uniform(-1.0, 1.0, 1)),
        Formula(lambda x: response(x)[:, 0]),
        rows,
        bent_rows=near_line if bent else None,
    )
    sure = importlib.util.find_spec("pyscipopt") is not None and not bent  # SCIP's tolerances may leave a gap
    expect = Expect.SOLUTION if sure else Expect.EITHER
    case = Case(problem, expect, optimum=least_on_line(phi, -REACH, REACH), note=f"{upper.__name__}, {lower.__name__}")
    return rescale(case, "all", random) if random.random() < 0.5 else case


@family("proof-functions")
def functions(random: np.random.Generator) -> Case:
    """Global bounds of functions that are no quadratics, every other case in other units."""
    return drawn(random, bent=False)


@family("proof-bent-rows")
def bent_rows(random: np.random.Generator) -> Case:
    """The same with rows that curve in y."""
    return drawn(random, bent=True)
