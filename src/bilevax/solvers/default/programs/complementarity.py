"""Linear complementarity problems ``0 <= multiplier _|_ free - compliance multiplier <= 0``.

They are the duals of strictly convex quadratic programs: the lower level's own, and those of the exact descent. Solved
exactly by active-set methods.
"""

from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.solvers.default.programs.cholesky import factorise_nearly, refined_solver, solve_factored
from bilevax.solvers.default.settings import PROGRAMS


class Product:
    """A compliance ``half half'`` of more rows than it has rank, never multiplied out; otherwise as an array."""

    def __init__(self, half: np.ndarray):
        self.half = half

    def __matmul__(self, multiplier: np.ndarray) -> np.ndarray:
        return self.half @ (self.half.T @ multiplier)

    def __getitem__(self, index: tuple[Any, ...]) -> Any:
        rows, columns = (part.ravel() if isinstance(part, np.ndarray) else part for part in index)
        return self.half[rows] @ self.half[columns].T

    def diagonal(self) -> np.ndarray:
        """Return its diagonal."""
        return np.einsum("ij,ij->i", self.half, self.half)

    def independent(self, rows: np.ndarray, kept: int) -> np.ndarray:
        """Return what `independent_rows` does, by a pivoted QR factorisation."""
        ahead, behind = self.half[rows[:kept]].T, self.half[rows[kept:]].T
        if kept:  # what the kept rows leave of the others
            basis = np.linalg.qr(ahead)[0]
            behind = behind - basis @ (basis.T @ behind)
        triangle, order = scipy.linalg.qr(behind, mode="r", pivoting=True, check_finite=False)
        largest = positive(float(np.linalg.norm(self.half[rows], axis=1).max()))
        rank = int(np.sum(np.abs(triangle.diagonal()) > np.sqrt(PROGRAMS.zero) * largest))
        return np.concatenate([rows[:kept], np.sort(rows[kept:][order[:rank]])])


AnyCompliance = np.ndarray | Product


def solve_complementarity(
    compliance: AnyCompliance, free: np.ndarray, inequality: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve ``0 <= multiplier _|_ free - compliance multiplier <= 0`` (equality rows: value 0, multiplier of any sign).

    A primal-dual active-set method started from the rows ``active``; if it cycles, the dual method, one row at a time.
    Return the multipliers and the active rows, or None where the rows contradict each other.
    """
    if len(free) == 0:
        return np.zeros(0), np.zeros(0, bool)
    size = 1 + np.abs(free).max()
    answer = _pivot(compliance, free, inequality, active, size) if _fits(compliance, active) else None
    return _one_by_one(compliance, free, inequality, active, size) if answer is None else answer


def _fits(compliance: AnyCompliance, active: np.ndarray) -> bool:
    """Return whether so many rows can be active at once without depending on each other."""
    return isinstance(compliance, np.ndarray) or active.sum() <= compliance.half.shape[1]


def _one_by_one(
    compliance: AnyCompliance, free: np.ndarray, inequality: np.ndarray, active: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """The dual active-set method of Goldfarb and Idnani: multipliers stay nonnegative, violated rows enter in turn.

    Dependent rows are exchanged by a ratio test, so any number of rows may be active at once.
    """
    rows = independent_rows(compliance, np.flatnonzero(~inequality))
    rows = independent_rows(compliance, np.concatenate([rows, np.flatnonzero(active & inequality)]), kept=len(rows))
    multiplier = np.zeros(len(free))
    while len(rows):
        multiplier[:] = 0.0
        multiplier[rows] = _solve_active(compliance, rows, free[rows])
        negative = inequality[rows] & (multiplier[rows] < 0)
        if not negative.any():
            break
        rows = rows[~negative]
    settled, seen = np.zeros(len(free), bool), set()
    for _ in range(20 * len(free) + 100):
        clock.check()
        state = np.sort(rows).tobytes(), int(settled.sum())  # what is settled stays so
        if state in seen:
            return None  # the active rows determine the multipliers: it would cycle
        seen.add(state)
        value = free - compliance @ multiplier
        value[rows] = 0.0
        value[settled] = 0.0
        entering = int(np.argmax(np.where(inequality, value, np.abs(value))))
        if np.where(inequality, value, np.abs(value))[entering] <= PROGRAMS.zero * size:
            mask = np.zeros(len(free), bool)
            mask[rows] = True
            return multiplier, mask | ~inequality
        if not inequality[entering]:
            return None  # an equality that depends on others and contradicts them
        gap = value[entering]
        while True:
            answer = _solve_active(compliance, rows, compliance[rows, entering])
            give = compliance[entering, entering] - compliance[entering, rows] @ answer
            whole = gap / give if give > PROGRAMS.zero * compliance[entering, entering] + 1e-300 else np.inf
            fading = inequality[rows] & (answer > 1e-12)
            ratios = np.where(fading, multiplier[rows] / np.where(fading, answer, 1.0), np.inf)
            leaving = int(np.argmin(ratios)) if len(rows) else -1
            step = min(whole, ratios[leaving]) if len(rows) else whole
            if not np.isfinite(step):
                if gap > PROGRAMS.contradiction * size:
                    return None  # the rows contradict each other: the lower level is infeasible
                settled[entering] = True  # by no more than rounding: x lies on the border of feasibility
                break
            multiplier[rows] -= step * answer
            multiplier[entering] += step
            gap -= step * max(give, 0.0)
            if whole <= step:
                rows = np.append(rows, entering)
                break
            multiplier[rows[leaving]] = 0.0
            rows = np.delete(rows, leaving)
    return None


def _solve_active(compliance: AnyCompliance, rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    return solve_factored(factorise_nearly(compliance[np.ix_(rows, rows)]), right) if len(rows) else right


def independent_rows(compliance: AnyCompliance, rows: np.ndarray, kept: int = 0) -> np.ndarray:
    """Return a largest set of independent rows, by pivoted Cholesky of their compliance; the first ``kept`` stay."""
    if len(rows) <= kept:
        return rows
    if isinstance(compliance, Product):
        return compliance.independent(rows, kept)
    inner = compliance[np.ix_(rows, rows)]
    if kept:  # what the kept rows leave of the others
        ahead, behind = inner[:kept, :kept], inner[:kept, kept:]
        inner = inner[kept:, kept:] - behind.T @ solve_factored(factorise_nearly(ahead), behind)
    tolerance = PROGRAMS.zero * positive(float(compliance.diagonal()[rows].max()))
    _, pivots, rank, _ = lapack.dpstrf(inner, lower=1, tol=tolerance)
    return np.concatenate([rows[:kept], np.sort(rows[kept:][pivots[:rank] - 1])])


def dependent_rows(compliance: AnyCompliance, rows: np.ndarray, B: Any) -> np.ndarray:
    """Return those of the rows that others of them add up to, in y but not in x, whose part ``B`` is.

    Their multipliers are not unique, and it matters: ``B' multiplier`` is not, either.
    """
    basis = independent_rows(compliance, rows)
    others = np.setdiff1d(rows, basis)
    if not len(others):
        return others
    parts = refined_solver(compliance[np.ix_(basis, basis)])(compliance[np.ix_(basis, others)])
    along = B @ np.random.default_rng(0).standard_normal(B.shape[1])  # a direction of x like any other
    sum_of, size = along[basis] @ parts, np.abs(along[basis]) @ np.abs(parts)
    differ = np.abs(along[others] - sum_of) > np.sqrt(PROGRAMS.zero) * (np.abs(along[others]) + size)
    sizes, others, parts = np.sqrt(compliance.diagonal()), others[differ], parts[:, differ]
    used = np.abs(parts) * sizes[basis][:, None] > np.sqrt(PROGRAMS.zero) * sizes[others]
    return np.concatenate([others, basis[used.any(axis=1)]])


def _pivot(
    compliance: AnyCompliance, free: np.ndarray, inequality: np.ndarray, active: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray] | None:
    stiffness = np.where(compliance.diagonal() > 1e-12, 1 / np.maximum(compliance.diagonal(), 1e-12), 1.0)
    seen = set()

    def solve_on(active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        multiplier = np.zeros(len(free))
        if active.any():
            # Refined, since dependent rows leave a factor only approximately right.
            multiplier[active] = refined_solver(compliance[np.ix_(active, active)])(free[active])
        value = free - compliance @ multiplier
        return multiplier, value, active & inequality & (multiplier < -PROGRAMS.zero * (1 + np.abs(multiplier).max()))

    for _ in range(PROGRAMS.pivots):
        clock.check()
        try:
            multiplier, value, dropped = solve_on(active)
            added = ~active & (value > PROGRAMS.zero * size)
            finished = not (dropped.any() or added.any())
            touched = active | (value > 1e-15 * size)
            if finished and touched.sum() > active.sum() and _fits(compliance, touched):
                # Rows violated by rounding become active if they can: on a kink Phi would show the difference.
                closer = solve_on(touched)
                if not closer[2].any() and closer[1].max() < value.max():
                    (multiplier, value, _), active = closer, touched
        except np.linalg.LinAlgError:
            return None
        if finished:
            consistent = np.abs(value[active]).max(initial=0.0) <= 1e-8 * size
            return (np.where(inequality, np.maximum(multiplier, 0.0), multiplier), active) if consistent else None
        key = active.tobytes()
        if key in seen:
            # Cycling: change only the worst row, as the simplex method would.
            score = np.where(dropped, -multiplier, 0.0) + np.where(added, value * stiffness, 0.0)
            worst = np.argmax(score)
            active = active.copy()
            active[worst] = ~active[worst]
            if active.tobytes() in seen:
                return None
        else:
            seen.add(key)
            active = (active & ~dropped) | added
        if not _fits(compliance, active):
            return None
    return None
