"""The search without factorisations: smoothing by the sweeps of `first_order`, exact pieces where the size allows."""

from collections.abc import Iterator

import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.attempts import Attempts
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

    If ``dense`` matrices are possible, it tries between steps to finish exactly, and stops once the answers agree.
    """
    if diary.empty:
        yield Snapshot(x, y, "start", np.inf, exact=False, sweeps=0)
    attempts = None
    if dense:
        pieces = dense_pieces(flat, upper, x, y)
        diary.learner(lambda: pieces.algebra)
        attempts = Attempts(pieces, rtol)
    oracle = diary.learner(lambda: PairOracle(flat, upper, x, y))
    last, tried, pauses, done = None, None, 0, 0
    for step in follow(oracle, upper, SMOOTHING.stages, diary, None if dense else smooth_descent):
        last, done = step.point, done + (step.event == "done")
        if step.event == "step":
            yield Snapshot(last.x, last.y, "smooth descent", last.value, exact=False, sweeps=oracle.sweeps)
        if attempts is None or step.event not in ("pauses", "reached"):
            continue
        if last is not tried and (step.event == "reached" or attempts.affordable(pauses)):
            name, tried = f"exact descent {len(attempts.made) + 1}", last
            attempts.made.append((yield from diary.phase(name, attempts.descend(last, oracle.sweeps))))
            if attempts.agree:
                break
        if step.event == "reached" and attempts.settled(oracle.promise(last)):
            break
        pauses += step.event == "pauses"
    sweeps = diary.once("sweeps", lambda: oracle.sweeps)
    best = None if attempts is None else attempts.best
    if best is not None:
        yield snapshot(best[0], "answer", sweeps)._replace(final=True, converged=best[1])
    elif last is None:
        yield Snapshot(x, y, "answer", np.inf, final=True, sweeps=sweeps)
    else:
        # Softened rows leave x slightly beyond where the lower level is feasible.
        x = settled(flat, upper, last.x)
        answer = Snapshot(x, last.y, "answer", last.value, exact=False, final=True, sweeps=sweeps)
        yield answer._replace(converged=done == SMOOTHING.stages)
