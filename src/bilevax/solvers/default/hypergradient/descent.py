"""Quasi-Newton descent on Phi, as long as no kink is in the way.

With few x a kink that ends it is not the end: Phi is evaluated some way off, and where it is lower the descent goes on.
"""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.hypergradient.phi import Phi
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import SmoothPoint, quasi_newton, slope
from bilevax.solvers.default.settings import EXACT, HYPERGRADIENT, SIZES


class Reached(NamedTuple):
    """Where a descent has come to, and whether that is a stationary point with a gradient, or farther than any is.

    It is ``unhindered`` if it was still gaining when its steps were spent: no kink was in the way.
    """

    x: np.ndarray
    y: np.ndarray
    value: float
    converged: bool
    lost: bool
    unhindered: bool

    @property
    def final(self) -> bool:
        """Whether nothing is left to do for others."""
        return self.converged or self.lost


def hypergradient_descent(
    phi: Phi, upper: UpperSet, x: np.ndarray, y: np.ndarray, rtol: float
) -> Generator[Snapshot, None, Reached | None]:
    """Descend on Phi; return where that led, None where not even the first lower level is solved."""
    start = phi.begin(x, y)
    if start is None:
        return None
    yield _snapshot(start, "start")
    smooth, point = not phi.rows.inequality.any(), start
    size = lambda v: 1 + float(np.abs(v).max(initial=0.0))
    lost = lambda p: size(p.x) > HYPERGRADIENT.farthest * size(x)
    left = lambda p: slope(upper, p) / (1 + float(np.linalg.norm(p.gradient)))
    arrived = lambda p: left(p) <= HYPERGRADIENT.arrived * rtol
    steps = HYPERGRADIENT.steps if smooth else HYPERGRADIENT.wary_steps
    converged = unhindered = False
    for look in range(1 + HYPERGRADIENT.looks):
        values = [point.value]
        for step in quasi_newton(phi, upper, point, arrived, steps, worth=-np.inf):
            yield _snapshot(step, "hypergradient descent")._replace(slope=left(step))
            point = step
            values.append(point.value)
            if lost(point) or not _falls(values, smooth):
                break
        converged = left(point) <= HYPERGRADIENT.near * rtol and _decided(phi.rows, point)
        unhindered = len(values) > steps and _falls(values, smooth)
        if smooth or converged or lost(point) or unhindered or look == HYPERGRADIENT.looks:
            break
        if (beyond := _beyond(phi, upper, point)) is None:
            break
        point = beyond
        yield _snapshot(point, "hypergradient descent")
    return Reached(point.x, point.y, point.value, converged, lost(point), unhindered)


def _beyond(phi: Phi, upper: UpperSet, kink: SmoothPoint) -> SmoothPoint | None:
    """Return the lowest point that is seen from a kink along each entry of x, if it is lower; None where x are many."""
    flat, best = phi.flat, kink
    if flat.n_x > HYPERGRADIENT.few or flat.n_y + phi.rows.count > SIZES.largest_dense:
        return None
    seen = {kink.x.tobytes()}
    for distance in (1 + np.abs(kink.x).max()) * 0.5 ** np.arange(HYPERGRADIENT.distances):
        for step in distance * np.vstack([np.eye(flat.n_x), -np.eye(flat.n_x)]):
            x = upper.project(kink.x + step)
            if x.tobytes() not in seen:
                seen.add(x.tobytes())
                trial = phi.evaluate(x, None, kink)
                best = best if trial is None or trial.value >= best.value else trial
    return best if kink.value - best.value > HYPERGRADIENT.worth * (1 + abs(kink.value)) else None


def _falls(values: list[float], smooth: bool) -> bool:
    """Return whether the last steps have gained anything; between kinks they gain next to nothing."""
    patience, worth = HYPERGRADIENT.patience, HYPERGRADIENT.rounding if smooth else HYPERGRADIENT.worth
    before = values[-1 - patience] if len(values) > patience else np.inf
    return before - values[-1] > worth * (1 + abs(values[-1]))


def _decided(rows: LowerRows, point: SmoothPoint) -> bool:
    """Return whether every inequality has slack or a multiplier, so that Phi has a gradient."""
    multiplier = point.multiplier / (1 + np.abs(point.multiplier).max(initial=0.0))
    slack = point.state.slack / (1 + np.abs(point.y).max(initial=0.0))
    return bool(np.all(np.maximum(multiplier, slack)[rows.inequality] > EXACT.biactive))


def _snapshot(point: SmoothPoint, phase: str) -> Snapshot:
    return Snapshot(point.x, point.y, phase, point.value)
