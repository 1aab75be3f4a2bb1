"""Convex models of functions that are not: negative curvature is reversed or dropped, so that steps go down."""

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.solvers.default.programs.cholesky import factorise, lifted
from bilevax.solvers.default.settings import SIZES


def convex_model(hessian: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return a positive definite matrix: the Hessian with its negative curvature reversed and none left that is zero.

    Large ones are shifted instead, by as little as makes them positive definite. Where there is something to change,
    variables that are ``held`` by a bound are taken to move by themselves: curvature that only they could follow must
    not change that of the others, or steps of these would never become those of Newton's method.
    """
    if held.any() and not _is_definite(hessian):
        free = np.flatnonzero(~held)
        model = np.diag(np.maximum(np.abs(np.diag(hessian)), _LEAST_CURVATURE * np.abs(hessian).max()))
        model[np.ix_(free, free)] = convex_model(hessian[np.ix_(free, free)], held[free])
        return model
    if len(hessian) <= SIZES.eigenvalues:
        try:
            factorise(lifted(hessian, -_LEAST_CURVATURE * max(1e-8, np.abs(hessian).sum(axis=1).max(initial=0.0))))
            return hessian
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(hessian)
        floor = _LEAST_CURVATURE * max(1e-8, np.abs(values).max(initial=0.0))
        return (vectors * np.maximum(np.abs(values), floor)) @ vectors.T if values.min() < floor else hessian
    least = 0.1 * _LEAST_CURVATURE * max(1e-8, np.abs(np.diag(hessian)).max())
    if _is_definite(convex := lifted(hessian, least)):
        return convex
    # The power of ten is found by bisection; the highest is enough by Gershgorin's bound.
    low, high = 0, 1 + int(np.ceil(np.log10(np.abs(hessian).sum(axis=1).max() / least)))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_definite(lifted(hessian, least * 10.0**middle)) else (middle, high)
    return lifted(hessian, least * 10.0**high)


def _is_definite(matrix: np.ndarray) -> bool:
    try:
        factorise(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


_LEAST_CURVATURE = 1e-9  # relative to the largest


def convexified(hessian: sp.csc_matrix, *, reverse: bool = True) -> tuple[sp.csc_matrix, bool]:
    """Return a sparse Hessian with its negative curvature reversed, and whether it had any; zero curvature stays.

    Without ``reverse`` negative curvature is dropped: steps along it are as long as what else limits them allows.
    """
    diagonal, bent = hessian.diagonal(), np.abs if reverse else lambda curvature: np.maximum(curvature, 0.0)
    size = positive(np.abs(hessian.data).max(initial=0.0))
    if hessian.count_nonzero() == np.count_nonzero(diagonal):
        return sp.csc_matrix(sp.diags(bent(diagonal))), bool(diagonal.min(initial=0.0) < -1e-12 * size)
    coupled = np.diff(hessian.indptr) > (diagonal != 0)
    if coupled.sum() < len(coupled):  # variables that stand alone are convex or not by themselves
        index = np.flatnonzero(coupled)
        block, shifted = convexified(sp.csc_matrix(hessian[index][:, index]), reverse=reverse)
        place = sp.csc_matrix((np.ones(len(index)), (index, np.arange(len(index)))), (len(coupled), len(index)))
        alone = np.where(coupled, 0.0, diagonal)
        whole = place @ block @ place.T + sp.diags(bent(alone))
        return sp.csc_matrix(whole), shifted or bool(alone.min() < -1e-12 * size)
    if hessian.shape[0] <= SIZES.as_array or is_full(hessian):
        dense = hessian.toarray()
        try:
            factorise(lifted(dense, 1e-12 * size))
            return hessian, False
        except np.linalg.LinAlgError:
            if len(dense) <= SIZES.as_array:
                values, vectors = np.linalg.eigh(dense)
                return sp.csc_matrix((vectors * bent(values)) @ vectors.T), bool(values[0] < -1e-10 * size)
    # Gershgorin's bound: crude, but it needs no factorisation.
    excess = np.asarray(abs(hessian).sum(axis=1)).ravel() - np.abs(diagonal) - diagonal
    return hessian + sp.diags(np.maximum(excess, 0.0)), bool(excess.max() > 0)


def is_full(matrix: sp.csc_matrix) -> bool:
    """Return whether a matrix is so large and full that arrays are the better form for it."""
    return matrix.shape[0] > SIZES.smallest_full and matrix.nnz > SIZES.full * matrix.shape[0] * matrix.shape[1]
