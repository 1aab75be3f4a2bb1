"""The search without factorisations: smoothing by the sweeps of `first_order`, exact pieces where the size allows."""

import functools
from collections.abc import Iterator

import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.answers import Answers
from bilevax.solvers.default.first_order.oracle import PairOracle
from bilevax.solvers.default.phases import descend, land, snapshot
from bilevax.solvers.default.pieces.dense import dense_pieces
from bilevax.solvers.default.programs.feasible import settled
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.quasi_newton import slope
from bilevax.solvers.default.settings import SMOOTHING
from bilevax.solvers.default.smoothing.stages import follow, smooth_descent
from bilevax.solvers.diary import Diary


def search_by_sweeps(
    flat: FlatProblem, dense: bool, upper: UpperSet, x: np.ndarray, y: np.ndarray, rtol: float, diary: Diary
) -> Iterator[Snapshot]:
    """Yield a snapshot after each step; the last one is the answer.

    If ``dense`` matrices are possible, it tries from each point to finish exactly, and stops once the answers agree.
    """
    if diary.empty:
        yield Snapshot(x, y, "start", np.inf, exact=False, sweeps=0)
    pieces = dense_pieces(flat, upper, x, y) if dense else None
    if pieces is not None:
        diary.learner(lambda: pieces.algebra)
    oracle = diary.learner(lambda: PairOracle(flat, upper, x, y))
    found, last, tries, done = Answers(), None, 0, 0
    for step in follow(oracle, upper, SMOOTHING.stages, diary, None if dense else smooth_descent):
        last, done = step.point, done + (step.event == "done")
        if step.event == "step":
            yield Snapshot(last.x, last.y, "smooth descent", last.value, exact=False, sweeps=oracle.sweeps)
        if pieces is not None and step.event == "pauses":
            tries += 1
            landed = diary.once(f"landing {tries}", functools.partial(land, pieces, last.x, last.y))
            if landed is not None:
                descent = descend(pieces, landed, rtol, oracle.sweeps)
                landed = yield from diary.phase(f"exact descent {tries}", descent)
            found.add(landed, slope(upper, last))
            if found.agree:
                break
        if step.event == "reached" and found.settled and found.value <= oracle.promise(last):
            break
    sweeps = diary.once("sweeps", lambda: oracle.sweeps)
    if found.best is not None:
        yield snapshot(found.best, "answer", sweeps)._replace(final=True, converged=found.converged)
    elif last is None:
        yield Snapshot(x, y, "answer", np.inf, final=True, sweeps=sweeps)
    else:
        # Softened rows leave x slightly beyond where the lower level is feasible.
        x = settled(flat, upper, last.x)
        answer = Snapshot(x, last.y, "answer", last.value, exact=False, final=True, sweeps=sweeps)
        yield answer._replace(converged=done == SMOOTHING.stages)
