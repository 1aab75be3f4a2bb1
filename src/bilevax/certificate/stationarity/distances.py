"""The distances that measure stationarity: of gradients from normal cones."""

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.certificate.stationarity.least_norm import least_norm
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives
from bilevax.model.compressed_rows import row_squares


def distance_to_cone(gradient: np.ndarray, normals: sp.csr_matrix, free: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the distance of ``-gradient`` from a cone of normals, and their weights, any sign where ``free``."""
    if normals.shape[0] == 0:
        return float(np.linalg.norm(gradient)), np.zeros(0)
    n_x = len(gradient)
    if np.all(np.diff(normals.indptr) == 1) and len(np.unique(normals.indices)) == normals.shape[0]:
        # Bounds of different entries: their normals are orthogonal, and each takes what it can of the gradient.
        push = -(normals @ gradient) / positive(row_squares(normals))
        push = np.where(free, push, np.maximum(push, 0.0))
        return float(np.linalg.norm(gradient + normals.T @ push)), push
    equations = [(sp.hstack([sp.eye(n_x), -normals.T]), gradient)]
    answer = least_norm(n_x, n_x + normals.shape[0], equations, np.flatnonzero(~free) + n_x)
    if answer is None:
        return float(np.linalg.norm(gradient)), np.zeros(normals.shape[0])
    return answer.distance, answer.unknowns[n_x:]


def hull_distance(point: PointDerivatives, active: ActiveRows, pieces: np.ndarray) -> float | None:
    """Return the distance of 0 from hull(pieces) + normals of X + normals of {x : the lower level is feasible}.

    None where it could not be computed.
    """
    n_x, n_y, cone, count = len(point.f_x), active.a.shape[1], point.normals.shape[0], active.a.shape[0]
    number = len(pieces)
    total = n_x + number + cone + count
    zero = sp.csr_matrix
    weights, nu, mu = (
        n_x + np.arange(number),
        n_x + number + np.arange(cone),
        n_x + number + cone + np.arange(count),
    )
    equations = [
        (sp.hstack([sp.eye(n_x), sp.csr_matrix(-pieces.T), -point.normals.T, -active.b.T]), np.zeros(n_x)),
        (
            sp.hstack([zero((1, n_x)), sp.csr_matrix(np.ones((1, number))), zero((1, cone + count))]),
            np.ones(1),
        ),
        (sp.hstack([zero((n_y, n_x + number + cone)), active.a.T]), np.zeros(n_y)),
    ]
    nonnegative = np.concatenate([weights, nu[~point.normal_free], mu[~active.equality]])
    answer = least_norm(n_x, total, equations, nonnegative)
    return None if answer is None else answer.distance
