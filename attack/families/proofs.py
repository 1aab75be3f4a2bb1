"""Problems whose least value is known by enumeration: a bound above it, or a proof of something worse, is wrong."""

import dataclasses

import numpy as np

from attack.families import FAMILIES, family
from attack.judge.global_optimum import Quadratics, least_value
from attack.model import Case, Expect
from attack.units import rescale


def proven(case: Case) -> Case:
    """Return a case of a quadratic leader and follower as one that is to be proven, with its optimum."""
    problem, d = case.problem, case.problem.data
    n, m = problem.x0.size, problem.y_set.size
    rows, (of_x, x_low, x_high), (of_y, y_low, y_high) = problem.rows, problem.x_set.rows(), problem.y_set.rows()
    assert rows is not None
    quadratics = Quadratics(
        W=np.diag(np.concatenate([d["wx"], d["wy"]])),
        w=np.concatenate([d["cx"] - d["wx"] * d["b"], d["cy"] - d["wy"] * d["a"]]),
        Q=d.get("H", np.zeros((m, m))),
        R=d["R"],
        c=d["c"],
        A=np.vstack([rows.A, of_y]),
        B=np.vstack([rows.B, np.zeros((len(of_y), n))]),
        low=np.concatenate([rows.low, y_low]),
        high=np.concatenate([rows.high, y_high]),
        leader=(np.hstack([of_x, np.zeros((len(of_x), m))]), x_low, x_high),
    )
    least = least_value(quadratics) + problem.f(np.zeros(n), np.zeros(m))
    expect = Expect.SOLUTION if np.isfinite(least) else Expect.EITHER
    return dataclasses.replace(case, optimum=least, expect=expect)


def _register(base: str) -> None:
    @family(f"proof-{base}")
    def draw(random: np.random.Generator) -> Case:
        """Global bounds and optima of another family, every other case in other units."""
        case = proven(FAMILIES[base].draw(int(random.integers(1 << 30)), 0))
        return rescale(case, "all", random) if random.random() < 0.5 else case


for _base in ("qp", "qp-integer", "kink-optimum", "rows-duplicated", "equalities", "half-infeasible", "lp", "lp-ties"):
    _register(_base)
