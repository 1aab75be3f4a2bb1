"""How far a point is from first-order stationary, on kinks and on the border of feasibility too.

Phi is piecewise smooth: on each piece a fixed set of lower-level rows is active. At x let the rows active at y*(x) be
oriented outward, ``a_i y + b_i x <= c_i``, with multipliers ``lambda_i >= 0``. With H the lower Lagrangian's Hessian in
y and G its mixed derivative, the gradient of one piece comes from the KKT system differentiated with those rows fixed:

    H w + a_J' xi = -grad_y f,   a_J w = 0,   gradient = grad_x f + G' w + b_J' xi.

*Smooth* test: every active row has a positive, unique multiplier; one piece, one gradient.

*Strong* test: some rows are weakly active (biactive): zero slack, zero multiplier. Strong stationarity asks for (w, xi)

    H w + a' xi = -grad_y f,
    a_i w  = 0,  xi_i free    where lambda_i > 0 whatever the direction of x,
    a_i w  = 0,  xi_i >= 0    where lambda_i > 0 for some directions only (dependent rows; see `multipliers`),
    a_i w >= 0,  xi_i >= 0    where lambda_i = 0 (the vector at hand decides alone if b' lambda is unique),

that leave ``grad_x f + G' w + b' xi`` in the negative normal cone of X. No direction then descends, and the rows'
combinations with a' xi = 0 are the normals of {x : the lower level is feasible}, so its border is covered.

*Branches* of it: the third condition is too strong, since a row gets slack or a multiplier, not both. See `strong`.

*Hull* test: the distance of 0 from the convex hull of the gradients of all adjacent pieces plus those normal cones,
or, where larger, the steepest descent into any single piece: a local maximum on a kink has 0 in its hull.

Each is a distance, relative to 1 + the largest gradient of an adjacent piece. The smaller of the last two counts.

Rows are active and multipliers zero within a margin, and what the margin assumes is measured too: the result is a pair
as in Goldstein's stationarity, the slope that is left and the `radius` within which x would have to move for rows and
multipliers to be exactly so. The margin with the smallest of the larger of the two counts. All numbers are in natural
units (see `bilevax.model.scales`), in which 1 is the size of an ordinary term.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bilevax._support.clock import OutOfTime
from bilevax.certificate.stationarity.distances import distance_to_cone, hull_distance
from bilevax.certificate.stationarity.multipliers import MultiplierSet, unique_multipliers
from bilevax.certificate.stationarity.pieces import adjacent_pieces, common_gradient, steepest_descent
from bilevax.certificate.stationarity.radius import radius
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
from bilevax.exact.sensitivity import PointDerivatives, derivatives, normals_of_x, piece_gradient
from bilevax.model.flat import FlatProblem

_FEW_WEAK = 6  # so few that listing the pieces is cheap even where the strong test has answered
_MANY = 2000  # variables beyond which every test takes seconds


@dataclasses.dataclass(frozen=True)
class Stationarity:
    """The result, and what was seen on the way.

    Attributes
    ----------
    value, radius
        The slope that is left, relative to ``scale``, and how far x would have to move, in natural units.
    test
        Which test gave it, within which margin.
    scale
        1 + the largest gradient of a piece of Phi next to x.
    pieces
        Gradients of pieces next to x, as many as were looked at.
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


def measure(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Stationarity:
    """Return the stationarity of x, given the exact lower level there."""
    point = derivatives(flat, x, lower)
    rows = unit_rows(flat, x, lower)
    gap = complementarity_margin(rows)
    best: Stationarity | None = None
    seen = set()
    for margin in _margins(flat.n_y <= _MANY):
        active = active_rows(flat, x, lower, rows, margin)
        if margin.coupled >= TOLERANCES.wide_margin:
            normals, free, slack = normals_of_x(flat, x, margin.coupled)
            point = dataclasses.replace(point, normals=normals, normal_free=free, normal_slack=slack)
        key = (active.a.shape[0], active.weak.tobytes(), point.normals.shape[0])
        if key in seen:
            continue
        seen.add(key)
        try:
            result = _measure_with(point, active, gap, lower.unique)
            if best is None or result.value < max(best.value, best.radius):
                result = dataclasses.replace(result, radius=radius(point, active))
        except OutOfTime:
            if best is None:
                raise
            break  # what is known holds
        if best is None:
            best = result
        elif max(result.value, result.radius) < max(best.value, best.radius):
            # What the tightest margin says of the row structure stays; only the distance improves.
            test = f"{result.test}, {_describe(margin)}"
            best = dataclasses.replace(best, value=result.value, radius=result.radius, test=test)
        if max(best.value, best.radius) <= TOLERANCES.settled:
            break
    assert best is not None
    return best


def _margins(few: bool) -> Iterator[Margin]:
    """Yield the margins, the tightest first; with many variables the wide ones of coupled rows alone."""
    for size in TOLERANCES.margins:
        if few or size < TOLERANCES.wide_margin:
            yield Margin(size, size)
        if size > TOLERANCES.margins[0] and (few or size >= TOLERANCES.wide_margin):
            yield Margin(size, TOLERANCES.margins[0])


def _describe(margin: Margin) -> str:
    return f"{'rows' if margin.own == margin.coupled else 'coupled rows'} within {margin.coupled:g}"


def _measure_with(point: PointDerivatives, active: ActiveRows, gap: float, unique_y: bool) -> Stationarity:
    smallest = smallest_singular_value(active.a)
    independent = smallest > TOLERANCES.independent and active.count_before_merging == active.a.shape[0]
    unique = np.ones(len(active.weak), bool) if smallest > TOLERANCES.independent else unique_multipliers(active.a)
    strict = not active.weak.any()
    gradient = piece_gradient(point, active.a, active.b) if unique_y and strict and unique.all() else None
    pieces, complete = [], False

    def found(distance: float, scale: float, test: str) -> Stationarity:
        gradients = [piece.gradient for piece in pieces] if gradient is None else [gradient]
        return Stationarity(
            distance / scale,
            np.inf,
            test if np.isfinite(distance) else "none applies",
            scale,
            tuple(gradients),
            gradient,
            independent,
            smallest,
            strict,
            gap,
        )

    if gradient is not None:
        return found(distance_to_cone(gradient, point), 1 + float(np.linalg.norm(gradient)), "smooth")
    multipliers = MultiplierSet(active)
    weak, sometimes = multipliers.resolve(unique)
    strict = not weak.any()  # read by `found`
    # Two extreme pieces give the scale: all weakly active rows stay active, or none of them.
    sets = (~weak, weak | ~weak) if len(point.f_y) <= _MANY else ()
    extremes = [piece_gradient(point, active.a[rows], active.b[rows]) for rows in sets]
    norms = [np.linalg.norm(extreme) for extreme in extremes if extreme is not None]
    scale = 1 + float(max([np.linalg.norm(point.f_x), *norms]))
    system = strong_system(point, active, weak, sometimes)
    distance, branches = strong_distance(system, TOLERANCES.settled * scale, multipliers.can_vanish)
    test = "strong" if branches == 1 else f"strong in {branches} branches"
    if distance > TOLERANCES.settled * scale or weak.sum() <= _FEW_WEAK:
        pieces, complete = adjacent_pieces(point, active, weak, unique)
        if complete and unique.all():
            gradient = common_gradient(pieces)  # read by `found`
    if distance > TOLERANCES.settled * scale and pieces and complete:
        hull = hull_distance(point, active, np.array([piece.gradient for piece in pieces]))
        scale = 1 + max(float(np.linalg.norm(piece.gradient)) for piece in pieces)
        if hull is not None:
            hull = max(hull, steepest_descent(point, pieces))
            distance, test = min((distance, test), (hull, f"hull of {len(pieces)} pieces"))
    return found(distance, scale, test)
