"""`ComplementarityProgram`: a bilevel problem with the lower level replaced by its optimality conditions."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class ComplementarityProgram:
    """Minimise ``z' hessian z / 2 + cost' z + constant`` over z = (x, y, multipliers) with rows and pairs.

    The rows are ``lower <= matrix z <= upper``. Of each pair one of two things holds: the row ``pair_row`` is active at
    its side ``pair_side`` (1: upper, -1: lower), or the row ``pair_force``, a multiplier that is nonnegative, is zero.
    The k-th multiplier belongs to row ``owner[k]`` of the lower level's rows, with this ``sign``.
    """

    n_x: int
    n_y: int
    hessian: np.ndarray
    cost: np.ndarray
    constant: float
    matrix: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    pair_row: np.ndarray
    pair_side: np.ndarray
    pair_force: np.ndarray
    owner: np.ndarray
    sign: np.ndarray
    follower_rows: int

    def parts(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return x, y and the multipliers of the lower level's rows, one a row: positive at its upper side."""
        x, y, forces = np.split(z, [self.n_x, self.n_x + self.n_y])
        multipliers = np.zeros(self.follower_rows)
        np.add.at(multipliers, self.owner, self.sign * forces)
        return x, y, multipliers


class _Rows:
    """Rows put together one block at a time."""

    def __init__(self, size: int):
        self.size = size
        self.blocks: list[np.ndarray] = []
        self.bounds: list[tuple[np.ndarray, np.ndarray]] = []
        self.count = 0

    def add(self, parts: dict[int, np.ndarray], lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """Add rows whose nonzero blocks begin at these columns; return their numbers."""
        block = np.zeros((len(lower), self.size))
        for first, part in parts.items():
            block[:, first : first + part.shape[1]] = part
        self.blocks.append(block)
        self.bounds.append((lower, upper))
        self.count += len(lower)
        return np.arange(self.count - len(lower), self.count)


@dataclasses.dataclass(frozen=True)
class AffineRows:
    """Rows ``lower <= of_x x + of_y y <= upper`` as arrays."""

    of_x: np.ndarray
    of_y: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@dataclasses.dataclass(frozen=True)
class LowerGradient:
    """The gradient of g in y: ``constant + of_x x + of_y y``."""

    constant: np.ndarray
    of_x: np.ndarray
    of_y: np.ndarray


def one_sided(follower: AffineRows) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the multipliers of rows: which row each belongs to, at which side (1: upper), and how many are free.

    One for each equality, these first, free in sign; one for each finite side of the others, nonnegative.
    """
    equal = follower.lower == follower.upper
    at_upper = np.flatnonzero(np.isfinite(follower.upper) & ~equal)
    at_lower = np.flatnonzero(np.isfinite(follower.lower) & ~equal)
    owner = np.concatenate([np.flatnonzero(equal), at_upper, at_lower])
    sign = np.concatenate([np.ones(equal.sum() + len(at_upper)), -np.ones(len(at_lower))])
    return owner, sign, int(equal.sum())


def complementarity_program(
    objective: tuple[np.ndarray, np.ndarray, float], gradient: LowerGradient, follower: AffineRows, leader: AffineRows
) -> ComplementarityProgram:
    """Return the program of a bilevel problem.

    Parameters
    ----------
    objective
        Hessian, linear part and constant of f in (x, y).
    gradient
        Of g in y.
    follower
        The rows of the lower level, those of the set Y among them.
    leader
        The rows of X, and those on (x, y) that only the leader has to satisfy.
    """
    n_y, n_x = gradient.of_x.shape
    owner, sign, first_signed = one_sided(follower)
    first_force = n_x + n_y
    rows = _Rows(n_x + n_y + len(owner))
    pull = (follower.of_y[owner] * sign[:, None]).T
    rows.add({0: gradient.of_x, n_x: gradient.of_y, first_force: pull}, -gradient.constant, -gradient.constant)
    of_follower = rows.add({0: follower.of_x, n_x: follower.of_y}, follower.lower, follower.upper)
    rows.add({0: leader.of_x, n_x: leader.of_y}, leader.lower, leader.upper)
    signed = len(owner) - first_signed
    forces = rows.add({first_force + first_signed: np.eye(signed)}, np.zeros(signed), np.full(signed, np.inf))
    hessian, cost = np.zeros((rows.size, rows.size)), np.zeros(rows.size)
    hessian[:first_force, :first_force], cost[:first_force] = objective[0], objective[1]
    lower, upper = (np.concatenate(sides) for sides in zip(*rows.bounds, strict=True))
    return ComplementarityProgram(
        n_x=n_x,
        n_y=n_y,
        hessian=hessian,
        cost=cost,
        constant=objective[2],
        matrix=np.vstack(rows.blocks),
        lower=lower,
        upper=upper,
        pair_row=of_follower[owner[first_signed:]],
        pair_side=sign[first_signed:],
        pair_force=forces,
        owner=owner,
        sign=sign,
        follower_rows=len(follower.lower),
    )
