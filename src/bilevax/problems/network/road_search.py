"""The search on existing roads: Newton's method on the smoothed loss, in a trust region, while the smoothing shrinks.

A little at a time: a few steps with one barrier, then half of it. What a stage would still gain the later ones gain,
and they see more.
"""

from collections.abc import Iterator

import numpy as np

from bilevax.problems.network.contraction import Contraction
from bilevax.problems.network.settings import ROADS
from bilevax.problems.network.smoothed import SmoothLoss, SmoothRoads
from bilevax.solvers.default.programs.cholesky import factorise, solve_factored
from bilevax.solvers.default.programs.convexify import convex_model


def search(small: Contraction, x: np.ndarray) -> Iterator[SmoothLoss]:
    """Yield points of a contracted network with ever less smoothing, the last of them all but exact.

    It ends early, perhaps without any, where the travellers' Newton method fails.
    """
    existing = small.existing
    x = np.maximum(x, existing)
    roads, radius = SmoothRoads(small, float(x.mean())), ROADS.radius
    point = roads.loss(x, ROADS.barrier, roads.first(x))
    for _ in range(ROADS.stages):
        if point is None:
            return
        for _ in range(ROADS.steps):
            found, predicted, radius = _step(roads, existing, point, radius)
            if found is None:
                break
            point = found
            if predicted <= ROADS.worth * point.at.barrier * (1 + abs(point.value)):
                break
        yield point
        point = roads.loss(point.at.x, ROADS.tightening * point.at.barrier, point.at)


def evaluated(small: Contraction, x: np.ndarray, near: SmoothLoss | None = None) -> SmoothLoss | None:
    """Return the loss at x with next to no smoothing, ``near`` being one with more; None where it cannot be found."""
    x = np.maximum(x, small.existing)
    roads = SmoothRoads(small, float(x.mean()) if near is None else near.unit)
    point = roads.loss(x, ROADS.barrier, roads.first(x)) if near is None else near
    while point is not None and point.at.barrier > ROADS.last_barrier:
        point = roads.loss(x, ROADS.dropping * point.at.barrier, point.at)
    return point


def _step(
    roads: SmoothRoads, existing: np.ndarray, point: SmoothLoss, radius: float
) -> tuple[SmoothLoss | None, float, float]:
    """Return the loss after a step that lowers it, None where there is none; what it promised; the next radius."""
    x = point.at.x
    unit, held = x, (x <= existing) & (point.gradient > 0)
    gradient = unit * point.gradient
    hessian = convex_model(unit * unit[:, None] * roads.hessian(point), held)
    for _ in range(ROADS.trials):
        step, value = box_step(gradient, hessian, np.maximum(existing / unit - 1, -radius), np.full(len(x), radius))
        if -value <= 1e-13 * (1 + abs(point.value)):
            break
        there = np.maximum(x + unit * step, existing)
        trial, length = roads.loss(there, point.at.barrier, roads.predicted(point.at, there)), np.abs(step).max()
        share = -np.inf if trial is None else (trial.value - point.value) / value
        if share >= ROADS.enough:
            if share >= ROADS.good and length >= 0.9 * radius:
                radius *= 3
            elif share < ROADS.poor:
                radius = 0.3 * length
            return trial, -value, radius
        radius = 0.25 * length
    return None, 0.0, radius


def box_step(gradient: np.ndarray, hessian: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the minimiser of a convex quadratic model in a box that holds 0, nearly, and the model's value there.

    By Newton steps projected onto the box, without the variables that are next to a bound and are pushed there.
    """
    step, value = np.zeros(len(gradient)), 0.0
    for _ in range(ROADS.box_rounds):
        slope = gradient + hessian @ step
        way = np.clip(step - slope / np.diag(hessian), low, high) - step
        if np.abs(slope @ way) <= ROADS.box_accuracy * abs(value):
            break
        near = min(float(np.abs(way).max()), ROADS.box_margin * float((high - low).max()))
        free = ~(((step <= low + near) & (slope > 0)) | ((step >= high - near) & (slope < 0)))
        along = way.copy()
        along[free] = -solve_factored(factorise(hessian[np.ix_(free, free)]), slope[free])
        for direction, length in ((along, 1.0), (along, 0.3), (along, 0.1), (along, 0.01), (way, 1.0), (way, 0.1)):
            trial = np.clip(step + length * direction, low, high)
            lower = float(gradient @ trial + 0.5 * trial @ (hessian @ trial))
            if lower < value + ROADS.enough * float(slope @ (trial - step)) <= value:
                break
        else:
            break
        step, value = trial, lower
    return step, value
