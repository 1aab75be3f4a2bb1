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
from bilevax.proof.conditions import conditions
from bilevax.proof.high_point import high_point_bound
from bilevax.proof.incumbents import Incumbent, incumbent_at
from bilevax.proof.points import Points
from bilevax.proof.status import ProofStatus

_SCIP = "The lower bound is SCIP's."
Help = Callable[[], np.ndarray | None]


def bounds_by_others(flat: FlatProblem, x: np.ndarray | None, gap: float, help: Help, reason: str) -> Bounds:
    """Return bounds of a problem that is not branched on here, for a ``reason``."""
    first = Bounds(-np.inf, np.inf, None, 0, ProofStatus.UNSUPPORTED, f"It is that {reason}.")
    try:
        first = _by_high_point(flat, x, gap, help, first)
        return first if first.status is ProofStatus.PROVEN else _by_scip(flat, x, gap, help, first)
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
    best, upper = None, np.inf
    unit = 1 / flat.scales.upper
    for more in (
        lambda: (x, *relaxed),
        lambda: (help(),),
    ):  # where the first attain the bound, nobody is asked for help
        best = _best(flat, more(), best)
        upper = np.inf if best is None else best.value * unit
        if relative_gap(lower * unit, upper, unit) <= gap:
            return Bounds(min(lower * unit, upper), upper, best, 1, ProofStatus.PROVEN, unit=unit)
    return Bounds(lower * unit, upper, best, 1, ProofStatus.RELAXED, refused.remark, unit=unit)


def _by_scip(flat: FlatProblem, x: np.ndarray | None, gap: float, help: Help, first: Bounds) -> Bounds:
    """Return SCIP's bounds, if it is installed; those that were found ``first`` where they are better."""
    if not scip.available():
        hint = "pip install 'bilevax[global]' for SCIP, which branches on products and functions, too."
        return dataclasses.replace(first, remark=f"{first.remark[:-1]}: {hint}")
    natural = _natural(flat, x)
    given, unit = conditions(natural), 1 / natural.scales.upper
    points = Points(flat, natural, given, first.best or _best(flat, (x, help())), gap)
    found = scip.scip_bounds(given, points, gap)
    if found.failure:
        first = dataclasses.replace(
            first, upper=points.value, best=points.best, unit=unit, status=ProofStatus.UNSETTLED
        )
        return dataclasses.replace(first, remark=f"SCIP failed ({found.failure}).")
    lower, upper, best = max(found.lower * unit, first.lower), points.value, points.best
    if best is None and lower == np.inf:
        return Bounds(np.inf, np.inf, None, found.nodes, ProofStatus.INFEASIBLE, _SCIP, unit=unit)
    left = relative_gap(lower, upper, unit)
    if left < -gap:
        remark = "SCIP's bound was dropped: it is above the exact value of a point."
        return Bounds(first.lower, upper, best, found.nodes, ProofStatus.UNSETTLED, remark, unit=unit)
    stopped = ProofStatus.TIME_LIMIT if found.late else ProofStatus.UNSETTLED
    status = ProofStatus.PROVEN if left <= gap else stopped
    return Bounds(min(lower, upper), upper, best, found.nodes, status, _SCIP, unit=unit)


def _best(flat: FlatProblem, points: tuple[np.ndarray | None, ...], known: Incumbent | None = None) -> Incumbent | None:
    """Return the best of some points, evaluated exactly, and of the one that is known."""
    found = [known] if known is not None else []
    found += [here for point in points if point is not None and (here := incumbent_at(flat, point)) is not None]
    return min(found, key=lambda each: each.value, default=None)


def _natural(flat: FlatProblem, x: np.ndarray | None) -> FlatProblem:
    """Return a problem in natural units: where rows are not affine, those of its tangent problem at x."""
    if not flat.problem.curved:
        return flat
    there = flat.x_rows.well_inside(np.zeros(flat.n_x)) if x is None else x
    return flat.in_units(solve_curved(flat, there).tangent.scales)
