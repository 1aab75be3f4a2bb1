"""Is there a way down from x? First-order descent, told apart from curvature and from what lies behind a barrier.

Along a direction, D(t) is by how much Phi is lower at natural distance t. A first-order descent has
D(t) = s t + c t^2 + ..., so ``(4 D(t/2) - D(t)) / t`` is s up to third order, and equal at t, t/2 and t/4. At a smooth
saddle or maximum it vanishes; where x lies a little beside the kink of a minimum it doubles from t to t/2; behind a
barrier D is negative at smaller distances. None of these is called a descent, so a true local minimum never is.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from attack.model import Region

DISTANCES = 1e-2 * 0.5 ** np.arange(14)  # 1e-2 ... 1.2e-6
_LOOK_FIRST = [0, 3, 7, 10]
SLOPE = 2e-4
_NOISE = 1e-9


class Descent(NamedTuple):
    """A direction in natural scales, its slope and the distance at which it was seen."""

    direction: np.ndarray
    slope: float
    distance: float


def find_descent(
    drop: Callable[[np.ndarray], float], x: np.ndarray, x_set: Region, scale: np.ndarray, random: np.random.Generator
) -> Descent | None:
    """Look for a first-order descent from x along coordinates, random directions and gradients of pieces nearby."""
    n = x.size
    move = lambda d, t: x_set.project(x + t * scale * d)
    directions = [*np.eye(n), *-np.eye(n)]
    directions += list(random.standard_normal((4 + 2 * n, n)))
    directions += _piece_gradients(lambda d: drop(move(d, 1.0)), n, random)
    for direction in directions:
        step = (move(direction / max(np.linalg.norm(direction), 1e-300), DISTANCES[0]) - x) / scale
        length = np.linalg.norm(step)
        if length < 1e-2 * DISTANCES[0]:
            continue
        step = step / length
        values = {k: drop(move(step, DISTANCES[k])) for k in _LOOK_FIRST}
        if max(values[k] / DISTANCES[k] for k in _LOOK_FIRST) <= SLOPE:
            continue
        D = np.array([values[k] if k in values else drop(move(step, t)) for k, t in enumerate(DISTANCES)])
        found = _first_order(D)
        if found is not None:
            return Descent(step, *found)
    return None


def _first_order(D: np.ndarray) -> tuple[float, float] | None:
    """Return (slope, distance) where D shows a first-order descent, else None."""
    for k in range(len(D) - 3):
        t = DISTANCES[k]
        if not (np.isfinite(D[k:]).all() and (D[k : k + 4] > 0).all() and (D[k:] > -_NOISE).all()):
            continue
        slopes = np.array([(4 * D[j + 1] - D[j]) / DISTANCES[j] for j in (k, k + 1, k + 2)])
        steady = slopes.max() <= 1.25 * slopes.min()
        if steady and slopes.min() > SLOPE + 100 * _NOISE / t:
            return float(slopes.min()), float(t)
    return None


def _piece_gradients(drop: Callable[[np.ndarray], float], n: int, random: np.random.Generator) -> list[np.ndarray]:
    """Return ascent directions of the drop: its gradients at points near x, and the shortest vector of their hull.

    The latter is the way along a valley between pieces, where each piece's own gradient leads across it.
    """
    found, width = [], 1e-7  # beside x, where differences seldom straddle a kink
    for radius in (*[1e-4] * (n + 2), *[1e-3] * (n + 2)):
        center = radius * random.standard_normal(n)
        sides = np.array([[drop(center + width * unit), drop(center - width * unit)] for unit in np.eye(n)])
        if np.isfinite(sides).all():
            found.append((sides[:, 0] - sides[:, 1]) / (2 * width))
    if not found:
        return []
    gradients = np.array(found)
    size = max(np.linalg.norm(gradients, axis=1).max(), 1e-300)
    # Minimise |sum of w_i g_i| over weights that add up to one, the sum held by a heavy row.
    weights, _ = nnls(np.vstack([gradients.T / size, np.full(len(found), 1e4)]), np.r_[np.zeros(n), 1e4])
    return [*found, weights @ gradients]
