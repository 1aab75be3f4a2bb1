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

*Hull* test: the distance of 0 from the convex hull of the gradients of the adjacent pieces plus those normal cones.

Each is a distance, relative to 1 + the largest gradient of an adjacent piece. The smallest of them counts.
"""

import dataclasses
import itertools

import clarabel
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy.optimize import linprog

from bilevax.convex import ConvexSolution
from bilevax.derivatives import FlatProblem

# A row counts as active, and a multiplier as zero, within these relative margins: tried in turn, since a point found to
# seven digits sits 1e-7 beside its kink.
_ACTIVITY = (1e-9, 1e-7, 1e-5)
_GOOD = 1e-8
_MAX_PIECES = 1024
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


def _measure_with(point: _Point, active: _Active, weak: np.ndarray, margin: float) -> Stationarity:
    smallest = _smallest_singular_value(active.a)
    independent = smallest > 1e-9 and active.count_before_merging == active.a.shape[0]
    unique = np.ones(len(weak), bool) if smallest > 1e-9 else _unique_multipliers(active.a)
    strict = not weak.any()
    gradient = _piece_gradient(point, active.a, active.b) if strict and unique.all() else None
    found = lambda value, test: Stationarity(value, test, gradient, independent, smallest, strict, margin)
    if gradient is not None:
        return found(_distance_to_cone(gradient, point) / (1 + np.linalg.norm(gradient)), "smooth")
    candidates = []
    sometimes = _sometimes_positive(active, unique, weak)
    pieces = _adjacent_pieces(point, active, weak, unique)
    scale = 1 + max([np.linalg.norm(point.f_x), *(np.linalg.norm(piece) for piece in pieces)])
    strong = _strong_distance(point, active, weak, sometimes)
    if strong is not None:
        candidates.append((strong / scale, "strong"))
    if pieces and (not candidates or candidates[0][0] > _GOOD):
        hull = _hull_distance(point, active, np.array(pieces))
        if hull is not None:
            candidates.append((hull / scale, f"hull of {len(pieces)} pieces"))
    return found(*min(candidates, default=(np.inf, "none applies")))


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
    at_upper, at_lower = (high - image <= near) | (force > pressed), (image - low <= near) | (force < -pressed)
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
    if a.shape[0] * a.shape[1] <= _MAX_DENSE:
        dense = a.toarray()
        solution = np.linalg.lstsq(dense, random, rcond=1e-10)[0]
    else:
        solution = spl.lsmr(a, random, atol=1e-13, btol=1e-13, maxiter=20_000)[0]
    return np.abs(random - a @ solution) <= 1e-7


def _sometimes_positive(active: _Active, unique: np.ndarray, weak: np.ndarray) -> np.ndarray:
    """Return which rows have a multiplier that is positive in some multiplier vectors and zero in others."""
    undecided = np.flatnonzero(~unique & ~active.equality)
    sometimes = np.zeros(len(unique), bool)
    sometimes[undecided] = True
    if len(undecided) == 0 or len(undecided) > 300:
        return sometimes  # too many to ask one by one: the stricter condition stays sufficient
    balance = active.a.T @ active.multiplier
    bounds = [(None, None) if free else (0, None) for free in active.equality]
    for row in undecided:
        cost = np.zeros(len(unique))
        cost[row] = 1.0
        least = linprog(cost, A_eq=active.a.T, b_eq=balance, bounds=bounds, method="highs")
        if least.status == 0 and least.fun > 1e-7 * (1 + np.abs(active.multiplier).max()):
            sometimes[row] = False
            weak[row] = False
    return sometimes


def _piece_gradient(point: _Point, a: sp.csr_matrix, b: sp.csr_matrix) -> np.ndarray | None:
    """Return the gradient of the piece on which the rows (a, b) stay active, or None where it has none."""
    solution = _solve_kkt(point.hessian, a, np.r_[-point.f_y, np.zeros(a.shape[0])])
    if solution is None:
        return None
    w, xi = solution[: a.shape[1]], solution[a.shape[1] :]
    return point.f_x + point.mixed.T @ w + b.T @ xi


def _solve_kkt(hessian: sp.csc_matrix, a: sp.csr_matrix, right: np.ndarray) -> np.ndarray | None:
    """Solve [H a'; a 0] s = right to rounding, or return None if the system is not consistent."""
    count, size = a.shape
    system = sp.csc_matrix(sp.bmat([[hessian, a.T], [a, None]])) if count else sp.csc_matrix(hessian)
    if system.shape[0] <= 1500:
        solution = np.linalg.lstsq(system.toarray(), right, rcond=1e-12)[0]
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


def _adjacent_pieces(point: _Point, active: _Active, weak: np.ndarray, unique: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of the pieces that meet at x: one for each row set that is active on an open part nearby."""
    required = np.flatnonzero(active.equality | (~weak & unique))
    optional = np.flatnonzero(~active.equality & (weak | ~unique))
    if 2.0 ** len(optional) > _MAX_PIECES or active.a.shape[1] * active.a.shape[0] > _MAX_DENSE:
        return []
    a, b = active.a.toarray(), active.b.toarray()
    balance = a.T @ active.multiplier
    pieces = []
    for count in range(len(optional) + 1):
        for chosen in itertools.combinations(optional, count):
            rows = np.concatenate([required, np.array(chosen, int)])
            if len(rows) > a.shape[1] or (len(rows) and np.linalg.svd(a[rows], compute_uv=False)[-1] < 1e-9):
                continue
            force = np.linalg.lstsq(a[rows].T, balance, rcond=None)[0] if len(rows) else np.zeros(0)
            size = 1e-6 * (1 + np.abs(balance).max(initial=0.0))
            carries = np.abs((a[rows].T @ force if len(rows) else 0.0) - balance).max(initial=0.0) <= size
            inequality = ~active.equality[rows]
            if not carries or np.any(force[inequality] < -size):
                continue
            gradient = _piece_gradient(point, active.a[rows], active.b[rows])
            if gradient is not None and _is_open(point, a, b, rows, inequality & (force <= size)):
                pieces.append(gradient)
    return pieces


def _is_open(point: _Point, a: np.ndarray, b: np.ndarray, rows: np.ndarray, fragile: np.ndarray) -> bool:
    """Return whether the directions of x in which exactly ``rows`` stay active have an interior."""
    size, count = a.shape[1], len(rows)
    right = np.vstack([-point.mixed.toarray(), -b[rows]])
    system = np.block([[point.hessian.toarray(), a[rows].T], [a[rows], np.zeros((count, count))]])
    response = np.linalg.lstsq(system, right, rcond=1e-12)[0]
    others = np.setdiff1d(np.arange(len(a)), rows)
    opened = b[others] + a[others] @ response[:size]  # must not become positive
    pressed = -response[size:][fragile]  # multipliers that are zero must not become negative
    cone = np.vstack([opened, pressed])
    norms = np.linalg.norm(cone, axis=1)
    cone, norms = cone[norms > 1e-10], norms[norms > 1e-10]
    if len(cone) == 0:
        return True
    # Largest margin r with cone d + r |cone_i| <= 0 inside the unit box.
    width = cone.shape[1]
    margin = linprog(
        np.r_[np.zeros(width), -1.0],
        A_ub=np.column_stack([cone, norms]),
        b_ub=np.zeros(len(cone)),
        bounds=[(-1, 1)] * width + [(0, 1)],
        method="highs",
    )
    return margin.status == 0 and -margin.fun > 1e-9


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
        (sp.hstack([zero((held.sum(), n_x)), active.a[held], zero((held.sum(), count + cone))]), np.zeros(held.sum())),
    ]
    nonnegative = np.concatenate([xi[(weak | sometimes) & ~active.equality], nu[~point.normal_free]])
    inequalities = [sp.hstack([zero((open_rows.sum(), n_x)), active.a[open_rows], zero((open_rows.sum(), count + cone))])]
    return _least_norm(n_x, total, equations, nonnegative, inequalities)


def _hull_distance(point: _Point, active: _Active, pieces: np.ndarray) -> float | None:
    """Return the distance of 0 from hull(pieces) + normals of X + normals of {x : the lower level is feasible}."""
    n_x, n_y, cone, count = len(point.f_x), active.a.shape[1], point.normals.shape[0], active.a.shape[0]
    number = len(pieces)
    total = n_x + number + cone + count
    zero = sp.csr_matrix
    weights, nu, mu = n_x + np.arange(number), n_x + number + np.arange(cone), n_x + number + cone + np.arange(count)
    equations = [
        (sp.hstack([sp.eye(n_x), sp.csr_matrix(-pieces.T), -point.normals.T, -active.b.T]), np.zeros(n_x)),
        (sp.hstack([zero((1, n_x)), sp.csr_matrix(np.ones((1, number))), zero((1, cone + count))]), np.ones(1)),
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
    cost = sp.diags(np.r_[np.ones(leading), np.zeros(total - leading)], format="csc")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    settings.max_iter = 200
    everything = sp.vstack([matrix, -signs], format="csc")
    bounds = np.concatenate([right / scale, np.zeros(signs.shape[0])])
    answer = clarabel.DefaultSolver(cost, np.zeros(total), everything, bounds, cones, settings).solve()
    solution = np.array(answer.x)
    # The answer is judged by its own residual, not by the solver's word for it.
    wrong = np.abs(matrix @ solution - right / scale).max(initial=0.0) + np.maximum(-(signs @ solution), 0).max(initial=0.0)
    if not np.isfinite(solution).all() or not wrong <= 1e-7 * (1 + np.abs(solution).max()):
        return None
    return float(np.linalg.norm(solution[:leading]) + wrong) * scale
