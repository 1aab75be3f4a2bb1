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
import itertools
import warnings

import clarabel
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy import linalg
from scipy.linalg import LinAlgError, LinAlgWarning
from scipy.optimize import linprog, nnls

from bilevax.convex import ConvexSolution
from bilevax.derivatives import FlatProblem

# A row counts as active, and a multiplier as zero, within these relative margins: tried in turn, since a point found to
# seven digits sits 1e-7 beside its kink.
_ACTIVITY = (1e-9, 1e-7, 1e-5)
_GOOD = 1e-8
_MAX_PIECES = 1024
_FEW_WEAK = 6  # so few that listing the pieces is cheap even where the strong test has answered
_MAX_OPTIONAL = 100
_SAMPLES = 256
_MAX_SPREAD = 5000
_MAX_DENSE = 4_000_000


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


@dataclasses.dataclass(frozen=True)
class _Active:
    """The active lower-level rows, normalised and oriented outward, equal ones merged."""

    a: sp.csr_matrix
    b: sp.csr_matrix
    equality: np.ndarray
    multiplier: np.ndarray
    count_before_merging: int


@dataclasses.dataclass(frozen=True)
class _Point:
    """Derivatives at (x, y*), and the cone of outward normals of X."""

    f_x: np.ndarray
    f_y: np.ndarray
    hessian: sp.csc_matrix
    mixed: sp.csc_matrix
    normals: sp.csr_matrix
    normal_free: np.ndarray


def measure(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Stationarity:
    """Return the stationarity of x, given the exact lower level there."""
    point = _derivatives(flat, x, lower)
    margin = _complementarity_margin(flat, x, lower)
    best: Stationarity | None = None
    seen = None
    for tolerance in _ACTIVITY:
        active = _active_rows(flat, x, lower, tolerance)
        weak = ~active.equality & (active.multiplier <= tolerance * _force_scale(flat, x, lower))
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


def value_spread(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return how far f is seen to move over the minimisers of the lower level; 0 where there is only one.

    A minimiser y + v has H v = 0, keeps the rows that carry a force, and satisfies the others. If f does not move along
    a random direction of that kind it depends on none of them; otherwise corners of the set of minimisers are tried.
    """
    if lower.unique:
        return 0.0
    active = _active_rows(flat, x, lower, 1e-7)
    held = active.a[active.equality | (active.multiplier > 1e-7 * _force_scale(flat, x, lower))]
    fixed = sp.vstack([flat.hessian("lower", "y", "y", x, lower.y), held], format="csr")
    random = np.random.default_rng(0)
    reach = 1 + np.abs(lower.y).max(initial=0.0)
    here = flat.value("upper", x, lower.y)
    moved = lambda v: abs(flat.value("upper", x, lower.y + v) - here)
    free = _project_out(fixed, random.standard_normal(flat.n_y))
    small = 1e-9 * (1 + abs(here))
    if np.abs(free).max() <= 1e-8 or max(moved(0.1 * reach * free), moved(-0.1 * reach * free)) <= small:
        return 0.0
    if flat.n_y > _MAX_SPREAD:
        return np.inf
    a, b, low, high = _stacked(flat, x)
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


def _project_out(rows: sp.csr_matrix, vector: np.ndarray) -> np.ndarray:
    """Return the part of a vector on which all rows vanish."""
    if rows.shape[0] * rows.shape[1] <= _MAX_DENSE:
        return vector - rows.T @ np.linalg.lstsq(rows.T.toarray(), vector, rcond=1e-10)[0]
    return vector - rows.T @ spl.lsmr(rows.T, vector, atol=1e-13, btol=1e-13, maxiter=20_000)[0]


def _measure_with(point: _Point, active: _Active, weak: np.ndarray, margin: float) -> Stationarity:
    smallest = _smallest_singular_value(active.a)
    independent = smallest > 1e-9 and active.count_before_merging == active.a.shape[0]
    unique = np.ones(len(weak), bool) if smallest > 1e-9 else _unique_multipliers(active.a)
    strict = not weak.any()
    gradient = _piece_gradient(point, active.a, active.b) if strict and unique.all() else None
    found = lambda value, test: Stationarity(value, test, gradient, independent, smallest, strict, margin)
    if gradient is not None:
        return found(_distance_to_cone(gradient, point) / (1 + np.linalg.norm(gradient)), "smooth")
    weak, sometimes = _resolve_multipliers(active, unique, weak)
    strict = not weak.any()  # read by `found`
    # Two extreme pieces give the scale: all undecided rows held, or none of them.
    extremes = [_piece_gradient(point, active.a[rows], active.b[rows]) for rows in (~weak, weak | ~weak)]
    norms = [np.linalg.norm(extreme) for extreme in extremes if extreme is not None]
    scale = 1 + max([np.linalg.norm(point.f_x), *norms])
    strong = _strong_distance(point, active, weak, sometimes)
    strong = np.inf if strong is None else strong
    solved = strong / scale <= _GOOD
    candidates = [(strong, "strong")] if np.isfinite(strong) else []
    if solved and weak.sum() > _FEW_WEAK:
        return found(strong / scale, "strong")
    pieces, complete = _adjacent_pieces(point, active, weak, unique)
    if complete and unique.all():
        gradient = _common_gradient(pieces)  # read by `found`
    if solved:
        return found(strong / scale, "strong")
    if pieces:
        scale = 1 + max(np.linalg.norm(piece.gradient) for piece in pieces)
        hull = _hull_distance(point, active, np.array([piece.gradient for piece in pieces]))
        if hull is not None:
            distance = max(hull, _steepest_descent(point, pieces))
            candidates.append((distance, f"hull of {len(pieces)}{'' if complete else ' sampled'} pieces"))
    distance, test = min(candidates, default=(np.inf, "none applies"))
    return found(distance / scale, test)


def _common_gradient(pieces: "list[_Piece]") -> np.ndarray | None:
    """Return the gradient that all pieces share: Phi is smooth across a row that comes and goes without effect."""
    if not pieces:
        return None
    first = pieces[0].gradient
    tolerance = 1e-9 * (1 + np.linalg.norm(first))
    return first if all(np.linalg.norm(piece.gradient - first) <= tolerance for piece in pieces) else None


def _derivatives(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> _Point:
    f_x, f_y = flat.gradients("upper", x, lower.y)
    hessian = flat.hessian("lower", "y", "y", x, lower.y)
    for ball, multiplier in zip(flat.y_rows.balls, lower.ball_multipliers, strict=True):
        curvature = np.zeros(flat.n_y)
        curvature[ball.index] = multiplier
        hessian = hessian + sp.diags(curvature)
    normals, free = _normals_of_x(flat, x)
    return _Point(f_x, f_y, sp.csc_matrix(hessian), flat.hessian("lower", "y", "x", x, lower.y), normals, free)


def _normals_of_x(flat: FlatProblem, x: np.ndarray) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the generators of the normal cone of X at x, and which of them act in both directions."""
    rows = flat.x_rows
    image, near = rows.matrix @ x, 1e-7 * (1 + np.abs(x).max(initial=0.0))
    norms = np.maximum(spl.norm(rows.matrix, axis=1), 1e-300) if rows.matrix.shape[0] else np.ones(0)
    at_upper, at_lower = (rows.upper - image) / norms <= near, (image - rows.lower) / norms <= near
    unit = sp.diags(1 / norms) @ rows.matrix if len(norms) else rows.matrix
    both = at_upper & at_lower
    parts = [unit[both], unit[at_upper & ~both], -unit[at_lower & ~both]]
    for ball in rows.balls:
        offset = x[ball.index] - ball.center
        if np.linalg.norm(offset) >= ball.radius - near:
            normal = np.zeros(len(x))
            normal[ball.index] = offset / np.linalg.norm(offset)
            parts.append(sp.csr_matrix(normal))
    normals = sp.vstack(parts, format="csr")
    return normals, np.arange(normals.shape[0]) < both.sum()


def _stacked(flat: FlatProblem, x: np.ndarray) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray, np.ndarray]:
    """Return (a, b, lower, upper) of all lower-level rows in (y, x), those of Y last, scaled to unit length."""
    rows, simple = flat.rows, flat.y_rows
    a = sp.vstack([rows.A, simple.matrix], format="csr")
    b = sp.vstack([rows.B, sp.csr_matrix((simple.matrix.shape[0], flat.n_x))], format="csr")
    lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
    norms = np.sqrt(np.asarray(a.multiply(a).sum(axis=1) + b.multiply(b).sum(axis=1)).ravel())
    scale = 1 / np.where(norms > 0, norms, 1.0)
    return sp.diags(scale) @ a, sp.diags(scale) @ b, lower * scale, upper * scale


def _row_norms(flat: FlatProblem) -> np.ndarray:
    rows, simple = flat.rows, flat.y_rows
    squares = np.asarray(rows.A.multiply(rows.A).sum(axis=1) + rows.B.multiply(rows.B).sum(axis=1)).ravel()
    norms = np.sqrt(np.concatenate([squares, np.asarray(simple.matrix.multiply(simple.matrix).sum(axis=1)).ravel()]))
    return np.where(norms > 0, norms, 1.0)


def _force_scale(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    return 1 + float(np.abs(flat.gradients("lower", x, lower.y)[1]).max(initial=0.0))


def _complementarity_margin(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return the smallest of max(slack, multiplier) over the inequality rows: 0 on a kink."""
    a, b, low, high = _stacked(flat, x)
    image = a @ lower.y + b @ x
    slack = np.minimum(high - image, image - low)
    force = np.abs(lower.multipliers) * _row_norms(flat) / _force_scale(flat, x, lower)
    inequality = (low < high) & np.isfinite(slack)
    return float(np.min(np.maximum(slack, force)[inequality], initial=np.inf))


def _active_rows(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, tolerance: float) -> _Active:
    a, b, low, high = _stacked(flat, x)
    image, force = a @ lower.y + b @ x, lower.multipliers * _row_norms(flat)
    near = tolerance * (1 + max(np.abs(lower.y).max(initial=0.0), np.abs(x).max(initial=0.0)))
    # The exact solve may have had to relax the rows by rounding; a force always marks its row as active.
    near = np.full(len(low), near + lower.relaxation)
    pressed = tolerance * _force_scale(flat, x, lower)
    at_upper, at_lower = (
        (high - image <= near) | (force > pressed),
        (image - low <= near) | (force < -pressed),
    )
    empty = (np.diff(a.indptr) == 0) & (np.diff(b.indptr) == 0)
    equality = np.isfinite(high) & (high - low <= 1e-12 * (1 + np.abs(high))) & ~empty
    at_upper, at_lower = at_upper & ~equality & ~empty, at_lower & ~equality & ~empty
    order = [np.flatnonzero(equality), np.flatnonzero(at_upper), np.flatnonzero(at_lower)]
    sign = np.concatenate([np.ones(len(order[0])), np.ones(len(order[1])), -np.ones(len(order[2]))])
    index = np.concatenate(order)
    parts_a, parts_b = [sp.diags(sign) @ a[index]], [sp.diags(sign) @ b[index]]
    multiplier = [sign * force[index]]
    for ball, value in zip(flat.y_rows.balls, lower.ball_multipliers, strict=True):
        offset = lower.y[ball.index] - ball.center
        if np.linalg.norm(offset) >= ball.radius * (1 - tolerance):
            normal = np.zeros(flat.n_y)
            normal[ball.index] = offset / np.linalg.norm(offset)
            parts_a.append(sp.csr_matrix(normal))
            parts_b.append(sp.csr_matrix((1, flat.n_x)))
            multiplier.append(np.array([value * np.linalg.norm(offset)]))
    forces = np.concatenate(multiplier)
    free = np.arange(len(forces)) < len(order[0])
    forces = np.where(free, forces, np.maximum(forces, 0.0))
    return _merge(sp.vstack(parts_a, format="csr"), sp.vstack(parts_b, format="csr"), free, forces)


def _merge(a: sp.csr_matrix, b: sp.csr_matrix, equality: np.ndarray, multiplier: np.ndarray) -> _Active:
    """Merge equal rows into one, and opposite ones into an equality: neither changes the problem."""
    together = sp.csr_matrix(sp.hstack([a, b]))
    together.data = together.data.round(10) + 0.0  # no negative zeros: rows are compared byte by byte
    together.eliminate_zeros()
    together.sort_indices()
    groups: dict[bytes, int] = {}
    keep: list[int] = []
    merged_equality, merged_multiplier = list(equality), list(multiplier)
    for row in range(together.shape[0]):
        part = slice(together.indptr[row], together.indptr[row + 1])
        columns, values = together.indices[part].tobytes(), together.data[part]
        same, opposite = columns + values.tobytes(), columns + (-values).tobytes()
        if same in groups:
            first = groups[same]
            merged_equality[first] = merged_equality[first] or equality[row]
            merged_multiplier[first] += multiplier[row]
        elif opposite in groups:
            first = groups[opposite]
            merged_equality[first] = True
            merged_multiplier[first] -= multiplier[row]
        else:
            groups[same] = row
            keep.append(row)
    pick = np.array(keep, int)
    return _Active(
        a=a[pick],
        b=b[pick],
        equality=np.array(merged_equality, bool)[pick],
        multiplier=np.array(merged_multiplier, float)[pick],
        count_before_merging=a.shape[0],
    )


def _smallest_singular_value(a: sp.csr_matrix) -> float:
    """Return the smallest singular value of the rows (0 when they are dependent, inf when there are none)."""
    count, size = a.shape
    if count == 0:
        return np.inf
    if count > size:
        return 0.0
    if count * size <= _MAX_DENSE:
        return float(np.linalg.svd(a.toarray(), compute_uv=False)[-1])
    # Inverse iteration on a a': three rounds give the order of magnitude, which is all that LICQ needs.
    factor = spl.splu(sp.csc_matrix(a @ a.T + 1e-14 * sp.eye(count)))
    vector = np.random.default_rng(0).standard_normal(count)
    for _ in range(3):
        vector = factor.solve(vector / np.linalg.norm(vector))
    return float(np.linalg.norm(a.T @ vector) / np.linalg.norm(vector))


def _unique_multipliers(a: sp.csr_matrix) -> np.ndarray:
    """Return which rows have a unique multiplier: those that vanish in a random vector of the null space of a'."""
    random = np.random.default_rng(0).standard_normal(a.shape[0])
    return np.abs(_project_out(sp.csr_matrix(a.T), random)) <= 1e-7


def _resolve_multipliers(active: _Active, unique: np.ndarray, weak: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows have a zero multiplier in every multiplier vector, and which in some but not in all.

    Where rows are dependent, the vector at hand is one of many: a linear program tells the least and the largest.
    """
    weak, sometimes = weak.copy(), np.zeros(len(unique), bool)
    undecided = np.flatnonzero(~unique & ~active.equality)
    sometimes[undecided] = True
    if len(undecided) == 0 or len(undecided) > 300:
        return weak, sometimes  # too many to ask one by one: the stricter condition stays sufficient
    balance, positive = active.a.T @ active.multiplier, 1e-7 * (1 + np.abs(active.multiplier).max())
    bounds = [(None, None) if free else (0, None) for free in active.equality]
    for row in undecided:
        cost = np.zeros(len(unique))
        cost[row] = 1.0
        least = linprog(cost, A_eq=active.a.T, b_eq=balance, bounds=bounds, method="highs")
        largest = linprog(-cost, A_eq=active.a.T, b_eq=balance, bounds=bounds, method="highs")
        always = least.status == 0 and least.fun > positive
        never = largest.status == 0 and -largest.fun <= positive
        weak[row], sometimes[row] = never, not always and not never
    return weak, sometimes


def _piece_gradient(point: _Point, a: sp.csr_matrix, b: sp.csr_matrix) -> np.ndarray | None:
    """Return the gradient of the piece on which the rows (a, b) stay active, or None where it has none."""
    solution = _solve_kkt(point.hessian, a, np.r_[-point.f_y, np.zeros(a.shape[0])])
    if solution is None:
        return None
    w, xi = np.split(solution, [a.shape[1]])
    return point.f_x + point.mixed.T @ w + b.T @ xi


def _solve_kkt(hessian: sp.csc_matrix, a: sp.csr_matrix, right: np.ndarray) -> np.ndarray | None:
    """Solve [H a'; a 0] s = right to rounding, or return None if the system is not consistent."""
    count, size = a.shape
    system = sp.csc_matrix(sp.bmat([[hessian, a.T], [a, None]])) if count else sp.csc_matrix(hessian)
    if system.shape[0] <= 1500:
        dense = system.toarray()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", LinAlgWarning)
                solution = linalg.solve(dense, right, assume_a="sym")
        except (LinAlgError, LinAlgWarning):  # dependent rows: any solution will do, if there is one
            solution = np.linalg.lstsq(dense, right, rcond=1e-12)[0]
    else:
        # Quasi-definite regularisation, taken out again by refinement.
        scale = 1e-9 * max(1.0, abs(hessian).max())
        shift = sp.diags(np.r_[np.full(size, scale), np.full(count, -scale)])
        factor = spl.splu(sp.csc_matrix(system + shift), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.01)
        solution = factor.solve(right)
        for _ in range(20):
            residual = right - system @ solution
            if np.abs(residual).max() <= 1e-12 * (1 + np.abs(right).max()):
                break
            solution = solution + factor.solve(residual)
    residual = np.abs(system @ solution - right).max(initial=0.0)
    return solution if residual <= 1e-8 * (1 + np.abs(right).max(initial=0.0)) else None


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A piece of Phi next to x: its gradient, and the directions ``cone d <= 0`` that lead into it."""

    gradient: np.ndarray
    cone: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Kink:
    """The rows that may come or go, with the others eliminated, so that a piece costs a tiny linear solve.

    With the required rows R held, row i of the k optional ones has ``value = slope_i d`` in direction d of x, and a
    force ``xi`` on them moves the row values by ``-compliance xi`` and the gradient by ``slope' xi``.
    """

    gradient: np.ndarray
    slope: np.ndarray
    compliance: np.ndarray
    response: np.ndarray
    reduced: np.ndarray
    force: np.ndarray
    fragile_size: float


def _adjacent_pieces(point: _Point, active: _Active, weak: np.ndarray, unique: np.ndarray) -> tuple[list[_Piece], bool]:
    """Return the pieces that meet at x, and whether they are all of them."""
    optional = ~active.equality & (weak | ~unique)
    if optional.sum() > _MAX_OPTIONAL or active.a.shape[0] * active.a.shape[1] > _MAX_DENSE:
        return [], False
    kink = _eliminate(point, active, optional)
    if kink is None:
        return [], False
    count = int(optional.sum())
    complete = 2**count <= _MAX_PIECES
    if complete:
        subsets = itertools.chain.from_iterable(itertools.combinations(range(count), r) for r in range(count + 1))
    else:
        subsets = _sample_subsets(kink)
    pieces = [piece for chosen in subsets if (piece := _piece(kink, np.array(chosen, int))) is not None]
    return pieces, complete


def _eliminate(point: _Point, active: _Active, optional: np.ndarray) -> _Kink | None:
    required_a, required_b = active.a[~optional], active.b[~optional]
    optional_a, optional_b = active.a[optional], active.b[optional]
    n_y, held = active.a.shape[1], required_a.shape[0]
    count = optional_a.shape[0]
    right = np.zeros((n_y + held, 1 + count))
    right[:n_y, 0] = -point.f_y
    right[:n_y, 1:] = optional_a.T.toarray()
    solved = _solve_kkt(point.hessian, required_a, right)
    if solved is None:
        return None
    gradients = point.mixed.T @ solved[:n_y] + required_b.T @ solved[n_y:]
    # What of each optional row the required rows do not already carry: decides which sets carry the lower gradient.
    dense = required_a.toarray()
    reduced = optional_a.toarray()
    if held:
        reduced = reduced - (np.linalg.lstsq(dense.T, reduced.T, rcond=1e-10)[0].T @ dense)
    basis = np.linalg.qr(reduced.T)[0]
    reduced = reduced @ basis
    return _Kink(
        gradient=point.f_x + gradients[:, 0],
        slope=optional_b.toarray() - gradients[:, 1:].T,
        compliance=optional_a @ solved[:n_y, 1:],
        response=optional_a @ solved[:n_y, 0],
        reduced=reduced,
        force=reduced.T @ active.multiplier[optional],
        fragile_size=1e-6 * (1 + np.abs(active.multiplier).max(initial=0.0)),
    )


def _piece(kink: _Kink, chosen: np.ndarray) -> _Piece | None:
    """Return the piece on which exactly ``chosen`` of the optional rows stay active, or None if there is none."""
    others = np.setdiff1d(np.arange(len(kink.slope)), chosen)
    carried = np.zeros(0)
    response = np.zeros((0, kink.slope.shape[1]))
    gradient = kink.gradient
    if len(chosen):
        part = kink.reduced[chosen]
        if len(chosen) > part.shape[1] or np.linalg.svd(part, compute_uv=False)[-1] < 1e-9:
            return None
        carried = np.linalg.lstsq(part.T, kink.force, rcond=None)[0]
        own = kink.compliance[np.ix_(chosen, chosen)]
        response = np.linalg.solve(own, kink.slope[chosen])
        gradient = gradient + kink.slope[chosen].T @ np.linalg.solve(own, kink.response[chosen])
    unbalanced = np.abs(kink.reduced[chosen].T @ carried - kink.force).max(initial=0.0)
    if unbalanced > kink.fragile_size or np.any(carried < -kink.fragile_size):
        return None
    opened = kink.slope[others] - kink.compliance[np.ix_(others, chosen)] @ response  # must not become positive
    pressed = -response[carried <= kink.fragile_size]  # multipliers at zero must not become negative
    cone = np.vstack([opened, pressed])
    norms = np.linalg.norm(cone, axis=1)
    cone = cone[norms > 1e-10] / norms[norms > 1e-10][:, None]
    return _Piece(gradient, cone) if _has_interior(cone) else None


def _sample_subsets(kink: _Kink) -> set[tuple[int, ...]]:
    """Return the row sets that random directions of x lead into: the lower level's response there is a small QP."""
    random = np.random.default_rng(0)
    lift = 1e-12 * np.trace(kink.compliance) / len(kink.compliance)
    factor = np.linalg.cholesky(kink.compliance + lift * np.eye(len(kink.compliance)))
    subsets = set()
    for _ in range(_SAMPLES):
        push = kink.slope @ random.standard_normal(kink.slope.shape[1])
        force = nnls(factor.T, np.linalg.solve(factor, push))[0]
        subsets.add(tuple(np.flatnonzero(force > 1e-10 * (1 + force.max()))))
    return subsets


def _has_interior(cone: np.ndarray) -> bool:
    """Return whether ``cone d < 0`` for some d (rows of unit length)."""
    if len(cone) == 0:
        return True
    width = cone.shape[1]
    margin = linprog(
        np.r_[np.zeros(width), -1.0],
        A_ub=np.column_stack([cone, np.ones(len(cone))]),
        b_ub=np.zeros(len(cone)),
        bounds=[(-1, 1)] * width + [(0, 1)],
        method="highs",
    )
    return margin.status == 0 and -margin.fun > 1e-9


def _steepest_descent(point: _Point, pieces: list[_Piece]) -> float:
    """Return the largest decrease of Phi to first order over directions of X with entries in [-1, 1]."""
    normals = point.normals.toarray()
    steepest = 0.0
    for piece in pieces:
        tangent = np.vstack([piece.cone, normals[~point.normal_free]])
        held = normals[point.normal_free]
        best = linprog(
            piece.gradient,
            A_ub=tangent if len(tangent) else None,
            b_ub=np.zeros(len(tangent)) if len(tangent) else None,
            A_eq=held if len(held) else None,
            b_eq=np.zeros(len(held)) if len(held) else None,
            bounds=(-1, 1),
            method="highs",
        )
        steepest = max(steepest, -best.fun if best.status == 0 else np.inf)
    return steepest


def _distance_to_cone(gradient: np.ndarray, point: _Point) -> float:
    """Return the distance of ``-gradient`` from the normal cone of X."""
    if point.normals.shape[0] == 0:
        return float(np.linalg.norm(gradient))
    n_x = len(gradient)
    equations = [(sp.hstack([sp.eye(n_x), -point.normals.T]), gradient)]
    nonnegative = np.flatnonzero(~point.normal_free) + n_x
    distance = _least_norm(n_x, n_x + point.normals.shape[0], equations, nonnegative, [])
    return float(np.linalg.norm(gradient)) if distance is None else distance


def _strong_distance(point: _Point, active: _Active, weak: np.ndarray, sometimes: np.ndarray) -> float | None:
    """Return the residual of strong stationarity, or None when its conditions contradict each other."""
    n_x, n_y, count, cone = len(point.f_x), len(point.f_y), len(weak), point.normals.shape[0]
    xi, nu = n_x + n_y + np.arange(count), n_x + n_y + count + np.arange(cone)
    total = n_x + n_y + count + cone
    zero = sp.csr_matrix
    open_rows = weak & ~sometimes
    held = ~open_rows
    equations = [
        (sp.hstack([sp.eye(n_x), -point.mixed.T, -active.b.T, -point.normals.T]), point.f_x),
        (sp.hstack([zero((n_y, n_x)), point.hessian, active.a.T, zero((n_y, cone))]), -point.f_y),
        (
            sp.hstack([zero((held.sum(), n_x)), active.a[held], zero((held.sum(), count + cone))]),
            np.zeros(held.sum()),
        ),
    ]
    nonnegative = np.concatenate([xi[(weak | sometimes) & ~active.equality], nu[~point.normal_free]])
    inequalities = [
        sp.hstack([zero((open_rows.sum(), n_x)), active.a[open_rows], zero((open_rows.sum(), count + cone))])
    ]
    return _least_norm(n_x, total, equations, nonnegative, inequalities)


def _hull_distance(point: _Point, active: _Active, pieces: np.ndarray) -> float | None:
    """Return the distance of 0 from hull(pieces) + normals of X + normals of {x : the lower level is feasible}."""
    n_x, n_y, cone, count = len(point.f_x), active.a.shape[1], point.normals.shape[0], active.a.shape[0]
    number = len(pieces)
    total = n_x + number + cone + count
    zero = sp.csr_matrix
    weights, nu, mu = (
        n_x + np.arange(number),
        n_x + number + np.arange(cone),
        n_x + number + cone + np.arange(count),
    )
    equations = [
        (sp.hstack([sp.eye(n_x), sp.csr_matrix(-pieces.T), -point.normals.T, -active.b.T]), np.zeros(n_x)),
        (
            sp.hstack([zero((1, n_x)), sp.csr_matrix(np.ones((1, number))), zero((1, cone + count))]),
            np.ones(1),
        ),
        (sp.hstack([zero((n_y, n_x + number + cone)), active.a.T]), np.zeros(n_y)),
    ]
    nonnegative = np.concatenate([weights, nu[~point.normal_free], mu[~active.equality]])
    return _least_norm(n_x, total, equations, nonnegative, [])


def _least_norm(
    leading: int,
    total: int,
    equations: list[tuple[sp.spmatrix, np.ndarray]],
    nonnegative: np.ndarray,
    inequalities: list[sp.spmatrix],
) -> float | None:
    """Return the least norm of the first ``leading`` entries under equations, signs and ``inequality v >= 0``."""
    matrix = sp.vstack([left for left, _ in equations], format="csr")
    right = np.concatenate([value for _, value in equations])
    scale = max(1.0, np.abs(right).max(initial=0.0))
    signs = sp.vstack([sp.eye(total, format="csr")[nonnegative], *inequalities], format="csr")
    cones = [clarabel.ZeroConeT(matrix.shape[0])]
    if signs.shape[0]:
        cones.append(clarabel.NonnegativeConeT(signs.shape[0]))
    # The norm itself as a cone, |v| <= t with t last: least squares to 1e-11 would give the norm to 3e-6 only.
    cones.append(clarabel.SecondOrderConeT(leading + 1))
    bound = sp.csr_matrix(([1.0], ([0], [total])), shape=(1, total + 1))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    settings.max_iter = 200
    rows = sp.vstack([matrix, -signs])
    everything = sp.vstack(
        [sp.hstack([rows, sp.csr_matrix((rows.shape[0], 1))]), -bound, -sp.eye(leading, total + 1)], format="csc"
    )
    bounds = np.concatenate([right / scale, np.zeros(signs.shape[0] + leading + 1)])
    cost, linear = sp.csc_matrix((total + 1, total + 1)), np.r_[np.zeros(total), 1.0]
    answer = clarabel.DefaultSolver(cost, linear, everything, bounds, cones, settings).solve()
    solution = np.array(answer.x)[:total]
    # The answer is judged by its own residual, not by the solver's word for it.
    wrong = np.abs(matrix @ solution - right / scale).max(initial=0.0) + np.maximum(-(signs @ solution), 0).max(
        initial=0.0
    )
    if not np.isfinite(solution).all() or not wrong <= 1e-7 * (1 + np.abs(solution).max()):
        return None
    return float(np.linalg.norm(solution[:leading]) + wrong) * scale
