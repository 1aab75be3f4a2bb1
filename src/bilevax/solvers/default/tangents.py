"""Rows that are not affine: a sequence of tangent problems, each solved by the method itself in a trust region.

The tangent problem at a point (`bilevax.model.tangent`) agrees with the problem to first order, kinks included. A step
goes to its minimiser within a box around x; there the lower level is solved with the rows themselves, by Newton's
method on tangent problems at that x, and its f decides whether the step is taken and how large the next box is. Second
derivatives differ, so that steps get smaller by the same share each time: what they lead to is extrapolated, and taken
where f is smaller there.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.model.compressed_rows import on_top
from bilevax.model.derived import DerivedProblem, derived
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.problem import BilevelProblem
from bilevax.model.set_rows import SetRows
from bilevax.model.sets import ConvexSet
from bilevax.model.tangent import tangent_problem
from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.direct import densely, sparsely, suits_sparse
from bilevax.solvers.default.extrapolation import Extrapolation
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import TANGENTS
from bilevax.solvers.diary import Diary

Search = Callable[[FlatProblem, np.ndarray, np.ndarray | None, np.ndarray | None], Iterator[Snapshot]]


class Region(ConvexSet):
    """The part of a set within a box, by its rows: what a search needs of it."""

    whole: ConvexSet
    lower: np.ndarray
    upper: np.ndarray

    def rows(self, like: PyTree) -> SetRows:
        rows = self.whole.rows(like)
        box = sp.eye(len(self.lower), format="csr")
        sides = np.concatenate([rows.lower, self.lower]), np.concatenate([rows.upper, self.upper])
        return rows._replace(matrix=on_top([rows.matrix, box]), lower=sides[0], upper=sides[1])

    def project(self, value: PyTree) -> PyTree:
        raise NotImplementedError("a region is projected onto by its rows")

    def check(self, like: PyTree, name: str) -> None:
        self.whole.check(like, name)


@dataclasses.dataclass(frozen=True)
class Answered:
    """x with the lower level's exact answer: y, the multipliers of the rows, and f; all in the user's units."""

    x: np.ndarray
    y: np.ndarray
    multipliers: np.ndarray
    value: float


class Follower:
    """The lower level of a problem with rows that are not affine."""

    def __init__(self, flat: FlatProblem):
        self.flat = flat
        self._ends = np.cumsum([trees.size(shape) for shape in flat.row_shapes])[:-1]

    def tangent(self, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray) -> BilevelProblem:
        """Return the tangent problem at a point, given the multipliers of all rows."""
        split = tuple(np.split(multipliers, self._ends))
        return tangent_problem(self.flat.problem, self.flat.x_tree(x), self.flat.y_tree(y), split)

    def answer(self, x: np.ndarray, y: np.ndarray, multipliers: np.ndarray) -> Answered | None:
        """Return the answer at x, from a guess; None where there is none, or it is not found."""
        flat, last, scales = self.flat, np.inf, None
        for _ in range(TANGENTS.newton_steps):
            user = FlatProblem(self.tangent(x, y, multipliers), flat.x_like, flat.y_like)
            scales = equilibrated(user, user.x_tree(x), user.y_tree(y)).scales if scales is None else scales
            solved = _lower_level(user.in_units(scales), x, y)
            if solved is None:
                return None
            end, multipliers = solved
            moved = np.abs(end - y).max(initial=0.0) / (1 + np.abs(end).max(initial=0.0))
            y = end
            if moved <= TANGENTS.still or (moved <= TANGENTS.nearly and moved > 0.5 * last):
                break
            last = moved
        else:
            return None
        value = flat.value("upper", x, y)
        return Answered(x, y, multipliers, value) if np.isfinite(value) else None


def _lower_level(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lower level's answer at x and the multipliers of its coupled rows, all in the user's units."""
    scales, count = flat.scales, flat.rows.A.shape[0]
    there = x / scales.x, y / scales.y
    size = max(flat.n_x, flat.n_y, count + flat.y_rows.matrix.shape[0])
    by = sparsely if not flat.y_rows.balls and suits_sparse(flat, *there, size) else densely
    pieces = by(flat, UpperSet(flat.x_rows), *there, Diary()).pieces
    point = pieces.evaluate(*there)
    if point is None or np.abs(point.x - there[0]).max(initial=0.0) > TANGENTS.same * (1 + np.abs(point.x).max()):
        return None
    coupled = pieces.rows.coupled(point.multiplier, count)
    return point.y * scales.y, coupled * scales.rows / scales.lower


class TangentSearch:
    """The sequence for one problem, given the search for problems whose rows are all affine."""

    def __init__(self, flat: FlatProblem, search: Search, rtol: float):
        self._flat, self._search, self._rtol, self._follower = flat, search, rtol, Follower(flat)

    def search(self, x: np.ndarray, y: np.ndarray | None, diary: Diary) -> Iterator[Snapshot]:
        """Yield a snapshot after each step; the last one is the answer."""
        flat, upper = self._flat, UpperSet(self._flat.x_rows)
        x, ahead = upper.project(x), Extrapolation(TANGENTS.memory)
        y = flat.y_rows.well_inside(np.zeros(flat.n_y)) if y is None else y
        now = diary.once("start", lambda: self._start(x, y))
        if now is None:
            yield Snapshot(x, y, "answer", np.inf, final=True)
            return
        yield Snapshot(now.x, now.y, "start", now.value)
        radius, converged = TANGENTS.first_radius, False
        for number in range(TANGENTS.steps):
            trial, promised, unit = diary.once(f"step {number}", functools.partial(self._step, now, radius))
            if promised <= TANGENTS.worth * self._rtol**2 * (unit + abs(now.value)):
                converged = trial is not None
                break
            if trial is None or not now.value - trial.value >= TANGENTS.poor * promised:
                radius *= TANGENTS.shrink
                ahead.forget()
                if radius <= TANGENTS.least_radius:
                    break
                continue
            if now.value - trial.value >= TANGENTS.good * promised:
                radius *= TANGENTS.grow
            farther = ahead.after(now.x, trial.x - now.x)
            if farther is not None:
                beyond = functools.partial(self._beyond, trial, upper.project(farther))
                trial = diary.once(f"extrapolation {number}", beyond)
            now = trial
            yield Snapshot(now.x, now.y, "tangents", now.value)
        yield Snapshot(now.x, now.y, "answer", now.value, final=True, converged=converged)

    def _start(self, x: np.ndarray, y: np.ndarray) -> Answered | None:
        """Return the lower level's answer at x; where it has none, that at the x to which its tangent problem leads."""
        first = np.full(trees.size(self._flat.row_shapes), TANGENTS.first_multiplier)
        found = self._follower.answer(x, y, first)
        for _ in range(TANGENTS.approaches):
            if found is not None:
                break
            problem = self._follower.tangent(x, y, first)
            last = self._minimised(problem, x, y)
            if last is None:
                break
            x, y = last.x, last.y
            found = self._follower.answer(x, y, first)
        return found

    def _step(self, now: Answered, radius: float) -> tuple[Answered | None, float, float]:
        """Return the answer at the minimiser of the tangent problem in the trust region, its promise, and f's unit."""
        flat, problem = self._flat, self._follower.tangent(now.x, now.y, now.multipliers)
        user = FlatProblem(problem, flat.x_like, flat.y_like)
        natural = equilibrated(user, flat.x_tree(now.x), flat.y_tree(now.y)).scales
        reach, unit = radius * natural.x, 1 / natural.upper
        family = problem.family if isinstance(problem, DerivedProblem) else None
        near = derived(problem, family, x_set=Region(problem.x_set, now.x - reach, now.x + reach))
        last = self._minimised(near, now.x, now.y)
        if last is None:
            return None, np.inf, unit
        promised = now.value - flat.value("upper", last.x, last.y)
        if np.abs((last.x - now.x) / reach).max(initial=0.0) * radius <= TANGENTS.same:
            return now, 0.0, unit
        return self._follower.answer(last.x, last.y, now.multipliers), promised, unit

    def _beyond(self, trial: Answered, x: np.ndarray) -> Answered:
        """Return the answer at an x to which steps seem to lead, or the trial point where that is better."""
        found = self._follower.answer(x, trial.y, trial.multipliers)
        return found if found is not None and found.value < trial.value else trial

    def _minimised(self, problem: BilevelProblem, x: np.ndarray, y: np.ndarray) -> Snapshot | None:
        """Return where the search on a tangent problem ends."""
        steps = self._search(FlatProblem(problem, self._flat.x_like, self._flat.y_like), x, y, None)
        return functools.reduce(lambda _, step: step, steps, None)
