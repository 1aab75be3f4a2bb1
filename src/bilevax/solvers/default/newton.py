"""Newton's method in a trust region, for a smoothed objective with second derivatives and few x."""

from collections.abc import Iterator

import numpy as np

from bilevax.solvers.default.quadratic_program import UpperSet, solve_qp
from bilevax.solvers.default.smoothing import SmoothPoint
from bilevax.solvers.default.sparse_path import SparsePath


def newton_descent(
    oracle: SparsePath, upper: UpperSet, point: SmoothPoint, iterations: int = 25
) -> Iterator[SmoothPoint]:
    """Yield points that descend on the smoothed objective, until its projected gradient has fallen a hundredfold."""
    measure = lambda p: np.linalg.norm(upper.project(p.x - p.gradient) - p.x)
    target = max(0.01 * measure(point), 1e-7 * (1 + np.linalg.norm(point.gradient)))
    radius = 0.3 * (1 + np.abs(point.x).max(initial=0.0))
    for _ in range(iterations):
        if measure(point) <= target:
            return
        hessian, found = convex_model(oracle.hessian(point)), None
        for _ in range(_MAX_SHRINKS):
            step = trust_region_step(upper, point.x, point.gradient, hessian, radius)
            if step is None:
                return
            predicted = -float(point.gradient @ step + 0.5 * step @ hessian @ step)
            if predicted <= 1e-13 * (1 + abs(point.value)):
                return
            trial = oracle.evaluate(upper.project(point.x + step), point.smoothing, point)
            length = np.abs(step).max(initial=0.0)
            if trial is not None and point.value - trial.value >= 1e-3 * predicted:
                found = trial
                if point.value - trial.value >= 0.5 * predicted and length >= 0.9 * radius:
                    radius *= 3
                break
            radius = 0.25 * length
        if found is None:
            return
        point = found
        yield point


_MAX_SHRINKS = 8


def trust_region_step(
    upper: UpperSet, x: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, radius: float
) -> np.ndarray | None:
    """Return the step that minimises the quadratic model within X and a box of that radius."""
    steps, size = upper.rows.around(x), max(np.abs(gradient).max(initial=0.0), 1e-300)
    box = np.full(len(x), radius)
    return solve_qp(
        hessian / size,
        gradient / size,
        np.vstack([steps.matrix.toarray(), np.eye(len(x))]),
        np.concatenate([steps.lower, -box]),
        np.concatenate([steps.upper, box]),
        steps.balls,
    )


def convex_model(hessian: np.ndarray) -> np.ndarray:
    """Return the Hessian with its negative curvature reversed."""
    values, vectors = np.linalg.eigh(hessian)
    floor = 1e-8 * max(np.abs(values).max(initial=0.0), 1e-8)
    return (vectors * np.maximum(np.abs(values), floor)) @ vectors.T
