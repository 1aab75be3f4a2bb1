"""Newton's method in a trust region, for a smoothed objective with second derivatives and few x."""

from collections.abc import Iterator

import numpy as np

from bilevax._support.division import positive
from bilevax.solvers.default.programs.box import box_step
from bilevax.solvers.default.programs.convexify import convex_model
from bilevax.solvers.default.programs.quadratic import solve_qp
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import SmoothPoint
from bilevax.solvers.default.settings import SMOOTHING
from bilevax.solvers.default.smoothing.central_path import CentralPath


def newton_descent(oracle: CentralPath, upper: UpperSet, point: SmoothPoint) -> Iterator[SmoothPoint]:
    """Yield points that descend on the smoothed objective, until its projected gradient has fallen a hundredfold."""
    measure = lambda p: np.linalg.norm(upper.project(p.x - p.gradient) - p.x)
    target = max(SMOOTHING.newton_fall * measure(point), 1e-7 * (1 + np.linalg.norm(point.gradient)))
    # Less smoothing makes the model good for shorter steps, if anything: a stage starts near where the last one ended.
    radius = min(0.3 * (1 + np.abs(point.x).max(initial=0.0)), 10 * oracle.radius)
    for _ in range(SMOOTHING.newton_steps):
        if measure(point) <= target:
            return
        hessian, found = convex_model(oracle.hessian(point), upper.held(point.x, point.gradient)), None
        for _ in range(SMOOTHING.shrinks):
            step = trust_region_step(upper, point.x, point.gradient, hessian, radius)
            if step is None:
                return
            predicted = -float(point.gradient @ step + 0.5 * step @ hessian @ step)
            if predicted <= 1e-13 * (1 + abs(point.value)):
                return
            trial = oracle.evaluate(upper.project(point.x + step), point.smoothing, point)
            length = np.abs(step).max(initial=0.0)
            if trial is not None and point.value - trial.value >= 1e-3 * predicted:
                found, share = trial, (point.value - trial.value) / predicted
                if share >= 0.5 and length >= 0.9 * radius:
                    radius *= 3
                elif share < 0.25:
                    radius = 0.3 * length  # across the valley, not along it
                break
            radius = 0.25 * length
        if found is None:
            return
        point, oracle.radius = found, radius
        yield point


def trust_region_step(
    upper: UpperSet, x: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, radius: float
) -> np.ndarray | None:
    """Return the step that minimises the quadratic model within X and a box of that radius."""
    if upper.is_box:
        low, high = np.maximum(upper.lower - x, -radius), np.minimum(upper.upper - x, radius)
        step = box_step(gradient, hessian, low, high)
        if step is not None:
            return step
    steps, size = upper.rows.around(x), positive(np.abs(gradient).max(initial=0.0))
    box = np.full(len(x), radius)
    return solve_qp(
        hessian / size,
        gradient / size,
        np.vstack([steps.matrix.toarray(), np.eye(len(x))]),
        np.concatenate([steps.lower, -box]),
        np.concatenate([steps.upper, box]),
        steps.balls,
    )
