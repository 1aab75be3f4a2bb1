"""The lower level by an interior point on its sparse KKT system: for large sparse problems and merely convex g.

Bounds of y have barriers with the multipliers ``below`` and ``above``; rows have a slack, a multiplier, a softness:

    grad_y g + A' multiplier - below + above = 0,      A y + B x - c + slack = softness * multiplier,
    multiplier * slack = below * (y - low) = above * (high - y) = barrier.

With ``softness > 0`` it has an answer for every x, unique and smooth in x; both numbers near zero make it the exact
lower level. Newton's method needs one factorisation of the quasi-definite matrix

    K = [H + D   A' ]
        [A      -T  ]

a step, and the same factor gives the derivatives of the answer.
"""

import dataclasses
import time
from typing import NamedTuple

import numpy as np
import qdldl
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.model.flat import FlatProblem
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class InteriorPoint:
    """A point on the lower level's central path; rows as `InteriorLower` stacks them."""

    x: np.ndarray
    y: np.ndarray
    multiplier: np.ndarray
    slack: np.ndarray
    below: np.ndarray
    above: np.ndarray
    barrier: float
    softness: float


class InteriorState(NamedTuple):
    """The typical multiplier, and the shift of K's diagonal that the last solve needed."""

    multiplier_scale: float
    shift: float


class InteriorLower(Learning):
    """The lower level with its rows one-sided, equalities first, each of unit length; bounds of y kept apart."""

    State = InteriorState

    def __init__(self, flat: FlatProblem):
        self.flat = flat
        rows, simple = flat.rows, flat.y_rows
        general = np.diff(simple.matrix.indptr) != 1
        A = sp.vstack([rows.A, simple.matrix[general]], format="csr")
        B = sp.vstack([rows.B, sp.csr_matrix((int(general.sum()), flat.n_x))], format="csr")
        lower = np.concatenate([rows.lower, simple.lower[general]])
        upper = np.concatenate([rows.upper, simple.upper[general]])
        equal = lower == upper
        keep = ~equal
        keep[np.flatnonzero(equal)[_independent(sp.hstack([A, B], format="csr")[equal])]] = True
        A, B, lower, upper, equal = A[keep], B[keep], lower[keep], upper[keep], equal[keep]
        above, below = ~equal & np.isfinite(upper), ~equal & np.isfinite(lower)
        stack = lambda m: sp.vstack([m[equal], m[above], -m[below]], format="csr")
        A, B, c = stack(A), stack(B), np.concatenate([upper[equal], upper[above], -lower[below]])
        length = np.sqrt(np.asarray(A.multiply(A).sum(axis=1) + B.multiply(B).sum(axis=1)).ravel())
        scale = 1 / np.where(length > 0, length, 1.0)
        kept = np.flatnonzero(keep)
        self._origin = np.concatenate([kept[equal], kept[above], kept[below]])
        self._unit = np.repeat([1.0, 1.0, -1.0], [equal.sum(), above.sum(), below.sum()]) / scale
        self.A, self.B, self.c = sp.csr_matrix(sp.diags(scale) @ A), sp.csr_matrix(sp.diags(scale) @ B), c * scale
        self._transposed = sp.csr_matrix(self.A.T)
        self.inequality = np.arange(len(c)) >= int(equal.sum())
        self.low, self.high = simple.intervals()
        # A variable with coinciding bounds has no interior: an equality in all but name.
        self.fixed = self.low == self.high
        self.has_low, self.has_high = (np.isfinite(side) & ~self.fixed for side in (self.low, self.high))
        width = float(np.median(np.where(np.isfinite(self.high - self.low), self.high - self.low, 1.0)))
        self.slack_scale = max(width, 1e-3)  # the typical slack; `multiplier_scale` is the typical multiplier
        self.multiplier_scale = 1.0
        self._solver: qdldl.Solver | None = None
        self._seconds = 0.0  # that the last factorisation took
        self.shift = _SHIFTS[0]
        self._layout: _Layout | None = None
        self._blocks: tuple[sp.csc_matrix, np.ndarray, np.ndarray] | None = None

    def start(self, x: np.ndarray, y: np.ndarray | None = None) -> InteriorPoint:
        """Return a first point: well inside the bounds, all multipliers alike."""
        y = self.flat.y_rows.well_inside(np.zeros(self.flat.n_y) if y is None else y)
        gradient = np.abs(self.flat.gradients("lower", x, y)[1])
        # Near the minimiser of g the gradient says nothing of the multipliers to come; its change over a slack does.
        bend = self.slack_scale * float(np.median(self.flat.hessian("lower", "y", "y", x, y).diagonal()))
        self.multiplier_scale = max(float(np.median(gradient)), 1e-3 * float(gradient.max(initial=0.0)), bend, 1e-6)
        slack = np.maximum(self.c - self.A @ y - self.B @ x, self.slack_scale)
        alike = np.full(len(y), self.multiplier_scale)
        return InteriorPoint(
            x=x,
            y=y,
            multiplier=np.where(self.inequality, self.multiplier_scale, 0.0),
            slack=np.where(self.inequality, slack, 0.0),
            below=np.where(self.has_low, alike, 0.0),
            above=np.where(self.has_high, alike, 0.0),
            barrier=self.multiplier_scale * self.slack_scale,
            softness=self.slack_scale / self.multiplier_scale,
        )

    def on_rows(self, multipliers: np.ndarray) -> np.ndarray:
        """Return the multipliers of these rows, given those of the coupling's rows; 0 for rows of Y."""
        known = np.append(multipliers, np.zeros(max(self._origin.max(initial=0) + 1 - len(multipliers), 0)))
        multiplier = self._unit * known[self._origin]
        return np.where(self.inequality, np.maximum(multiplier, 0.0), multiplier)

    def bound_slacks(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distances of y from its bounds, 1 where there is none."""
        return np.where(self.has_low, y - self.low, 1.0), np.where(self.has_high, self.high - y, 1.0)

    def moved(self, point: InteriorPoint, x: np.ndarray, step: np.ndarray) -> InteriorPoint:
        """Return the point after a step of y and the multipliers, kept inside; the rest follows from the barrier."""
        along, pushed = step[: self.flat.n_y], step[self.flat.n_y :]
        slack_low, slack_high = self.bound_slacks(point.y)
        along = np.where(self.has_low, np.maximum(along, -_MOST_OF_THE_WAY * slack_low), along)
        along = np.where(self.has_high, np.minimum(along, _MOST_OF_THE_WAY * slack_high), along)
        pushed = np.where(self.inequality, np.maximum(pushed, -_MOST_OF_THE_WAY * point.multiplier), pushed)
        y, multiplier = point.y + along, point.multiplier + pushed
        slack_low, slack_high = self.bound_slacks(y)
        return dataclasses.replace(
            point,
            x=x,
            y=y,
            multiplier=multiplier,
            slack=np.where(self.inequality, point.barrier / np.where(self.inequality, multiplier, 1.0), 0.0),
            below=np.where(self.has_low, point.barrier / slack_low, 0.0),
            above=np.where(self.has_high, point.barrier / slack_high, 0.0),
        )

    def solve(self, x: np.ndarray, barrier: float, softness: float, warm: InteriorPoint) -> InteriorPoint | None:
        """Return the central point at x, started from a near one; None where Newton's method fails."""
        for self.shift in _SHIFTS:
            try:
                point = self._newton(x, barrier, softness, warm)
            except FloatingPointError:
                continue
            if point is not None:
                return point
        return None

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")  # a failure shows in its numbers, and returns None
    def _newton(self, x: np.ndarray, barrier: float, softness: float, warm: InteriorPoint) -> InteriorPoint | None:
        flat, inequality = self.flat, self.inequality
        y, multiplier, slack, below, above = (
            v.copy() for v in (warm.y, warm.multiplier, warm.slack, warm.below, warm.above)
        )
        shift, length = self.B @ x - self.c, 1.0
        tolerance = 1 + np.abs(shift).max(initial=0.0)
        for _ in range(_MAX_NEWTON):
            clock.check()
            gradient = flat.gradients("lower", x, y)[1]
            dual = gradient + self.A.T @ multiplier - below + above
            dual[self.fixed] = 0.0
            primal = self.A @ y + shift - softness * multiplier + slack
            slack_low, slack_high = self.bound_slacks(y)
            products = np.concatenate(
                [
                    (below * slack_low)[self.has_low],
                    (above * slack_high)[self.has_high],
                    (multiplier * slack)[inequality],
                ]
            )
            size = 1 + np.abs(gradient).max(initial=0.0)
            if not (np.isfinite(size) and np.isfinite(dual).all()):
                return None
            if (
                np.abs(dual).max(initial=0.0) <= 1e-9 * size
                and np.abs(primal).max(initial=0.0) <= 1e-10 * tolerance
                and np.abs(products - barrier).max(initial=0.0) <= 1e-3 * barrier + 1e-16 * size
            ):
                return InteriorPoint(x, y, multiplier, slack, below, above, barrier, softness)
            # After a short step the point is too close to the boundary: centre before going on.
            aim = max(barrier, (0.1 if length > 0.3 else 1.0) * float(products.mean())) if len(products) else barrier
            positive = np.where(inequality, multiplier, 1.0)
            self.factorise(x, y, below, above, np.where(inequality, slack / positive, 0.0) + softness)
            step, pushed = self.back(
                -dual
                - np.where(self.has_low, below - aim / slack_low, 0.0)
                + np.where(self.has_high, above - aim / slack_high, 0.0),
                -primal - np.where(inequality, aim / positive - slack, 0.0),
            )
            step_below = np.where(self.has_low, (aim - below * (slack_low + step)) / slack_low, 0.0)
            step_above = np.where(self.has_high, (aim - above * (slack_high - step)) / slack_high, 0.0)
            step_slack = np.where(inequality, (aim - slack * (multiplier + pushed)) / positive, 0.0)
            length = min(
                _reach(slack_low, step, self.has_low),
                _reach(slack_high, -step, self.has_high),
                _reach(below, step_below, self.has_low),
                _reach(above, step_above, self.has_high),
                _reach(slack, step_slack, inequality),
                _reach(multiplier, pushed, inequality),
            )
            y, multiplier, slack = y + length * step, multiplier + length * pushed, slack + length * step_slack
            below, above = below + length * step_below, above + length * step_above
        return None

    def factorise(self, x: np.ndarray, y: np.ndarray, below: np.ndarray, above: np.ndarray, give: np.ndarray) -> None:
        """Factorise K with the rows' own compliance ``give``."""
        slack_low, slack_high = self.bound_slacks(y)
        stiffness = np.where(self.has_low, below / slack_low, 0.0) + np.where(self.has_high, above / slack_high, 0.0)
        self._factorise(x, y, stiffness + np.where(self.fixed, _RIGID, 0.0), give)

    def _factorise(self, x: np.ndarray, y: np.ndarray, stiffness: np.ndarray, give: np.ndarray) -> None:
        stiffness = stiffness + _TRACE * self.multiplier_scale / self.slack_scale
        hessian = self.flat.hessian("lower", "y", "y", x, y)
        if self._layout is None or not self._layout.fits(hessian):
            self._solver, self._layout = None, _Layout(hessian, self.A)
        self._blocks = hessian, stiffness, give
        # A little more than K on its diagonal keeps the factor well-conditioned where K is nearly singular; refinement
        # takes it out again.
        more = (
            self.shift * self.multiplier_scale / self.slack_scale,
            self.shift * self.slack_scale / self.multiplier_scale,
        )
        half = self._layout.upper_half(hessian, np.concatenate([stiffness + more[0], -give - more[1]]))
        clock.check(self._seconds)
        began = time.monotonic()
        try:
            if self._solver is None:
                self._solver = qdldl.Solver(half, upper=True)
            else:
                self._solver.update(half, upper=True)
        except RuntimeError as error:
            self._solver = None  # half overwritten
            raise FloatingPointError(str(error)) from error
        self._seconds = time.monotonic() - began

    def back(self, along_y: np.ndarray, along_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Solve with the last K, refined while that helps."""
        assert self._solver is not None
        right = np.concatenate([along_y, along_rows])
        solution = self._solver.solve(right)
        residual = right - self._times(solution)
        for _ in range(_MAX_REFINEMENTS):
            better = solution + self._solver.solve(residual)
            left = right - self._times(better)
            if not np.abs(left).max(initial=0.0) < 0.7 * np.abs(residual).max(initial=0.0):
                break
            solution, residual = better, left
        return solution[: self.flat.n_y], solution[self.flat.n_y :]

    def back_all(self, along_y: sp.csc_matrix, along_rows: sp.csc_matrix) -> np.ndarray:
        """Solve with the last K for many right-hand sides, given as columns; return the answers as rows."""
        assert self._solver is not None
        right = sp.vstack([along_y, along_rows], format="csc")
        size, count = right.shape
        answers, side = np.empty((count, size)), np.zeros(size)
        for index in range(count):
            entries = slice(right.indptr[index], right.indptr[index + 1])
            side[right.indices[entries]] = right.data[entries]
            answers[index] = self._solver.solve(side)
            side[right.indices[entries]] = 0.0
        # One product tells whether refinement is needed: a random mixture of the answers against that of the sides.
        weights = np.random.default_rng(0).choice([-1.0, 1.0], count)
        mixture = right @ weights
        if not np.abs(self._times(weights @ answers) - mixture).max() <= _POOR * np.abs(mixture).max():
            for index, column in enumerate(right.T.toarray()):
                answers[index] = np.concatenate(self.back(column[: self.flat.n_y], column[self.flat.n_y :]))
        return answers

    def _times(self, vector: np.ndarray) -> np.ndarray:
        """Return K times a vector."""
        assert self._blocks is not None
        hessian, stiffness, give = self._blocks
        y, rows = vector[: self.flat.n_y], vector[self.flat.n_y :]
        return np.concatenate([hessian @ y + stiffness * y + self._transposed @ rows, self.A @ y - give * rows])


class _Layout:
    """Where the entries of H, A and the diagonal lie in the upper half of K, found once for a sparsity of H."""

    def __init__(self, hessian: sp.csc_matrix, A: sp.csr_matrix):
        n_y, size = A.shape[1], sum(A.shape)
        self.indptr, self.indices = hessian.indptr, hessian.indices
        column = np.repeat(np.arange(n_y), np.diff(hessian.indptr))
        self.upper = hessian.indices <= column
        rows, entries = A.tocoo(), np.arange(size)
        place = np.concatenate([column[self.upper], entries, n_y + rows.row]).astype(np.int64) * size
        place += np.concatenate([hessian.indices[self.upper], entries, rows.col])
        used, self.where = np.unique(place, return_inverse=True)
        pointer = np.searchsorted(used, np.arange(size + 1) * size)
        self.matrix = sp.csc_matrix((np.zeros(len(used)), used % size, pointer), shape=(size, size))
        self.rows = rows.data

    def fits(self, hessian: sp.csc_matrix) -> bool:
        """Return whether H still has that sparsity."""
        return np.array_equal(self.indptr, hessian.indptr) and np.array_equal(self.indices, hessian.indices)

    def upper_half(self, hessian: sp.csc_matrix, diagonal: np.ndarray) -> sp.csc_matrix:
        """Return K's upper half; ``diagonal`` is what it has beside H."""
        entries = np.concatenate([hessian.data[self.upper], diagonal, self.rows])
        self.matrix.data = np.bincount(self.where, entries, minlength=self.matrix.nnz)
        return self.matrix


_MAX_NEWTON = 120
_MOST_OF_THE_WAY = 0.9
_MAX_REFINEMENTS = 30
_POOR = 1e-9  # a residual from which on solutions with K are refined
_TRACE = 1e-10  # of curvature, so that K is quasi-definite for merely convex g
_RIGID = 1e20  # the stiffness of a variable whose bounds coincide
_SHIFTS = (1e-13, 1e-8)  # of K's diagonal, taken out by refinement: the second where the first fails


def _independent(rows: sp.csr_matrix) -> np.ndarray:
    """Return which rows do not depend on others: equations that repeat others would leave K singular.

    In the factorisation of ``rows rows'`` each pivot is the squared distance of a row from those before it.
    """
    if rows.shape[0] == 0:
        return np.zeros(0, bool)
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    unit = sp.diags(1 / np.where(length > 0, length, 1.0)) @ rows
    gram = sp.csc_matrix(sp.triu(unit @ unit.T + 1e-13 * sp.eye(rows.shape[0]), format="csc"))
    gram.sort_indices()
    _, pivots, order = qdldl.Solver(gram, upper=True).factors()
    independent = np.zeros(rows.shape[0], bool)
    independent[order] = pivots > 1e-10
    return independent


def _reach(value: np.ndarray, step: np.ndarray, where: np.ndarray) -> float:
    """Return the share of a step, at most 1, that keeps positive entries clear of zero."""
    shrinking = where & (step < 0)
    return min(1.0, 0.995 * float(np.min(-value[shrinking] / step[shrinking], initial=np.inf)))
