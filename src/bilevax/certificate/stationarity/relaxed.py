"""Strong stationarity with w = 0: the point is stationary even if y need not be optimal for the lower level.

Then some xi, nonnegative but for equalities, has ``grad_y f + a' xi = 0`` and puts ``-(grad_x f + b' xi)`` into the
normal cone of X, which satisfies all conditions of strong stationarity at once, whatever the lower level's multipliers.
So is every point where the high-point relaxation attains its minimum, such as an optimum of the paper's SVM: thousands
of rows are active there, and this one system tells what thousands of branches could not.
"""

import numpy as np
import scipy.sparse as sp

from bilevax._support.elimination import split
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives


def relaxed_distance(point: PointDerivatives, active: ActiveRows) -> tuple[float, np.ndarray]:
    """Return how far x is from strongly stationary with w = 0, and the multipliers of the active upper rows there.

    The distance is an upper bound of the strong one.

    It is infinite where most rows cannot be eliminated with an entry of x of their own: others have the strong test.
    """
    upper = point.upper
    rows = sp.block_array([[active.b, active.a], [upper.x, upper.y], [point.normals, None]], format="csr")
    free = np.concatenate([active.equality, upper.free, point.normal_free])
    gradient = np.concatenate([point.f_x, point.f_y])
    parts = split(sp.eye(len(gradient), format="csr"), rows)
    if parts is None:
        return np.inf, np.zeros(upper.count)
    # The projection of minus the gradient onto the cone of directions: rows that it would leave are let go.
    size = 1 + np.abs(gradient).max()
    held, left, multiplier = np.ones(len(free), bool), gradient, np.zeros(len(free))
    for _ in range(STATIONARITY.relaxed_rounds):
        factor = parts.factorise(np.where(held, 0.0, np.inf))
        step, multiplier = np.zeros(len(gradient)), np.zeros(len(free))
        for _ in range(STATIONARITY.refinements):
            more = factor.solve(-gradient - step - rows.T @ multiplier, np.where(held, -(rows @ step), 0.0))
            step, multiplier = step + more[0], multiplier + np.where(held, more[1], 0.0)
        wrong = held & ~free & (multiplier < -TOLERANCES.exactly_zero * size)
        missing = ~held & (rows @ step > TOLERANCES.exactly_zero * size)
        if not (wrong.any() or missing.any()):
            break
        held = (held & ~wrong) | missing
    multiplier = np.where(free, multiplier, np.maximum(multiplier, 0.0))
    left = gradient + rows.T @ multiplier
    n_x = len(point.f_x)
    # What is left in y would be a violated condition, and counts as such.
    distance = float(np.hypot(np.linalg.norm(left[:n_x]), TOLERANCES.misfit_weight * np.linalg.norm(left[n_x:])))
    return distance, multiplier[len(active.equality) :][: upper.count]
