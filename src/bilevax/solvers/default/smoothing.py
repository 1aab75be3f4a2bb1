"""Phi smoothed by the lower level's central path, and its descent.

For a barrier mu and a softness eps the rows carry ``force * slack = mu`` and may give way by ``eps * force``: an answer
y(x) exists for every x, is unique and smooth, and its gradient costs one more solve with the factor at hand. The
smoothed objective is

    f(x, y(x)) + kappa * eps * sum(force),

whose second term is the price of leaving the set of x for which the lower level is feasible.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import scipy.linalg as sla

from bilevax.solvers.default.lower import LowerModel, centre
from bilevax.solvers.default.quadratic_program import UpperSet


@dataclasses.dataclass(frozen=True)
class SmoothPoint:
    """The smoothed objective at x with its gradient."""

    x: np.ndarray
    y: np.ndarray
    force: np.ndarray
    slack: np.ndarray
    value: float
    gradient: np.ndarray
    sensitivity: np.ndarray


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """How much is smoothed."""

    barrier: float
    softness: float
    kappa: float


def evaluate(
    model: LowerModel, x: np.ndarray, smoothing: Smoothing, warm: SmoothPoint | None, y: np.ndarray
) -> SmoothPoint | None:
    """Return the smoothed objective at x, started from a near point; None where it cannot be computed."""
    rows = model.rows
    y = y if warm is None else warm.y
    start = None if warm is None else (warm.force, warm.slack)
    for _ in range(_MAX_NEWTON):
        try:
            expansion = model.expand(x, y)
        except (FloatingPointError, np.linalg.LinAlgError):
            return None
        gradient = model.gradient(x, y)
        if not np.isfinite(gradient).all():
            return None
        free_y = y - expansion.solve(gradient)
        free = rows.R @ free_y + rows.N @ x - rows.c
        centred = (np.zeros(0), np.zeros(0))
        if rows.count:
            central = centre(expansion.compliance, free, rows.inequality, smoothing.barrier, smoothing.softness, start)
            if central is None and start is not None:
                central = centre(expansion.compliance, free, rows.inequality, smoothing.barrier, smoothing.softness)
            if central is None:
                return None
            centred = central
        force, slack = centred
        target = free_y - expansion.inverse_rows @ force
        residual = model.gradient(x, target) + rows.R.T @ force
        if not np.isfinite(residual).all():
            y, start = y + 0.5 * (target - y), centred
            continue
        small = 1e-9 * (1 + np.abs(gradient).max(initial=0.0) + np.abs(force).max(initial=0.0))
        y, start = target, centred
        if np.abs(residual).max(initial=0.0) <= small:
            break
    else:
        return None
    return _finish(model, x, y, force, slack, smoothing)


def _finish(
    model: LowerModel, x: np.ndarray, y: np.ndarray, force: np.ndarray, slack: np.ndarray, smoothing: Smoothing
) -> SmoothPoint | None:
    rows, flat, expansion = model.rows, model.flat, model.expand(x, y)
    f_x, f_y = flat.gradients("upper", x, y)
    if not (np.isfinite(f_x).all() and np.isfinite(f_y).all()):
        return None
    adjoint = expansion.solve(f_y)
    price = smoothing.kappa * smoothing.softness * rows.inequality
    gradient = f_x - expansion.mixed.T @ adjoint
    sensitivity = np.zeros(0)
    if rows.count:
        ratio = np.where(rows.inequality, slack / np.where(rows.inequality, force, 1.0), 0.0)
        system = expansion.compliance + np.diag(smoothing.softness + ratio + 1e-14)
        sensitivity = sla.cho_solve(sla.cho_factor(system, check_finite=False), price - rows.R @ adjoint)
        gradient = gradient + expansion.slope.T @ sensitivity
    value = flat.value("upper", x, y) + float(price @ force)
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return None
    return SmoothPoint(x, y, force, slack, value, gradient, sensitivity)


_MAX_NEWTON = 40


class History:
    """Limited-memory BFGS pairs."""

    def __init__(self, memory: int = 10):
        self.memory = memory
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, step: np.ndarray, change: np.ndarray) -> None:
        """Remember a step and the change of the gradient along it, if it has positive curvature."""
        if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
            self.pairs = [*self.pairs[1 - self.memory :], (step, change)]

    def direction(self, gradient: np.ndarray, normals: np.ndarray) -> np.ndarray:
        """Return the quasi-Newton direction within the face orthogonal to ``normals``."""
        inside = lambda v: v - normals.T @ (normals @ v)
        pairs = [(inside(step), inside(change)) for step, change in self.pairs]
        pairs = [(s, c) for s, c in pairs if s @ c > 1e-14 * np.linalg.norm(s) * np.linalg.norm(c) + 1e-300]
        q = inside(gradient)
        weights = []
        for step, change in reversed(pairs):
            weights.append(step @ q / (step @ change))
            q = q - weights[-1] * change
        if pairs:
            step, change = pairs[-1]
            q = q * (step @ change) / (change @ change)
        for (step, change), weight in zip(pairs, reversed(weights), strict=True):
            q = q + (weight - change @ q / (step @ change)) * step
        return -inside(q)


def smooth_descent(
    model: LowerModel, upper: UpperSet, point: SmoothPoint, smoothing: Smoothing, iterations: int = 40
) -> Iterator[SmoothPoint]:
    """Yield points that descend on the smoothed objective, until its projected gradient has fallen twentyfold."""
    history, values = History(), [point.value]
    measure = lambda p: np.linalg.norm(upper.project(p.x - p.gradient) - p.x)
    target = 0.05 * max(measure(point), 1e-6 * (1 + np.linalg.norm(point.gradient)))
    for _ in range(iterations):
        if measure(point) <= target:
            return
        normals = upper.normals(point.x, point.gradient)
        inside = point.gradient - normals.T @ (normals @ point.gradient)
        radius = max(0.1 * np.sqrt(len(point.x)), np.linalg.norm(point.x))
        direction = history.direction(point.gradient, normals)
        if not history.pairs or direction @ inside > -1e-8 * np.linalg.norm(direction) * np.linalg.norm(inside):
            history.pairs.clear()
            direction = -inside * 0.1 * radius / max(np.linalg.norm(inside), 1e-300)
        direction = direction * min(1.0, radius / max(np.linalg.norm(direction), 1e-300))
        found = _search(model, upper, point, direction, smoothing, max(values[-5:]))
        if found is None:
            if not history.pairs:
                return
            history.pairs.clear()
            continue
        history.add(found.x - point.x, found.gradient - point.gradient)
        stuck = point.value - found.value <= 1e-10 * (1 + abs(point.value)) and len(values) > 5
        point = found
        values.append(point.value)
        yield point
        if stuck:
            return


def _search(
    model: LowerModel,
    upper: UpperSet,
    point: SmoothPoint,
    direction: np.ndarray,
    smoothing: Smoothing,
    reference: float,
) -> SmoothPoint | None:
    """Backtrack along the projected direction until the value falls enough."""
    length = 1.0
    for _ in range(15):
        x = upper.project(point.x + length * direction)
        trial = evaluate(model, x, smoothing, point, point.y)
        decrease = float(point.gradient @ (x - point.x))
        if trial is not None and trial.value <= reference + 1e-4 * decrease + 1e-12 * abs(reference):
            return trial
        curvature = np.inf if trial is None else trial.value - point.value - decrease
        length *= np.clip(-decrease / (2 * curvature), 0.1, 0.5) if 0 < curvature < np.inf else 0.25
    return None
