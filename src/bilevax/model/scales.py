"""Natural units: the scales in which the numbers of a problem are as close to 1 as they can be.

A problem may be written in any units. Let ``x = X u``, ``y = Y v`` with diagonal X and Y, multiply row i by ``R_i``, f
by ``F`` and g by ``G``: every number of the problem is then multiplied by a product of these scales (an entry of A by
``R_i Y_k``, of the Hessian of g by ``G Y_k Y_l``, a bound by ``R_i``, the width of a box by ``1 / X_j`` ...). Natural
scales minimise the sum of the squared logarithms of all numbers (the scaling of Curtis and Reid, for the whole problem
at once). Another unit of x, y, rows, f or g changes the scales by just that unit, so that search and certificate see
the same scaled problem whatever the user's units.

It is done in two steps. First every equation has a unit of its own: the rows, and the derivatives of f and g by each
variable. The terms that are added up in an equation then have one size, and that tells X, free of what equations
elsewhere look like. Then, with that X, the scales of the problem as a whole: Y, R, F and G.

What counts is what does not depend on the point where f and g are a quadratic: second derivatives, the linear part that
is left at the origin, A, B, bounds, widths of boxes. The size of x at the point only helps where nothing else tells a
scale.
"""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax._support.heap import give_back
from bilevax.model.compressed_rows import compressed, entries_of, fingerprints, joint_matrix, multiply_rows, row_largest
from bilevax.model.log_factors import MOST_UNKNOWNS, factors_of

if TYPE_CHECKING:
    from bilevax.model.flat import FlatProblem
    from bilevax.model.problem import Level, Variable

_NOISE = 1e-10  # what is this much smaller than the terms of which it is the sum is rounding
_SIZE_WEIGHT = 0.03  # of the size of x: it decides only where nothing else does
_OUTLIER = 3.0  # decades off its fit from which a number counts less
_ROUNDS = 4  # of fitting with outliers counting less
_MOST_ENTRIES = 200_000  # of one matrix: more are sampled; where the unknowns make the fit iterative,
_MOST_IN_A_ROW = 8  # those of a row, if there are twice as many on average: a scale that no entry tells would drift
_AT_A_TIME = 100_000  # entries of an array
_LARGE = 2000  # variables beyond which a diagonal stands for the second derivatives


@dataclasses.dataclass(frozen=True)
class Scales:
    """Units of x, y, the rows, f and g: ``x = scales.x * u``, and rows, f and g are multiplied by theirs."""

    x: np.ndarray
    y: np.ndarray
    rows: np.ndarray
    upper: float = 1.0
    lower: float = 1.0

    @classmethod
    def ones(cls, n_x: int, n_y: int, rows: int) -> "Scales":
        """Return the user's own units."""
        return cls(np.ones(n_x), np.ones(n_y), np.ones(rows))

    @property
    def key(self) -> tuple[bytes, bytes, bytes, float, float]:
        """All of it as something to look up by."""
        return self.x.tobytes(), self.y.tobytes(), self.rows.tobytes(), self.upper, self.lower


def natural_scales(flat: "FlatProblem", x: np.ndarray, y: np.ndarray) -> Scales:
    """Return the natural scales of a problem in the user's units, as powers of two: they cost no rounding.

    Parameters
    ----------
    flat
        The problem on flat vectors, in the user's units.
    x, y
        Where derivatives are taken.
    """
    terms = _Terms(flat, x, y)
    unknown = _Unknowns(flat, terms.rows.matrix.shape[0])
    terms.sample(unknown.count)
    known = np.full(unknown.count, np.nan)
    known[unknown.x] = np.round(_fit(flat, x, terms, unknown, unknown.equations).solve()[unknown.x])
    whole = [unknown.both, unknown.upper], [unknown.y, unknown.lower]
    found = _fit(flat, x, terms, unknown, whole).solve(known)
    count = len(flat.rows.lower)
    of_rows = found[unknown.groups[terms.rows.member[:count]]] - np.log2(terms.rows.length[:count])
    power = lambda logarithm: np.exp2(np.clip(np.round(logarithm), -200, 200))
    return Scales(
        power(found[unknown.x]),
        power(found[unknown.y]),
        power(of_rows),
        float(power(found[unknown.upper])),
        float(power(found[unknown.lower])),
    )


def _fit(flat: "FlatProblem", x: np.ndarray, terms: "_Terms", unknown: "_Unknowns", units: tuple[list, list]) -> "_Fit":
    """Return the least squares; ``units`` are the factors of the derivatives of f in (x, y), and of g in y."""
    fit = _Fit(unknown)
    few = unknown.count <= MOST_UNKNOWNS  # those of many rows are made anew rather than held
    fit.parts += flat.asked_by_rows if few else asked_by_rows(flat, terms.rows)
    fit.add(1 / x[x != 0], [unknown.x[x != 0]], _SIZE_WEIGHT)
    for hessian, linear, factors in ((*terms.upper, units[0]), (*terms.lower, units[1])):
        fit.add_matrix(hessian, factors, unknown.both)
        fit.add(linear, factors)
    return fit


def asked_by_rows(flat: "FlatProblem", rows: "RowGroups") -> "list[_Asked]":
    """Return what the rows and sets of a problem ask of its scales."""
    unknown = _Unknowns(flat, rows.matrix.shape[0])
    fit = _Fit(unknown)
    fit.add_matrix(rows.matrix, [unknown.groups], unknown.both)
    fit.add(rows.width, [unknown.groups])
    for bound in rows.bounds:
        fit.add(bound, [unknown.groups])
    for simple, columns in ((flat.x_rows, unknown.x), (flat.y_rows, unknown.y)):
        for ball in simple.balls:
            fit.add(np.array([1 / ball.radius]), [columns[ball.index[:1]]])
    return fit.parts


class RowGroups:
    """All rows, those of X and Y included, with parallel ones in one group: how often a row is written does not count.

    Attributes
    ----------
    member, length
        The group of each row, and the row's largest entry.
    matrix
        One row a group, its largest entry 1.
    width, bounds
        The distance between the two sides of a group; where there is none, the sides. Zeros tell nothing.
    """

    def __init__(self, flat: "FlatProblem"):
        rows, of_x, of_y = flat.rows, flat.x_rows, flat.y_rows
        matrix = joint_matrix(rows.B, rows.A, of_x.matrix, of_y.matrix)
        low = np.concatenate([rows.lower, of_x.lower, of_y.lower])
        high = np.concatenate([rows.upper, of_x.upper, of_y.upper])
        entries = np.diff(matrix.indptr)
        sign, starts = np.ones(len(low)), matrix.indptr[:-1][entries > 0]
        self.length = np.where(entries > 0, row_largest(matrix), 1.0)
        sign[entries > 0] = np.sign(matrix.data[starts])
        multiply_rows(matrix, sign / self.length)  # which shares nothing
        clock.check()
        unit = matrix
        sides = np.sort(np.stack([low, high]) * (sign / self.length), axis=0)
        first, self.member = _grouped(unit)
        unit = unit if len(first) == unit.shape[0] else unit[first]
        # Of long rows no more is kept than a large fit looks at.
        self.matrix = _few_of_each_row(unit) if _is_sampled(unit, unit.shape[0]) else unit
        low, high = np.full(len(first), -np.inf), np.full(len(first), np.inf)
        np.maximum.at(low, self.member, sides[0])
        np.minimum.at(high, self.member, sides[1])
        width = high - low
        wide = np.isfinite(width) & (width > 0)
        self.width = np.where(wide, width, 0.0)
        self.bounds = np.where(wide, 0.0, low), np.where(wide, 0.0, high)


def _grouped(unit: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each group of equal rows, and the group of each row."""
    _, first, member = np.unique(fingerprints(unit), return_index=True, return_inverse=True)
    order = np.argsort(first)  # groups in the order in which they appear
    return first[order], np.argsort(order)[member]


class _Unknowns:
    """Where the scales stand among the unknowns; the entries of a ball share one, or it would be no ball."""

    def __init__(self, flat: "FlatProblem", groups: int):
        n_x, n_y = flat.n_x, flat.n_y
        ends = np.cumsum([n_x, n_y, groups, n_x + n_y, n_y])
        self.x, self.y, self.groups, of_upper, of_lower = np.split(np.arange(ends[-1]), ends[:-1])
        for simple, columns in ((flat.x_rows, self.x), (flat.y_rows, self.y)):
            for ball in simple.balls:
                columns[ball.index] = columns[ball.index[0]]
        self.both = np.concatenate([self.x, self.y])
        self.equations = [of_upper], [of_lower]
        self.upper, self.lower = ends[-1], ends[-1] + 1
        self.count = int(ends[-1]) + 2
        # No number has two of the others for factors.
        self.shared = np.concatenate([np.arange(n_x + n_y), [self.upper, self.lower]])


class _Terms:
    """The numbers of a problem: its rows; second derivatives of f in (x, y), and of g in y by (x, y); linear parts."""

    def __init__(self, flat: "FlatProblem", x: np.ndarray, y: np.ndarray):
        point = np.concatenate([x, y])
        upper, lower = flat.quadratics["upper"], flat.quadratics["lower"]
        if upper is not None and lower is not None:
            of_f, of_g = upper.curvature, lower.curvature[flat.n_x :]
        elif max(flat.n_x, flat.n_y) <= _LARGE:
            of_f = flat.upper_hessian(x, y)
            of_g = sp.hstack([flat.hessian("lower", "y", by, x, y) for by in ("x", "y")], format="csc")
        else:
            own = [sp.diags(_row_norms(flat, level, of, x, y)) for level, of in _SQUARES]
            of_f = sp.block_diag(own[:2], format="csc")
            of_g = sp.hstack([sp.csc_matrix((flat.n_y, flat.n_x)), own[2]], format="csc")
        linear_f = _linear_part(np.concatenate(flat.gradients("upper", x, y)), of_f, point)
        linear_g = _linear_part(flat.gradients("lower", x, y)[1], of_g, point)
        clock.check()
        self.upper = _without_rounding(of_f, 0), linear_f
        self.lower = _without_rounding(of_g, flat.n_x), linear_g
        # Those of many variables are as large as the data: made anew for each fit rather than held.
        self.rows = flat.row_groups if max(flat.n_x, flat.n_y) <= _LARGE else RowGroups(flat)

    def sample(self, unknowns: int) -> None:
        """Keep of the second derivatives what fits with so many unknowns look at: all of them at the same entries."""
        self.upper, self.lower = ((_sampled(matrix, unknowns), linear) for matrix, linear in (self.upper, self.lower))


_SQUARES: "tuple[tuple[Level, Variable], ...]" = ("upper", "x"), ("upper", "y"), ("lower", "y")


def _row_norms(flat: "FlatProblem", level: "Level", of: "Variable", x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return about how long the rows of a second derivative are, by one product: its diagonal if there is only that."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (1, flat.n_x if of == "x" else flat.n_y))
    clock.check()
    return np.abs(flat.products(level, of, of, x, y)(signs)[0])


class _Asked(NamedTuple):
    """Numbers that are to be 1 with their scales: up to three unknowns each, and what those are to add up to.

    All logarithms; ``unknowns`` has an array for each factor, or one unknown for all numbers; ``weight`` is how much
    each of them counts.
    """

    unknowns: list[np.ndarray | int]
    target: np.ndarray
    weight: float


class _Fit:
    """Least squares for the logarithms of the scales, numbers that fit nowhere counting less."""

    def __init__(self, unknown: "_Unknowns"):
        self.count, self.shared = unknown.count, unknown.shared
        self.parts: list[_Asked] = []

    def add(self, numbers: np.ndarray, unknowns: list, weight: float = 1.0) -> None:
        """Ask that each number times its scales (one array of unknowns a factor) be 1; zeros ask nothing."""
        size = np.abs(np.asarray(numbers, float))
        useful = np.isfinite(size) & (size > 0)
        if not useful.any():
            return
        pick = (lambda part: part.astype(np.int32)) if useful.all() else lambda part: part[useful].astype(np.int32)
        columns = [pick(part) if np.ndim(part) else int(part) for part in unknowns]
        self.parts.append(_Asked(columns, -np.log2(size[useful]), weight))

    def add_matrix(self, matrix: sp.spmatrix | np.ndarray, factors: list, columns: np.ndarray) -> None:
        """Ask it of the entries of a matrix, ``factors`` being those of its rows."""
        clock.check()
        matrix = _sampled(matrix, self.count)
        row, column, data = entries_of(matrix)
        if len(data) > _MOST_ENTRIES and not (self.count > MOST_UNKNOWNS and sp.issparse(matrix)):
            pick = np.random.default_rng(0).choice(len(data), _MOST_ENTRIES, replace=False)
            row, column, data = row[pick], column[pick], data[pick]
        of_row = [factor[row] if np.ndim(factor) else factor for factor in factors]
        self.add(data, [*of_row, columns[column]])

    def solve(self, known: np.ndarray | None = None) -> np.ndarray:
        """Return the logarithms (base 2), 0 where nothing tells them; those that are ``known`` are not NaN there."""
        if not self.parts:
            return np.zeros(self.count)
        clock.check()
        unknowns, targets, weights = map(list, zip(*self.parts, strict=True))
        self.parts = []  # of large problems these are most of what is held
        lengths = list(map(len, targets))
        factors = factors_of(unknowns, lengths, self.count, self.shared)
        target, weight = np.concatenate(targets), lambda: np.repeat(weights, lengths)
        del targets
        give_back(len(target))
        answer, free, strength = np.zeros(self.count), np.arange(self.count), weight()
        if known is not None:
            answer, free = np.nan_to_num(known), np.flatnonzero(np.isnan(known))
            target -= factors.times(answer)
        for _ in range(_ROUNDS):
            found = np.zeros(self.count)
            found[free] = factors.least_squares(strength, target, free, answer[free])
            answer[free] = found[free]
            off = factors.times(found)
            off -= target
            off /= _OUTLIER * np.log2(10)
            np.sqrt(1 + np.square(off, out=off), out=off)
            strength = weight()
            strength /= off
        return answer


def _sampled(matrix: sp.spmatrix | np.ndarray, unknowns: int) -> sp.spmatrix | np.ndarray:
    """Return a matrix for a fit with so many unknowns: some entries of each row where these are enough."""
    if not _is_sampled(matrix, unknowns):
        return matrix
    return _few_of_each_row(compressed(matrix) if isinstance(matrix, np.ndarray) else sp.csr_matrix(matrix))


def _is_sampled(matrix: sp.spmatrix | np.ndarray, unknowns: int) -> bool:
    """Return whether some entries of each row are enough for a fit with so many unknowns."""
    if unknowns <= MOST_UNKNOWNS:
        return False
    entries = np.count_nonzero(matrix) if isinstance(matrix, np.ndarray) else matrix.nnz
    return entries > 2 * _MOST_IN_A_ROW * matrix.shape[0]


def _few_of_each_row(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows with some of their entries, taken at random: at most so many."""
    entries, random = np.diff(matrix.indptr), np.random.default_rng(0)
    full = np.flatnonzero(entries > 0)
    few = np.minimum(entries[full], _MOST_IN_A_ROW)
    share = (np.arange(_MOST_IN_A_ROW) + random.random((len(full), _MOST_IN_A_ROW))) / few[:, None]
    place = matrix.indptr[full][:, None] + (share * entries[full][:, None]).astype(int)
    used = np.arange(_MOST_IN_A_ROW) < few[:, None]
    kept = np.zeros(len(entries), int)
    kept[full] = few
    ends = np.append(0, np.cumsum(kept))
    return sp.csr_matrix((matrix.data[place[used]], matrix.indices[place[used]], ends), shape=matrix.shape)


def _without_rounding(hessian: sp.spmatrix | np.ndarray, first: int) -> sp.spmatrix | np.ndarray:
    """Return second derivatives without those that are but rounding beside the ones on the diagonal.

    Sums that cancel, such as those of centred features, leave numbers that say nothing about units. ``first`` is the
    column of the first entry of the diagonal.
    """
    if isinstance(hessian, np.ndarray):
        size = np.sqrt(np.abs(hessian.diagonal(first)))
        size = np.concatenate([np.zeros(first), np.where(np.isfinite(size), size, 0.0)])
        clean = hessian
        for rows in _blocks_of_rows(hessian):
            kept = np.abs(hessian[rows]) > _NOISE * np.outer(size[first:][rows], size)
            if not kept.all():
                clean = hessian.copy() if clean is hessian else clean
                clean[rows][~kept] = 0.0
        return clean
    row, column, data = entries_of(hessian)
    size = np.zeros(hessian.shape[1])
    on_diagonal = column == row + first
    size[column[on_diagonal]] = np.sqrt(np.abs(data[on_diagonal]))
    size[~np.isfinite(size)] = 0.0  # an infinite curvature, at the border of a domain, tells nothing of others
    kept = np.abs(data) > _NOISE * size[row + first] * size[column]
    return hessian if kept.all() else sp.csc_matrix((data[kept], (row[kept], column[kept])), hessian.shape)


def _linear_part(gradient: np.ndarray, hessian: sp.spmatrix | np.ndarray, point: np.ndarray) -> np.ndarray:
    """Return ``gradient - hessian @ point``, 0 where it is but rounding."""
    with np.errstate(invalid="ignore"):
        left = gradient - hessian @ point
        terms = np.abs(gradient)
        for rows in _blocks_of_rows(hessian):
            terms[rows] += abs(hessian[rows]) @ np.abs(point)
        return np.where(np.abs(left) > _NOISE * terms, left, 0.0)


def _blocks_of_rows(matrix: sp.spmatrix | np.ndarray) -> list[slice]:
    """Return the rows of a large array some at a time, so that what is made of them fits into the cache; else all."""
    rows = matrix.shape[0]
    some = _AT_A_TIME // matrix.shape[1] if isinstance(matrix, np.ndarray) and matrix.size else rows
    return [slice(first, first + max(some, 1)) for first in range(0, rows, max(some, 1))]
