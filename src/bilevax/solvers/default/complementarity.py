"""Linear complementarity ``0 <= force _|_ free - compliance force <= 0``, exactly and on its central path.

Quadratic programs look like this in the space of their rows: the lower level's own, and those of the exact descent.
"""

import numpy as np
from scipy.linalg import lapack

from bilevax._support import clock
from bilevax.solvers.default.cholesky import factorise_nearly, lifted, refined_solver, solve_factored


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
    settled, seen = np.zeros(len(free), bool), set()
    for _ in range(20 * len(free) + 100):
        state = np.sort(rows).tobytes(), settled.tobytes()
        if state in seen:
            return None  # forces follow from the rows: it would go round for ever
        seen.add(state)
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
    return solve_factored(factorise_nearly(compliance[np.ix_(rows, rows)]), right) if len(rows) else right


def independent_rows(compliance: np.ndarray, rows: np.ndarray, kept: int = 0) -> np.ndarray:
    """Return a largest set of independent rows, by pivoted Cholesky of their compliance; the first ``kept`` stay."""
    if len(rows) <= kept:
        return rows
    inner = compliance[np.ix_(rows, rows)]
    if kept:  # what the kept rows leave of the others
        ahead, behind = inner[:kept, :kept], inner[:kept, kept:]
        inner = inner[kept:, kept:] - behind.T @ solve_factored(factorise_nearly(ahead), behind)
    tolerance = 1e-11 * max(1e-300, float(np.diag(compliance)[rows].max()))
    _, pivots, rank, _ = lapack.dpstrf(inner, lower=1, tol=tolerance)
    return np.concatenate([rows[:kept], np.sort(rows[kept:][pivots[:rank] - 1])])


def _pivot(
    compliance: np.ndarray, free: np.ndarray, inequality: np.ndarray, held: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray] | None:
    stiffness = np.where(np.diag(compliance) > 1e-12, 1 / np.maximum(np.diag(compliance), 1e-12), 1.0)
    seen = set()

    def pressed(held: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        force = np.zeros(len(free))
        if held.any():
            # Refined, since dependent rows leave a factor only approximately right.
            force[held] = refined_solver(compliance[np.ix_(held, held)])(free[held])
        value = free - compliance @ force
        return force, value, held & inequality & (force < -1e-11 * (1 + np.abs(force).max()))

    for _ in range(_MAX_PIVOTS):
        try:
            force, value, dropped = pressed(held)
            added = ~held & (value > 1e-11 * size)
            finished = not (dropped.any() or added.any())
            touched = held | (value > 1e-15 * size)
            if finished and touched.sum() > held.sum():
                # What is violated by next to nothing is held if it can be: Phi would show the difference on a kink.
                closer = pressed(touched)
                if not closer[2].any() and closer[1].max() < value.max():
                    (force, value, _), held = closer, touched
        except np.linalg.LinAlgError:
            return None
        if finished:
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
        clock.check()
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
        _, step_force, failed = lapack.dposv(lifted(matrix, diagonal).T, residual, overwrite_a=True)
        if failed or not np.isfinite(step_force).all():
            return None
        step_slack = np.zeros(len(free))
        step_slack[one_sided] = (aim - product - room * step_force[one_sided]) / pressed
        shrinking = np.concatenate([step_force[one_sided] / pressed, step_slack[one_sided] / room])
        length = min(1.0, 0.995 / max(-shrinking.min(initial=0.0), 1e-300))
        force, slack = force + length * step_force, slack + length * step_slack
    return None


_CONTRADICTION = 1e-8
_MAX_PIVOTS = 40
_MAX_CENTRING = 80
