"""Rows that only the leader has to satisfy, and rows of the lower level that are not affine."""

import dataclasses
from typing import Any

import numpy as np

from attack.families import family
from attack.families.quadratic import draft
from attack.judge.enumeration import standard
from attack.judge.followers import BallQuadratic, Quadratic
from attack.model import Box, Case, Expect, Problem, Rows, free
from attack.objectives import Data, leader, leader_data, quadratic, wavy_leader


def with_room(random: np.random.Generator, problem: Problem, count: int) -> Rows:
    """Draw rows in (x, y) that hold at the start, with little room."""
    y = problem.follower.respond(problem.x0, 1e-9)
    n, m = problem.x0.size, problem.y_set.size
    A, B = random.standard_normal((count, m)), random.standard_normal((count, n))
    here = B @ problem.x0 if y is None else A @ y + B @ problem.x0
    return Rows(A, B, np.full(count, -np.inf), here + random.uniform(0.0, 0.6, count))


@family("upper-rows")
def upper_rows(random: np.random.Generator) -> Case:
    """Random quadratic programs under one or two rows of the leader's own, which often hold the optimum."""
    case = draft(random).case(wavy_leader if random.random() < 0.3 else leader)
    rows = with_room(random, case.problem, int(random.integers(1, 3)))
    return dataclasses.replace(case, problem=dataclasses.replace(case.problem, leader_rows=rows))


@family("upper-far-start")
def upper_far_start(random: np.random.Generator) -> Case:
    """The same from a start that violates the rows: there may be no x at all that satisfies them."""
    case = upper_rows(random)
    problem = dataclasses.replace(
        case.problem, x0=case.problem.x_set.project(random.uniform(-3, 3, case.problem.x0.size))
    )
    return dataclasses.replace(case, problem=problem, expect=Expect.EITHER)


def within(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """An ellipsoid in (x, y), and a wave in x."""
    inside = xp.sum(d["px"] * (x - d["qx"]) ** 2) + xp.sum(d["py"] * (y - d["qy"]) ** 2) - d["reach"]
    return xp.stack([inside, xp.sum(x) + 0.5 * xp.sum(xp.sin(3.0 * x)) - d["most"]])


@family("upper-smooth")
def upper_smooth(random: np.random.Generator) -> Case:
    """Random quadratic programs under smooth rows of the leader's own."""
    case = draft(random).case()
    problem, n, m = case.problem, case.problem.x0.size, case.problem.y_set.size
    y = problem.follower.respond(problem.x0, 1e-9)
    y = np.zeros(m) if y is None else y
    px, py = random.uniform(0.2, 1.0, n), random.uniform(0.0, 1.0, m)
    qx, qy = problem.x0 + random.uniform(-0.5, 0.5, n), y + random.uniform(-0.5, 0.5, m)
    data = problem.data | {"px": px, "py": py, "qx": qx, "qy": qy, "reach": 0.0, "most": 0.0}
    used, wave = within(np, problem.x0, y, data)
    data |= {"reach": used + random.uniform(0.1, 0.6), "most": wave + random.uniform(0.1, 1.0)}
    return Case(dataclasses.replace(problem, data=data, leader_bent=within))


@family("upper-impossible")
def upper_impossible(random: np.random.Generator) -> Case:
    """Rows of the leader's own that no x satisfies: there is no answer."""
    d = draft(random)
    n, m = d.x0.size, d.data["c"].size
    d.x_box = Box(np.full(n, -3.0), np.full(n, 3.0))
    far = Rows(
        np.zeros((1, m)),
        random.uniform(0.5, 1.0, (1, n)),
        np.array([3.0 * n + random.uniform(0.1, 3.0)]),
        np.full(1, np.inf),
    )
    return Case(dataclasses.replace(d.case().problem, leader_rows=far), expect=Expect.REFUSAL)


class MovingBall:
    """A quadratic over a ball whose centre moves with x."""

    def __init__(self, data: Data):
        self.data = data

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        d = self.data
        radius = np.sqrt(d["reach"])
        return BallQuadratic(d["H"], d["R"], d["c"], radius, d["move"] @ x).respond(x, slack)


def moving_ball(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A ball around a centre that moves with x, as one row."""
    return xp.sum((y - d["move"] @ x) ** 2) - d["reach"]


@family("convex-rows")
def convex_rows(random: np.random.Generator) -> Case:
    """A quadratic follower in a ball that moves with x."""
    n, m = ((1, 2), (2, 2), (2, 3))[random.integers(3)]
    root = random.standard_normal((m, m))
    data = leader_data(random, n, m) | {
        "H": root @ root.T / m + 0.3 * np.eye(m),
        "R": random.standard_normal((m, n)),
        "c": 2 * random.standard_normal(m),
        "move": 0.5 * random.standard_normal((m, n)),
        "reach": random.uniform(0.3, 1.5),
    }
    x_box = Box(np.full(n, -2.0), np.full(n, 2.0))
    problem = Problem(leader, quadratic, data, x_box, free(m), random.uniform(-1, 1, n), MovingBall(data))
    return Case(dataclasses.replace(problem, bent_rows=moving_ball))


class TurningRows:
    """A quadratic under rows whose matrix depends on x."""

    def __init__(self, data: Data):
        self.data = data

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        d = self.data
        A = d["A"] + x[0] * d["turn"]
        rows = Rows(A, d["B"], np.full(len(A), -np.inf), d["high"])
        return Quadratic(d["H"], d["R"], d["c"], standard(x.size, rows, free(A.shape[1]))).respond(x, slack)


def turning_rows(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Rows whose matrix depends on x."""
    return (d["A"] + x[0] * d["turn"]) @ y + d["B"] @ x - d["high"]


@family("convex-turning")
def convex_turning(random: np.random.Generator) -> Case:
    """A quadratic follower under rows whose matrix depends on x."""
    d = draft(random, ((1, 2, 2), (2, 3, 2))[random.integers(2)])
    n, m = d.x0.size, d.data["c"].size
    data = d.data | {
        "A": d.rows.A,
        "B": d.rows.B,
        "high": d.rows.high,
        "turn": 0.3 * random.standard_normal(d.rows.A.shape),
    }
    x_box = Box(np.full(n, -1.0), np.full(n, 1.0))
    problem = Problem(leader, quadratic, data, x_box, free(m), random.uniform(-0.5, 0.5, n), TurningRows(data))
    return Case(dataclasses.replace(problem, bent_rows=turning_rows), expect=Expect.EITHER)
