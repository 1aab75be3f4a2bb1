"""The lower level in the space of its rows.

With H the lower Hessian, all rows stacked in R (equalities first, then one-sided inequalities ``R y + N x <= c`` scaled
to unit length), and y0 the point of expansion, the minimiser under multipliers ``force`` is

    y = y_free - H^-1 R' force,       y_free = y0 - H^-1 grad_y g(x, y0),

and the rows take the values ``R y + N x - c = free - S force`` with the compliance ``S = R H^-1 R'``. The lower level
is then the linear complementarity problem ``0 <= force  _|_  free - S force <= 0`` in as many unknowns as there are
rows, and x enters through ``slope = d free / dx = N - R H^-1 G`` alone. For quadratic g, H^-1 R', S and slope are
computed once.
"""

import dataclasses
import functools

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack
from scipy.optimize import lsq_linear

from bilevax.derivatives import FlatProblem, LowerDerivatives
from bilevax.solvers.default.cholesky import factorise, lifted, solve_factored
from bilevax.solvers.default.quadratic_program import solve_qp


@dataclasses.dataclass(frozen=True)
class StackedRows:
    """All lower-level rows, equalities first, each of unit length in (y, x)."""

    R: np.ndarray
    N: np.ndarray
    c: np.ndarray
    equalities: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.c)

    @functools.cached_property
    def inequality(self) -> np.ndarray:
        """Mask of the one-sided rows."""
        return np.arange(self.count) >= self.equalities


def stack_rows(flat: FlatProblem) -> StackedRows:
    """Return the coupling's rows and those of Y, oriented and scaled."""
    rows, simple = flat.rows, flat.y_rows
    matrix = sp.vstack([rows.A, simple.matrix], format="csr").toarray()
    x_matrix = np.vstack([rows.B.toarray(), np.zeros((simple.matrix.shape[0], flat.n_x))])
    lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
    equal = lower == upper
    parts = [(matrix[equal], x_matrix[equal], upper[equal])]
    above, below = ~equal & np.isfinite(upper), ~equal & np.isfinite(lower)
    parts += [(matrix[above], x_matrix[above], upper[above]), (-matrix[below], -x_matrix[below], -lower[below])]
    R, N, c = (np.concatenate([part[index] for part in parts]) for index in range(3))
    length = np.sqrt((R**2).sum(axis=1) + (N**2).sum(axis=1))
    length[length == 0] = 1.0
    return StackedRows(R / length[:, None], N / length[:, None], c / length, int(equal.sum()))


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The lower level's quadratic model around (x, y0), reduced to its rows."""

    factor: np.ndarray
    hessian: sp.csc_matrix
    mixed: np.ndarray
    inverse_rows: np.ndarray
    compliance: np.ndarray
    slope: np.ndarray

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Apply H^-1."""
        return solve_factored(self.factor, right)


@dataclasses.dataclass(frozen=True)
class LowerPoint:
    """The exact lower level at x: its answer, the rows' values and forces, and the expansion there."""

    x: np.ndarray
    y: np.ndarray
    force: np.ndarray
    value: np.ndarray
    held: np.ndarray
    expansion: Expansion
    violation: float


class LowerModel:
    """Exact lower-level answers at many x, each started from the last."""

    def __init__(self, flat: FlatProblem):
        self.flat = flat
        self.rows = stack_rows(flat)
        self.lift = 0.0
        self._cached: tuple[sp.csc_matrix, sp.csc_matrix, Expansion] | None = None

    def pressed(self, y: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
        """Return the rows active at an earlier answer, by the coupled rows' multipliers and the bounds y lies on."""
        rows, simple = self.flat.rows, self.flat.y_rows
        image = simple.matrix @ y
        at_upper = np.concatenate([multipliers > 0, image >= simple.upper])
        at_lower = np.concatenate([multipliers < 0, image <= simple.lower])
        lower, upper = np.concatenate([rows.lower, simple.lower]), np.concatenate([rows.upper, simple.upper])
        open_above, open_below = (lower < upper) & np.isfinite(upper), (lower < upper) & np.isfinite(lower)
        return np.concatenate([np.ones(self.rows.equalities, bool), at_upper[open_above], at_lower[open_below]])

    def value(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return g, lifted by a trace of |y|^2 where it is merely convex: then y* is the smallest of its minimisers."""
        return self.flat.value("lower", x, y) + 0.5 * self.lift * float(y @ y)

    def gradient(self, y: np.ndarray, there: LowerDerivatives) -> np.ndarray:
        """Return the gradient of `value` in y."""
        return there.gradient + self.lift * y

    def expand(self, there: LowerDerivatives) -> Expansion:
        """Return the model at a point, reusing the last where the second derivatives have not changed."""
        _, hessian, mixed = there
        if self._cached is not None and self._cached[0] is hessian and self._cached[1] is mixed:
            return self._cached[2]
        dense, mixed_dense = hessian.toarray(), mixed.toarray()
        if not (np.isfinite(dense).all() and np.isfinite(mixed_dense).all()):
            raise FloatingPointError("the lower objective has a second derivative that is not finite")
        if self.lift == 0.0 and np.linalg.eigvalsh(dense)[0] < _FLAT * np.abs(np.diag(dense)).max(initial=1e-300):
            self.lift = _LIFT * max(np.abs(np.diag(dense)).max(), 1e-3)
        factor = _cholesky(lifted(dense, self.lift))
        inverse_rows = solve_factored(factor, self.rows.R.T)
        compliance = self.rows.R @ inverse_rows
        expansion = Expansion(
            factor=factor,
            hessian=hessian,
            mixed=mixed_dense,
            inverse_rows=inverse_rows,
            compliance=0.5 * (compliance + compliance.T),
            slope=self.rows.N - inverse_rows.T @ mixed_dense,
        )
        self._cached = (hessian, mixed, expansion)
        return expansion

    def solve(self, x: np.ndarray, y: np.ndarray, held: np.ndarray | None = None) -> LowerPoint | None:
        """Solve the lower level at x from the guess (y, held rows); None where it is infeasible or fails."""
        rows = self.rows
        held = ~rows.inequality if held is None else held | ~rows.inequality
        here, value = self.flat.lower_derivatives(x, y), None
        for _ in range(_MAX_NEWTON):
            expansion = self.expand(here)  # decides whether g needs a lift
            gradient = self.gradient(y, here)
            if not np.isfinite(gradient).all():
                return None
            free_y = y - expansion.solve(gradient)
            free = rows.R @ free_y + rows.N @ x - rows.c
            solved = solve_complementarity(expansion.compliance, free, rows.inequality, held)
            if solved is None:
                solved = self._interior(expansion, free_y, x)
            if solved is None:
                return None
            force, held = solved
            target = free_y - expansion.inverse_rows @ force
            there = self.flat.lower_derivatives(x, target)
            target_gradient = self.gradient(target, there)
            scale = 1 + np.abs(target_gradient).max(initial=0.0) + np.abs(force).max(initial=0.0)
            residual = np.abs(target_gradient + rows.R.T @ force).max(initial=0.0)
            if residual <= 1e-10 * scale:
                values = rows.R @ target + rows.N @ x - rows.c
                worst = np.maximum(np.where(rows.inequality, values, np.abs(values)).max(initial=0.0), 0.0)
                return LowerPoint(x, target, force, values, held, self.expand(there), float(worst))
            # Both ends satisfy the rows once y does, so g itself is the merit function.
            step, feasible = target - y, np.all(rows.R @ y + rows.N @ x - rows.c <= 1e-9)
            value = self.value(x, y) if value is None else value
            for length in 0.5 ** np.arange(35):
                trial_value = self.value(x, y + length * step)
                enough = value + 1e-4 * length * float(gradient @ step) + 1e-14 * abs(value)
                if np.isfinite(trial_value) and (not feasible or trial_value <= enough):
                    y, value = y + length * step, trial_value
                    here = there if length == 1.0 else self.flat.lower_derivatives(x, y)
                    break
            else:
                return None
        return None

    def _interior(
        self, expansion: Expansion, free_y: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (force, held) of the quadratic model by an interior point: for degenerate rows where pivots cycle."""
        rows = self.rows
        hessian = sp.csc_matrix(expansion.hessian + self.lift * sp.eye(len(free_y)))
        upper = rows.c - rows.N @ x
        lower = np.where(rows.inequality, -np.inf, upper)
        y = solve_qp(hessian, -(hessian @ free_y), sp.csr_matrix(rows.R), lower, upper)
        if y is None:
            return None
        held = ~rows.inequality | (rows.R @ y - upper >= -1e-8 * (1 + np.abs(upper).max(initial=0.0)))
        bounds = (np.where(rows.inequality[held], 0.0, -np.inf), np.inf)
        force = np.zeros(rows.count)
        force[held] = lsq_linear(rows.R[held].T, hessian @ (free_y - y), bounds, method="bvls", tol=1e-14).x
        return force, held


# Curvature below _FLAT of the largest counts as none, and is replaced by _LIFT of the largest.
_FLAT = 1e-9
_LIFT = 1e-6
_CONTRADICTION = 1e-8
_MAX_NEWTON = 60
_MAX_PIVOTS = 40


def solve_complementarity(
    compliance: np.ndarray, free: np.ndarray, inequality: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve ``0 <= force _|_ free - compliance force <= 0`` (equality rows: value 0, force free).

    A primal-dual active set from the rows ``held``; if it cycles, one row at a time, which is slower but sure.
    """
    if len(free) == 0:
        return np.zeros(0), np.zeros(0, bool)
    size = 1 + np.abs(free).max()
    answer = _pivot(compliance, free, inequality, held, size)
    return _one_by_one(compliance, free, inequality, held, size) if answer is None else answer


def _one_by_one(
    compliance: np.ndarray, free: np.ndarray, inequality: np.ndarray, held: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """The dual active-set method of Goldfarb and Idnani: forces stay nonnegative, violated rows enter in turn.

    Dependent rows are exchanged by a ratio test, so any number of rows may be active at once.
    """
    rows = independent_rows(compliance, np.flatnonzero(~inequality))
    rows = independent_rows(compliance, np.concatenate([rows, np.flatnonzero(held & inequality)]), kept=len(rows))
    force = np.zeros(len(free))
    while len(rows):
        force[:] = 0.0
        force[rows] = _solve_held(compliance, rows, free[rows])
        negative = inequality[rows] & (force[rows] < 0)
        if not negative.any():
            break
        rows = rows[~negative]
    settled = np.zeros(len(free), bool)
    for _ in range(20 * len(free) + 100):
        value = free - compliance @ force
        value[rows] = 0.0
        value[settled] = 0.0
        entering = int(np.argmax(np.where(inequality, value, np.abs(value))))
        if np.where(inequality, value, np.abs(value))[entering] <= 1e-11 * size:
            mask = np.zeros(len(free), bool)
            mask[rows] = True
            return force, mask | ~inequality
        if not inequality[entering]:
            return None  # an equality that depends on others and contradicts them
        gap = value[entering]
        while True:
            answer = _solve_held(compliance, rows, compliance[rows, entering])
            give = compliance[entering, entering] - compliance[entering, rows] @ answer
            whole = gap / give if give > 1e-11 * compliance[entering, entering] + 1e-300 else np.inf
            fading = inequality[rows] & (answer > 1e-12)
            ratios = np.where(fading, force[rows] / np.where(fading, answer, 1.0), np.inf)
            leaving = int(np.argmin(ratios)) if len(rows) else -1
            step = min(whole, ratios[leaving]) if len(rows) else whole
            if not np.isfinite(step):
                if gap > _CONTRADICTION * size:
                    return None  # the rows contradict each other: the lower level is infeasible
                settled[entering] = True  # by no more than rounding: x lies on the border of feasibility
                break
            force[rows] -= step * answer
            force[entering] += step
            gap -= step * max(give, 0.0)
            if whole <= step:
                rows = np.append(rows, entering)
                break
            force[rows[leaving]] = 0.0
            rows = np.delete(rows, leaving)
    return None


def _solve_held(compliance: np.ndarray, rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    return solve_factored(_cholesky(compliance[np.ix_(rows, rows)]), right) if len(rows) else right


def independent_rows(compliance: np.ndarray, rows: np.ndarray, kept: int = 0) -> np.ndarray:
    """Return a largest set of independent rows, by pivoted Cholesky of their compliance; the first ``kept`` stay."""
    if len(rows) <= kept:
        return rows
    inner = compliance[np.ix_(rows, rows)]
    if kept:  # what the kept rows leave of the others
        ahead, behind = inner[:kept, :kept], inner[:kept, kept:]
        inner = inner[kept:, kept:] - behind.T @ solve_factored(_cholesky(ahead), behind)
    tolerance = 1e-11 * max(1e-300, float(np.diag(compliance)[rows].max()))
    _, pivots, rank, _ = lapack.dpstrf(inner, lower=1, tol=tolerance)
    return np.concatenate([rows[:kept], np.sort(rows[kept:][pivots[:rank] - 1])])


def _pivot(
    compliance: np.ndarray, free: np.ndarray, inequality: np.ndarray, held: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray] | None:
    stiffness = np.where(np.diag(compliance) > 1e-12, 1 / np.maximum(np.diag(compliance), 1e-12), 1.0)
    seen = set()
    for _ in range(_MAX_PIVOTS):
        force = np.zeros(len(free))
        if held.any():
            inner, right = compliance[np.ix_(held, held)], free[held]
            try:
                factor = _cholesky(inner)
            except np.linalg.LinAlgError:
                return None
            forces = solve_factored(factor, right)
            # One refinement: dependent rows leave the factor only approximately right.
            force[held] = forces + solve_factored(factor, right - inner @ forces)
        value = free - compliance @ force
        largest = 1 + np.abs(force).max()
        dropped = held & inequality & (force < -1e-11 * largest)
        added = ~held & (value > 1e-11 * size)
        if not (dropped.any() or added.any()):
            consistent = np.abs(value[held]).max(initial=0.0) <= 1e-8 * size
            return (np.where(inequality, np.maximum(force, 0.0), force), held) if consistent else None
        key = held.tobytes()
        if key in seen:
            # Cycling: change only the worst row, as the simplex method would.
            score = np.where(dropped, -force, 0.0) + np.where(added, value * stiffness, 0.0)
            worst = np.argmax(score)
            held = held.copy()
            held[worst] = ~held[worst]
            if held.tobytes() in seen:
                return None
        else:
            seen.add(key)
            held = (held & ~dropped) | added
    return None


def centre(
    compliance: np.ndarray,
    free: np.ndarray,
    equalities: int,
    barrier: float,
    softness: float,
    start: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (force, slack) on the central path of the softened complementarity problem.

        free - (compliance + softness) force + slack = 0,   force * slack = barrier,   both positive,

    the first ``equalities`` rows without slack. With ``softness > 0`` it exists for every ``free``, feasible or not.
    """
    matrix, one_sided = lifted(compliance, softness), slice(equalities, None)
    scale = 1 + np.abs(free).max()
    if start is None:
        pressure = max(np.abs(free).max() / (softness + np.diag(compliance).mean() + 1e-300), np.sqrt(barrier))
        force, slack = np.zeros(len(free)), np.zeros(len(free))
        force[one_sided], slack[one_sided] = pressure, np.maximum(-free[one_sided], scale)
    else:
        force, slack = (part.copy() for part in start)
        for part in (force, slack):
            part[one_sided] = np.maximum(part[one_sided], 1e-3 * np.sqrt(barrier))
    length = 1.0
    for _ in range(_MAX_CENTRING):
        pressed, room = force[one_sided], slack[one_sided]
        residual = free - matrix @ force + slack
        product = pressed * room
        off = np.abs(product - barrier).max(initial=0.0)
        # A slack that is a difference of large numbers is known to rounding only.
        rounding = 1e-13 * scale * np.abs(force).max()
        if np.abs(residual).max() <= 1e-9 * scale + rounding and off <= 1e-5 * barrier + rounding:
            return force, slack
        # After a short step the point is too close to the boundary: centre before going on.
        average = product.sum() / max(len(product), 1)
        aim = max(barrier, (0.1 if length > 0.3 else 1.0) * average)
        diagonal = np.full(len(free), 1e-14 * scale)
        diagonal[one_sided] += room / pressed
        residual[one_sided] += aim / pressed - room
        _, step_force, failed = lapack.dposv(lifted(matrix, diagonal), residual)
        if failed or not np.isfinite(step_force).all():
            return None
        step_slack = np.zeros(len(free))
        step_slack[one_sided] = (aim - product - room * step_force[one_sided]) / pressed
        shrinking = np.concatenate([step_force[one_sided] / pressed, step_slack[one_sided] / room])
        length = min(1.0, 0.995 / max(-shrinking.min(initial=0.0), 1e-300))
        force, slack = force + length * step_force, slack + length * step_slack
    return None


_MAX_CENTRING = 80


def _cholesky(matrix: np.ndarray) -> np.ndarray:
    """Factor a symmetric matrix, lifted by as little as makes it positive definite."""
    lift = 1e-14 * max(1e-300, float(np.abs(np.diag(matrix)).max(initial=1.0)))
    for _ in range(12):
        try:
            return factorise(lifted(matrix, lift))
        except np.linalg.LinAlgError:
            lift *= 10
    raise np.linalg.LinAlgError("the lower objective is not convex here")
