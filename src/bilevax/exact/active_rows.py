"""The active lower-level rows: normalised, oriented outward, equal ones merged."""

import dataclasses

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.convex.problem import ConvexSolution
from bilevax.convex.saddle_point import symmetric_factor
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.compressed_rows import (
    beside,
    fingerprints,
    on_top,
    picked,
    row_largest,
    row_squares,
    row_terms,
    scaled,
)
from bilevax.model.flat import FlatProblem


@dataclasses.dataclass(frozen=True)
class ActiveRows:
    """The active lower-level rows, normalised and oriented outward, equal ones merged.

    Attributes
    ----------
    a, b
        The rows ``a y + b x <= side``, or ``= side`` where ``equality`` says so.
    multiplier
        Their multipliers, nonnegative but for equalities.
    weak
        Which rows are weakly active (biactive): their multiplier is zero, too, within the margin.
    zero
        The size up to which a multiplier counts as zero.
    slack
        The slack that is left, at most the margin.
    count_before_merging
        How many rows were active before equal ones were merged.
    """

    a: sp.csr_matrix
    b: sp.csr_matrix
    equality: np.ndarray
    multiplier: np.ndarray
    weak: np.ndarray
    zero: np.ndarray
    slack: np.ndarray
    count_before_merging: int


@dataclasses.dataclass(frozen=True)
class Margin:
    """Relative margins within which a row is active: ``coupled`` for rows with x and for X, ``own`` for the rest.

    Coupled rows may have a wider margin, since moving x alone closes their slack: y and the multipliers stay exact.
    """

    coupled: float
    own: float

    def contains(self, other: "Margin") -> bool:
        """Return whether all rows within the other margins are within these."""
        return self.coupled >= other.coupled and self.own >= other.own


@dataclasses.dataclass(frozen=True)
class UnitRows:
    """All lower-level rows ``lower <= a y + b x <= upper`` at the exact point, of unit length, those of Y last.

    Attributes
    ----------
    a, b, lower, upper
        The rows.
    value
        ``a y + b x``.
    terms
        The size of the terms of ``value``, to which a slack is relative.
    multiplier
        The multipliers.
    multiplier_scale
        The size of the gradient that a multiplier balances, to which it is relative.
    """

    a: sp.csr_matrix
    b: sp.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    value: np.ndarray
    terms: np.ndarray
    multiplier: np.ndarray
    multiplier_scale: np.ndarray


def unit_rows(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> UnitRows:
    """Return all lower-level rows at (x, y*(x))."""
    rows, simple = flat.rows, flat.y_rows
    a, b = flat.rows_in_y, on_top([rows.B, sp.csr_matrix((simple.matrix.shape[0], flat.n_x))])
    norms = np.sqrt(row_squares(a) + row_squares(b))
    norms = np.where(norms > 0, norms, 1.0)
    a, b = scaled(a, 1 / norms, np.ones(flat.n_y)), scaled(b, 1 / norms, np.ones(flat.n_x))
    low, high = (np.concatenate(sides) / norms for sides in ((rows.lower, simple.lower), (rows.upper, simple.upper)))
    # A bound on the border of g's domain is never active, however close y comes to it.
    low[lower.domain.rows_below], high[lower.domain.rows_above] = -np.inf, np.inf
    finite = lambda side: np.where(np.isfinite(side), np.abs(side), 0.0)
    gradient = np.abs(flat.gradients("lower", x, lower.y)[1])
    return UnitRows(
        a=a,
        b=b,
        lower=low,
        upper=high,
        value=a @ lower.y + b @ x,
        terms=1 + row_terms(a, lower.y) + row_terms(b, x) + np.minimum(finite(low), finite(high)),
        multiplier=lower.multipliers * norms,
        multiplier_scale=1 + row_largest(a, gradient),
    )


def complementarity_margin(rows: UnitRows) -> float:
    """Return the smallest of max(slack, multiplier), both relative, over the inequality rows: 0 on a kink."""
    slack = np.minimum(rows.upper - rows.value, rows.value - rows.lower)
    inequality = (rows.lower < rows.upper) & np.isfinite(slack)
    larger = np.maximum(slack / rows.terms, np.abs(rows.multiplier) / rows.multiplier_scale)
    return float(np.min(larger[inequality], initial=np.inf))


def active_rows(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, rows: UnitRows, margin: Margin) -> ActiveRows:
    """Return the rows that are active at y*(x) within relative margins, those of Y and active balls included."""
    a, b, low, high, image, multiplier = rows.a, rows.b, rows.lower, rows.upper, rows.value, rows.multiplier
    tolerance = np.where(np.diff(b.indptr) > 0, margin.coupled, margin.own)
    # The exact solve may have relaxed the rows by rounding; a row with a positive multiplier is active in any case.
    near = tolerance * rows.terms + lower.relaxation
    zero = tolerance * rows.multiplier_scale
    at_upper, at_lower = (high - image <= near) | (multiplier > zero), (image - low <= near) | (multiplier < -zero)
    empty = (np.diff(a.indptr) == 0) & (np.diff(b.indptr) == 0)
    equality = np.isfinite(high) & (high - low <= EXACT_TOLERANCES.row_equality * (1 + np.abs(high))) & ~empty
    at_upper, at_lower = at_upper & ~equality & ~empty, at_lower & ~equality & ~empty
    order = [np.flatnonzero(equality), np.flatnonzero(at_upper), np.flatnonzero(at_lower)]
    sign = np.concatenate([np.ones(len(order[0])), np.ones(len(order[1])), -np.ones(len(order[2]))])
    index = np.concatenate(order)
    parts_a, parts_b = [picked(a, index, sign)], [picked(b, index, sign)]
    outward = [sign * multiplier[index]]
    zeros = [zero[index]]
    above, below = (high - image)[order[1]], (image - low)[order[2]]
    slacks = [np.maximum(np.concatenate([np.zeros(len(order[0])), above, below]), 0.0)]
    for ball, value in zip(flat.y_rows.balls, lower.ball_multipliers, strict=True):
        offset = lower.y[ball.index] - ball.center
        if np.linalg.norm(offset) >= ball.radius * (1 - margin.own):
            normal = np.zeros(flat.n_y)
            normal[ball.index] = offset / np.linalg.norm(offset)
            parts_a.append(sp.csr_matrix(normal))
            parts_b.append(sp.csr_matrix((1, flat.n_x)))
            outward.append(np.array([value * np.linalg.norm(offset)]))
            steepest = np.abs(flat.gradients("lower", x, lower.y)[1][ball.index]).max()
            zeros.append(np.array([margin.own * (1 + steepest)]))
            slacks.append(np.array([max(ball.radius - np.linalg.norm(offset), 0.0)]))
    signed = np.concatenate(outward)
    free = np.arange(len(signed)) < len(order[0])
    signed = np.where(free, signed, np.maximum(signed, 0.0))
    return _merge(on_top(parts_a), on_top(parts_b), free, signed, np.concatenate(zeros), np.concatenate(slacks))


def _merge(
    a: sp.csr_matrix,
    b: sp.csr_matrix,
    equality: np.ndarray,
    multiplier: np.ndarray,
    zero: np.ndarray,
    slack: np.ndarray,
) -> ActiveRows:
    """Merge equal rows into one, opposite ones into an equality, and drop equalities that follow from others.

    The merged rows allow the same (x, y) as all of them.
    """
    together = beside(a, b)
    # No negative zeros: rows are compared byte by byte.
    together.data = together.data.round(EXACT_TOLERANCES.row_digits) + 0.0
    together.eliminate_zeros()
    together.sort_indices()
    first, sign = _groups(together)
    opposite = np.bincount(first[sign < 0], minlength=len(first)) > 0
    equality = opposite | (np.bincount(first[equality], minlength=len(first)) > 0)
    multiplier = np.bincount(first, sign * multiplier, minlength=len(first))
    pick = np.unique(first)
    pick = pick[_independent(together, pick, equality[pick])]
    equality, multiplier = equality[pick], multiplier[pick]
    all_of_them = len(pick) == a.shape[0]
    return ActiveRows(
        a=a if all_of_them else a[pick],
        b=b if all_of_them else b[pick],
        equality=equality,
        multiplier=multiplier,
        weak=~equality & (multiplier <= zero[pick]),
        zero=zero[pick],
        slack=slack[pick],
        count_before_merging=a.shape[0],
    )


def _groups(rows: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row that equals each row or its opposite, and 1 or -1 accordingly."""
    count, filled = np.diff(rows.indptr), np.diff(rows.indptr) > 0
    sign, numbers = np.ones(len(count)), np.arange(len(count))
    sign[filled] = np.sign(rows.data[rows.indptr[:-1][filled]])
    upright = sp.csr_matrix((rows.data * np.repeat(sign, count), rows.indices, rows.indptr), shape=rows.shape)
    prints = fingerprints(upright, EXACT_TOLERANCES.row_digits)
    _, places, member = np.unique(prints, return_index=True, return_inverse=True)
    first = places[member]
    # Equal fingerprints are no proof: the rows themselves are compared, where there is another one of the group.
    others = np.flatnonzero((first != numbers) & (count == count[first]))
    ones, firsts = (picked(upright, index, np.ones(len(index))) for index in (others, first[others]))
    differ = np.repeat(np.arange(len(others)), count[others])[
        (ones.indices != firsts.indices) | (ones.data != firsts.data)
    ]
    same = np.zeros(len(count), bool)
    same[others] = True
    same[others[differ]] = False
    first = np.where(same, first, numbers)
    return first, sign * sign[first]


def _independent(rows: sp.csr_matrix, pick: np.ndarray, equality: np.ndarray) -> np.ndarray:
    """Return which picked rows are left without equalities that follow from others; all where testing costs much."""
    kept, index = np.ones(len(equality), bool), np.flatnonzero(equality)
    clock.check()
    if index.size > 1 and index.size**2 * rows.shape[1] <= EXACT_SETTINGS.dependence_work:
        triangle, order = scipy.linalg.qr(rows[pick[index]].T.toarray(), mode="r", pivoting=True)
        pivots = np.zeros(index.size)
        pivots[: min(triangle.shape)] = np.abs(np.diag(triangle))
        kept[index[order[pivots <= EXACT_TOLERANCES.dependent_row]]] = False
    return kept


def smallest_singular_value(a: sp.csr_matrix) -> float:
    """Return the smallest singular value of the rows (0 when they are dependent, inf when there are none)."""
    count, size = a.shape
    if count == 0:
        return np.inf
    if count > size:
        return 0.0
    clock.check()
    if _as_array(a):
        return float(np.linalg.svd(a.toarray(), compute_uv=False)[-1])
    # Inverse iteration on a a': a few rounds give the order of magnitude, which is all that LICQ needs.
    factor = symmetric_factor(sp.csc_matrix(a @ a.T + EXACT_SETTINGS.singular_regularisation * sp.eye(count)))
    vector = np.random.default_rng(0).standard_normal(count)
    for _ in range(EXACT_SETTINGS.singular_rounds):
        vector = factor.solve(vector / np.linalg.norm(vector))
    return float(np.linalg.norm(a.T @ vector) / np.linalg.norm(vector))


def project_out(rows: sp.csr_matrix, vector: np.ndarray) -> np.ndarray:
    """Return the projection of a vector onto the null space of the rows."""
    clock.check()
    rows = sp.csr_matrix(rows)
    rows.eliminate_zeros()
    single = np.flatnonzero(np.diff(rows.indptr) == 1)
    free = np.ones(rows.shape[1], bool)
    free[rows.indices[rows.indptr[single]]] = False
    # Rows of one entry take their column out; in networks they leave a system a hundred times smaller.
    rest = sp.csr_matrix(rows[:, free])
    rest = rest[np.diff(rest.indptr) > 0]
    part, answer = vector[free], np.zeros(len(vector))
    if _as_array(rest):
        weights = np.linalg.lstsq(rest.T.toarray(), part, rcond=EXACT_SETTINGS.rows_cutoff)[0]
        answer[free] = part - rest.T @ weights
    else:
        answer[free] = _projected(rest, part)
    return answer


def _as_array(rows: sp.csr_matrix) -> bool:
    """Return whether an array is the better form for rows."""
    entries = rows.shape[0] * rows.shape[1]
    full = rows.nnz > EXACT_SETTINGS.dense_share * entries
    return entries <= (EXACT_SETTINGS.dense_entries if full else EXACT_SETTINGS.few_entries)


def _projected(rows: sp.csr_matrix, vector: np.ndarray) -> np.ndarray:
    """Return the projection of a vector onto the null space of the rows, by one sparse factorisation.

    Each solve leaves of the part along a singular vector of the rows, which have unit length, what the regularisation
    is of the squared singular value.
    """
    count, size = rows.shape
    unit = scaled(rows, 1 / positive(np.sqrt(row_squares(rows))), np.ones(size))
    corner = -EXACT_SETTINGS.rows_regularisation * sp.eye(count)
    factor = symmetric_factor(sp.bmat([[sp.eye(size), unit.T], [unit, corner]], format="csc"))
    for _ in range(EXACT_SETTINGS.rows_rounds):
        vector = factor.solve(np.concatenate([vector, np.zeros(count)]))[:size]
    return vector
