"""How far a point is from first-order stationary, on kinks and on the border of feasibility too.

Phi is piecewise smooth: on each piece a fixed set J of lower-level rows stays active. Let ``a_i y + b_i x <= c_i`` be
the rows active at y*(x), with multipliers ``lambda_i >= 0``, H the Hessian of the lower Lagrangian in y, and G its
mixed derivative in y and x. Differentiating the lower level's KKT conditions gives the gradient of a piece:

    grad_x f + G' w + b_J' xi    with    H w + a_J' xi = -grad_y f,   a_J w = 0.

There are four tests, for harder and harder cases. Each gives a distance from stationarity, relative to 1 + the largest
gradient of a piece next to x.

*Smooth*: every active row has a positive, unique multiplier, so that there is one piece. The distance is that of minus
its gradient from the normal cone of X.

*Strong*: some rows are weakly active (biactive), with neither slack nor a multiplier. The point is strongly stationary
if some (w, xi) with ``H w + a' xi = -grad_y f`` puts ``-(grad_x f + G' w + b' xi)`` into the normal cone of X, and has

    a_i w  = 0,  xi_i free    where lambda_i > 0 whatever the direction in which x moves,
    a_i w  = 0,  xi_i >= 0    where lambda_i > 0 for some directions only (dependent rows; see `multipliers`),
    a_i w >= 0,  xi_i >= 0    where lambda_i = 0.

Then no direction descends. Combinations of rows with a' xi = 0 are the normals of {x : the lower level is feasible}, so
that its border is covered as well. The distance is the least violation of these conditions.

What the leader has to satisfy at (x, y*(x)), the upper rows, counts like X: their normals have a part in y as well.

Most of all where w = 0 will do (`relaxed`): with many more active rows than variables that is looked at first.

*Strong in branches*: the conditions of weakly active rows are sufficient, but not necessary, since in any direction
such a row gets slack or a multiplier, not both. `strong` tells both cases apart, row by row, as far as needed.

*Hull*: the distance of 0 from the convex hull of the gradients of all adjacent pieces plus the normal cones of X and of
{x : the lower level is feasible}; or the steepest descent into any single piece, where that is larger. The latter is
needed because a local maximum on a kink has 0 in its hull, too. The smaller of this and the strong distance counts.

A computed point lies on its kink only within a margin: rows are active, and multipliers zero, within it. What a margin
assumes is measured, too. So the result is a pair, as in Goldstein's stationarity: the slope that is left, and the
`radius`, which is how far x would have to move for those rows and multipliers to be exactly so. Several margins are
tried, and the one for which the larger of the two is least counts. All numbers are in natural units (see
`bilevax.model.scales`), in which 1 is the size of an ordinary term.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax._support.clock import OutOfTime
from bilevax._support.heap import give_back
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.stationarity.distances import distance_to_cone, hull_distance
from bilevax.certificate.stationarity.multipliers import MultiplierSet, unique_multipliers
from bilevax.certificate.stationarity.pieces import adjacent_pieces, common_gradient, steepest_descent
from bilevax.certificate.stationarity.radius import radius
from bilevax.certificate.stationarity.relaxed import relaxed_distance
from bilevax.certificate.stationarity.strong import strong_distance, strong_system
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.convex.problem import ConvexSolution
from bilevax.exact.active_rows import (
    ActiveRows,
    Margin,
    active_rows,
    complementarity_margin,
    smallest_singular_value,
    unit_rows,
)
from bilevax.exact.kink import Kinks
from bilevax.exact.sensitivity import PointDerivatives, derivatives, normals_of_x, piece_gradient, upper_gradients
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.compressed_rows import on_top, rows_where
from bilevax.model.flat import FlatProblem


@dataclasses.dataclass(frozen=True)
class Stationarity:
    """How far x is from stationary, and what is known of Phi next to x.

    Attributes
    ----------
    value, radius
        The slope that is left, relative to ``scale``, and how far x would have to move for it, in natural units.
    test
        The test that gave them, and the margin within which rows were active.
    scale
        1 + the largest gradient of a piece of Phi next to x.
    pieces
        Gradients of pieces next to x, as many as were computed.
    hypergradient
        The gradient of Phi at x; None where Phi has none.
    licq, smallest_singular_value
        Whether the active rows are independent, and their smallest singular value.
    strict_complementarity, complementarity_margin
        Whether every active row has a positive multiplier, and the smallest of max(slack, multiplier) over the rows.
    relaxed
        Whether x is stationary even if y need not be optimal for the lower level: see `relaxed`.
    upper_multipliers
        Those of all upper rows, ``grad f + upper_multipliers' grad c + ... = 0``: f in natural units, c in the user's.
    """

    value: float
    radius: float
    test: str
    scale: float
    pieces: tuple[np.ndarray, ...]
    hypergradient: np.ndarray | None
    licq: bool
    smallest_singular_value: float
    strict_complementarity: bool
    complementarity_margin: float
    relaxed: bool = False
    upper_multipliers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


def measure(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Stationarity:
    """Return the stationarity of x, given the exact lower level there."""
    point = derivatives(flat, x, lower)
    rows = unit_rows(flat, x, lower)
    gap = complementarity_margin(rows)
    best: Stationarity | None = None
    seen, enough = set(), []
    for margin in _margins(flat.n_y <= STATIONARITY.many_variables):
        active = active_rows(flat, x, lower, rows, margin)
        if margin.coupled >= TOLERANCES.wide_margin:
            normals, free, slack = normals_of_x(flat, x, margin.coupled)
            upper = upper_rows_at(flat, x, lower.y).active(margin.coupled)
            point = dataclasses.replace(point, normals=normals, normal_free=free, normal_slack=slack, upper=upper)
        key = (active.a.shape[0], active.weak.tobytes(), point.normals.shape[0], point.upper.count)
        if key in seen or (not _relaxable(active) and any(margin.contains(other) for other in enough)):
            continue
        seen.add(key)
        give_back(len(x) + flat.n_y)
        try:
            result = _measure_with(point, active, gap, lower.unique)
            if best is None or result.value < max(best.value, best.radius):
                result = dataclasses.replace(result, radius=radius(point, active, not result.relaxed))
        except OutOfTime:
            if best is None:
                raise
            break  # what the margins before gave holds
        if result.value <= result.radius < np.inf:
            enough.append(margin)  # one that assumes more needs a longer step, and a smaller slope makes no difference
        if best is None:
            best = result
        elif max(result.value, result.radius) < max(best.value, best.radius):
            # LICQ, complementarity and the like stay those of the tightest margin; only the distance improves.
            test = f"{result.test}, {_describe(margin)}"
            better = {"value": result.value, "radius": result.radius, "test": test, "relaxed": result.relaxed}
            best = dataclasses.replace(best, **better, upper_multipliers=result.upper_multipliers)
        if max(best.value, best.radius) <= TOLERANCES.settled:
            break
    assert best is not None
    return best


def _margins(few: bool) -> Iterator[Margin]:
    """Yield the margins, the tightest first; without ``few`` variables, the wide ones for coupled rows alone."""
    for size in TOLERANCES.margins:
        if few or size < TOLERANCES.wide_margin:
            yield Margin(size, size)
        if size > TOLERANCES.margins[0] and (few or size >= TOLERANCES.wide_margin):
            yield Margin(size, TOLERANCES.margins[0])


def _describe(margin: Margin) -> str:
    return f"{'rows' if margin.own == margin.coupled else 'coupled rows'} within {margin.coupled:g}"


class _Distance(NamedTuple):
    """The distance that a test gave, and what it found out about Phi next to x: see `Stationarity`."""

    distance: float
    scale: float
    test: str
    pieces: tuple[np.ndarray, ...]
    hypergradient: np.ndarray | None
    strict: bool
    upper: np.ndarray
    relaxed: bool = False


def _measure_with(point: PointDerivatives, active: ActiveRows, gap: float, unique_y: bool) -> Stationarity:
    """Return the stationarity of x with these rows active, its radius not measured yet."""
    smallest = smallest_singular_value(active.a)
    independent = smallest > TOLERANCES.independent
    if _relaxable(active) and (found := _at_once(point, active)):
        return _result(found, point, active, smallest, gap)
    unique = np.ones(len(active.weak), bool) if independent else unique_multipliers(active.a)
    smooth = unique_y and unique.all() and not active.weak.any()
    gradient = piece_gradient(point, active.a, active.b) if smooth else None
    slopes = upper_gradients(point, active.a, active.b) if smooth else None
    if gradient is None or slopes is None:
        found = _on_kink(point, active, unique, unique_y)
    else:
        found = _on_piece(point, gradient, slopes)
    return _result(found, point, active, smallest, gap)


def _result(found: _Distance, point: PointDerivatives, active: ActiveRows, smallest: float, gap: float) -> Stationarity:
    return Stationarity(
        value=found.distance / found.scale,
        radius=np.inf,
        test=found.test if np.isfinite(found.distance) else "none applies",
        scale=found.scale,
        pieces=found.pieces,
        hypergradient=found.hypergradient,
        licq=smallest > TOLERANCES.independent and active.count_before_merging == active.a.shape[0],
        smallest_singular_value=smallest,
        strict_complementarity=found.strict,
        complementarity_margin=gap,
        relaxed=found.relaxed,
        upper_multipliers=point.upper.multipliers(found.upper),
    )


def _relaxable(active: ActiveRows) -> bool:
    """Return whether the strong test is first tried with w = 0, which asks nothing of multipliers."""
    return active.a.shape[0] > max(STATIONARITY.many_rows, active.a.shape[1])


def _at_once(point: PointDerivatives, active: ActiveRows) -> _Distance | None:
    """Return the result of the strong test with w = 0, where that settles it."""
    (distance, upper), scale = relaxed_distance(point, active), 1 + float(np.linalg.norm(point.f_x))
    if not distance <= TOLERANCES.settled * scale:
        return None
    return _Distance(distance, scale, "strong with w = 0", (), None, not active.weak.any(), upper, relaxed=True)


def _on_piece(point: PointDerivatives, gradient: np.ndarray, slopes: sp.csr_matrix) -> _Distance:
    """Return the result of the smooth test, given the gradients of Phi and of the upper rows on the only piece."""
    scale = 1 + float(np.linalg.norm(gradient))
    normals, free = on_top([point.normals, slopes]), np.concatenate([point.normal_free, point.upper.free])
    distance, weights = distance_to_cone(gradient, normals, free)
    return _Distance(distance, scale, "smooth", (gradient,), gradient, True, weights[len(point.normal_free) :])


def _on_kink(point: PointDerivatives, active: ActiveRows, unique: np.ndarray, unique_y: bool) -> _Distance:
    """Return the smaller distance of the strong and the hull test; ``unique`` says which multipliers are unique.

    Without a unique y there are no pieces, and the strong test is the only one.
    """
    multipliers = MultiplierSet(active)
    weak, sometimes = multipliers.resolve(unique)
    scale, kinks = _scale(point, active, weak), Kinks(point, active)
    system = strong_system(kinks, weak, sometimes, unique_y)
    distance, branches, upper = strong_distance(system, TOLERANCES.settled * scale, multipliers.can_vanish)
    test = "strong" if branches == 1 else f"strong in {branches} branches"
    settled = distance <= TOLERANCES.settled * scale
    pieces, complete = [], False
    if unique_y and (not settled or weak.sum() <= STATIONARITY.few_weak_rows):
        pieces, complete = adjacent_pieces(kinks, weak, unique)
    gradients = tuple(piece.gradient for piece in pieces)
    common = common_gradient(pieces) if complete and unique.all() else None
    if not settled and pieces and complete and not point.upper.count:
        hull = hull_distance(point, active, np.array(gradients))
        scale = 1 + max(float(np.linalg.norm(gradient)) for gradient in gradients)
        if hull is not None:
            hull = max(hull, steepest_descent(point, pieces))
            distance, test = min((distance, test), (hull, f"hull of {len(pieces)} pieces"))
    shown = gradients if common is None else (common,)
    return _Distance(distance, scale, test, shown, common, not weak.any(), upper)


def _scale(point: PointDerivatives, active: ActiveRows, weak: np.ndarray) -> float:
    """Return 1 + the larger gradient of two extreme pieces: no weakly active row stays active, or all of them do."""
    few = len(point.f_y) <= STATIONARITY.many_variables
    sets = (~weak, np.ones(len(weak), bool)) if few else ()
    extremes = [piece_gradient(point, rows_where(active.a, rows), rows_where(active.b, rows)) for rows in sets]
    norms = [np.linalg.norm(extreme) for extreme in extremes if extreme is not None]
    return 1 + float(max([np.linalg.norm(point.f_x), *norms]))
