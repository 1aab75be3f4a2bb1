"""The distances that measure stationarity: of gradients from normal cones."""

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.certificate.stationarity.least_norm import least_norm
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives
from bilevax.model.compressed_rows import put_together, row_squares


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
    equations = put_together([[1.0, -normals.T]], [n_x], [n_x, normals.shape[0]])
    answer = least_norm(n_x, equations, gradient, np.flatnonzero(~free) + n_x)
    if answer is None:
        return float(np.linalg.norm(gradient)), np.zeros(normals.shape[0])
    return answer.distance, answer.unknowns[n_x:]


def hull_distance(point: PointDerivatives, active: ActiveRows, pieces: np.ndarray) -> float | None:
    """Return the distance of 0 from hull(pieces) + normals of X + normals of {x : the lower level is feasible}.

    None where it could not be computed.
    """
    n_x, n_y, cone, count = len(point.f_x), active.a.shape[1], point.normals.shape[0], active.a.shape[0]
    number = len(pieces)
    blocks = [
        [1.0, -pieces.T, -point.normals.T, -active.b.T],
        [None, np.ones((1, number)), None, None],
        [None, None, None, active.a.T],
    ]
    equations = put_together(blocks, [n_x, 1, n_y], [n_x, number, cone, count])
    signs = np.concatenate([np.ones(number, bool), ~point.normal_free, ~active.equality])
    answer = least_norm(n_x, equations, np.r_[np.zeros(n_x), 1.0, np.zeros(n_y)], n_x + np.flatnonzero(signs))
    return None if answer is None else answer.distance
