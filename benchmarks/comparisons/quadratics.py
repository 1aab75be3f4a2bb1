"""Random bilevel problems with a quadratic lower level: the family of the prototype's measurements, and dense ones."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from bilevax.problems.quadratic import quadratic_problem
from comparisons.instance import Instance, QuadraticLower, Rows


@dataclass(frozen=True)
class Family:
    """Sizes, conditions and units. Variables, rows and objectives are multiplied by their units."""

    name: str
    n_x: int = 10
    n_y: int = 30
    n_rows: int = 15
    condition: float = 100.0
    upper: Literal["quadratic", "nonconvex"] = "quadratic"
    row_condition: float | None = None
    n_equalities: int = 0
    box: bool = False
    x_unit: float = 1.0
    y_unit: float = 1.0
    row_unit: float = 1.0
    upper_unit: float = 1.0
    lower_unit: float = 1.0


def families() -> list[Family]:
    """Return every kind of problem that `random` draws from."""
    kinds = ("quadratic", "nonconvex")
    found = [Family(f"{kind}, cond {c:g}", condition=c, upper=kind) for kind in kinds for c in (1.0, 100.0, 1e4)]
    found += [
        Family("box", box=True),
        Family("5 equalities", n_equalities=5),
        Family("cond(A) 100", row_condition=100.0),
        Family("45 rows", n_rows=45),
        Family("50 + 100 variables", n_x=50, n_y=100, n_rows=50),
    ]
    units = ("x_unit", "y_unit", "row_unit", "upper_unit", "lower_unit")
    found += [replace(Family(f"{name} {unit:g}"), **{name: unit}) for name in units for unit in (1e3, 1e-3)]
    return found


def draw(family: Family, seed: int) -> Instance:
    """Return a member of the family; those of the same sizes share compiled code."""
    random = np.random.default_rng(seed)
    n_x, n_y, n_rows = family.n_x, family.n_y, family.n_rows
    rotation = np.linalg.qr(random.standard_normal((n_y, n_y)))[0]
    H = (rotation * np.geomspace(1.0, 1.0 / family.condition, n_y)) @ rotation.T
    # The lower level's unconstrained minimiser is of the order of one, whatever the condition.
    C = H @ random.standard_normal((n_y, n_x)) / np.sqrt(n_x)
    c = 0.5 * H @ random.standard_normal(n_y)
    A = random.standard_normal((n_rows, n_y)) / np.sqrt(n_y)
    if family.row_condition is not None:
        left, singular, right = np.linalg.svd(A, full_matrices=False)
        A = (left * np.geomspace(1.0, 1.0 / family.row_condition, len(singular))) @ right
    B = 0.5 * random.standard_normal((n_rows, n_x)) / np.sqrt(n_x)
    equal = np.arange(n_rows) < family.n_equalities
    bound = np.where(equal, 0.0, random.uniform(0.0, 0.2, n_rows))
    goal, x0 = random.standard_normal(n_y), random.standard_normal(n_x)
    x_unit, y_unit, row_unit = family.x_unit, family.y_unit, family.row_unit
    one_side = np.ones(n_y) * y_unit
    return Instance(
        name=f"{family.name}, seed {seed}",
        upper=_UPPER[family.upper],
        lower=_lower,
        data={
            "H": H,
            "C": C,
            "c": c,
            "goal": goal,
            "units": np.array([x_unit, y_unit, family.upper_unit, family.lower_unit]),
        },
        rows=Rows(
            row_unit * np.hstack([B / x_unit, A / y_unit]),
            np.where(equal, row_unit * bound, -np.inf),
            row_unit * bound,
        ),
        x0=x_unit * x0,
        y0=np.zeros(n_y),
        y_box=(-one_side, one_side) if family.box else None,
        quadratic=QuadraticLower(
            family.lower_unit * H / y_unit**2,
            family.lower_unit * C / (x_unit * y_unit),
            family.lower_unit * c / y_unit,
        ),
    )


def dense(n: int, seed: int = 0) -> Instance:
    """Return a dense problem of the library's own family: n / 2 and n variables, n / 2 coupled rows, condition 100."""
    n_x, n_y, n_rows = n // 2, n, n // 2
    problem = quadratic_problem(n_x, n_y, n_rows, upper="quadratic", condition=100.0, seed=seed)
    x0, y0 = np.random.default_rng(seed).standard_normal(n_x), np.zeros(n_y)
    coupling = problem.coupling[0]
    B, A, _ = coupling.matrices(x0, y0, None)
    lower, upper = (np.asarray(side) for side in coupling.bounds(np.zeros(n_rows)))
    data: Any = problem.data
    return Instance(
        name=f"n = {n}",
        upper=problem.upper,
        lower=problem.lower,
        data=data,
        rows=Rows(np.hstack([B.toarray(), A.toarray()]), lower, upper),
        x0=x0,
        y0=y0,
        quadratic=QuadraticLower(data["H"], data["C"], data["c"]),
    )


def _lower(x: Any, y: Any, data: Any) -> Any:
    x, y = x / data["units"][0], y / data["units"][1]
    return data["units"][3] * (0.5 * y @ data["H"] @ y + y @ (data["C"] @ x + data["c"]))


def _quadratic(x: Any, y: Any, data: Any) -> Any:
    x, y = x / data["units"][0], y / data["units"][1]
    return data["units"][2] * (0.5 * jnp.sum((y - data["goal"]) ** 2) + 0.05 * x @ x)


def _nonconvex(x: Any, y: Any, data: Any) -> Any:
    x, y = x / data["units"][0], y / data["units"][1]
    far = jnp.sum(jnp.log1p((y - data["goal"]) ** 2))
    waves = 0.3 * jnp.sum(jnp.cos(2 * x)) + 0.2 * jnp.sin(y[: x.shape[0]] @ x)
    return data["units"][2] * (far + waves + 0.05 * x @ x)


_UPPER = {"quadratic": _quadratic, "nonconvex": _nonconvex}
