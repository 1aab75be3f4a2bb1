"""How far x is from a point where the rows counted as active, and the multipliers counted as zero, are exactly so."""

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax._support.division import positive
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.stationarity.least_norm import shortest
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives, solve_kkt
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.model.compressed_rows import put_together, unit_rows_at


def radius(point: PointDerivatives, active: ActiveRows, multipliers: bool = True) -> float:
    """Return the length of the shortest step of x, in natural units, after which no margin is needed.

    To first order y and the multipliers follow a step dx by ``mixed dx + H dy + a' dl = 0``. The step closes the slack
    of every active row, ``a dy + b dx = slack``, takes the multipliers of weakly active rows to zero,
    ``dl = -multiplier``, and moves x onto the sides of X, and (x, y) onto those of upper rows, that count as active.
    Where no step does all of this, what is missing is added to the length, with a large weight. A test that does not
    look at ``multipliers`` asks nothing of them.
    """
    slack, excess = active.slack, np.where(active.weak & multipliers, active.multiplier, 0.0)
    normal_slack, upper = np.concatenate([point.normal_slack, point.upper.slack]), point.upper
    if max(part.max(initial=0.0) for part in (slack, excess, normal_slack)) <= TOLERANCES.exactly_zero:
        return 0.0
    if not (multipliers or upper.count) and (bound := _bound(point, active)) <= TOLERANCES.settled:
        return bound
    n_x, n_y, count, sides = len(point.f_x), len(point.f_y), len(slack), len(point.normal_slack)
    weak = np.flatnonzero(active.weak & multipliers)
    misfit = 1 / TOLERANCES.misfit_weight
    # Unknowns: the step of x and the misfits, whose norm counts; then the steps of y and of the multipliers.
    blocks = [
        [point.mixed, None, None, None, None, point.hessian, active.a.T],
        [active.b, misfit, None, None, None, active.a, None],
        [None, None, misfit, None, None, None, unit_rows_at(weak, count)],
        [point.normals, None, None, misfit, None, None, None],
        [upper.x, None, None, None, misfit, upper.y, None],
    ]
    fitted = [count, len(weak), sides, upper.count]
    equations = put_together(blocks, [n_y, *fitted], [n_x, *fitted, n_y, count])
    right = np.concatenate([np.zeros(n_y), slack, -excess[weak], normal_slack])
    size = np.abs(right).max()
    return shortest(n_x + sum(fitted), equations, right / size) * size


def _bound(point: PointDerivatives, active: ActiveRows) -> float:
    """Return an upper bound of the radius where multipliers need not change: x closes the slacks alone.

    y follows it, and what that leaves open counts as missing.
    """
    rows, slack = sp.vstack([active.b, point.normals], format="csr"), np.concatenate([active.slack, point.normal_slack])
    length = positive(spl.norm(rows, axis=1))
    accuracy, most = EXACT_SETTINGS.rows_accuracy, STATIONARITY.radius_iterations
    step = spl.lsmr(sp.diags(1 / length) @ rows, slack / length, atol=accuracy, btol=accuracy, maxiter=most)[0]
    follows = solve_kkt(point.hessian, active.a[:0], -(point.mixed @ step))
    if follows is None:
        return np.inf
    left = slack - rows @ step
    left[: active.a.shape[0]] -= active.a @ follows
    return float(np.hypot(np.linalg.norm(step), TOLERANCES.misfit_weight * np.linalg.norm(left)))
