"""Strong stationarity as a conic program, split into branches where it is stronger than necessary.

Let x move in a direction d, y respond with v and the multipliers with ``theta``, and let ``s = -(a v + b d)`` be the
rates at which rows get slack. Then any (w, xi) with ``H w + a' xi = -grad_y f`` gives the directional derivative

    Phi'(x; d) = (grad_x f + G' w + b' xi) d + sum_i (a_i w) theta_i + sum_i xi_i s_i.

The sign conditions of strong stationarity make both sums nonnegative for all s_i and theta_i >= 0. But a row gets slack
or a multiplier, not both: one of s_i and theta_i is zero, so one of the two conditions is enough. Which one depends on
d. The dual solution of the program is a direction d with its s and theta. If a row has both there, the program is split
in two, one for each case, and the larger of their distances counts. What is left in the end is the steepest descent of
Phi, or a bound on it.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from bilevax._support import clock
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.stationarity.least_norm import LeastNorm, least_norm
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.convex.curvature import nearly_full
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.kink import Kink, Kinks
from bilevax.exact.sensitivity import PointDerivatives
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.model.compressed_rows import put_together, unit_rows_at

# The kinds of active rows, and what is asked of them:
#   STRONG            strongly active for all directions of x           a w = 0,   xi free
#   SOMETIMES_STRONG  strongly active for some directions only          a w = 0,   xi >= 0
#   WEAK              weakly active (biactive)                          a w >= 0,  xi >= 0
#   STAYS_ACTIVE      weakly active, in directions without slack        a w >= 0,  xi free
#   GETS_SLACK        weakly active, in directions without multiplier   a w free,  xi >= 0
STRONG, SOMETIMES_STRONG, WEAK, STAYS_ACTIVE, GETS_SLACK = range(5)
# The two cases into which a row is split.
_BRANCHES_OF = {SOMETIMES_STRONG: (STRONG, WEAK), WEAK: (STAYS_ACTIVE, GETS_SLACK)}


@dataclasses.dataclass(frozen=True)
class StrongSystem:
    """The conditions on (w, xi), in one form with w eliminated and with w.

    They are ``hessian w + a' xi = -f_y``, the signs of ``a w - compliance xi + response`` and of xi that each row's
    ``kind`` asks for, and ``f_x + mixed' w + b' xi + (a normal of X) = 0``, whose residual is the distance. With w
    eliminated the matrices are arrays, and ``hessian``, ``mixed`` and ``a`` empty; otherwise ``compliance`` and
    ``response`` are zero. ``origin`` says which active rows these are. Active upper rows act as normals that have a
    part in y, too.
    """

    f_x: np.ndarray
    f_y: np.ndarray
    hessian: Any
    mixed: Any
    a: Any
    b: Any
    compliance: Any
    response: np.ndarray
    kind: np.ndarray
    origin: np.ndarray
    normals: sp.csr_matrix
    normal_free: np.ndarray
    upper_x: sp.csr_matrix
    upper_y: Any
    upper_free: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Answer:
    """The distance of a branch, and what its dual direction does to the rows.

    ``clash`` is positive for rows that get slack and a multiplier at once, ``opened`` for rows that get slack though
    they are strongly active for some directions.
    """

    distance: float
    clash: np.ndarray
    opened: np.ndarray
    upper: np.ndarray


def strong_system(kinks: Kinks, weak: np.ndarray, sometimes: np.ndarray, unique_y: bool) -> StrongSystem:
    """Return the conditions at a point, given which rows are weakly active, and which are sometimes strongly active.

    Where y is not unique, w is not either: it cannot be eliminated, and the one that suits best counts.
    """
    point, active = kinks.point, kinks.active
    kind = np.where(active.equality, STRONG, np.where(sometimes, SOMETIMES_STRONG, np.where(weak, WEAK, STRONG)))
    # Of a full Hessian nothing would be gained by sparse rows: a program with it takes many times its memory.
    few = active.a.shape[0] * active.a.shape[1] <= EXACT_SETTINGS.dense_entries or nearly_full(point.hessian)
    if unique_y and not point.upper.count and few:
        kink = kinks.of(kind != STRONG)
        if kink is not None:
            return _eliminated(point, kink, kind)
    return _sparse(point, active, kind)


def _eliminated(point: PointDerivatives, kink: Kink, kind: np.ndarray) -> StrongSystem:
    """Return the conditions with w and the strongly active rows eliminated."""
    origin, empty = np.flatnonzero(kind != STRONG), np.zeros
    return StrongSystem(
        f_x=kink.gradient,
        f_y=np.zeros(0),
        hessian=empty((0, 0)),
        mixed=empty((0, len(point.f_x))),
        a=empty((len(origin), 0)),
        b=kink.slope,
        compliance=kink.compliance,
        response=kink.response,
        kind=kind[origin],
        origin=origin,
        normals=point.normals,
        normal_free=point.normal_free,
        upper_x=point.upper.x,
        upper_y=empty((0, 0)),
        upper_free=point.upper.free,
    )


def _sparse(point: PointDerivatives, active: ActiveRows, kind: np.ndarray) -> StrongSystem:
    """Return the conditions with w, without the variables that a strongly active row of one entry fixes."""
    a, b = sp.csr_matrix(active.a), sp.csr_matrix(active.b)
    uncoupled = np.diff(b.indptr) == 0
    fixing = np.flatnonzero((kind == STRONG) & uncoupled & (np.diff(a.indptr) == 1))
    movable = np.ones(a.shape[1], bool)
    movable[a.indices[a.indptr[fixing]]] = False
    a = sp.csr_matrix(a[:, movable])
    kept = ~uncoupled | (np.diff(a.indptr) > 0)
    kept[fixing] = False
    hessian = sp.csr_matrix(sp.csr_matrix(point.hessian)[movable][:, movable])
    # Variables of large curvature (the entropy of a tiny share) are scaled by it, or they would hide the others.
    unit = sp.diags(1 / np.sqrt(np.maximum(hessian.diagonal(), 1.0)))
    return StrongSystem(
        f_x=point.f_x,
        f_y=unit @ point.f_y[movable],
        hessian=sp.csr_matrix(unit @ hessian @ unit),
        mixed=sp.csr_matrix(unit @ sp.csr_matrix(point.mixed)[movable]),
        a=sp.csr_matrix(a[kept] @ unit),
        b=sp.csr_matrix(b[kept]),
        compliance=sp.csr_matrix((kept.sum(), kept.sum())),
        response=np.zeros(kept.sum()),
        kind=kind[kept],
        origin=np.flatnonzero(kept),
        normals=point.normals,
        normal_free=point.normal_free,
        upper_x=point.upper.x,
        upper_y=sp.csr_matrix(point.upper.y[:, movable] @ unit),
        upper_free=point.upper.free,
    )


def strong_distance(
    system: StrongSystem, good: float, can_vanish: Callable[[np.ndarray], bool]
) -> tuple[float, int, np.ndarray]:
    """Return the distance from strong stationarity, in how many branches, and the upper rows' multipliers.

    It branches where the distance is above ``good``: in each of its independent parts by itself, since the squares of
    their distances add up, while their branches would multiply.
    """
    root = _solve(system, system.kind)
    if root.distance <= good:
        return root.distance, 1, root.upper
    entries = system.a.nnz if sp.issparse(system.a) else int(np.count_nonzero(system.compliance))  # one of them is zero
    limit = min(STATIONARITY.branches, 1 + STATIONARITY.branch_work // (1 + sum(system.a.shape) + entries))
    parts = independent_parts(system)
    if len(parts) == 1:
        return _branched(system, root, good, limit, can_vanish)
    distances, branches, upper = [], 1, np.zeros(len(system.upper_free))
    for part, own in parts:
        share = good / np.sqrt(len(parts))
        distance, count, upper[own] = _branched(part, _solve(part, part.kind), share, limit - branches, can_vanish)
        distances.append(distance)
        branches += count - 1
    return float(np.linalg.norm(distances)), branches, upper


def independent_parts(system: StrongSystem) -> list[tuple[StrongSystem, np.ndarray]]:
    """Return systems that share no unknown and no condition, and the upper rows of each; the whole where it is one.

    What has no row to branch on is one part.
    """
    sizes = [len(system.f_x), len(system.f_y), len(system.kind), len(system.normal_free), len(system.upper_free)]
    none = [None] * 5
    connected = [
        none,
        [system.mixed, system.hessian, *none[2:]],
        [system.b, system.a, system.compliance, *none[3:]],
        [system.normals, *none[1:]],
        [system.upper_x, system.upper_y, *none[2:]],
    ]
    count, label = connected_components(sp.csr_matrix(put_together(connected, sizes, sizes)), directed=False)
    of_kind = np.split(label, np.cumsum(sizes)[:-1])
    branching = np.zeros(count, bool)
    branching[of_kind[2][np.isin(system.kind, tuple(_BRANCHES_OF))]] = True
    names = np.where(branching, np.arange(count), -1)
    if len(different := np.unique(names)) == 1:
        return [(system, np.arange(sizes[4]))]
    parts = []
    for name in different:
        x, y, rows, normals, upper = (np.flatnonzero(names[labels] == name) for labels in of_kind)
        part = StrongSystem(
            f_x=system.f_x[x],
            f_y=system.f_y[y],
            hessian=system.hessian[y][:, y],
            mixed=system.mixed[y][:, x],
            a=system.a[rows][:, y],
            b=system.b[rows][:, x],
            compliance=system.compliance[rows][:, rows],
            response=system.response[rows],
            kind=system.kind[rows],
            origin=system.origin[rows],
            normals=system.normals[normals][:, x],
            normal_free=system.normal_free[normals],
            upper_x=system.upper_x[upper][:, x],
            upper_y=system.upper_y[upper][:, y],
            upper_free=system.upper_free[upper],
        )
        parts.append((part, upper))
    return parts


def _branched(
    system: StrongSystem, root: _Answer, good: float, limit: int, can_vanish: Callable[[np.ndarray], bool]
) -> tuple[float, int, np.ndarray]:
    """Return what `strong_distance` does, given the answer without branches.

    The branch with the largest distance is split next, until that distance is below ``good``, its dual direction is one
    in which y can respond, or the work is spent. In such a direction every row gets slack or a multiplier, not both,
    and only rows whose multipliers can all be zero at once get slack: ``can_vanish`` tells whether they can.
    """
    order = itertools.count()
    queue = [(-root.distance, next(order), root, system.kind)]
    solved = 1
    while True:
        _, _, answer, kind = queue[0]
        if answer.distance <= good or solved >= limit or clock.remaining() <= 0:
            return answer.distance, solved, answer.upper
        gone = (system.kind == SOMETIMES_STRONG) & np.isin(kind, (WEAK, STAYS_ACTIVE, GETS_SLACK))
        split = answer.clash
        if not split.any() and answer.opened.any() and not can_vanish(system.origin[gone | (answer.opened > 0)]):
            split = answer.opened
        if not split.any():
            return answer.distance, solved, answer.upper
        heapq.heappop(queue)
        row = int(np.argmax(split))
        for side in _BRANCHES_OF[int(kind[row])]:
            child = kind.copy()
            child[row] = side
            gone[row] = kind[row] == SOMETIMES_STRONG and side == WEAK
            if gone[row] and not can_vanish(system.origin[gone]):
                continue
            # A distance above the parent's is an inaccuracy of one of the two. It counts, to be on the safe side.
            part = _solve(system, child)
            heapq.heappush(queue, (-part.distance, next(order), part, child))
            solved += 1


def _solve(system: StrongSystem, kind: np.ndarray) -> _Answer:
    """Solve the program of one branch, whose rows are of these kinds."""
    n_x, n_y, count, cone = len(system.f_x), len(system.f_y), len(kind), system.normals.shape[0]
    upper = len(system.upper_free)
    counted = np.flatnonzero(kind != GETS_SLACK)  # rows with a w = 0 or a w >= 0
    nonnegative = np.flatnonzero(np.isin(kind[counted], (WEAK, STAYS_ACTIVE)))  # those with a w >= 0
    signed = np.isin(kind, (SOMETIMES_STRONG, WEAK, GETS_SLACK))  # rows with xi >= 0
    width, heights = len(nonnegative), [n_x, n_y, len(counted)]
    above = -unit_rows_at(nonnegative, len(counted)).T
    bounded = np.concatenate([~system.normal_free, ~system.upper_free])
    signs = np.concatenate([np.zeros(n_y, bool), signed, bounded, np.ones(width, bool)])
    right = np.concatenate([system.f_x, -system.f_y, -system.response[counted]])
    soft = 1 / TOLERANCES.misfit_weight

    def attempt(misfits: list[int]) -> LeastNorm | None:
        # Unknowns: the residual in x, misfits, then w, xi, the normals of X, those of the upper rows, and a w where it
        # may be positive.
        x, w, rows = system.upper_x.T, system.upper_y.T, system.a[counted]
        blocks = [
            [1.0, None, None, -system.mixed.T, -system.b.T, -system.normals.T, -x, None],
            [None, soft, None, system.hessian, system.a.T, None, w, None],
            [None, None, soft, rows, -system.compliance[counted], None, None, above],
        ]
        matrix = put_together(blocks, heights, [n_x, *misfits, n_y, count, cone, upper, width])
        leading = n_x + sum(misfits)
        return least_norm(leading, matrix, right, leading + np.flatnonzero(signs))

    # Where the conditions contradict each other they may be violated, which counts as part of the distance. In the dual
    # program that bounds |v| and |theta| along with |d|.
    answer = attempt([0, 0]) or attempt(heights[1:])
    if answer is None:
        return _Answer(np.inf, np.zeros(count), np.zeros(count), np.zeros(upper))
    slack, multiplier = np.zeros(count), np.zeros(count)
    slack[signed] = np.maximum(answer.of_signs[: signed.sum()], 0.0)
    multiplier[counted] = np.abs(answer.of_equations[n_x + n_y :])
    opening = slack / (1 + slack.max(initial=0.0))
    both = np.minimum(opening, multiplier / (1 + multiplier.max(initial=0.0)))
    clash = np.isin(kind, (SOMETIMES_STRONG, WEAK)) & (both > TOLERANCES.complementary)
    opened = (kind == SOMETIMES_STRONG) & (opening > TOLERANCES.complementary)
    ends = len(answer.unknowns) - width
    of_upper = answer.unknowns[ends - upper : ends]
    return _Answer(answer.distance, np.where(clash, slack * multiplier, 0.0), np.where(opened, slack, 0.0), of_upper)
