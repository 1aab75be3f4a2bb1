"""`Default`: the method behind ``solve(problem, x0)``, in the order in which one would explain it.

1. *Start*: project x0 onto X; where the lower level is infeasible there, move to the nearest x where it is not.
2. *Hypergradient descent*: with many x, descend on Phi by its exact gradient; where no kink is met, that is all.
3. *High-point relaxation*: minimise f over x and y together, the lower level's rows kept, its optimality dropped. If y
   is optimal for the lower level there, x is a global minimiser (f convex).
4. *Smooth descent*: follow the minimiser of the smoothed objective while the smoothing shrinks, into a good basin.
5. *Exact descent*: from there, from the high-point relaxation and from the start, descend on the exact pieces of Phi.
6. Return the best. Where there are upper rows, all of this is one round of an augmented Lagrangian (`upper_rows`);
   where rows are not affine, one step from tangent problem to tangent problem (`tangents`). The certificate, which
   shares none of this code, is the driver's business.

The linear algebra is dense or sparse (`direct`), or there is none at all (`sweeping`).
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Literal, get_args

import numpy as np

from bilevax._support import trees
from bilevax._support.threads import blas_threads
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.solvers.base import HostSolver, ProblemRefused, Snapshot
from bilevax.solvers.default.direct import densely, sparsely, suits_sparse
from bilevax.solvers.default.hypergradient.choice import phi_of
from bilevax.solvers.default.hypergradient.descent import hypergradient_descent
from bilevax.solvers.default.programs.feasible import settled
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import HYPERGRADIENT, SIZES
from bilevax.solvers.default.sweeping import search_by_sweeps
from bilevax.solvers.default.tangents import TangentSearch
from bilevax.solvers.default.upper_rows import UpperRowsSearch
from bilevax.solvers.diary import Diary

Variant = Literal["auto", "direct", "first-order"]


@dataclasses.dataclass(frozen=True)
class Default(HostSolver):
    """The tuning-free default: smoothing to find a basin, exact pieces to finish in it.

    For convex lower levels; f may be nonconvex. Upper rows and rows that are not affine are for the direct variant.

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
    keeps_diary: ClassVar[bool] = True
    only_affine: ClassVar[bool] = False

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
        diary = Diary() if diary is None else diary
        if flat.problem.upper_rows:
            inner = lambda flat, x, y, known, rtol: self.search(flat, x, y, rtol, known)
            yield from UpperRowsSearch(flat, inner, x0, y0, rtol).search(x0, y0, diary)
            return
        if flat.problem.curved:
            inner = lambda flat, x, y, known: self.search(flat, x, y, rtol, known)
            yield from TangentSearch(flat, inner, rtol).search(x0, y0, diary)
            return
        if self.variant != "first-order":
            with blas_threads(flat.n_y):
                flat = equilibrated(flat, flat.x_tree(x0), None if y0 is None else flat.y_tree(y0))
        scales = flat.scales
        in_units = None if multipliers is None else multipliers / scales.rows * scales.lower
        start = x0 / scales.x, None if y0 is None else y0 / scales.y
        for found in self._search(flat, *start, rtol, in_units, diary):
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
        constraints = rows + flat.y_rows.matrix.shape[0]
        size = max(flat.n_x, flat.n_y, constraints)
        # With few y, many rows and many x are no reason against arrays: see `dense_algebra`.
        few = flat.n_y <= SIZES.few_variables and flat.n_y * constraints <= SIZES.largest_dense**2
        upper, dense = UpperSet(flat.x_rows), size <= SIZES.largest_dense or few
        x, y = upper.project(x0), flat.y_rows.well_inside(np.zeros(flat.n_y)) if y0 is None else y0
        direct = self.variant != "first-order" or multipliers is not None
        with blas_threads(flat.n_y if few else size):
            phi, unhindered = phi_of(flat, x, y) if direct else None, False
            if phi is not None:
                descent = hypergradient_descent(phi, upper, x, y, rtol)
                reached = yield from diary.phase("hypergradient descent", descent)
                if reached is not None and reached.final:
                    answer = Snapshot(reached.x, reached.y, "answer", reached.value, final=True)
                    yield answer._replace(converged=reached.converged)
                    return
                if reached is not None and flat.n_x >= HYPERGRADIENT.fewest:
                    # With few x the others do better from the start: they see farther.
                    x, y, unhindered = reached.x, reached.y, reached.unhindered
            if direct and not flat.y_rows.balls and suits_sparse(flat, x, y, size):
                yield from sparsely(flat, upper, x, y, diary).search(x, y, rtol, multipliers, diary)
            elif direct and dense:
                yield from densely(flat, upper, x, y, diary).search(x, y, rtol, multipliers, diary, unhindered)
            elif self.variant == "direct":
                raise ProblemRefused(
                    f"variant: direct expects at most {SIZES.largest_dense} variables and rows, or more of sparse ones "
                    f"without a Ball in Y; got {flat.n_x} in x, {flat.n_y} in y, {rows} rows, "
                    f"{len(flat.y_rows.balls)} balls. Leave the variant to auto."
                )
            else:
                yield from search_by_sweeps(flat, size <= SIZES.largest_dense, upper, x, y, rtol, diary)

    def settle(self, flat: FlatProblem, x: np.ndarray) -> np.ndarray:
        return settled(flat, UpperSet(flat.x_rows), x)


_DUST = 1e-9  # entries of x up to this, in natural units, are zero


def _without_dust(flat: FlatProblem, x: np.ndarray) -> np.ndarray:
    """Return x with entries that are zero but for rounding set to zero, if X has them there.

    Where a problem looks the same at every scale, the size of such an entry would be taken for its natural one.
    """
    clean = np.where(np.abs(x) <= _DUST, 0.0, x)
    return clean if flat.x_rows.violation(clean) == 0.0 else x
