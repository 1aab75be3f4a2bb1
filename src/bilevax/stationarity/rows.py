"""The active lower-level rows: normalised, oriented outward, equal ones merged, and what their multipliers can be."""

import dataclasses

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy.optimize import linprog

from bilevax.convex import ConvexSolution
from bilevax.derivatives import FlatProblem

MAX_DENSE = 4_000_000


@dataclasses.dataclass(frozen=True)
class ActiveRows:
    """The active lower-level rows, normalised and oriented outward, equal ones merged."""

    a: sp.csr_matrix
    b: sp.csr_matrix
    equality: np.ndarray
    multiplier: np.ndarray
    count_before_merging: int


def stacked_rows(flat: FlatProblem, x: np.ndarray) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray, np.ndarray]:
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


def force_scale(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return the size against which a multiplier counts as zero."""
    return 1 + float(np.abs(flat.gradients("lower", x, lower.y)[1]).max(initial=0.0))


def complementarity_margin(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> float:
    """Return the smallest of max(slack, multiplier) over the inequality rows: 0 on a kink."""
    a, b, low, high = stacked_rows(flat, x)
    image = a @ lower.y + b @ x
    slack = np.minimum(high - image, image - low)
    force = np.abs(lower.multipliers) * _row_norms(flat) / force_scale(flat, x, lower)
    inequality = (low < high) & np.isfinite(slack)
    return float(np.min(np.maximum(slack, force)[inequality], initial=np.inf))


def active_rows(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, tolerance: float) -> ActiveRows:
    """Return the rows that are active at y*(x) within a relative margin, those of Y and active balls included."""
    a, b, low, high = stacked_rows(flat, x)
    image, force = a @ lower.y + b @ x, lower.multipliers * _row_norms(flat)
    near = tolerance * (1 + max(np.abs(lower.y).max(initial=0.0), np.abs(x).max(initial=0.0)))
    # The exact solve may have had to relax the rows by rounding; a force always marks its row as active.
    near = np.full(len(low), near + lower.relaxation)
    pressed = tolerance * force_scale(flat, x, lower)
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


def _merge(a: sp.csr_matrix, b: sp.csr_matrix, equality: np.ndarray, multiplier: np.ndarray) -> ActiveRows:
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
    return ActiveRows(
        a=a[pick],
        b=b[pick],
        equality=np.array(merged_equality, bool)[pick],
        multiplier=np.array(merged_multiplier, float)[pick],
        count_before_merging=a.shape[0],
    )


def smallest_singular_value(a: sp.csr_matrix) -> float:
    """Return the smallest singular value of the rows (0 when they are dependent, inf when there are none)."""
    count, size = a.shape
    if count == 0:
        return np.inf
    if count > size:
        return 0.0
    if count * size <= MAX_DENSE:
        return float(np.linalg.svd(a.toarray(), compute_uv=False)[-1])
    # Inverse iteration on a a': three rounds give the order of magnitude, which is all that LICQ needs.
    factor = spl.splu(sp.csc_matrix(a @ a.T + 1e-14 * sp.eye(count)))
    vector = np.random.default_rng(0).standard_normal(count)
    for _ in range(3):
        vector = factor.solve(vector / np.linalg.norm(vector))
    return float(np.linalg.norm(a.T @ vector) / np.linalg.norm(vector))


def unique_multipliers(a: sp.csr_matrix) -> np.ndarray:
    """Return which rows have a unique multiplier: those that vanish in a random vector of the null space of a'."""
    random = np.random.default_rng(0).standard_normal(a.shape[0])
    return np.abs(project_out(sp.csr_matrix(a.T), random)) <= 1e-7


def resolve_multipliers(active: ActiveRows, unique: np.ndarray, weak: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def project_out(rows: sp.csr_matrix, vector: np.ndarray) -> np.ndarray:
    """Return the part of a vector on which all rows vanish."""
    if rows.shape[0] * rows.shape[1] <= MAX_DENSE:
        return vector - rows.T @ np.linalg.lstsq(rows.T.toarray(), vector, rcond=1e-10)[0]
    return vector - rows.T @ spl.lsmr(rows.T, vector, atol=1e-13, btol=1e-13, maxiter=20_000)[0]
