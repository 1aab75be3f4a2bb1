"""Objectives shared by families, written for NumPy and JAX at once: ``fn(xp, x, y, data)``."""

from typing import Any

import numpy as np

from attack.judge.followers import Leader

Data = dict[str, Any]


def leader(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Separable quadratic in x and y, plus linear terms."""
    return (
        0.5 * xp.sum(d["wx"] * (x - d["b"]) ** 2)
        + 0.5 * xp.sum(d["wy"] * (y - d["a"]) ** 2)
        + xp.sum(d["cx"] * x)
        + xp.sum(d["cy"] * y)
    )


def wavy_leader(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """The same with waves: not convex, several local minima."""
    return leader(xp, x, y, d) + xp.sum(xp.sin(2.0 * x)) + 0.5 * xp.sum(xp.cos(y + x[0]))


def leader_alone(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A leader who does not look at y."""
    return 0.5 * xp.sum(d["wx"] * (x - d["b"]) ** 2) + xp.sum(d["cx"] * x)


def quadratic(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A quadratic follower with a constant Hessian."""
    return 0.5 * xp.sum(y * (d["H"] @ y)) + xp.sum(y * (d["R"] @ x + d["c"]))


def linear(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A linear follower whose costs may depend on x."""
    return xp.sum(y * (d["R"] @ x + d["c"]))


def leader_data(random: np.random.Generator, n: int, m: int, **given: Any) -> Data:
    """Draw the numbers of `leader`; those given stay as they are."""
    drawn = {
        "wx": random.uniform(0.2, 1.0, n),
        "b": random.uniform(-2, 2, n),
        "wy": random.uniform(0.0, 1.0, m),
        "a": random.uniform(-2, 2, m),
        "cx": np.zeros(n),
        "cy": random.uniform(-1, 1, m),
    }
    return drawn | given


def leader_in_y(d: Data) -> Leader:
    """Return `leader` as a function of y, for the judge."""
    return Leader(np.diag(d["wy"]), lambda x: d["cy"] - d["wy"] * d["a"])
