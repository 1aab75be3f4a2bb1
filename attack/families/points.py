"""Points that are handed to `certify`: wrong ones must not be confirmed, right ones should be."""

import numpy as np

from attack.families import family
from attack.families.quadratic import draft, kink
from attack.model import Case, Expect


@family("wrong-point")
def anywhere(random: np.random.Generator) -> Case:
    """A point of a quadratic problem that is hardly ever stationary; the judge knows."""
    d = draft(random)
    return d.case(expect=Expect.EITHER, point=d.x_box.project(random.uniform(-2, 2, d.x0.size)))


@family("near-optimum")
def beside(random: np.random.Generator) -> Case:
    """A point beside a kink that is the optimum, from 1e-4 to 0.3 away."""
    d, best = kink(random)
    step = random.standard_normal(best.size)
    step *= 10.0 ** random.uniform(-4, -0.5) / np.linalg.norm(step)
    return d.case(expect=Expect.EITHER, point=d.x_box.project(best + step))


@family("at-optimum")
def exactly(random: np.random.Generator) -> Case:
    """The optimum itself, a kink, is confirmed."""
    d, best = kink(random)
    return d.case(point=best)
