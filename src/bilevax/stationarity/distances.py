"""Distances from stationarity: each a least-norm problem, by Clarabel."""

import clarabel
import numpy as np
import scipy.sparse as sp

from bilevax.stationarity.pieces import eliminate
from bilevax.stationarity.point import PointDerivatives
from bilevax.stationarity.rows import MAX_DENSE, ActiveRows


def distance_to_cone(gradient: np.ndarray, point: PointDerivatives) -> float:
    """Return the distance of ``-gradient`` from the normal cone of X."""
    if point.normals.shape[0] == 0:
        return float(np.linalg.norm(gradient))
    n_x = len(gradient)
    equations = [(sp.hstack([sp.eye(n_x), -point.normals.T]), gradient)]
    nonnegative = np.flatnonzero(~point.normal_free) + n_x
    distance = _least_norm(n_x, n_x + point.normals.shape[0], equations, nonnegative, [])
    return float(np.linalg.norm(gradient)) if distance is None else distance


def strong_distance(
    point: PointDerivatives, active: ActiveRows, weak: np.ndarray, sometimes: np.ndarray
) -> float | None:
    """Return the residual of strong stationarity, or None when its conditions contradict each other."""
    optional = (weak | sometimes) & ~active.equality
    small = active.a.shape[0] * active.a.shape[1] <= MAX_DENSE
    kink = eliminate(point, active, optional) if small else None
    if kink is None:
        return _strong_distance_in_full(point, active, weak, sometimes)
    # Unknowns: the residual, the forces xi on the optional rows, the normals of X, and a_i w where it may be positive.
    n_x, count, cone = len(point.f_x), int(optional.sum()), point.normals.shape[0]
    shut = sometimes[optional]
    opened = np.eye(count)[:, ~shut]
    width = opened.shape[1]
    equations = [
        (
            sp.hstack([sp.eye(n_x), -sp.csr_matrix(kink.slope.T), -point.normals.T, sp.csr_matrix((n_x, width))]),
            kink.gradient,
        ),
        (
            sp.hstack([sp.csr_matrix((count, n_x)), kink.compliance, sp.csr_matrix((count, cone)), opened]),
            kink.response,
        ),
    ]
    signs = np.concatenate([np.ones(count, bool), ~point.normal_free, np.ones(width, bool)])
    return _least_norm(n_x, n_x + count + cone + width, equations, n_x + np.flatnonzero(signs), [])


def _strong_distance_in_full(
    point: PointDerivatives, active: ActiveRows, weak: np.ndarray, sometimes: np.ndarray
) -> float | None:
    """The same without elimination: for large systems, and where the other rows do not determine y."""
    n_x, n_y, count, cone = len(point.f_x), len(point.f_y), len(weak), point.normals.shape[0]
    xi, nu = n_x + n_y + np.arange(count), n_x + n_y + count + np.arange(cone)
    total = n_x + n_y + count + cone
    zero = sp.csr_matrix
    open_rows = weak & ~sometimes
    held = ~open_rows
    equations = [
        (sp.hstack([sp.eye(n_x), -point.mixed.T, -active.b.T, -point.normals.T]), point.f_x),
        (sp.hstack([zero((n_y, n_x)), point.hessian, active.a.T, zero((n_y, cone))]), -point.f_y),
        (
            sp.hstack([zero((held.sum(), n_x)), active.a[held], zero((held.sum(), count + cone))]),
            np.zeros(held.sum()),
        ),
    ]
    nonnegative = np.concatenate([xi[(weak | sometimes) & ~active.equality], nu[~point.normal_free]])
    inequalities = [
        sp.hstack([zero((open_rows.sum(), n_x)), active.a[open_rows], zero((open_rows.sum(), count + cone))])
    ]
    return _least_norm(n_x, total, equations, nonnegative, inequalities)


def hull_distance(point: PointDerivatives, active: ActiveRows, pieces: np.ndarray) -> float | None:
    """Return the distance of 0 from hull(pieces) + normals of X + normals of {x : the lower level is feasible}."""
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
    return _least_norm(n_x, total, equations, nonnegative, [])


def _least_norm(
    leading: int,
    total: int,
    equations: list[tuple[sp.spmatrix, np.ndarray]],
    nonnegative: np.ndarray,
    inequalities: list[sp.spmatrix],
) -> float | None:
    """Return the least norm of the first ``leading`` entries under equations, signs and ``inequality v >= 0``."""
    matrix = sp.vstack([left for left, _ in equations], format="csr")
    right = np.concatenate([value for _, value in equations])
    scale = max(1.0, np.abs(right).max(initial=0.0))
    signs = sp.vstack([sp.eye(total, format="csr")[nonnegative], *inequalities], format="csr")
    cones = [clarabel.ZeroConeT(matrix.shape[0])]
    if signs.shape[0]:
        cones.append(clarabel.NonnegativeConeT(signs.shape[0]))
    # The norm itself as a cone, |v| <= t with t last: least squares to 1e-11 would give the norm to 3e-6 only.
    cones.append(clarabel.SecondOrderConeT(leading + 1))
    bound = sp.csr_matrix(([1.0], ([0], [total])), shape=(1, total + 1))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    settings.max_iter = 200
    rows = sp.vstack([matrix, -signs])
    everything = sp.vstack(
        [sp.hstack([rows, sp.csr_matrix((rows.shape[0], 1))]), -bound, -sp.eye(leading, total + 1)], format="csc"
    )
    bounds = np.concatenate([right / scale, np.zeros(signs.shape[0] + leading + 1)])
    cost, linear = sp.csc_matrix((total + 1, total + 1)), np.r_[np.zeros(total), 1.0]
    answer = clarabel.DefaultSolver(cost, linear, everything, bounds, cones, settings).solve()
    solution = np.array(answer.x)[:total]
    # The answer is judged by its own residual, not by the solver's word for it.
    wrong = np.abs(matrix @ solution - right / scale).max(initial=0.0) + np.maximum(-(signs @ solution), 0).max(
        initial=0.0
    )
    if not np.isfinite(solution).all() or not wrong <= 1e-7 * (1 + np.abs(solution).max()):
        return None
    return float(np.linalg.norm(solution[:leading]) + wrong) * scale
