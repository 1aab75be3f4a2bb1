"""Bounds of problems that are not branched on here: by the high-point relaxation, and by SCIP."""

import dataclasses
from collections.abc import Callable

import numpy as np

from bilevax._support.clock import OutOfTime
from bilevax.exact.curved import solve_curved
from bilevax.model.flat import FlatProblem
from bilevax.proof import scip
from bilevax.proof.bounds import Bounds, relative_gap
from bilevax.proof.building import Unsupported
from bilevax.proof.conditions import Conditions, conditions
from bilevax.proof.high_point import high_point_bound
from bilevax.proof.incumbents import Incumbent, best_incumbent, incumbent_at
from bilevax.proof.status import ProofStatus

_SCIP = "The lower bound is SCIP's."
Help = Callable[[], np.ndarray | None]


def bounds_by_others(flat: FlatProblem, x: np.ndarray | None, gap: float, help: Help, reason: str) -> Bounds:
    """Return bounds of a problem that is not branched on here, for a ``reason``."""
    first = Bounds(-np.inf, np.inf, None, 0, ProofStatus.UNSUPPORTED, f"It is that {reason}.")
    try:
        first = _by_high_point(flat, x, gap, help, first)
        return first if first.status is ProofStatus.PROVEN else _by_scip(flat, x, gap, first)
    except Unsupported as inner:
        return dataclasses.replace(first, remark=f"It is that {inner}.")
    except OutOfTime:
        late = ProofStatus.TIME_LIMIT
        return first if first.status is ProofStatus.RELAXED else dataclasses.replace(first, status=late, remark="")


def _by_high_point(flat: FlatProblem, x: np.ndarray | None, gap: float, help: Help, refused: Bounds) -> Bounds:
    """Return the bounds of the high-point relaxation, if there are any."""
    lower, relaxed = high_point_bound(flat, None)
    if lower == -np.inf:
        return refused
    points = [point for point in (x, relaxed, help()) if point is not None]
    found = [known for point in points if (known := incumbent_at(flat, point)) is not None]
    best = min(found, key=lambda each: each.value, default=None)
    unit = 1 / flat.scales.upper
    lower, upper = lower * unit, np.inf if best is None else best.value * unit
    if relative_gap(lower, upper, unit) <= gap:
        return Bounds(min(lower, upper), upper, best, 1, ProofStatus.PROVEN, unit=unit)
    return Bounds(lower, upper, best, 1, ProofStatus.RELAXED, refused.remark, unit=unit)


def _by_scip(flat: FlatProblem, x: np.ndarray | None, gap: float, first: Bounds) -> Bounds:
    """Return SCIP's bounds, if it is installed; those that were found ``first`` where they are better."""
    if not scip.available():
        hint = "pip install 'bilevax[global]' for SCIP, which branches on products and functions, too."
        return dataclasses.replace(first, remark=f"{first.remark[:-1]}: {hint}")
    known = first.best if x is None or first.best is not None else incumbent_at(flat, x)
    natural = _natural(flat, x)
    given, unit = conditions(natural), 1 / natural.scales.upper
    found = scip.scip_bounds(given, _evaluation(flat, natural, given), known, gap)
    lower = max(found.lower * unit, first.lower)
    if found.best is None and found.lower == np.inf:
        return Bounds(np.inf, np.inf, None, found.nodes, ProofStatus.INFEASIBLE, _SCIP, unit=unit)
    upper = np.inf if found.best is None else found.best.value / flat.scales.upper
    left = relative_gap(lower, upper, unit)
    if left < -gap:
        remark = "SCIP's bound was dropped: it is above the exact value of a point."
        return Bounds(first.lower, upper, found.best, found.nodes, ProofStatus.UNSETTLED, remark, unit=unit)
    stopped = ProofStatus.TIME_LIMIT if found.late else ProofStatus.UNSETTLED
    status = ProofStatus.PROVEN if left <= gap else stopped
    return Bounds(min(lower, upper), upper, found.best, found.nodes, status, _SCIP, unit=unit)


def _natural(flat: FlatProblem, x: np.ndarray | None) -> FlatProblem:
    """Return a problem in natural units: where rows are not affine, those of its tangent problem at x."""
    if not flat.problem.curved:
        return flat
    there = flat.x_rows.well_inside(np.zeros(flat.n_x)) if x is None else x
    return flat.in_units(solve_curved(flat, there).tangent.scales)


def _evaluation(flat: FlatProblem, natural: FlatProblem, given: Conditions) -> Callable:
    """Return what evaluates a point in natural units exactly: an `Incumbent` in those of ``flat``."""

    def evaluate(x: np.ndarray, y: np.ndarray, forces: np.ndarray) -> Incumbent | None:
        if flat.problem.curved or flat.y_rows.balls:
            return incumbent_at(flat, x * natural.scales.x / flat.scales.x)
        multipliers = np.zeros(flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0])
        np.add.at(multipliers, given.owner, given.sign * forces)
        return best_incumbent(flat, x, y, multipliers)

    return evaluate
