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
from collections.abc import Callable, Generator, Iterator
from typing import ClassVar, Literal, get_args

import numpy as np

from bilevax._support import trees
from bilevax._support.threads import blas_threads
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.solvers.base import HostSolver, ProblemRefused, Snapshot
from bilevax.solvers.default.central_lower import CentralLower
from bilevax.solvers.default.central_path import Barrier, CentralPath
from bilevax.solvers.default.dense_algebra import DenseAlgebra
from bilevax.solvers.default.dense_pieces import DensePieces, dense_pieces
from bilevax.solvers.default.exact_descent import exact_descent
from bilevax.solvers.default.exact_point import ExactPoint
from bilevax.solvers.default.feasible import nearest_feasible
from bilevax.solvers.default.first_order import PairOracle
from bilevax.solvers.default.newton import MOST_STEPS, newton_descent
from bilevax.solvers.default.relaxation import HighPoint, high_point_relaxation
from bilevax.solvers.default.rows import stack_rows
from bilevax.solvers.default.smoothing import Followed, follow, smooth_descent
from bilevax.solvers.default.sparse_algebra import SparseAlgebra
from bilevax.solvers.default.sparse_pieces import SparsePieces
from bilevax.solvers.default.upper_set import UpperSet
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
                yield from self._direct(_sparsely(flat, upper, x, y, diary), x, y, rtol, multipliers, diary)
            elif direct and dense:
                yield from self._direct(_densely(flat, upper, x, y, diary), x, y, rtol, multipliers, diary)
            elif self.variant == "direct":
                raise ProblemRefused(
                    f"variant: direct expects at most {_LARGEST} variables and rows, or more of sparse ones without a "
                    f"Ball in Y; got {flat.n_x} in x, {flat.n_y} in y, {rows} rows, {len(flat.y_rows.balls)} balls. "
                    "Leave the variant to auto."
                )
            else:
                yield from self._first_order(flat, dense, upper, x, y, rtol, diary)

    def _direct(
        self,
        tools: "_Tools",
        x: np.ndarray,
        y: np.ndarray,
        rtol: float,
        multipliers: np.ndarray | None,
        diary: Diary,
    ) -> Iterator[Snapshot]:
        """Smooth on the central path, finish on exact pieces: by dense or by sparse linear algebra."""
        pieces, start, landed, end = tools.pieces, None, None, None
        if pieces.lands_anywhere or multipliers is not None:
            start = yield from diary.phase("start", _arrive(pieces, x, y, multipliers))
            if start is None:
                yield _nearest(pieces, x, y)
                return
        elif diary.empty:  # large: one basin, and its smoothing needs no exact start
            yield Snapshot(x, y, "start", np.inf, exact=False)
        if multipliers is None:
            if start is not None:
                relaxed, landed = diary.once("high-point relaxation", functools.partial(_high_point, pieces, start))
                if relaxed is not None and landed is not None and relaxed.bounds(landed.value):
                    yield _snapshot(landed, "high-point relaxation")._replace(final=True, converged=True)
                    return
            smooth = None
            if pieces.rows.inequality.any():
                path = diary.learner(functools.partial(tools.path, start))
                for step in tools.follow(path):
                    smooth = step.point
                    if step.is_step:
                        yield Snapshot(smooth.x, smooth.y, "smooth descent", smooth.value, exact=False)
            reached = (x, y) if smooth is None else (smooth.x, smooth.y)
            if start is None or not np.array_equal(reached[0], start.x):
                end = diary.once("landing", functools.partial(land, pieces, *reached))
        best, converged = start, False
        for name, basin in {"smooth descent": end, "start": start, "high-point relaxation": landed}.items():
            if basin is not None:
                descent = _descend(pieces, basin, rtol)
                point, finished = yield from diary.phase(f"exact descent from {name}", descent)
                if best is None or (finished, -point.value) > (converged, -best.value):
                    best, converged = point, finished
        if best is None:
            yield _nearest(pieces, x, y)
        else:
            yield _snapshot(best, "answer")._replace(final=True, converged=converged)

    def _first_order(
        self, flat: FlatProblem, dense: bool, upper: UpperSet, x: np.ndarray, y: np.ndarray, rtol: float, diary: Diary
    ) -> Iterator[Snapshot]:
        """Smooth by sweeps; where the size allows, try after each stage to finish exactly, and stop once that works."""
        if diary.empty:
            yield Snapshot(x, y, "start", np.inf, exact=False, sweeps=0)
        pieces = _dense_pieces(flat, upper, x, y, diary) if dense else None
        oracle = diary.learner(lambda: PairOracle(flat, upper, x, y))
        best, converged, last, stages = None, False, None, 0
        for step in follow(oracle, upper, self.stages, diary):
            last, stages = step.point, stages + step.ended
            if step.is_step:
                yield Snapshot(last.x, last.y, "smooth descent", last.value, exact=False, sweeps=oracle.sweeps)
            if pieces is None or not step.ended:
                continue
            landed = diary.once(f"landing {stages}", functools.partial(land, pieces, last.x, last.y))
            if landed is None:
                continue
            descent = _descend(pieces, landed, rtol, oracle)
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
        nearest = nearest_feasible(flat, x)
        return x if nearest is None else UpperSet(flat.x_rows).project(nearest[0])


_LARGEST = 6000  # variables and rows of dense matrices
_SPARSE = 1500  # from here on sparse matrices, if they are sparse
_DUST = 1e-9  # entries of x up to this, in natural units, are zero
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


def _snapshot(point: ExactPoint, phase: str, sweeps: int | None = None) -> Snapshot:
    return Snapshot(point.x, point.y, phase, point.value, sweeps=sweeps)


@dataclasses.dataclass(frozen=True)
class _Tools:
    """What a direct search works with, by one kind of linear algebra.

    ``path`` returns the smoothed objective from the start, which may be known exactly; ``follow`` descends along it.
    """

    pieces: DensePieces | SparsePieces
    path: Callable[[ExactPoint | None], CentralPath]
    follow: Callable[[CentralPath], Iterator[Followed]]


def _dense_pieces(flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray, diary: Diary) -> DensePieces:
    pieces = dense_pieces(flat, upper, x, y)
    diary.learner(lambda: pieces.algebra)
    return pieces


def _densely(flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray, diary: Diary) -> _Tools:
    pieces = _dense_pieces(flat, upper, x, y, diary)
    algebra = pieces.algebra
    if pieces.lower.domain.bounded:  # on the central path the borders of the domain are bounds like others
        rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=False)
        algebra = diary.learner(lambda: DenseAlgebra(flat, rows, pieces.algebra.ordinary))
    lower = diary.learner(lambda: CentralLower(flat, algebra.rows, algebra))

    def path(start: ExactPoint | None) -> CentralPath:
        assert start is not None
        # The first smoothing is large against the constraints' own slacks and multipliers.
        inequality, there = pieces.rows.inequality, flat.lower_derivatives(start.x, start.y)
        pull = np.abs(pieces.algebra.gradient(there, start.y)).max(initial=0.0)
        multiplier = max(start.multiplier[inequality].max(), 1e-3 * pull, 1e-6)
        slack = np.median(np.abs(start.slack[inequality])) + 1e-3
        compliance = pieces.algebra.expand(there, start.y, start.multiplier).compliance
        softness = 1e-3 * float(np.diag(compliance)[inequality].mean())
        return CentralPath(lower, lower.start(start.x, start.y), Barrier(10 * multiplier * slack, softness, kappa=0.0))

    return _Tools(pieces, path, lambda path: follow(path, upper, Default.stages, diary))


def _sparsely(flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray, diary: Diary) -> _Tools:
    rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=True)
    lower = diary.learner(lambda: CentralLower(flat, rows, SparseAlgebra(flat, rows)))

    def path(start: ExactPoint | None) -> CentralPath:
        central = lower.start(x, y)
        multiplier, slack = lower.multiplier_scale, lower.slack_scale
        return CentralPath(lower, central, Barrier(1e-3 * multiplier * slack, 1e-5 * slack / multiplier, kappa=0.0))

    descent, patience = (newton_descent, MOST_STEPS) if flat.n_x <= _FEW else (smooth_descent, np.inf)
    return _Tools(
        SparsePieces(flat, upper, lower),
        path,
        lambda path: follow(path, upper, Default.stages - 1, diary, descent, patience),
    )


def _arrive(
    pieces: DensePieces | SparsePieces, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray | None
) -> Generator[Snapshot, None, ExactPoint | None]:
    """Return the exact start; an earlier answer, known by its multipliers, tells which constraints are active."""
    start = None if multipliers is None else pieces.resume(x, y, multipliers)
    start = land(pieces, x, y) if start is None else start
    if start is not None:
        yield _snapshot(start, "start")
    return start


def land(pieces: DensePieces | SparsePieces, x: np.ndarray, y: np.ndarray) -> ExactPoint | None:
    """Return the exact point at x, or at the nearest x of X for which the lower level is feasible."""
    point = pieces.evaluate(x, y) if pieces.inset == 0.0 else None
    if point is None:
        nearest = nearest_feasible(pieces.flat, x, pieces.inset)
        if nearest is not None:
            point = pieces.evaluate(pieces.upper.project(nearest[0]), nearest[1])
    return point


def _nearest(pieces: DensePieces | SparsePieces, x: np.ndarray, y: np.ndarray) -> Snapshot:
    """Return the answer where no exact point was found: the nearest (x, y) that satisfies the rows, if there is one."""
    nearest = nearest_feasible(pieces.flat, x, pieces.inset)
    x, y = (x, y) if nearest is None else (pieces.upper.project(nearest[0]), nearest[1])
    return Snapshot(x, y, "answer", np.inf, final=True)


def _high_point(pieces: DensePieces | SparsePieces, start: ExactPoint) -> tuple[HighPoint | None, ExactPoint | None]:
    """Return the minimiser of the high-point relaxation, and the exact point at its x."""
    relaxed = high_point_relaxation(pieces.flat, start.x, start.y)
    return relaxed, None if relaxed is None else land(pieces, relaxed.x, relaxed.y)


def _descend(
    pieces: DensePieces | SparsePieces, basin: ExactPoint, rtol: float, oracle: PairOracle | None = None
) -> Generator[Snapshot, None, tuple[ExactPoint, bool]]:
    point, finished = basin, False
    for step in exact_descent(pieces, point, rtol):
        point, finished = step
        yield _snapshot(point, "exact descent", None if oracle is None else oracle.sweeps)
    return point, finished
