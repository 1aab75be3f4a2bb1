"""How far a point is from first-order stationary, on kinks and on the border of feasibility too.

Phi is piecewise smooth: on each piece a fixed set of lower-level rows is active. At x let the rows active at y*(x) be
oriented outward, ``a_i y + b_i x <= c_i``, with multipliers ``lambda_i >= 0``. With H the lower Lagrangian's Hessian in
y and G its mixed derivative, the gradient of one piece comes from the KKT system differentiated with those rows fixed:

    H w + a_J' xi = -grad_y f,   a_J w = 0,   gradient = grad_x f + G' w + b_J' xi.

*Smooth* test: every active row has a positive, unique multiplier; one piece, one gradient.

*Strong* test: rows with zero multiplier are undecided. Strong stationarity asks for (w, xi) with

    H w + a' xi = -grad_y f,
    a_i w  = 0,  xi_i free    where lambda_i > 0 for every multiplier vector,
    a_i w  = 0,  xi_i >= 0    where lambda_i > 0 for some multiplier vectors but not for all (dependent rows),
    a_i w >= 0,  xi_i >= 0    where lambda_i = 0,

that leave ``grad_x f + G' w + b' xi`` in the negative normal cone of X. No direction then descends, and the rows'
combinations with a' xi = 0 are the normals of {x : the lower level is feasible}, so its border needs no extra care.

*Hull* test: the distance of 0 from the convex hull of the gradients of the adjacent pieces plus those normal cones,
or, where larger, the steepest descent into any single piece: a local maximum on a kink has 0 in its hull.

Each is a distance, relative to 1 + the largest gradient of an adjacent piece. The smaller of the last two counts.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from bilevax.convex import ConvexSolution
from bilevax.derivatives import FlatProblem
from bilevax.stationarity.distances import distance_to_cone, hull_distance, strong_distance
from bilevax.stationarity.pieces import adjacent_pieces, common_gradient, steepest_descent
from bilevax.stationarity.point import PointDerivatives, derivatives, piece_gradient
from bilevax.stationarity.rows import (
    ActiveRows,
    active_rows,
    complementarity_margin,
    force_scale,
    project_out,
    resolve_multipliers,
    smallest_singular_value,
    stacked_rows,
    unique_multipliers,
)

# A row counts as active, and a multiplier as zero, within these relative margins: tried in turn, since a point found to
# seven digits sits 1e-7 beside its kink.
_ACTIVITY = (1e-9, 1e-7, 1e-5)
_GOOD = 1e-8
_FEW_WEAK = 6  # so few that listing the pieces is cheap even where the strong test has answered
_MAX_SPREAD = 5000


@dataclasses.dataclass(frozen=True)
class Stationarity:
    """The result: the relative distance, the test that gave it, and what was seen on the way."""

    value: float
    test: str
    hypergradient: np.ndarray | None
    licq: bool
    smallest_singular_value: float
    strict_complementarity: bool
    complementarity_margin: float


def measure(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Stationarity:
    """Return the stationarity of x, given the exact lower level there."""
    point = derivatives(flat, x, lower)
    margin = complementarity_margin(flat, x, lower)
    best: Stationarity | None = None
    seen = None
    for tolerance in _ACTIVITY:
        active = active_rows(flat, x, lower, tolerance)
        weak = ~active.equality & (active.multiplier <= tolerance * force_scale(flat, x, lower))
        key = (active.a.shape[0], tuple(np.flatnonzero(weak)))
        if key == seen:
            continue
        seen = key
        result = _measure_with(point, active, weak, margin)
        if best is None:
            best = result
        elif result.value < best.value:
            # What the tightest margin says of the row structure stays; only the distance improves.
            best = dataclasses.replace(best, value=result.value, test=f"{result.test}, rows within {tolerance:g}")
        if best.value <= _GOOD:
            break
    assert best is not None
    return best


def _measure_with(point: PointDerivatives, active: ActiveRows, weak: np.ndarray, margin: float) -> Stationarity:
    smallest = smallest_singular_value(active.a)
    independent = smallest > 1e-9 and active.count_before_merging == active.a.shape[0]
    unique = np.ones(len(weak), bool) if smallest > 1e-9 else unique_multipliers(active.a)
    strict = not weak.any()
    gradient = piece_gradient(point, active.a, active.b) if strict and unique.all() else None
    found = lambda value, test: Stationarity(value, test, gradient, independent, smallest, strict, margin)
    if gradient is not None:
        return found(distance_to_cone(gradient, point) / (1 + np.linalg.norm(gradient)), "smooth")
    weak, sometimes = resolve_multipliers(active, unique, weak)
    strict = not weak.any()  # read by `found`
    # Two extreme pieces give the scale: all undecided rows held, or none of them.
    extremes = [piece_gradient(point, active.a[rows], active.b[rows]) for rows in (~weak, weak | ~weak)]
    norms = [np.linalg.norm(extreme) for extreme in extremes if extreme is not None]
    scale = 1 + max([np.linalg.norm(point.f_x), *norms])
    strong = strong_distance(point, active, weak, sometimes)
    strong = np.inf if strong is None else strong
    solved = strong / scale <= _GOOD
    candidates = [(strong, "strong")] if np.isfinite(strong) else []
    if solved and weak.sum() > _FEW_WEAK:
        return found(strong / scale, "strong")
    pieces, complete = adjacent_pieces(point, active, weak, unique)
    if complete and unique.all():
        gradient = common_gradient(pieces)  # read by `found`
    if solved:
        return found(strong / scale, "strong")
    if pieces:
        scale = 1 + max(np.linalg.norm(piece.gradient) for piece in pieces)
        hull = hull_distance(point, active, np.array([piece.gradient for piece in pieces]))
        if hull is not None:
            distance = max(hull, steepest_descent(point, pieces))
            candidates.append((distance, f"hull of {len(pieces)}{'' if complete else ' sampled'} pieces"))
    distance, test = min(candidates, default=(np.inf, "none applies"))
    return found(distance / scale, test)


def value_spread(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return how far f is seen to move over the minimisers of the lower level; 0 where there is only one.

    A minimiser y + v has H v = 0, keeps the rows that carry a force, and satisfies the others. If f does not move along
    a random direction of that kind it depends on none of them; otherwise corners of the set of minimisers are tried.
    """
    if lower.unique:
        return 0.0
    active = active_rows(flat, x, lower, 1e-7)
    held = active.a[active.equality | (active.multiplier > 1e-7 * force_scale(flat, x, lower))]
    fixed = sp.vstack([flat.hessian("lower", "y", "y", x, lower.y), held], format="csr")
    random = np.random.default_rng(0)
    reach = 1 + np.abs(lower.y).max(initial=0.0)
    here = flat.value("upper", x, lower.y)
    moved = lambda v: abs(flat.value("upper", x, lower.y + v) - here)
    free = project_out(fixed, random.standard_normal(flat.n_y))
    small = 1e-9 * (1 + abs(here))
    if np.abs(free).max() <= 1e-8 or max(moved(0.1 * reach * free), moved(-0.1 * reach * free)) <= small:
        return 0.0
    if flat.n_y > _MAX_SPREAD:
        return np.inf
    a, b, low, high = stacked_rows(flat, x)
    image = a @ lower.y + b @ x
    finite = [np.isfinite(high), np.isfinite(low)]
    rows = sp.vstack([a[finite[0]], -a[finite[1]]])
    room = np.maximum(np.concatenate([(high - image)[finite[0]], (image - low)[finite[1]]]), 0.0)
    f_y = flat.gradients("upper", x, lower.y)[1]
    corners = [
        linprog(cost, A_ub=rows, b_ub=room, A_eq=fixed, b_eq=np.zeros(fixed.shape[0]), bounds=(-reach, reach))
        for cost in (f_y, -f_y, *random.standard_normal((4, flat.n_y)))
    ]
    return float(max(moved(corner.x) if corner.status == 0 else np.inf for corner in corners))
