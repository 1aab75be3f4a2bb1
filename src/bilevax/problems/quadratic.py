"""Random bilevel problems with a quadratic lower level, whose constants are known exactly."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box
from bilevax.paper.constants import TheoryConstants, theta_bar

Upper = Literal["lipschitz", "nonconvex", "quadratic"]
_LARGE = 2000  # variables or rows beyond which decompositions are avoided


class RandomQuadratic(NamedTuple):
    """A random problem, and the constants that the theory asks for."""

    problem: BilevelProblem
    constants: TheoryConstants


def random_quadratic(
    n_x: int = 3,
    n_y: int = 4,
    n_rows: int = 2,
    *,
    coupled: bool = True,
    upper: Upper = "lipschitz",
    condition: float = 4.0,
    row_condition: float = 2.0,
    n_equalities: int = 0,
    box: float | None = None,
    with_theta_bar: bool = True,
    seed: int = 0,
) -> RandomQuadratic:
    """Return a random problem and its constants.

    The lower level is ``g = y'Hy / 2 + y'(Cx + c)`` with ``mu_g = 1``; about half of the rows are active at the
    solution. With r = Q (x, y) - t and Q orthogonal, the upper level is one of

    - "lipschitz": ``sum w_i sqrt(1 + r_i^2)``, convex, l_f0 = |w|;
    - "nonconvex": ``sum w_i (1 - cos r_i)``, bounded, l_f0 = |w|;
    - "quadratic": ``sum w_i r_i^2 / 2``, l_f0 = None (there is none);

    each with l_f1 = max w = 1. Problems of the same sizes share compiled code: all numbers are data.

    Parameters
    ----------
    n_x, n_y, n_rows
        Sizes.
    coupled
        Whether the rows involve x; A then has full row rank and needs ``n_rows <= n_y``.
    upper
        The kind of f.
    condition, row_condition
        Condition numbers of H and of A; A's is that of its nonzero singular values where ``n_rows > n_y``.
    n_equalities
        How many of the rows, from the first on, are equalities; the others are ``B x + A y <= b``.
    box
        Bounds ``|y_i| <= box``, when given. With coupled rows the lower level is then feasible only for x near 0.
    with_theta_bar
        Whether to enumerate theta_bar, which is short only for few rows; None otherwise.
    seed
        Of the random numbers.
    """
    problem = quadratic_problem(n_x, n_y, n_rows, coupled, upper, condition, row_condition, n_equalities, box, seed)
    rows, (hessian, mixed, weights) = problem.coupling[0], (problem.data[key] for key in ("H", "C", "w"))
    assert isinstance(rows, LinearCoupling)
    matrix_b, matrix_a = (part.toarray() for part in rows.matrices(np.zeros(n_x), np.zeros(n_y), None)[:2])
    singular = np.linalg.svd(matrix_a, compute_uv=False)
    joint = np.block([[np.zeros((n_x, n_x)), mixed.T], [mixed, hessian]])
    constants = TheoryConstants(
        mu_g=1.0,
        l_g1=float(np.linalg.norm(joint, 2)),
        l_f1=1.0,
        sigma_max_a=float(singular[0]),
        sigma_min_a=float(singular[-1]) if n_rows <= n_y else 0.0,
        sigma_max_b=float(np.linalg.norm(matrix_b, 2)) if coupled else 0.0,
        theta_bar=theta_bar(problem, np.zeros(n_x), np.zeros(n_y)) if with_theta_bar else None,
        l_f0=None if upper == "quadratic" else float(np.linalg.norm(weights)),
    )
    return RandomQuadratic(problem, constants)


def quadratic_problem(
    n_x: int,
    n_y: int,
    n_rows: int,
    coupled: bool = True,
    upper: Upper = "lipschitz",
    condition: float = 4.0,
    row_condition: float = 2.0,
    n_equalities: int = 0,
    box: float | None = None,
    seed: int = 0,
) -> BilevelProblem:
    """Return the problem of `random_quadratic` alone: of a large one the constants take longer than its solution."""
    _check_sizes(n_x, n_y, n_rows, n_equalities, coupled, upper)
    random = np.random.default_rng(seed)
    hessian = _with_spectrum(random, n_y, n_y, np.sqrt(condition))
    hessian = hessian @ hessian.T
    if n_y <= _LARGE:  # else the smallest eigenvalue is 1 up to rounding, and would take longer than all the rest
        hessian /= np.linalg.eigvalsh(hessian)[0]
    mixed = random.standard_normal((n_y, n_x)) / np.sqrt(n_x)
    matrix_a = _with_spectrum(random, n_rows, n_y, row_condition)
    matrix_b = random.standard_normal((n_rows, n_x)) / np.sqrt(n_x) if coupled else None
    inside = np.clip(random.standard_normal(n_y), -0.5, 0.5) * (1.0 if box is None else box)
    # The unconstrained minimiser at x = 0 is put beyond half of the rows, so that those are active.
    side = np.where(np.arange(n_rows) % 2 == 0, 1.0, -1.0)
    target = inside + _least_norm(matrix_a, 2.0 * side)
    slack = np.where(np.arange(n_rows) < n_equalities, 0.0, random.uniform(0.2, 0.6, n_rows))
    bound = matrix_a @ inside + slack
    weights = random.uniform(0.3, 1.0, n_x + n_y)
    weights[0] = 1.0
    return BilevelProblem(
        _UPPER[upper],
        _lower,
        LinearCoupling(matrix_a, matrix_b, np.where(slack == 0.0, bound, -np.inf), bound),
        y_set=None if box is None else Box(np.full(n_y, -box), np.full(n_y, box)),
        data={
            "H": hessian,
            "C": mixed,
            "c": -hessian @ target,
            "Q": _orthogonal(random, n_x + n_y),
            "t": random.standard_normal(n_x + n_y),
            "w": weights,
        },
    )


def _check_sizes(n_x: int, n_y: int, n_rows: int, n_equalities: int, coupled: bool, upper: Upper) -> None:
    for name, size, least in (
        ("n_x", n_x, 1),
        ("n_y", n_y, 1),
        ("n_rows", n_rows, 1),
        ("n_equalities", n_equalities, 0),
    ):
        if size < least:
            raise ValueError(f"{name}: expected at least {least}, got {size}.")
    if coupled and n_rows > n_y:
        raise ValueError(f"n_rows: expected at most n_y = {n_y} coupled rows, for a full row rank, got {n_rows}.")
    if upper not in _UPPER:
        raise ValueError(f"upper: expected one of {sorted(_UPPER)}, got {upper!r}.")


def _residual(x: Array, y: Array, data: PyTree) -> Float[Array, " n"]:
    return data["Q"] @ jnp.concatenate([x, y]) - data["t"]


def _lipschitz(x: Array, y: Array, data: PyTree) -> Float[Array, ""]:
    return data["w"] @ jnp.sqrt(1 + _residual(x, y, data) ** 2)


def _nonconvex(x: Array, y: Array, data: PyTree) -> Float[Array, ""]:
    return data["w"] @ (1 - jnp.cos(_residual(x, y, data)))


def _quadratic(x: Array, y: Array, data: PyTree) -> Float[Array, ""]:
    return 0.5 * data["w"] @ _residual(x, y, data) ** 2


_UPPER = {"lipschitz": _lipschitz, "nonconvex": _nonconvex, "quadratic": _quadratic}


def _lower(x: Array, y: Array, data: PyTree) -> Float[Array, ""]:
    return 0.5 * y @ data["H"] @ y + y @ (data["C"] @ x + data["c"])


def _least_norm(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the shortest solution of a system with independent rows, or the best of one with more rows than that."""
    if len(matrix) <= _LARGE or len(matrix) > matrix.shape[1]:
        return np.linalg.pinv(matrix) @ right
    return matrix.T @ np.linalg.solve(matrix @ matrix.T, right)


def _orthogonal(random: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(random.standard_normal((size, size)))[0]


def _with_spectrum(random: np.random.Generator, rows: int, columns: int, condition: float) -> np.ndarray:
    """Return a random matrix whose nonzero singular values run from 1 to ``condition``, in equal ratios."""
    rank = min(rows, columns)
    left, right = _orthogonal(random, rows)[:, :rank], _orthogonal(random, columns)[:rank]
    return left @ np.diag(np.geomspace(1.0, condition, rank)) @ right
