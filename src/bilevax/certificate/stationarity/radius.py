"""How far x is from a point where the rows counted as active, and the multipliers counted as zero, are exactly so."""

import numpy as np
import scipy.sparse as sp

from bilevax.certificate.stationarity.least_norm import least_norm
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives


def radius(point: PointDerivatives, active: ActiveRows) -> float:
    """Return the length of the shortest step of x, in natural units, after which no margin is needed.

    To first order y and the multipliers follow a step dx by ``mixed dx + H dy + a' dl = 0``. The step closes the slack
    of every active row, ``a dy + b dx = slack``, takes the multipliers of weakly active rows to zero,
    ``dl = -multiplier``, and moves x onto the sides of X that count as active. Where no step does all of this, what is
    missing is added to the length, with a large weight.
    """
    slack, excess = active.slack, np.where(active.weak, active.multiplier, 0.0)
    if (
        max(slack.max(initial=0.0), excess.max(initial=0.0), point.normal_slack.max(initial=0.0))
        <= TOLERANCES.exactly_zero
    ):
        return 0.0
    n_x, n_y, count, cone = len(point.f_x), len(point.f_y), len(slack), point.normals.shape[0]
    weak = np.flatnonzero(active.weak)
    fitted = count + len(weak) + cone
    misfit, zero = sp.eye(fitted, format="csr") / TOLERANCES.misfit_weight, sp.csr_matrix
    of_weak = sp.eye(count, format="csr")[weak]
    # Unknowns: the step of x and the misfits, whose norm counts; then the steps of y and of the multipliers.
    equations = [
        (sp.hstack([point.mixed, zero((n_y, fitted)), point.hessian, active.a.T]), np.zeros(n_y)),
        (sp.hstack([active.b, misfit[:count], active.a, zero((count, count))]), slack),
        (
            sp.hstack([zero((len(weak), n_x)), misfit[count : count + len(weak)], zero((len(weak), n_y)), of_weak]),
            -excess[weak],
        ),
        (sp.hstack([point.normals, misfit[count + len(weak) :], zero((cone, n_y + count))]), point.normal_slack),
    ]
    size = max(np.abs(right).max(initial=0.0) for _, right in equations)
    scaled = [(left, right / size) for left, right in equations]
    answer = least_norm(n_x + fitted, n_x + fitted + n_y + count, scaled, np.zeros(0, int))
    return np.inf if answer is None else answer.distance * size
