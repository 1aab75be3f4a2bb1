"""Points that are handed to `certify`: wrong ones must not be confirmed, right ones should be."""

import dataclasses

import numpy as np

from attack.families import FAMILIES, family
from attack.families.quadratic import SHAPES, Draft, draft, kink, unconstrained
from attack.model import Case, Expect, free

OTHERS = ("qp-integer", "border", "rows-parallel", "lp", "ball-x", "ball-y", "simplex-y", "softplus", "hessian-of-x")


@family("wrong-point")
def anywhere(random: np.random.Generator) -> Case:
    """A point of a quadratic problem that is hardly ever stationary; the judge knows."""
    d = draft(random)
    return d.case(expect=Expect.EITHER, point=d.x_box.project(random.uniform(-2, 2, d.x0.size)))


@family("wrong-point-others")
def anywhere_else(random: np.random.Generator) -> Case:
    """A point of a problem of another family."""
    name = OTHERS[random.integers(len(OTHERS))]
    case = FAMILIES[name].draw(int(random.integers(1 << 30)), 0)
    point = case.problem.x_set.project(random.uniform(-1, 1, case.problem.x0.size))
    return dataclasses.replace(case, expect=Expect.EITHER, point=point, note=name)


def bowl(random: np.random.Generator) -> tuple[Draft, np.ndarray]:
    """Draw a problem whose rows are far away, and return it with the minimiser of its quadratic Phi."""
    d = draft(random, SHAPES[random.integers(len(SHAPES))])
    d.rows = d.rows._replace(low=np.full_like(d.rows.low, -np.inf), high=d.rows.high + 50.0)
    d.x_box, d.y_box = free(d.x0.size), free(d.data["c"].size)
    follow = -np.linalg.solve(d.data["H"], d.data["R"])
    at_zero = unconstrained(d.data, np.zeros(d.x0.size))
    curvature = np.diag(d.data["wx"]) + follow.T @ np.diag(d.data["wy"]) @ follow
    pull = d.data["wx"] * d.data["b"] + follow.T @ (d.data["wy"] * (d.data["a"] - at_zero) - d.data["cy"])
    return d, np.linalg.solve(curvature, pull)


def optimum(random: np.random.Generator) -> tuple[Draft, np.ndarray]:
    """Draw a problem with its optimum, a kink or smooth."""
    return (kink, bowl)[random.integers(2)](random)


@family("near-optimum")
def beside(random: np.random.Generator) -> Case:
    """A point from 1e-4 to 0.3 beside the optimum."""
    d, best = optimum(random)
    step = random.standard_normal(best.size)
    step *= 10.0 ** random.uniform(-4, -0.5) / np.linalg.norm(step)
    return d.case(expect=Expect.EITHER, point=d.x_box.project(best + step))


@family("at-optimum")
def exactly(random: np.random.Generator) -> Case:
    """The optimum itself is confirmed."""
    d, best = optimum(random)
    return d.case(point=best)
