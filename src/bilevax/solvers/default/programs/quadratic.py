"""Convex quadratic programs: dense ones by the rows they run into, all others and the degenerate ones by Clarabel."""

import dataclasses
import functools
from typing import Any

import clarabel
import numpy as np
import qdldl
import scipy.sparse as sp
from scipy.linalg import lapack

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax._support.elimination import split
from bilevax._support.programs import conic
from bilevax.solvers.default.programs.cholesky import (
    factorise,
    factorise_nearly,
    half_solved,
    solve_factored,
    wholly_solved,
)
from bilevax.solvers.default.programs.complementarity import solve_complementarity
from bilevax.solvers.default.programs.elimination import Eliminated
from bilevax.solvers.default.settings import PROGRAMS, SIZES


@dataclasses.dataclass(frozen=True)
class _Program:
    """Minimise ``v' hessian v / 2 + gradient' v`` with ``lower <= matrix v <= upper``; rows by their kind."""

    hessian: Any
    gradient: np.ndarray
    matrix: Any
    lower: np.ndarray
    upper: np.ndarray
    balls: Any

    @functools.cached_property
    def equal(self) -> np.ndarray:
        return self.lower == self.upper

    @functools.cached_property
    def above(self) -> np.ndarray:
        return ~self.equal & np.isfinite(self.upper)

    @functools.cached_property
    def below(self) -> np.ndarray:
        return ~self.equal & np.isfinite(self.lower)

    def sides(self, above: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Return +1 for each row that is active on its upper side, -1 on its lower side, 0 for inactive ones."""
        side = np.zeros(len(self.lower), np.int8)
        side[self.above] += above
        side[self.below] -= below
        return side

    def holds(self, v: np.ndarray, tolerance: float) -> bool:
        """Return whether v satisfies the rows, relative to 1 + |v|."""
        image, slack = self.matrix @ v, tolerance * (1 + np.abs(v).max(initial=0.0))
        return bool(np.all(image >= self.lower - slack) and np.all(image <= self.upper + slack))


def solve_qp(
    hessian: Any, gradient: np.ndarray, matrix: Any, lower: np.ndarray, upper: np.ndarray, balls: Any = ()
) -> np.ndarray | None:
    """Minimise ``v' hessian v / 2 + gradient' v`` with ``lower <= matrix v <= upper`` and v in the balls.

    Returns None when no accurate answer was found.
    """
    matrix = sp.csr_matrix(matrix) if sp.issparse(matrix) else matrix
    program = _Program(hessian, gradient, matrix, lower, upper, balls)
    dense = isinstance(hessian, np.ndarray) and not len(balls)
    if dense and (v := solve_by_rows(hessian, gradient, matrix, lower, upper)) is not None:
        return v
    if not len(balls) and (parts := split(hessian, matrix)) is not None:
        v = Eliminated(parts, hessian, gradient, matrix, lower, upper).solve()
        if v is not None:
            return v
    if (solved := _interior_point(program)) is None:
        return None
    v = _sharpen_on_balls(program, *solved) if len(balls) else _sharpen(program, *solved[:2])
    return v if program.holds(v, PROGRAMS.holds) else None


def solve_by_rows(
    hessian: Any,
    gradient: np.ndarray,
    matrix: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    factor: np.ndarray | None = None,
) -> np.ndarray | None:
    """Minimise as `solve_qp` does, over an active set to which violated rows are added; None where it is degenerate.

    Of many rows few matter: those violated by the minimiser under the rows found so far join them, until none is. The
    answer is proven by the KKT conditions. Where the Hessian's ``factor`` is known, what multiplies by the Hessian will
    do for it.
    """
    program = _Program(hessian, gradient, matrix, lower, upper, ())
    equal, equalities = program.equal, int(program.equal.sum())
    try:
        factor = factorise(hessian) if factor is None else factor
    except np.linalg.LinAlgError:
        return None
    free = v = -solve_factored(factor, gradient)
    # Of many variables half of each solution will do: it tells the compliance, and the other half is one vector's.
    part = half_solved if (many := len(v) > SIZES.directions) else solve_factored
    pushed = lambda push: wholly_solved(factor, push) if many else push
    rows, level, inverse = matrix[equal], upper[equal], part(factor, matrix[equal].T)
    met_above, met_below, active, multiplier = equal, equal, np.ones(equalities, bool), np.zeros(equalities)
    for turn in range(PROGRAMS.turns):
        image = matrix @ v
        above, below = (image > upper) & ~met_above, (image < lower) & ~met_below
        found = int(above.sum() + below.sum())
        if found == 0 and (turn > 0 or equalities == 0):
            break
        met_above, met_below = met_above | above, met_below | below
        fresh = np.vstack([matrix[above], -matrix[below]])
        rows, level = np.vstack([rows, fresh]), np.concatenate([level, upper[above], -lower[below]])
        inverse = np.hstack([inverse, part(factor, fresh.T)])
        with clock.work(2 * len(rows) * inverse.size):
            compliance, beyond = (inverse.T if many else rows) @ inverse, rows @ free - level
        unit = positive(np.abs(beyond).max())  # steps near the end are tiny, and as exact as others
        inequality, active = np.arange(len(rows)) >= equalities, np.concatenate([active, np.ones(found, bool)])
        solved = solve_complementarity(compliance, beyond / unit, inequality, active)
        if solved is None:
            return None
        multiplier, active = unit * solved[0], solved[1]
        v = free - pushed(inverse @ multiplier)
        # One refinement, since the free minimiser may be far away.
        step = -solve_factored(factor, hessian @ v + gradient + rows.T @ multiplier)
        inner = compliance[np.ix_(active, active)]
        change = solve_factored(factorise_nearly(inner), rows[active] @ (v + step) - level[active])
        multiplier[active] += change
        v = v + step - pushed(inverse[:, active] @ change)
    else:
        return None
    push = rows.T @ multiplier
    size = np.abs(gradient).max(initial=0.0) + np.abs(push).max(initial=0.0)
    stationary = np.abs(hessian @ v + gradient + push).max(initial=0.0) <= PROGRAMS.proof * size
    pressing = np.all(multiplier[equalities:] >= -PROGRAMS.proof * np.abs(multiplier).max(initial=0.0))
    return v if stationary and pressing and program.holds(v, PROGRAMS.proof) else None


def solve_sparse_qp(
    hessian: Any, gradient: np.ndarray, matrix: Any, lower: np.ndarray, upper: np.ndarray, sharp: bool = False
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the minimiser as `solve_qp` does, by default without sharpening, and the rows' multipliers."""
    program = _Program(hessian, gradient, sp.csr_matrix(matrix), lower, upper, ())
    if (solved := _interior_point(program)) is None:
        return None
    v, side, multipliers, _ = solved
    return (_sharpen(program, v, side) if sharp else v), multipliers


def nearest_on_rows(
    weights: np.ndarray, matrix: sp.csr_matrix, lower: np.ndarray, upper: np.ndarray, start: np.ndarray
) -> np.ndarray | None:
    """Return a point with ``lower <= matrix v <= upper`` near a start that almost has it: without an interior point.

    Rows that the start meets or breaks become equations, and so do those broken on the way; of the points that satisfy
    them it is the nearest in the norm with these weights. None where that does not lead to one that satisfies all.
    """
    unit = 1 / np.sqrt(weights)
    scaled = sp.csr_matrix(matrix @ sp.diags(unit))
    v, met = start, np.zeros(len(lower), bool)
    for _ in range(PROGRAMS.meetings):
        image, slack = matrix @ v, PROGRAMS.met * (1 + np.abs(v).max(initial=0.0))
        touched = ~met & ((image <= lower + slack) | (image >= upper - slack))
        broken = ~met & ((image < lower) | (image > upper))
        if not (broken if met.any() else touched).any():
            return v
        met |= touched
        rows, goal = scaled[met], np.where(image - lower < upper - image, lower, upper)[met]
        miss = goal - matrix[met] @ start
        step = least_step(rows, miss)
        if step is None:
            return None
        v = start + unit * step
        if not np.abs(miss - rows @ step).max(initial=0.0) <= slack:
            return None
    return None


def least_step(rows: sp.csr_matrix, miss: np.ndarray) -> np.ndarray | None:
    """Return the shortest step with ``rows step = miss``, by one factorisation and refinement; None where it has none.

    Rows may depend on each other; where they contradict each other, the step leaves a miss.
    """
    count, size = rows.shape
    whole = sp.bmat([[sp.eye(size), rows.T], [None, -PROGRAMS.soft * sp.eye(count)]], format="csc")
    try:
        factor = qdldl.Solver(sp.csc_matrix(whole), upper=True)
    except RuntimeError:
        return None
    step, multiplier, left = np.zeros(size), np.zeros(count), miss
    for _ in range(PROGRAMS.refinements):
        answer = factor.solve(np.concatenate([-step - rows.T @ multiplier, left]))
        step, multiplier = step + answer[:size], multiplier + answer[size:]
        left = miss - rows @ step
        if np.abs(left).max(initial=0.0) <= 1e-14 * np.abs(miss).max(initial=0.0):
            break
    return step


def _interior_point(program: _Program) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return what Clarabel finds: the minimiser, the active sides, all multipliers, and those of the balls."""
    hessian, gradient, matrix = program.hessian, program.gradient, sp.csr_matrix(program.matrix)
    lower, upper, equal, above, below = program.lower, program.upper, program.equal, program.above, program.below
    picked = matrix[np.concatenate([np.flatnonzero(part) for part in (equal, above, below)])]
    picked.data[picked.indptr[equal.sum() + above.sum()] :] *= -1
    parts = [picked]
    right = [upper[equal], upper[above], -lower[below]]
    cones: list[Any] = []
    if equal.any():
        cones.append(clarabel.ZeroConeT(int(equal.sum())))
    if above.any() or below.any():
        cones.append(clarabel.NonnegativeConeT(int(above.sum() + below.sum())))
    size = len(gradient)
    for ball in program.balls:
        count = len(ball.index)
        picked = sp.csr_matrix((-np.ones(count), (np.arange(count), ball.index)), shape=(count, size))
        parts += [sp.csr_matrix((1, size)), picked]
        right += [np.array([ball.radius]), -np.asarray(ball.center)]
        cones.append(clarabel.SecondOrderConeT(1 + count))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = PROGRAMS.interior
    everything = sp.vstack(parts, format="csc") if program.balls else picked.tocsc()
    # On very sparse matrices QDLDL is the fastest; the factors of large ones fill up, and faer works block by block.
    settings.direct_solve_method = "qdldl" if sum(everything.shape) <= PROGRAMS.most_for_qdldl else "faer"
    settings.max_threads = 1  # sums in one order: a run that is resumed comes to the same answer, bit for bit
    if not cones:  # Clarabel wants at least one row.
        everything, right, cones = sp.csc_matrix((1, size)), [np.ones(1)], [clarabel.NonnegativeConeT(1)]
    quadratic = sp.csc_matrix(hessian)
    answer = conic(quadratic, gradient, everything, np.concatenate(right), cones, settings=settings)
    v = np.array(answer.x)
    if str(answer.status) not in ("Solved", "AlmostSolved", "InsufficientProgress") or not np.isfinite(v).all():
        return None
    cuts = np.cumsum([equal.sum(), above.sum(), below.sum()])
    dual = np.array(answer.z)
    _, active_above, active_below, _ = np.split(dual > np.array(answer.s), cuts)
    multipliers = np.zeros(len(lower))
    multipliers[equal], of_upper, of_lower, of_cones = np.split(dual, cuts)
    multipliers[above] += of_upper
    multipliers[below] -= of_lower
    # A ball's part of the dual is (|w|, -w), w the multiplier times the offset from the center.
    heads = np.cumsum([0, *(1 + len(ball.index) for ball in program.balls)])[:-1]
    of_balls = np.array([of_cones[head] / ball.radius for head, ball in zip(heads, program.balls, strict=True)])
    return v, program.sides(active_above, active_below), multipliers, of_balls


def _sharpen(program: _Program, v: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Solve with the active rows as equations; keep the result if its signs and rows are right."""
    hessian, matrix = program.hessian, program.matrix
    active = program.equal | (side != 0)
    if active.sum() + len(v) > PROGRAMS.most_to_sharpen:
        return v
    rows = matrix[active].toarray() if sp.issparse(matrix) else matrix[active]
    dense = hessian.toarray() if sp.issparse(hessian) else np.asarray(hessian)
    system = np.block([[dense, rows.T], [rows, np.zeros((len(rows), len(rows)))]])
    right = np.concatenate([-program.gradient, np.where(side < 0, program.lower, program.upper)[active]])
    *_, solutions, _, _, _, failed = lapack.dsysvx(system, right)
    solution = solutions[:, 0]
    if failed:  # singular, or nearly so
        solution = np.linalg.lstsq(system, right, rcond=1e-13)[0]
    if not np.abs(system @ solution - right).max(initial=0.0) <= 1e-9 * (1 + np.abs(right).max(initial=0.0)):
        return v
    sharp, multiplier = np.split(solution, [len(v)])
    wrong_sign = np.any(multiplier * side[active] < -1e-8)
    return v if wrong_sign or not program.holds(sharp, PROGRAMS.proof) else sharp


def _sharpen_on_balls(
    program: _Program, v: np.ndarray, side: np.ndarray, multipliers: np.ndarray, of_balls: np.ndarray
) -> np.ndarray:
    """Newton's method with the active rows and balls as equations; keep the result if its signs and rows are right.

    ``of_balls`` are the multipliers of ``(|v - center|^2 - radius^2) / 2``. An interior point's objective is right to
    1e-11, which leaves its minimiser to 1e-6.
    """
    active, rough = program.equal | (side != 0), v
    if active.sum() + len(v) > PROGRAMS.most_to_sharpen_on_balls:
        return v
    gaps = lambda v: np.array([np.linalg.norm(v[b.index] - b.center) - b.radius for b in program.balls])
    radii = np.array([ball.radius for ball in program.balls])
    touched = (of_balls * radii > -gaps(v)) & (of_balls > 0)
    balls = [ball for ball, touches in zip(program.balls, touched, strict=True) if touches]
    rows = program.matrix[active]
    rows = rows.toarray() if sp.issparse(rows) else rows
    hessian = program.hessian.toarray() if sp.issparse(program.hessian) else np.asarray(program.hessian)
    level = np.where(side < 0, program.lower, program.upper)[active]
    multiplier, weight = multipliers[active], of_balls[touched]
    for _ in range(PROGRAMS.sharpening):
        normals = np.zeros((len(balls), len(v)))
        bent = hessian.copy()
        for normal, ball, part in zip(normals, balls, weight, strict=True):
            normal[ball.index] = v[ball.index] - ball.center
            bent[ball.index, ball.index] += part
        equations = np.vstack([rows, normals])
        off = gaps(v)[touched]
        right = -np.concatenate(
            [
                hessian @ v + program.gradient + equations.T @ np.concatenate([multiplier, weight]),
                rows @ v - level,
                off * (radii[touched] + 0.5 * off),
            ]
        )
        system = np.block([[bent, equations.T], [equations, np.zeros((len(equations), len(equations)))]])
        if not np.isfinite(system).all():
            return rough
        step = np.linalg.lstsq(system, right, rcond=1e-14)[0]
        along, of_rows, of_weights = np.split(step, [len(v), len(v) + len(multiplier)])
        v, multiplier, weight = v + along, multiplier + of_rows, weight + of_weights
        if np.abs(along).max(initial=0.0) <= 1e-15 * (1 + np.abs(v).max(initial=0.0)):
            break
    inside = np.all(gaps(v) <= 1e-12 * (1 + radii)) and program.holds(v, PROGRAMS.proof)
    signed = np.all(multiplier * side[active] >= -1e-8) and np.all(weight >= 0)
    near = np.abs(v - rough).max(initial=0.0) <= 1e-3 * (1 + np.abs(rough).max(initial=0.0))
    return v if inside and signed and near else rough
