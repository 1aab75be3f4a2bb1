"""The constants that the convergence theorems of SFLCB take to be known of a problem: measured, or enumerated.

Curvatures and singular values are measured around a start. `theta_bar`, the constant of the error bound of the dual, is
the largest of a number over all bases of a matrix, and those are enumerated.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax.exact.lower import solve_flat
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, Level, place, validate

# More bases than this are not enumerated for theta_bar: one or two seconds.
_MAX_BASES = 100_000
# A singular value below this fraction of the largest counts as zero.
_RANK_TOLERANCE = 1e-10


@dataclasses.dataclass(frozen=True)
class TheoryConstants:
    """What the theorems assume to be known of a problem.

    Attributes
    ----------
    mu_g
        Strong convexity of g in y: the smallest eigenvalue of its Hessian in y.
    l_g1, l_f1
        Lipschitz constants of the gradients of g and f, jointly in (x, y).
    sigma_max_a, sigma_min_a
        Largest and smallest singular value of A over its rows; the smallest is 0 unless A has full row rank.
    sigma_max_b
        Largest singular value of B.
    theta_bar
        The constant of the dual error bound (Lemma "linear"), see `theta_bar`; None when it is not known.
    l_f0
        Lipschitz constant of f, jointly in (x, y). No step size needs it; the bounds on Phi - Phi_delta do.
    """

    mu_g: float
    l_g1: float
    l_f1: float
    sigma_max_a: float
    sigma_min_a: float
    sigma_max_b: float
    theta_bar: float | None = None
    l_f0: float | None = None


def estimate_constants(
    problem: BilevelProblem,
    x0: PyTree,
    y0: PyTree = None,
    *,
    samples: int = 16,
    radius: float = 1.0,
    seed: int = 0,
    theta_bar: float | None = None,
) -> TheoryConstants:
    """Measure the constants of the theorems around a start.

    A and B are taken as they are. The curvature constants are extremes over the Hessians at the start and at random
    points around it, projected onto X and Y: exact for quadratics, otherwise estimates from the optimistic side.

    Parameters
    ----------
    problem, x0
        The problem and the start.
    y0
        The lower level's start; y*(x0), solved exactly, when absent.
    samples, radius, seed
        How many points beside the start, the standard deviation of each coordinate, and the random seed.
    theta_bar
        The constant of the dual error bound, where it is known; otherwise it is enumerated (see `theta_bar`).

    Raises
    ------
    ValueError
        If theta_bar is not given and cannot be enumerated.
    """
    with float64():
        x, y_like, y = validate(problem, x0, y0)
    flat = FlatProblem(problem, x, y_like)
    theta_bar = _theta_bar(flat) if theta_bar is None else theta_bar  # first, because it may refuse
    center_x = trees.flatten_host(x)
    center_y = solve_flat(flat, center_x).y if y is None else trees.flatten_host(y)
    points = list(_points_around(flat, center_x, center_y, samples, radius, seed))
    lower = [_joint_hessian(flat, "lower", *point) for point in points]
    upper = [_joint_hessian(flat, "upper", *point) for point in points]
    curvature = [scipy.linalg.eigvalsh(hessian[flat.n_x :, flat.n_x :])[0] for hessian in lower]
    singular_a = scipy.linalg.svdvals(flat.rows.A.toarray()) if flat.rows.A.shape[0] else np.zeros(0)
    full_rank = len(singular_a) == flat.rows.A.shape[0] and np.all(
        singular_a > _RANK_TOLERANCE * singular_a.max(initial=0)
    )
    return TheoryConstants(
        mu_g=float(min(curvature)),
        l_g1=max(map(_spectral_norm, lower)),
        l_f1=max(map(_spectral_norm, upper)),
        sigma_max_a=float(singular_a.max(initial=0.0)),
        sigma_min_a=float(singular_a.min(initial=np.inf)) if full_rank and len(singular_a) else 0.0,
        sigma_max_b=_spectral_norm(flat.rows.B.toarray()),
        theta_bar=theta_bar,
        l_f0=max(float(np.linalg.norm(np.concatenate(flat.gradients("upper", *point)))) for point in points),
    )


def theta_bar(problem: BilevelProblem, x: PyTree, y: PyTree = None) -> float:
    """Return the constant of the dual error bound (Lemma "linear"), by enumeration.

    It is the largest ``sigma_max^2 / sigma_min^4`` over the sets of independent rows of

        M = [ A'^T  C^T ]
            [ 0     I   ]

    where A' = (A, -I) acts on (y, s), and C stacks the bounds on s and the rows of Y. A further independent row can
    only raise sigma_max and lower sigma_min, so the largest is attained at a basis of the rows, and only bases are
    visited. Equality rows have no slack variable: their column of -I is absent.

    Raises
    ------
    ValueError
        If Y is not a polyhedron, or if there are too many bases (the number is in the message).
    """
    with float64():
        x, y_like, _ = validate(problem, x, y)
    return _theta_bar(FlatProblem(problem, x, y_like))


def _theta_bar(flat: FlatProblem) -> float:
    matrix = _error_bound_matrix(flat)
    rank = int(np.linalg.matrix_rank(matrix)) if matrix.size else 0
    if rank == 0:
        return 0.0
    count = math.comb(len(matrix), rank)
    if count > _MAX_BASES:
        raise ValueError(
            f"theta_bar: expected a number, because it is too long to enumerate here: {count} candidate bases of "
            f"{rank} out of {len(matrix)} rows (at most {_MAX_BASES}). Give estimate_constants(..., theta_bar=...)."
        )
    largest, cutoff = 0.0, _RANK_TOLERANCE * np.linalg.norm(matrix, 2)
    bases = itertools.combinations(range(len(matrix)), rank)
    while chunk := list(itertools.islice(bases, 4096)):
        values = np.linalg.svd(matrix[np.array(chunk)], compute_uv=False)
        values = values[values[:, -1] > cutoff]
        largest = max(largest, float(np.max(values[:, 0] ** 2 / values[:, -1] ** 4, initial=0.0)))
    return largest


def _error_bound_matrix(flat: FlatProblem) -> np.ndarray:
    """Return the matrix M of `theta_bar`."""
    rows, simple = flat.rows, flat.y_rows
    if simple.balls:
        raise ValueError(
            "theta_bar: expected a polyhedron Y, got a ball: the dual error bound holds for polyhedra only."
        )
    moving = rows.lower != rows.upper
    extended = np.hstack([rows.A.toarray(), -np.eye(len(moving))[:, moving]])
    bounds = sp.block_diag([simple.matrix, sp.eye(int(moving.sum()))]).toarray()
    lower = np.concatenate([simple.lower, rows.lower[moving]])
    upper = np.concatenate([simple.upper, rows.upper[moving]])
    one_sided = np.vstack([bounds[np.isfinite(upper)], -bounds[np.isfinite(lower)]])
    return np.block([[extended.T, one_sided.T], [np.zeros((len(one_sided), len(extended))), np.eye(len(one_sided))]])


def check_full_row_rank(constants: TheoryConstants) -> None:
    """Raise a ValueError where the rows of A depend on each other: the theorem for coupled rows excludes that."""
    if not constants.sigma_min_a > 0:
        raise ValueError(
            f"A: expected full row rank, which the theorem for coupled rows needs, got sigma_min(A) = "
            f"{constants.sigma_min_a:.6g} with sigma_max(A) = {constants.sigma_max_a:.6g}."
        )


def _points_around(
    flat: FlatProblem, x: np.ndarray, y: np.ndarray, samples: int, radius: float, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the point, then random ones around it, in X and Y."""
    random = np.random.default_rng(seed)
    with float64():
        placed = place(flat.problem, np.float64)
        for index in range(samples + 1):
            spread = radius if index else 0.0
            near = [jnp.asarray(v + spread * random.standard_normal(len(v))) for v in (x, y)]
            yield (
                trees.flatten_host(placed.x_set.project(trees.unflatten(near[0], flat.x_like))),
                trees.flatten_host(placed.y_set.project(trees.unflatten(near[1], flat.y_like))),
            )


def _joint_hessian(flat: FlatProblem, level: Level, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    block = lambda of, by: flat.hessian(level, of, by, x, y).toarray()
    mixed = block("x", "y")
    return np.block([[block("x", "x"), mixed], [mixed.T, block("y", "y")]])


def _spectral_norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
