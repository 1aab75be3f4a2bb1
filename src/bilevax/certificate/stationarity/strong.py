"""Strong stationarity as a program, and its branches where it is stronger than necessary.

For a direction d of x with response v of y, change ``theta`` of the multipliers and slack rates ``s = -(a v + b d)``,
any (w, xi) with ``H w + a' xi = -grad_y f`` gives

    Phi'(x; d) = (grad_x f + G' w + b' xi) d + sum_i (a_i w) theta_i + sum_i xi_i s_i.

The sign conditions make the sums nonnegative whatever s_i and theta_i are. Those are complementary, so asking it of
both at once is more than needed: the program's own dual solution is a direction with its s and theta, and where a row
has both, two programs follow, one for each side. What is left is the steepest descent of Phi, or a bound on it.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.certificate.stationarity.least_norm import LeastNorm, least_norm
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.active_rows import MAX_DENSE, ActiveRows
from bilevax.exact.kink import Kink, eliminate
from bilevax.exact.sensitivity import PointDerivatives

# The condition of each kind of active row. STRONG (strongly active for all directions of x): a w = 0, xi free.
# SOMETIMES_STRONG (for some directions only): a w = 0, xi >= 0. WEAK (weakly active, biactive): a w >= 0, xi >= 0; and
# its two sides: STAYS_ACTIVE a w >= 0, xi free; GETS_SLACK a w free, xi >= 0.
STRONG, SOMETIMES_STRONG, WEAK, STAYS_ACTIVE, GETS_SLACK = range(5)
_SIDES = {SOMETIMES_STRONG: (STRONG, WEAK), WEAK: (STAYS_ACTIVE, GETS_SLACK)}
_MAX_BRANCHES = 100
_BRANCH_WORK = 200_000


@dataclasses.dataclass(frozen=True)
class StrongSystem:
    """The conditions on (w, xi) in a form that holds with and without w eliminated.

    ``hessian w + a' xi = -f_y``, rows ``a w - compliance xi + response`` in place of a w, and the residual
    ``f_x + mixed' w + b' xi`` plus normals of X.
    """

    f_x: np.ndarray
    f_y: np.ndarray
    hessian: sp.csr_matrix
    mixed: sp.csr_matrix
    a: sp.csr_matrix
    b: sp.csr_matrix
    compliance: sp.csr_matrix
    response: np.ndarray
    kind: np.ndarray
    origin: np.ndarray  # which active rows these are
    normals: sp.csr_matrix
    normal_free: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Answer:
    """A distance; in its dual direction, by how much rows have slack and multiplier at once (``clash``).

    ``opened`` is the slack that rows get there which are strongly active for some directions only.
    """

    distance: float
    clash: np.ndarray
    opened: np.ndarray


def strong_system(point: PointDerivatives, active: ActiveRows, weak: np.ndarray, sometimes: np.ndarray) -> StrongSystem:
    """Return the conditions at a point; rows neither weakly nor sometimes strongly active are strongly active."""
    kind = np.where(active.equality, STRONG, np.where(sometimes, SOMETIMES_STRONG, np.where(weak, WEAK, STRONG)))
    if active.a.shape[0] * active.a.shape[1] <= MAX_DENSE:
        kink = eliminate(point, active, kind != STRONG)
        if kink is not None:
            return _eliminated(point, kink, kind)
    return _sparse(point, active, kind)


def _eliminated(point: PointDerivatives, kink: Kink, kind: np.ndarray) -> StrongSystem:
    """Return the conditions on the rows that are not strongly active, the others eliminated."""
    origin, empty = np.flatnonzero(kind != STRONG), sp.csr_matrix
    return StrongSystem(
        f_x=kink.gradient,
        f_y=np.zeros(0),
        hessian=empty((0, 0)),
        mixed=empty((0, len(point.f_x))),
        a=empty((len(origin), 0)),
        b=sp.csr_matrix(kink.slope),
        compliance=sp.csr_matrix(kink.compliance),
        response=kink.response,
        kind=kind[origin],
        origin=origin,
        normals=point.normals,
        normal_free=point.normal_free,
    )


def _sparse(point: PointDerivatives, active: ActiveRows, kind: np.ndarray) -> StrongSystem:
    """Return the conditions without the variables that a strongly active row of one entry fixes."""
    a, b = sp.csr_matrix(active.a), sp.csr_matrix(active.b)
    uncoupled = np.diff(b.indptr) == 0
    fixing = np.flatnonzero((kind == STRONG) & uncoupled & (np.diff(a.indptr) == 1))
    movable = np.ones(a.shape[1], bool)
    movable[a.indices[a.indptr[fixing]]] = False
    a = sp.csr_matrix(a[:, movable])
    kept = ~uncoupled | (np.diff(a.indptr) > 0)
    kept[fixing] = False
    hessian = sp.csr_matrix(sp.csr_matrix(point.hessian)[movable][:, movable])
    # Steep columns (the entropy of a tiny share) in the units of their curvature, or they drown the others.
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
    )


def strong_distance(system: StrongSystem, good: float, can_vanish: Callable[[np.ndarray], bool]) -> tuple[float, int]:
    """Return the residual of strong stationarity, or of its branches where it is not below ``good``; and their number.

    Best first: the branch with the largest distance is split until it is below ``good``, its direction is a true one,
    or the work is spent. A true direction gives every row slack or a multiplier, not both, and gives slack only to rows
    whose multipliers can all be zero at once, which ``can_vanish`` tells.
    """
    order = itertools.count()
    root = _solve(system, system.kind)
    queue = [(-root.distance, next(order), root, system.kind)]
    size = 1 + sum(system.a.shape) + system.a.nnz + system.compliance.nnz
    limit = min(_MAX_BRANCHES, 1 + _BRANCH_WORK // size)
    solved = 1
    while True:
        _, _, answer, kind = queue[0]
        if answer.distance <= good or solved >= limit or clock.remaining() <= 0:
            return answer.distance, solved
        gone = (system.kind == SOMETIMES_STRONG) & np.isin(kind, (WEAK, STAYS_ACTIVE, GETS_SLACK))
        split = answer.clash
        if not split.any() and answer.opened.any() and not can_vanish(system.origin[gone | (answer.opened > 0)]):
            split = answer.opened
        if not split.any():
            return answer.distance, solved
        heapq.heappop(queue)
        row = int(np.argmax(split))
        for side in _SIDES[int(kind[row])]:
            child = kind.copy()
            child[row] = side
            gone[row] = kind[row] == SOMETIMES_STRONG and side == WEAK
            if gone[row] and not can_vanish(system.origin[gone]):
                continue
            # More than the parent's distance is an inaccuracy of either of them: not cut off, to err on the safe side.
            part = _solve(system, child)
            heapq.heappush(queue, (-part.distance, next(order), part, child))
            solved += 1


def _solve(system: StrongSystem, kind: np.ndarray) -> _Answer:
    n_x, n_y, count, cone = len(system.f_x), len(system.f_y), len(kind), system.normals.shape[0]
    zero = sp.csr_matrix
    counted = np.flatnonzero(kind != GETS_SLACK)  # rows whose a w is zero or nonnegative
    pushed = np.isin(kind[counted], (WEAK, STAYS_ACTIVE))
    signed = np.isin(kind, (SOMETIMES_STRONG, WEAK, GETS_SLACK))
    # Unknowns: the residual in x, a misfit, then w, xi, the normals of X, and a w where it may be positive.
    above = sp.eye(len(counted), format="csc")[:, pushed]
    width = above.shape[1]

    def attempt(misfit: int) -> LeastNorm | None:
        soft = sp.eye(n_y + len(counted), misfit, format="csr") / TOLERANCES.misfit_weight
        along_x = [sp.eye(n_x), zero((n_x, misfit)), -system.mixed.T, -system.b.T, -system.normals.T]
        along_y = [zero((n_y, n_x)), soft[:n_y], system.hessian, system.a.T, zero((n_y, cone + width))]
        of_rows = [
            zero((len(counted), n_x)),
            soft[n_y:],
            system.a[counted],
            -system.compliance[counted],
            zero((len(counted), cone)),
            -above,
        ]
        equations = [
            (sp.hstack([*along_x, zero((n_x, width))]), system.f_x),
            (sp.hstack(along_y), -system.f_y),
            (sp.hstack(of_rows), -system.response[counted]),
        ]
        leading = n_x + misfit
        signs = np.concatenate([np.zeros(n_y, bool), signed, ~system.normal_free, np.ones(width, bool)])
        return least_norm(leading, leading + len(signs), equations, leading + np.flatnonzero(signs))

    # Where the conditions contradict each other they give way, at a price: it bounds |v| and |theta| along with |d|.
    answer = attempt(0) or attempt(n_y + len(counted))
    if answer is None:
        return _Answer(np.inf, np.zeros(count), np.zeros(count))
    slack, multiplier = np.zeros(count), np.zeros(count)
    slack[signed] = np.maximum(answer.of_signs[: signed.sum()], 0.0)
    multiplier[counted] = np.abs(answer.of_equations[n_x + n_y :])
    opening = slack / (1 + slack.max(initial=0.0))
    both = np.minimum(opening, multiplier / (1 + multiplier.max(initial=0.0)))
    clash = np.isin(kind, (SOMETIMES_STRONG, WEAK)) & (both > TOLERANCES.complementary)
    opened = (kind == SOMETIMES_STRONG) & (opening > TOLERANCES.complementary)
    return _Answer(answer.distance, np.where(clash, slack * multiplier, 0.0), np.where(opened, slack, 0.0))
