"""`Default`: the method behind ``solve(problem, x0)``, in the order in which one would explain it.

1. *Start*: project x0 onto X; where the lower level is infeasible there, move to the nearest x where it is not.
2. *Smooth descent*: follow the minimiser of the smoothed objective while the smoothing shrinks, into a good basin.
3. *Exact descent*: from there, and from the start itself, descend on the exact pieces of Phi to a first-order point.
4. Return the better of the two. The certificate, which shares none of this code, is the driver's business.
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax._threads import blas_threads
from bilevax.derivatives import FlatProblem
from bilevax.solvers.default.lower import LowerModel
from bilevax.solvers.default.pieces import Evaluated, evaluate_exactly, exact_descent
from bilevax.solvers.default.quadratic_program import UpperSet, solve_qp
from bilevax.solvers.default.smoothing import Smoothing, SmoothPoint, evaluate, smooth_descent


class Snapshot(NamedTuple):
    """Where the search stands after a step; ``exact`` where the value is Phi(x), not a smoothed one."""

    x: np.ndarray
    y: np.ndarray
    phase: str
    value: float
    exact: bool = True
    final: bool = False
    converged: bool = False


@dataclasses.dataclass(frozen=True)
class Default:
    """The tuning-free default: smoothing to find a basin, exact pieces to finish in it.

    Direct: it factorises the lower level's Hessian and a matrix of the size of its rows. For convex lower levels with
    affine rows; f may be nonconvex.
    """

    default_max_steps: ClassVar[int] = 2000
    stages: ClassVar[int] = 6

    def search(
        self, flat: FlatProblem, x0: np.ndarray, y0: np.ndarray | None, rtol: float, settled: bool = False
    ) -> Iterator[Snapshot]:
        """Yield a snapshot after each step; the last one is the answer. A ``settled`` start skips the smoothing."""
        rows = flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0]
        if max(flat.n_x, flat.n_y, rows) > _LARGEST:
            raise ValueError(
                f"solver: the default factorises dense matrices and expects at most {_LARGEST} variables and rows; got "
                f"{flat.n_x} in x, {flat.n_y} in y and {rows} rows. Use a first-order solver such as SFLCB(...)."
            )
        if flat.y_rows.balls:
            raise ValueError("y_set: the default does not handle a Ball as Y yet; use SFLCB(...).")
        model, upper = LowerModel(flat), UpperSet(flat.x_rows)
        with blas_threads(max(flat.n_x, flat.n_y, model.rows.count)):
            yield from self._search(model, upper, x0, y0, rtol, settled)

    def _search(
        self, model: LowerModel, upper: UpperSet, x0: np.ndarray, y0: np.ndarray | None, rtol: float, settled: bool
    ) -> Iterator[Snapshot]:
        flat = model.flat
        x, y = upper.project(x0), _first_guess(flat) if y0 is None else y0
        start = _feasible_start(model, upper, x, y)
        if start is None:
            yield Snapshot(x, y, "start", np.inf, final=True)
            return
        yield _snapshot(start, "start")
        best, converged = start, False
        for basin in [start] if settled else self._basins(model, upper, start):
            if isinstance(basin, SmoothPoint):
                yield Snapshot(basin.x, basin.y, "smooth descent", basin.value, exact=False)
                continue
            point, finished = basin, False
            for step in exact_descent(model, upper, basin, rtol):
                point, finished = step
                yield _snapshot(point, "exact descent")
            if (finished, -point.value) > (converged, -best.value):
                best, converged = point, finished
        yield _snapshot(best, "answer")._replace(final=True, converged=converged)

    def _basins(self, model: LowerModel, upper: UpperSet, start: Evaluated) -> Iterator[SmoothPoint | Evaluated]:
        """Yield smooth points on the way, and exact points from which exact descent should go on."""
        end = None
        if model.rows.inequality.any():
            for end in self._shrink(model, upper, start):
                yield end
        if end is not None:
            landed = _feasible_start(model, upper, end.x, end.y)
            if landed is not None:
                yield landed
        yield start

    def _shrink(self, model: LowerModel, upper: UpperSet, start: Evaluated) -> Iterator[SmoothPoint]:
        """Follow the smoothed minimiser; the first smoothing is large against the rows' own values and forces."""
        lower, inequality = start.lower, model.rows.inequality
        pull = np.abs(model.gradient(lower.x, lower.y)).max(initial=0.0)
        force = max(lower.force[inequality].max(), 1e-3 * pull, 1e-6)
        room = np.median(np.abs(lower.value[inequality])) + 1e-3
        softness = 1e-3 * float(np.diag(lower.expansion.compliance)[inequality].mean())
        smoothing = Smoothing(10 * force * room, softness, kappa=0.0)
        point = evaluate(model, lower.x, smoothing, None, lower.y)
        if point is None:
            return
        smoothing = dataclasses.replace(smoothing, kappa=_price(point, inequality))
        stage = 0
        for _ in range(3 * self.stages):
            point = evaluate(model, point.x, smoothing, point, point.y)
            if point is None:
                return
            for step in smooth_descent(model, upper, point, smoothing):
                yield step
                point = step
            tighter = dataclasses.replace(smoothing, barrier=0.1 * smoothing.barrier, softness=0.1 * smoothing.softness)
            stiff = evaluate(model, point.x, tighter, None, point.y)
            if stiff is None:
                return
            if stiff.force.max() > 3 * point.force.max():
                # Forces that grow as the rows stiffen tell that x has left the feasible set: the price was too low.
                smoothing = dataclasses.replace(smoothing, kappa=max(5 * smoothing.kappa, _price(point, inequality)))
                continue
            stage += 1
            if stage == self.stages:
                return
            # Where x0 hardly touched its rows, the forces met on the way are the better scale.
            grown = float(np.clip(np.quantile(point.force[inequality], 0.9) / force, 1.0, 10.0))
            force *= grown
            smoothing = dataclasses.replace(tighter, barrier=grown * tighter.barrier)


_LARGEST = 6000


def _price(point: SmoothPoint, inequality: np.ndarray) -> float:
    """Return a price for leaving the feasible set: above the rows' typical marginal value."""
    return 2 * float(np.quantile(np.abs(point.sensitivity[inequality]), 0.75))


def _snapshot(point: Evaluated, phase: str) -> Snapshot:
    return Snapshot(point.lower.x, point.lower.y, phase, point.value)


def _feasible_start(model: LowerModel, upper: UpperSet, x: np.ndarray, y: np.ndarray) -> Evaluated | None:
    """Return the exact point at x, or at the nearest x of X for which the lower level is feasible."""
    point = evaluate_exactly(model, x, y, None)
    if point is None:
        nearest = _nearest_feasible(model.flat, x)
        if nearest is not None:
            point = evaluate_exactly(model, upper.project(nearest[0]), nearest[1], None)
    return point


def _nearest_feasible(flat: FlatProblem, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the nearest x in X for which some y in Y satisfies the rows: a projection in (x, y), rows being affine."""
    rows, y_rows, x_rows = flat.rows, flat.y_rows, flat.x_rows
    empty = sp.csr_matrix
    matrix = sp.vstack(
        [
            sp.hstack([rows.B, rows.A]),
            sp.hstack([empty((y_rows.matrix.shape[0], flat.n_x)), y_rows.matrix]),
            sp.hstack([x_rows.matrix, empty((x_rows.matrix.shape[0], flat.n_y))]),
        ]
    )
    lower = np.concatenate([rows.lower, y_rows.lower, x_rows.lower])
    upper = np.concatenate([rows.upper, y_rows.upper, x_rows.upper])
    hessian = sp.diags(np.concatenate([np.ones(flat.n_x), np.full(flat.n_y, 1e-8)]))
    balls = [*x_rows.balls, *(dataclasses.replace(ball, index=ball.index + flat.n_x) for ball in y_rows.balls)]
    solved = solve_qp(hessian, np.concatenate([-x, np.zeros(flat.n_y)]), matrix, lower, upper, balls)
    return None if solved is None else (solved[: flat.n_x], solved[flat.n_x :])


def _first_guess(flat: FlatProblem) -> np.ndarray:
    """Return a y well inside its bounds, where objectives with logarithms are defined."""
    low, high = flat.y_rows.intervals()
    inset = 0.1 * np.minimum(1.0, np.where(np.isfinite(high - low), high - low, 1.0))
    return np.clip(0.0, low + inset, high - inset)
