"""`Default`: the method behind ``solve(problem, x0)``, in the order in which one would explain it.

1. *Start*: project x0 onto X; where the lower level is infeasible there, move to the nearest x where it is not.
2. *High-point relaxation*: minimise f over x and y together, the lower level's rows kept, its optimality dropped. If y
   is optimal for the lower level there, x is a global minimiser (f convex).
3. *Smooth descent*: follow the minimiser of the smoothed objective while the smoothing shrinks, into a good basin.
4. *Exact descent*: from there, from the high-point relaxation and from the start, descend on the exact pieces of Phi.
5. Return the best. The certificate, which shares none of this code, is the driver's business.

The work is done by dense matrices in the space of the rows, by sparse ones in that of y and the rows, or by sweeps.
"""

import dataclasses
import functools
from collections.abc import Generator, Iterator
from typing import ClassVar, Literal, get_args

import numpy as np
import scipy.sparse as sp

from bilevax._support import trees
from bilevax._support.threads import blas_threads
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.solvers.base import HostSolver, ProblemRefused, Snapshot
from bilevax.solvers.default.central_path import CentralPath
from bilevax.solvers.default.domain import find_domain
from bilevax.solvers.default.first_order import PairOracle
from bilevax.solvers.default.interior import InteriorLower
from bilevax.solvers.default.joint_pieces import joint_descent
from bilevax.solvers.default.joint_point import JointPoint, evaluate_from, evaluate_jointly
from bilevax.solvers.default.lower import LowerModel
from bilevax.solvers.default.newton import MOST_STEPS, newton_descent
from bilevax.solvers.default.pieces import Evaluated, evaluate_exactly, exact_descent
from bilevax.solvers.default.quadratic_program import UpperSet, solve_qp
from bilevax.solvers.default.relaxation import HighPoint, high_point_relaxation, joint_rows
from bilevax.solvers.default.smoothing import SmoothPoint, follow, smooth_descent
from bilevax.solvers.default.sparse_path import SparsePath
from bilevax.solvers.diary import Diary

Variant = Literal["auto", "direct", "first-order"]


@dataclasses.dataclass(frozen=True)
class Default(HostSolver):
    """The tuning-free default: smoothing to find a basin, exact pieces to finish in it.

    For convex lower levels with affine rows; f may be nonconvex.

    Parameters
    ----------
    variant
        ``"direct"`` factorises: dense matrices up to 6000 variables and rows, sparse ones where g is linear in some
        variables or the problem is large and sparse. ``"first-order"`` only applies the problem's functions and
        operators. ``"auto"`` is direct where it can be. With the first-order variant above 6000 variables there are no
        exact pieces: the answer is the smoothed one.
    """

    variant: Variant = "auto"
    default_max_steps: ClassVar[int] = 2000
    stages: ClassVar[int] = 6
    keeps_diary: ClassVar[bool] = True

    def __post_init__(self):
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant: expected one of {', '.join(get_args(Variant))}, got {self.variant!r}.")

    def search(
        self,
        flat: FlatProblem,
        x0: np.ndarray,
        y0: np.ndarray | None,
        rtol: float,
        multipliers: np.ndarray | None = None,
        diary: Diary | None = None,
    ) -> Iterator[Snapshot]:
        """Yield a snapshot after each step; the last one is the answer.

        An earlier answer, known by its ``multipliers``, skips the smoothing: they tell which rows are active.
        """
        if self.variant != "first-order":
            flat = equilibrated(flat, flat.x_tree(x0), None if y0 is None else flat.y_tree(y0))
        scales = flat.scales
        in_units = None if multipliers is None else multipliers / scales.rows * scales.lower
        start = x0 / scales.x, None if y0 is None else y0 / scales.y
        for found in self._search(flat, *start, rtol, in_units, Diary() if diary is None else diary):
            if found.final:
                found = found._replace(x=_without_dust(flat, found.x))
            yield found._replace(x=found.x * scales.x, y=found.y * scales.y, value=found.value / scales.upper)

    def _search(
        self,
        flat: FlatProblem,
        x0: np.ndarray,
        y0: np.ndarray | None,
        rtol: float,
        multipliers: np.ndarray | None,
        diary: Diary,
    ) -> Iterator[Snapshot]:
        """The search in the units of ``flat``."""
        diary.learner(lambda: flat)  # a Hessian seen once is used again while it holds
        rows = trees.size(flat.row_shapes)
        size = max(flat.n_x, flat.n_y, rows + flat.y_rows.matrix.shape[0])
        upper, dense = UpperSet(flat.x_rows), size <= _LARGEST
        x, y = upper.project(x0), flat.y_rows.well_inside(np.zeros(flat.n_y)) if y0 is None else y0
        direct = self.variant != "first-order" or multipliers is not None
        with blas_threads(size):
            if direct and not flat.y_rows.balls and _suits_sparse(flat, x, y, size):
                yield from self._sparse(flat, upper, x, y, rtol, multipliers, diary)
            elif direct and dense:
                yield from self._dense(flat, upper, x, y, rtol, multipliers, diary)
            elif self.variant == "direct":
                raise ProblemRefused(
                    f"variant: direct expects at most {_LARGEST} variables and rows, or more of sparse ones without a "
                    f"Ball in Y; got {flat.n_x} in x, {flat.n_y} in y, {rows} rows, {len(flat.y_rows.balls)} balls. "
                    "Leave the variant to auto."
                )
            else:
                yield from self._first_order(flat, dense, upper, x, y, rtol, diary)

    def _dense(
        self,
        flat: FlatProblem,
        upper: UpperSet,
        x: np.ndarray,
        y: np.ndarray,
        rtol: float,
        multipliers: np.ndarray | None,
        diary: Diary,
    ) -> Iterator[Snapshot]:
        model = diary.learner(lambda: LowerModel(flat, find_domain(flat, x, y)))
        active = None if multipliers is None else model.active_at(y, multipliers)
        start = yield from diary.phase("start", _arrive(model, upper, x, y, active))
        if start is None:
            yield Snapshot(x, y, "answer", np.inf, final=True)
            return
        basins = {"start": start}
        if multipliers is None:
            relaxed, landed = diary.once("high-point relaxation", lambda: _high_point(model, upper, start))
            if relaxed is not None and landed is not None and relaxed.bounds(landed.value):
                yield _snapshot(landed, "high-point relaxation")._replace(final=True, converged=True)
                return
            smooth = None
            if model.rows.inequality.any():
                path = diary.learner(lambda: CentralPath(model, _whole(model, start).lower))
                for step in follow(path, upper, self.stages, diary):
                    smooth = step.point
                    if step.is_step:
                        yield Snapshot(smooth.x, smooth.y, "smooth descent", smooth.value, exact=False)
            end = diary.once("smooth descent", lambda: _land(model, upper, smooth, start.lower.x))
            basins = {"smooth descent": end, "start": start, "high-point relaxation": landed}
        best, converged = start, False
        for name, basin in basins.items():
            if basin is not None:
                descent = _descend(model, upper, basin, rtol)
                point, finished = yield from diary.phase(f"exact descent from {name}", descent)
                if (finished, -point.value) > (converged, -best.value):
                    best, converged = point, finished
        yield _snapshot(best, "answer")._replace(final=True, converged=converged)

    def _sparse(
        self,
        flat: FlatProblem,
        upper: UpperSet,
        x: np.ndarray,
        y: np.ndarray,
        rtol: float,
        multipliers: np.ndarray | None,
        diary: Diary,
    ) -> Iterator[Snapshot]:
        """The same on sparse matrices: one basin, since its smoothing needs no exact start."""
        if diary.empty:
            yield Snapshot(x, y, "start", np.inf, exact=False)
        lower = diary.learner(lambda: InteriorLower(flat))
        smooth = x
        if multipliers is None:
            path = diary.learner(lambda: SparsePath(lower, x, y))
            descent, patience = (newton_descent, MOST_STEPS) if len(x) <= _FEW else (smooth_descent, np.inf)
            for step in follow(path, upper, self.stages - 1, diary, descent, patience):
                smooth = step.point.x
                if step.is_step:
                    yield Snapshot(smooth, step.point.y, "smooth descent", step.point.value, exact=False)
        landed = diary.once("landing", lambda: _land_jointly(lower, upper, smooth, y, multipliers))
        if not isinstance(landed, JointPoint):
            yield Snapshot(*landed, "answer", np.inf, final=True)
            return
        point = yield from diary.phase("exact descent", _descend_jointly(lower, upper, landed, rtol))
        yield Snapshot(point.x, point.y, "answer", point.value, final=True)

    def _first_order(
        self, flat: FlatProblem, dense: bool, upper: UpperSet, x: np.ndarray, y: np.ndarray, rtol: float, diary: Diary
    ) -> Iterator[Snapshot]:
        """Smooth by sweeps; where the size allows, try after each stage to finish exactly, and stop once that works."""
        if diary.empty:
            yield Snapshot(x, y, "start", np.inf, exact=False, sweeps=0)
        model = diary.learner(lambda: LowerModel(flat, find_domain(flat, x, y))) if dense else None
        oracle = diary.learner(lambda: PairOracle(flat, upper, x, y))
        best, converged, last, stages = None, False, None, 0
        for step in follow(oracle, upper, self.stages, diary):
            last, stages = step.point, stages + step.ended
            if step.is_step:
                yield Snapshot(last.x, last.y, "smooth descent", last.value, exact=False, sweeps=oracle.sweeps)
            if model is None or not step.ended:
                continue
            landed = diary.once(f"landing {stages}", functools.partial(_land, model, upper, last))
            if landed is None:
                continue
            descent = _descend(model, upper, landed, rtol, oracle)
            point, finished = yield from diary.phase(f"exact descent {stages}", descent)
            again = best is not None and abs(point.value - best.value) <= 1e-9 * (1 + abs(best.value))
            if best is None or (finished, -point.value) > (converged, -best.value):
                best, converged = point, finished
            if (converged or again) and best.value <= oracle.promise(last):
                break
        sweeps = diary.once("sweeps", lambda: oracle.sweeps)
        if best is not None:
            yield _snapshot(best, "answer", sweeps)._replace(final=True, converged=converged)
        elif last is None:
            yield Snapshot(x, y, "answer", np.inf, final=True, sweeps=sweeps)
        else:
            # Softened rows leave x slightly beyond where the lower level is feasible.
            x = self.settle(flat, last.x)
            answer = Snapshot(x, last.y, "answer", last.value, exact=False, final=True, sweeps=sweeps)
            yield answer._replace(converged=stages == self.stages)

    def settle(self, flat: FlatProblem, x: np.ndarray) -> np.ndarray:
        nearest = _nearest_feasible(flat, x)
        return x if nearest is None else UpperSet(flat.x_rows).project(nearest[0])


_LARGEST = 6000  # variables and rows of dense matrices
_SPARSE = 1500  # from here on sparse matrices, if they are sparse
_DUST = 1e-9  # entries of x up to this, in natural units, are zero
_INSET = 1e-8  # an interior point needs an interior
_FEW = 1000  # so few x that second derivatives pay


def _suits_sparse(flat: FlatProblem, x: np.ndarray, y: np.ndarray, size: int) -> bool:
    """Return whether the lower level is a case for sparse matrices: linear in some variables, or large and sparse."""
    if size > _LARGEST and not flat.has_diagonal_hessian("lower", x, y):
        return False  # a full Hessian of that size cannot even be looked at
    hessian = flat.hessian("lower", "y", "y", x, y)
    filled = hessian.nnz + flat.rows.A.nnz
    sparse = filled <= 20 * (flat.n_y + flat.rows.A.shape[0])
    return sparse and (size > _SPARSE or bool(np.any(hessian.diagonal() == 0.0)))


def _without_dust(flat: FlatProblem, x: np.ndarray) -> np.ndarray:
    """Return x with entries that are zero but for rounding set to zero, if X has them there.

    Where a problem looks the same at every scale, the size of such an entry would be taken for its natural one.
    """
    clean = np.where(np.abs(x) <= _DUST, 0.0, x)
    return clean if flat.x_rows.violation(clean) == 0.0 else x


def _snapshot(point: Evaluated, phase: str, sweeps: int | None = None) -> Snapshot:
    return Snapshot(point.lower.x, point.lower.y, phase, point.value, sweeps=sweeps)


# Exact points pass from phase to phase without their matrices, which are large and follow from the rest.
def _bare(point: Evaluated) -> Evaluated:
    return dataclasses.replace(point, lower=dataclasses.replace(point.lower, expansion=None))


def _whole(model: LowerModel, point: Evaluated) -> Evaluated:
    there = model.flat.lower_derivatives(point.lower.x, point.lower.y)
    expansion = model.expand(there, point.lower.y, point.lower.multiplier)
    return dataclasses.replace(point, lower=dataclasses.replace(point.lower, expansion=expansion))


def _arrive(
    model: LowerModel, upper: UpperSet, x: np.ndarray, y: np.ndarray, active: np.ndarray | None
) -> Generator[Snapshot, None, Evaluated | None]:
    start = _feasible_start(model, upper, x, y, active)
    if start is None:
        return None
    yield _snapshot(start, "start")
    return _bare(start)


def _high_point(model: LowerModel, upper: UpperSet, start: Evaluated) -> tuple[HighPoint | None, Evaluated | None]:
    """Return the minimiser of the high-point relaxation, and the exact point at its x."""
    relaxed = high_point_relaxation(model.flat, start.lower.x, start.lower.y)
    landed = None if relaxed is None else _feasible_start(model, upper, relaxed.x, relaxed.y)
    return relaxed, None if landed is None else _bare(landed)


def _land(
    model: LowerModel, upper: UpperSet, smooth: SmoothPoint | None, start: np.ndarray | None = None
) -> Evaluated | None:
    """Return the exact point where the smoothing has led, if it has left the start."""
    if smooth is None or (start is not None and np.array_equal(smooth.x, start)):
        return None
    landed = _feasible_start(model, upper, smooth.x, smooth.y)
    return None if landed is None else _bare(landed)


def _descend(
    model: LowerModel, upper: UpperSet, basin: Evaluated, rtol: float, oracle: PairOracle | None = None
) -> Generator[Snapshot, None, tuple[Evaluated, bool]]:
    point, finished = _whole(model, basin), False
    for step in exact_descent(model, upper, point, rtol):
        point, finished = step
        yield _snapshot(point, "exact descent", None if oracle is None else oracle.sweeps)
    return _bare(point), finished


def _land_jointly(
    lower: InteriorLower, upper: UpperSet, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray | None
) -> JointPoint | tuple[np.ndarray, np.ndarray]:
    """Return an exact point at x, or next to it; where there is none, the nearest feasible (x, y) there is."""
    point = None if multipliers is None else evaluate_from(lower, upper, x, y, lower.on_rows(multipliers))
    if point is not None:
        return point
    nearest = _nearest_feasible(lower.flat, x, _INSET * lower.slack_scale)
    if nearest is None:
        return x, y
    point = evaluate_jointly(lower, upper, upper.project(nearest[0]))
    return (upper.project(nearest[0]), nearest[1]) if point is None else point


def _descend_jointly(
    lower: InteriorLower, upper: UpperSet, point: JointPoint, rtol: float
) -> Generator[Snapshot, None, JointPoint]:
    yield Snapshot(point.x, point.y, "exact descent", point.value)
    for step in joint_descent(lower, upper, point, rtol):
        point = step
        yield Snapshot(point.x, point.y, "exact descent", point.value)
    return point


def _feasible_start(
    model: LowerModel, upper: UpperSet, x: np.ndarray, y: np.ndarray, active: np.ndarray | None = None
) -> Evaluated | None:
    """Return the exact point at x, or at the nearest x of X for which the lower level is feasible."""
    point = evaluate_exactly(model, x, y, active)
    if point is None:
        nearest = _nearest_feasible(model.flat, x)
        if nearest is not None:
            point = evaluate_exactly(model, upper.project(nearest[0]), nearest[1], None)
    return point


def _nearest_feasible(flat: FlatProblem, x: np.ndarray, inset: float = 0.0) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the nearest x in X for which some y in Y satisfies the rows: a projection in (x, y), rows being affine.

    With an ``inset``, y satisfies them with that much to spare, so that the lower level at x has an interior.
    """
    rows = joint_rows(flat)
    spare = np.where(rows.lower < rows.upper - 4 * inset, inset, 0.0)
    spare[len(flat.rows.lower) : len(flat.rows.lower) + len(flat.x_rows.lower)] = 0.0
    hessian = sp.diags(np.concatenate([np.ones(flat.n_x), np.full(flat.n_y, 1e-8)]))
    gradient = np.concatenate([-x, np.zeros(flat.n_y)])
    solved = solve_qp(hessian, gradient, rows.matrix, rows.lower + spare, rows.upper - spare, rows.balls)
    return None if solved is None else (solved[: flat.n_x], solved[flat.n_x :])
