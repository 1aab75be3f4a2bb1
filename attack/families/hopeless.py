"""Problems without an answer, and problems outside what is promised: nonconvex and nonsmooth objectives."""

from typing import Any

import numpy as np

from attack.families import family
from attack.families.quadratic import draft
from attack.families.table import closed_form, leader_sum, target
from attack.judge.followers import Formula
from attack.model import Box, Case, Expect, Problem, free
from attack.objectives import Data, leader, linear, quadratic


@family("unbounded-phi")
def unbounded_phi(random: np.random.Generator) -> Case:
    """Phi is linear and X has no end."""
    d = draft(random)
    n, m = d.x0.size, d.data["c"].size
    d.data |= {"wx": np.zeros(n), "wy": np.zeros(m), "cx": random.choice([-1, 1], n) * random.uniform(0.5, 2, n)}
    slope = d.data["cx"] - d.data["cy"] @ np.linalg.solve(d.data["H"], d.data["R"])
    d.data["cx"] = np.where(np.abs(slope) < 0.2, d.data["cx"] + 1.0, d.data["cx"])
    follower = Formula(lambda x: -np.linalg.solve(d.data["H"], d.data["R"] @ x + d.data["c"]))
    return Case(Problem(leader, quadratic, d.data, free(n), free(m), d.x0, follower), Expect.REFUSAL)


@family("lower-unbounded")
def lower_unbounded(random: np.random.Generator) -> Case:
    """A linear g falls without end along some y."""
    d = draft(random)
    n, m = d.x0.size, d.data["c"].size
    d.data["R"] *= 0.01
    d.data["c"] = np.abs(d.data["c"]) + 0.5
    d.data["c"][0] *= -1
    y_set = Box(np.zeros(m), np.full(m, np.inf))
    x_set = Box(np.full(n, -3.0), np.full(n, 3.0))
    problem = Problem(leader, linear, d.data, x_set, y_set, d.x0, Formula(lambda x: np.zeros(m)))
    return Case(problem, Expect.REFUSAL)


def waves(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A wave tilted by x."""
    return xp.sin(d["k"] * y[0]) + d["s"] * x[0] * y[0]


@family("nonconvex-waves")
def wavy(random: np.random.Generator) -> Case:
    """A sine as g."""
    data = {"k": random.uniform(1.5, 4), "s": random.uniform(0.1, 0.5)}
    data |= {"a": random.uniform(-1, 1), "b": random.uniform(-2, 2)}

    def stationary(x: np.ndarray) -> np.ndarray:
        angle = np.arccos(np.clip(-data["s"] * x[0] / data["k"], -1, 1))
        turns = 2 * np.pi * np.arange(-3, 4)
        inside = np.r_[angle + turns, -angle + turns] / data["k"]
        return np.r_[inside[np.abs(inside) <= 2], -2.0, 2.0]

    y_set = Box(np.array([-2.0]), np.array([2.0]))
    problem = closed_form(target, waves, data, stationary, y_set=y_set, x0=random.uniform(-2, 2, 1))
    return Case(problem, Expect.EITHER)


def dome(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Concave in y."""
    return -d["k"] * y[0] ** 2 + d["s"] * x[0] * y[0]


@family("nonconvex-dome")
def concave(random: np.random.Generator) -> Case:
    """A concave g between bounds."""
    data = {"k": random.uniform(0.2, 2), "s": random.uniform(0.2, 1), "a": random.uniform(-1, 1)}
    data |= {"b": random.uniform(-2, 2)}
    y_set = Box(np.array([-1.0]), np.array([1.0]))
    problem = closed_form(target, dome, data, lambda x: [-1.0, 1.0], y_set=y_set, x0=random.uniform(-2, 2, 1))
    return Case(problem, Expect.EITHER)


def lasso(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Soft thresholding."""
    return d["k"] * xp.abs(y[0]) + 0.5 * (y[0] - x[0]) ** 2


def hinge(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A rectified line over a parabola."""
    return d["k"] * xp.maximum(0.0, y[0] - x[0]) + 0.5 * (y[0] - d["c"]) ** 2


def tent(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """The larger of two lines over a parabola."""
    return xp.maximum(d["k"] * (y[0] - x[0]), x[0] - y[0]) + 0.5 * (y[0] - d["c"]) ** 2


def two_parabolas(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Two parabolas joined by a choice, over a third: its second derivative jumps."""
    step = y[0] - x[0]
    return xp.where(step > 0, d["k"] * step**2, step**2) + 0.5 * (y[0] - d["c"]) ** 2


@family("nonsmooth")
def nonsmooth(random: np.random.Generator) -> Case:
    """Kinks in g: abs, maximum, relu, where."""
    k, c = random.uniform(0.3, 1.5), random.uniform(-1, 1)
    data = {"k": k, "c": c, "a": random.uniform(-1, 1), "b": random.uniform(-2, 2)}
    kinds = (
        (lasso, lambda x: [0.0, x[0] - k, x[0] + k]),
        (hinge, lambda x: [x[0], c, c - k]),
        (tent, lambda x: [x[0], c - k, c + 1.0]),
        (two_parabolas, lambda x: [(2 * k * x[0] + c) / (2 * k + 1), (2 * x[0] + c) / 3]),
    )
    lower, candidates = kinds[random.integers(len(kinds))]
    return Case(closed_form(target, lower, data, candidates, x0=random.uniform(-2, 2, 1)), Expect.EITHER)


def absolute_target(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A leader with kinks of its own."""
    return xp.abs(y[0] - d["a"]) + 0.5 * (x[0] - d["b"]) ** 2


def follow(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Go where x says."""
    return (y[0] - d["k"] * x[0]) ** 2


@family("nonsmooth-leader")
def nonsmooth_leader(random: np.random.Generator) -> Case:
    """Kinks in f."""
    data = {"k": random.uniform(0.3, 2), "a": random.uniform(-1, 1), "b": random.uniform(-2, 2)}
    problem = closed_form(absolute_target, follow, data, lambda x: data["k"] * x[0], x0=random.uniform(-2, 2, 1))
    return Case(problem, Expect.EITHER)


def slow_decay(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Softplus of -y: falls for ever, ever more slowly."""
    return xp.logaddexp(0.0, -d["k"] * (y[0] - x[0]))


@family("no-minimiser-softplus")
def no_minimiser(random: np.random.Generator) -> Case:
    """A logistic loss on separable data has no minimiser."""
    data = {"k": random.uniform(0.5, 2), "w": random.uniform(0.2, 2), "b": random.uniform(-1, 1)}
    data |= {"s": random.uniform(-1, 1)}
    return Case(closed_form(leader_sum, slow_decay, data, lambda x: []), Expect.REFUSAL)
