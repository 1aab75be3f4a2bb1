"""The direct search: smoothing on the central path, exact pieces to finish, by dense or by sparse linear algebra."""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator

import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.lower.central import CentralLower
from bilevax.solvers.default.lower.dense_algebra import DenseAlgebra
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.lower.sparse_algebra import SparseAlgebra
from bilevax.solvers.default.phases import AnyPieces, descend, land, snapshot
from bilevax.solvers.default.pieces.dense import DensePieces, dense_pieces
from bilevax.solvers.default.pieces.point import BIACTIVE, ExactPoint, classify
from bilevax.solvers.default.pieces.sparse import SparsePieces
from bilevax.solvers.default.programs.feasible import nearest_feasible
from bilevax.solvers.default.programs.high_point import HighPoint, high_point_relaxation
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import EXACT, SIZES, SMOOTHING
from bilevax.solvers.default.smoothing.central_path import Barrier, CentralPath
from bilevax.solvers.default.smoothing.newton import newton_descent
from bilevax.solvers.default.smoothing.row_path import RowPath
from bilevax.solvers.default.smoothing.stages import Followed, follow, remembering_descent, smooth_descent
from bilevax.solvers.diary import Diary


@dataclasses.dataclass(frozen=True)
class Direct:
    """A direct search by one kind of linear algebra.

    ``path`` returns the smoothed objective from the start, which may be known exactly; ``follow`` descends along it.
    """

    pieces: AnyPieces
    path: Callable[[ExactPoint | None], CentralPath]
    follow: Callable[[CentralPath], Iterator[Followed]]

    def search(
        self,
        x: np.ndarray,
        y: np.ndarray,
        rtol: float,
        multipliers: np.ndarray | None,
        diary: Diary,
        unhindered: bool = False,
    ) -> Iterator[Snapshot]:
        """Yield a snapshot after each step; the last one is the answer.

        A descent that no kink has hindered so far goes on with second derivatives, and is left for the other phases
        only if it meets one.
        """
        pieces, start = self.pieces, None
        if pieces.lands_anywhere or multipliers is not None:
            start = yield from diary.phase("start", _arrive(pieces, x, y, multipliers))
            if start is None:
                yield _nearest(pieces, x, y)
                return
        elif diary.empty:  # large: one basin, and its smoothing needs no exact start
            yield Snapshot(x, y, "start", np.inf, exact=False)
        if start is not None and unhindered and pieces.descends:
            name = "exact descent from start"
            point, finished = yield from diary.phase(name, descend(pieces, start, rtol))
            sides = classify(point, pieces.units(point), pieces.rows.inequality, EXACT.biactive)
            if finished and not np.any(sides == BIACTIVE):
                yield snapshot(point, "answer")._replace(final=True, converged=True)
                return
        basins = {"start": start}
        if multipliers is None:
            landed = None
            if start is not None:
                relaxed, landed = diary.once("high-point relaxation", functools.partial(_high_point, pieces, start))
                if relaxed is not None and landed is not None and relaxed.bounds(landed.value):
                    yield snapshot(landed, "high-point relaxation")._replace(final=True, converged=True)
                    return
            end = yield from self._smooth(x, y, start, diary)
            basins = {"smooth descent": end, "start": start, "high-point relaxation": landed}
        best, converged = start, False
        for name, basin in basins.items():
            if basin is not None:
                point, finished = basin, False
                if pieces.descends:
                    below = best.value if best is not None and converged and pieces.large else np.inf
                    descent = descend(pieces, basin, rtol, below=below)
                    point, finished = yield from diary.phase(f"exact descent from {name}", descent)
                if best is None or (finished, -point.value) > (converged, -best.value):
                    best, converged = point, finished
        if best is not None and pieces.lifted:
            exactly = yield from diary.phase("exact descent without the lift", _without_lift(pieces, best, rtol))
            # The lift shifts answers by little: one that is far away is another answer, of a descent gone astray.
            if exactly is not None and exactly[1] and np.abs(exactly[0].x - best.x).max() <= EXACT.shifted:
                best, converged = exactly
        if best is None:
            yield _nearest(pieces, x, y)
        else:
            yield snapshot(best, "answer")._replace(final=True, converged=converged)

    def _smooth(
        self, x: np.ndarray, y: np.ndarray, start: ExactPoint | None, diary: Diary
    ) -> Generator[Snapshot, None, ExactPoint | None]:
        """Follow the smoothed minimiser; return the exact point it leads to, None where it stays at an exact start."""
        reached = (x, y) if start is None else (start.x, start.y)
        if self.pieces.rows.inequality.any():
            for step in self.follow(diary.learner(functools.partial(self.path, start))):
                reached = step.point.x, step.point.y
                if step.event == "step":
                    yield Snapshot(*reached, "smooth descent", step.point.value, exact=False)
        if start is not None and np.array_equal(reached[0], start.x):
            return None
        return diary.once("landing", functools.partial(land, self.pieces, *reached))


def densely(flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray, diary: Diary) -> Direct:
    """Return the search by dense linear algebra."""
    pieces = dense_pieces(flat, upper, x, y)
    algebra = diary.learner(lambda: pieces.algebra)
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
        compliance = pieces.algebra.expand(there, start.y, start.multiplier).compliance.diagonal()[inequality].mean()
        first = Barrier(SMOOTHING.barrier * multiplier * slack, SMOOTHING.softness * float(compliance), kappa=0.0)
        central, space = lower.start(start.x, start.y), algebra.space()
        return CentralPath(lower, central, first) if space is None else RowPath(lower, central, first, space, start)

    def stages(path: CentralPath) -> Iterator[Followed]:
        if isinstance(path, RowPath):
            return follow(path, upper, SMOOTHING.quadratic_stages, diary, remembering_descent)
        return follow(path, upper, SMOOTHING.stages, diary, smooth_descent)

    return Direct(pieces, path, stages)


def sparsely(flat: FlatProblem, upper: UpperSet, x: np.ndarray, y: np.ndarray, diary: Diary) -> Direct:
    """Return the search by sparse linear algebra."""
    rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=True)
    lower = diary.learner(lambda: CentralLower(flat, rows, SparseAlgebra(flat, rows)))

    def path(start: ExactPoint | None) -> CentralPath:
        central = lower.start(x, y)
        multiplier, slack = lower.multiplier_scale, lower.slack_scale
        barrier, softness = (
            SMOOTHING.sparse_barrier * multiplier * slack,
            SMOOTHING.sparse_softness * slack / multiplier,
        )
        return CentralPath(lower, central, Barrier(barrier, softness, kappa=0.0))

    few = flat.n_x <= SIZES.newton
    descent, patience = (newton_descent, SMOOTHING.newton_patience) if few else (smooth_descent, np.inf)
    stages = lambda path: follow(path, upper, SMOOTHING.sparse_stages, diary, descent, patience)
    return Direct(SparsePieces(flat, upper, lower), path, stages)


def _arrive(
    pieces: AnyPieces, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray | None
) -> Generator[Snapshot, None, ExactPoint | None]:
    """Return the exact start; an earlier answer, known by its multipliers, tells which constraints are active."""
    start = None if multipliers is None else pieces.resume(x, y, multipliers)
    start = land(pieces, x, y) if start is None else start
    if start is not None:
        yield snapshot(start, "start")
    return start


def _without_lift(
    pieces: AnyPieces, point: ExactPoint, rtol: float
) -> Generator[Snapshot, None, tuple[ExactPoint, bool] | None]:
    """Descend from the answer for a lifted g on the pieces of g itself; return where that led, as `descend` does.

    The lift shifts answers by 1e-6. Sparse pieces do without, but would not find the way from far.
    """
    exact = _sparse_pieces(pieces.flat, pieces.upper)
    start = exact.near(point.x, point.y, point.multiplier[: exact.rows.general])
    return None if start is None else (yield from descend(exact, start, rtol))


def _sparse_pieces(flat: FlatProblem, upper: UpperSet) -> SparsePieces:
    rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=True)
    return SparsePieces(flat, upper, CentralLower(flat, rows, SparseAlgebra(flat, rows)))


def _nearest(pieces: AnyPieces, x: np.ndarray, y: np.ndarray) -> Snapshot:
    """Return the answer where no exact point was found: the nearest (x, y) that satisfies the rows, if there is one."""
    nearest = nearest_feasible(pieces.flat, x, pieces.inset)
    x, y = (x, y) if nearest is None else (pieces.upper.project(nearest[0]), nearest[1])
    return Snapshot(x, y, "answer", np.inf, final=True)


def _high_point(pieces: AnyPieces, start: ExactPoint) -> tuple[HighPoint | None, ExactPoint | None]:
    """Return the minimiser of the high-point relaxation, and the exact point at its x."""
    if isinstance(pieces, DensePieces):
        pieces.forget()
    relaxed = high_point_relaxation(pieces.flat, start.x, start.y)
    return relaxed, None if relaxed is None else land(pieces, relaxed.x, relaxed.y)


def suits_sparse(flat: FlatProblem, x: np.ndarray, y: np.ndarray, size: int) -> bool:
    """Return whether the lower level is a case for sparse matrices: linear in some variables, or large and sparse."""
    if size > SIZES.largest_dense and not flat.has_diagonal_hessian("lower", x, y):
        return False  # a full Hessian of that size cannot even be looked at
    hessian = flat.hessian("lower", "y", "y", x, y)
    filled = hessian.nnz + flat.rows.A.nnz
    sparse = filled <= SIZES.entries * (flat.n_y + flat.rows.A.shape[0])
    few = flat.rows.A.nnz > SIZES.full * flat.n_y * flat.rows.A.shape[0]  # so few variables that rows are full
    return sparse and ((size > SIZES.smallest_sparse and not few) or bool(np.any(hessian.diagonal() == 0.0)))
