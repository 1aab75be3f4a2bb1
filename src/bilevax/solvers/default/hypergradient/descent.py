"""Quasi-Newton descent on Phi, as long as no kink is in the way."""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.hypergradient.phi import Phi
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import SmoothPoint, quasi_newton, slope
from bilevax.solvers.default.settings import EXACT, HYPERGRADIENT


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
    smooth, point, values = not phi.rows.inequality.any(), start, [start.value]
    size = lambda v: 1 + float(np.abs(v).max(initial=0.0))
    lost = lambda p: size(p.x) > HYPERGRADIENT.farthest * size(x)
    left = lambda p: slope(upper, p) / (1 + float(np.linalg.norm(p.gradient)))
    arrived = lambda p: left(p) <= HYPERGRADIENT.arrived * rtol
    steps = HYPERGRADIENT.steps if smooth else HYPERGRADIENT.wary_steps
    for step in quasi_newton(phi, upper, start, arrived, steps, worth=-np.inf):
        yield _snapshot(step, "hypergradient descent")
        point = step
        values.append(point.value)
        if lost(point) or not _falls(values, smooth):
            break
    converged = left(point) <= HYPERGRADIENT.near * rtol and _decided(phi.rows, point)
    unhindered = len(values) > steps and _falls(values, smooth)
    return Reached(point.x, point.y, point.value, converged, lost(point), unhindered)


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
