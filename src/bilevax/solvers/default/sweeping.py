"""The search without factorisations: smoothing by the sweeps of `first_order`, exact pieces where the size allows."""

from collections.abc import Iterator

import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.finish import NOTHING_FOUND, Finish
from bilevax.solvers.default.first_order.oracle import PairOracle
from bilevax.solvers.default.phases import snapshot
from bilevax.solvers.default.pieces.dense import dense_pieces
from bilevax.solvers.default.programs.feasible import settled
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import SMOOTHING
from bilevax.solvers.default.smoothing.stages import follow, smooth_descent
from bilevax.solvers.diary import Diary


def search_by_sweeps(
    flat: FlatProblem, dense: bool, upper: UpperSet, x: np.ndarray, y: np.ndarray, rtol: float, diary: Diary
) -> Iterator[Snapshot]:
    """Yield a snapshot after each step; the last one is the answer.

    If ``dense`` matrices are possible, it tries from each point to finish exactly, and stops once that works.
    """
    if diary.empty:
        yield Snapshot(x, y, "start", np.inf, exact=False, sweeps=0)
    finish = None
    if dense:
        pieces = dense_pieces(flat, upper, x, y)
        diary.learner(lambda: pieces.algebra)
        finish = diary.learner(lambda: Finish(pieces, rtol))
    oracle = diary.learner(lambda: PairOracle(flat, upper, x, y))
    descent = smooth_descent if finish is None else finish.descent
    last, answer, ends, done = None, NOTHING_FOUND, 0, 0
    for step in follow(oracle, upper, SMOOTHING.stages, diary, descent):
        if step.event == "done":
            done += 1
            continue
        last = step.point
        if step.event == "step":
            yield Snapshot(last.x, last.y, "smooth descent", last.value, exact=False, sweeps=oracle.sweeps)
        if finish is not None and step.event != "reached":
            yield from finish.attempt(last, oracle.sweeps)
        elif finish is not None:
            ends += 1
            answer = yield from diary.phase(f"answer {ends}", finish.sum_up(last, oracle))
            if answer.enough:
                break
    sweeps = diary.once("sweeps", lambda: oracle.sweeps)
    if answer.point is not None:
        yield snapshot(answer.point, "answer", sweeps)._replace(final=True, converged=answer.converged)
    elif last is None:
        yield Snapshot(x, y, "answer", np.inf, final=True, sweeps=sweeps)
    else:
        # Softened rows leave x slightly beyond where the lower level is feasible.
        x = settled(flat, upper, last.x)
        smooth = Snapshot(x, last.y, "answer", last.value, exact=False, final=True, sweeps=sweeps)
        yield smooth._replace(converged=done == SMOOTHING.stages)
