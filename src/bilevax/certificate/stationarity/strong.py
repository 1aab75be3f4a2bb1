"""Strong stationarity as a program, and its branches where it asks too much.

For a direction d of x with response v of y, change ``theta`` of the multipliers and slack rates ``s = -(a v + b d)``,
any (w, xi) with ``H w + a' xi = -grad_y f`` gives

    Phi'(x; d) = (grad_x f + G' w + b' xi) d + sum_i (a_i w) theta_i + sum_i xi_i s_i.

The sign conditions make the sums nonnegative whatever s_i and theta_i are. Those are complementary, so asking it of
both at once is more than needed: the program's own dual solution is a direction with its s and theta, and where a row
uses both, two programs take the sides apart. What is left is the steepest descent of Phi, or a bound on it.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.certificate.stationarity.least_norm import LeastNorm, least_norm
from bilevax.exact.active_rows import MAX_DENSE, ActiveRows
from bilevax.exact.kink import Kink, eliminate
from bilevax.exact.sensitivity import PointDerivatives

# What a row asks for: HELD a w = 0, xi free; SOMETIMES a w = 0, xi >= 0; WEAK a w >= 0, xi >= 0; and the two sides of a
# weak row: PRESSED (it stays active) a w >= 0, xi free; OPEN (it gets slack) a w free, xi >= 0.
HELD, SOMETIMES, WEAK, PRESSED, OPEN = range(5)
_SIDES = {SOMETIMES: (HELD, WEAK), WEAK: (PRESSED, OPEN)}
_MISFIT = 1e3  # weight of a misfit where the conditions contradict each other
_COMPLEMENTARY = 1e-7
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
    """A distance; how far, in the direction behind it, rows use both of their sides, and rows held sometimes open."""

    distance: float
    clash: np.ndarray
    opened: np.ndarray


def strong_system(point: PointDerivatives, active: ActiveRows, weak: np.ndarray, sometimes: np.ndarray) -> StrongSystem:
    """Return the conditions at a point for rows that are weak, positive sometimes, or held."""
    kind = np.where(active.equality, HELD, np.where(sometimes, SOMETIMES, np.where(weak, WEAK, HELD)))
    if active.a.shape[0] * active.a.shape[1] <= MAX_DENSE:
        kink = eliminate(point, active, kind != HELD)
        if kink is not None:
            return _eliminated(point, kink, kind)
    return _sparse(point, active, kind)


def _eliminated(point: PointDerivatives, kink: Kink, kind: np.ndarray) -> StrongSystem:
    """Return the conditions on the undecided rows alone."""
    origin, empty = np.flatnonzero(kind != HELD), sp.csr_matrix
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
    """Return the conditions without the columns that a held row of one entry fixes, and without those rows."""
    a, b = sp.csr_matrix(active.a), sp.csr_matrix(active.b)
    uncoupled = np.diff(b.indptr) == 0
    fixing = np.flatnonzero((kind == HELD) & uncoupled & (np.diff(a.indptr) == 1))
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
    or the work is spent. A true direction uses every row one way only, and opens no rows but such whose multipliers can
    all be zero at once, which ``can_vanish`` tells.
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
        gone = (system.kind == SOMETIMES) & np.isin(kind, (WEAK, PRESSED, OPEN))
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
            gone[row] = kind[row] == SOMETIMES and side == WEAK
            if gone[row] and not can_vanish(system.origin[gone]):
                continue
            # More than the parent's distance is inaccuracy, of either of them: not cut off, so as not to flatter.
            part = _solve(system, child)
            heapq.heappush(queue, (-part.distance, next(order), part, child))
            solved += 1


def _solve(system: StrongSystem, kind: np.ndarray) -> _Answer:
    n_x, n_y, count, cone = len(system.f_x), len(system.f_y), len(kind), system.normals.shape[0]
    zero = sp.csr_matrix
    counted = np.flatnonzero(kind != OPEN)  # rows whose a w is zero or nonnegative
    pushed = np.isin(kind[counted], (WEAK, PRESSED))
    signed = np.isin(kind, (SOMETIMES, WEAK, OPEN))
    # Unknowns: the residual in x, a misfit, then w, xi, the normals of X, and a w where it may be positive.
    above = sp.eye(len(counted), format="csc")[:, pushed]
    width = above.shape[1]

    def attempt(misfit: int) -> LeastNorm | None:
        soft = sp.eye(n_y + len(counted), misfit, format="csr") / _MISFIT
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
    slack, force = np.zeros(count), np.zeros(count)
    slack[signed] = np.maximum(answer.of_signs[: signed.sum()], 0.0)
    force[counted] = np.abs(answer.of_equations[n_x + n_y :])
    opening = slack / (1 + slack.max(initial=0.0))
    both = np.minimum(opening, force / (1 + force.max(initial=0.0)))
    clash = np.isin(kind, (SOMETIMES, WEAK)) & (both > _COMPLEMENTARY)
    opened = (kind == SOMETIMES) & (opening > _COMPLEMENTARY)
    return _Answer(answer.distance, np.where(clash, slack * force, 0.0), np.where(opened, slack, 0.0))
