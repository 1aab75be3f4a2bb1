"""Quadratic programs whose rows are awkward: each family changes the rows of a generic one."""

from collections.abc import Callable

import numpy as np

from attack.families import family
from attack.families.quadratic import Draft, draft
from attack.model import Box, Case, Rows

Change = Callable[[np.random.Generator, Draft], None]


def changed(name: str) -> Callable[[Change], Change]:
    """Register generic quadratic programs after a change as a family."""

    def register(change: Change) -> Change:
        def draw(random: np.random.Generator) -> Case:
            d = draft(random)
            change(random, d)
            return d.case()

        draw.__doc__ = change.__doc__
        family(name)(draw)
        return change

    return register


def append(d: Draft, more: Rows) -> None:
    """Add rows."""
    d.rows = Rows(*(np.concatenate(pair) for pair in zip(d.rows, more, strict=True)))


@changed("rows-duplicated")
def duplicated(random: np.random.Generator, d: Draft) -> None:
    """A row twice, the second time perhaps in other units or with its sides exchanged."""
    factor = random.choice([1.0, -1.0, 3.0, -0.01])
    A, B, low, high = (part[:1] for part in d.rows)
    sides = (low * factor, high * factor) if factor > 0 else (high * factor, low * factor)
    append(d, Rows(A * factor, B * factor, *sides))


@changed("rows-zero")
def zero(random: np.random.Generator, d: Draft) -> None:
    """A row of zeros, or one that holds x alone."""
    n, m = d.x0.size, d.data["c"].size
    B = random.standard_normal((1, n)) * random.integers(0, 2)
    room = np.abs(B).sum() + random.integers(0, 2)
    append(d, Rows(np.zeros((1, m)), B, np.array([-np.inf]), np.array([room])))


@changed("rows-parallel")
def parallel(random: np.random.Generator, d: Draft) -> None:
    """A row nearly parallel to another, 1e-2 to 1e-6 apart."""
    A, B, low, high = (part[:1] for part in d.rows)
    tilt = 10.0 ** random.uniform(-6, -2)
    turned = A + tilt * random.standard_normal(A.shape), B + tilt * random.standard_normal(B.shape)
    append(d, Rows(*turned, low, high + tilt * random.uniform(-1, 1)))


@changed("equalities")
def equalities(random: np.random.Generator, d: Draft) -> None:
    """One row an equality; sometimes it comes twice."""
    d.rows.low[0] = d.rows.high[0]
    if random.random() < 0.3:
        append(d, Rows(*(2.0 * part[:1] for part in d.rows)))


@changed("fixed-entries")
def fixed(random: np.random.Generator, d: Draft) -> None:
    """Entries of x and y whose bounds leave one number."""
    n, m = d.x0.size, d.data["c"].size
    held = random.uniform(-0.4, 0.4, m)
    hold = np.arange(m) == random.integers(m)
    d.y_box = Box(np.where(hold, held, d.y_box.lower), np.where(hold, held, d.y_box.upper))
    if n > 1:
        d.x0[0] = random.uniform(-0.2, 0.2)
        first = np.arange(n) == 0
        d.x_box = Box(np.where(first, d.x0[0], d.x_box.lower), np.where(first, d.x0[0], d.x_box.upper))


@changed("rows-free")
def free_rows(random: np.random.Generator, d: Draft) -> None:
    """A row without sides."""
    d.rows.low[0], d.rows.high[0] = -np.inf, np.inf


@changed("rows-scaled")
def scaled(random: np.random.Generator, d: Draft) -> None:
    """Rows in units from 1e-6 to 1e6."""
    units = 10.0 ** random.uniform(-6, 6, len(d.rows.low))
    d.rows = Rows(units[:, None] * d.rows.A, units[:, None] * d.rows.B, units * d.rows.low, units * d.rows.high)


def corridor(random: np.random.Generator, d: Draft, width: float) -> np.ndarray:
    """Make the lower level feasible only where ``s'x <= width``, by two rows that close on y; return s."""
    d.rows.A[1] = -d.rows.A[0]
    steer = random.standard_normal(d.x0.size)
    steer /= np.linalg.norm(steer)
    d.rows.B[1] = steer - d.rows.B[0]
    d.rows.low[:2] = -np.inf
    d.rows.high[0] = random.uniform(-0.5, 0.5)
    d.rows.high[1] = width - d.rows.high[0]
    d.rows.high[2:] += 1.0
    return steer


@changed("border")
def border(random: np.random.Generator, d: Draft) -> None:
    """The leader is drawn across the border of feasibility: the optimum lies on it."""
    width = random.uniform(0.3, 1.0)
    steer = corridor(random, d, width)
    d.data |= {"b": 3.0 * steer, "wx": np.full(d.x0.size, 1.5)}
    d.x0 = random.uniform(-0.2, 0.1, d.x0.size)


@changed("half-infeasible")
def half(random: np.random.Generator, d: Draft) -> None:
    """The lower level is infeasible for half of X, and the start may be there."""
    corridor(random, d, random.uniform(0.0, 0.2))
