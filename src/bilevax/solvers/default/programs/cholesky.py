"""Positive definite systems by LAPACK itself: around small matrices SciPy's checks cost ten times the work."""

from collections.abc import Callable

import numpy as np
from scipy.linalg import blas, lapack

from bilevax._support import clock
from bilevax._support.division import positive

_LARGE = 500  # unknowns from which on LAPACK, made for many right sides, takes three times as long for one as BLAS


def factorise(matrix: np.ndarray, overwrite: bool = False) -> np.ndarray:
    """Return the Cholesky factor; a `LinAlgError` where the matrix is not positive definite."""
    with clock.work(len(matrix) ** 3 / 3):
        factor, failed = lapack.dpotrf(
            matrix.T, clean=0, overwrite_a=overwrite
        )  # its own transpose, in the order in which LAPACK reads it
    if failed:
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return factor


def solve_factored(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the solution for one right-hand side, or for the columns of a matrix."""
    if right.ndim == 1 and len(right) > _LARGE:
        return blas.dtrsv(factor, blas.dtrsv(factor, right, trans=1), overwrite_x=1)
    if right.ndim == 1:
        return lapack.dpotrs(factor, right)[0] if right.size else right
    with clock.work(2 * len(factor) * right.size):
        return lapack.dpotrs(factor, right)[0] if right.size else right


def half_solved(factor: np.ndarray, right: np.ndarray, overwrite: bool = False) -> np.ndarray:
    """Return ``L^-1 right``, where ``L L'`` is the matrix with this factor."""
    with clock.work(len(factor) * right.size):
        return blas.dtrsm(1.0, factor, right, trans_a=1, overwrite_b=overwrite) if right.size else right


def wholly_solved(factor: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return ``L'^-1 half``: the solution, given what `half_solved` returns."""
    if half.ndim == 1:
        return blas.dtrsv(factor, half)
    with clock.work(len(factor) * half.size):
        return blas.dtrsm(1.0, factor, half) if half.size else half


def inverse(factor: np.ndarray) -> np.ndarray:
    """Return the inverse of the matrix with this factor."""
    with clock.work(2 * len(factor) ** 3 / 3):
        half = np.triu(lapack.dpotri(factor)[0])
    return half + np.triu(half, 1).T


def lifted(matrix: np.ndarray, diagonal: np.ndarray | float) -> np.ndarray:
    """Return the matrix with a diagonal added."""
    result = matrix.copy()
    result.ravel()[:: len(matrix) + 1] += diagonal
    return result


def factorise_nearly(matrix: np.ndarray) -> np.ndarray:
    """Factor a symmetric matrix, lifted by as little as makes it positive definite."""
    lift = 1e-14 * positive(float(np.abs(np.diag(matrix)).max(initial=1.0)))
    for _ in range(12):
        try:
            return factorise(lifted(matrix, lift), overwrite=True)
        except np.linalg.LinAlgError:
            lift *= 10
    raise np.linalg.LinAlgError("the matrix is far from positive semidefinite")


def refined_solver(matrix: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return what solves with a matrix factored nearly; one refinement takes out what it was lifted by."""
    factor = factorise_nearly(matrix)

    def solve(right: np.ndarray) -> np.ndarray:
        rough = solve_factored(factor, right)
        return rough + solve_factored(factor, right - matrix @ rough)

    return solve
