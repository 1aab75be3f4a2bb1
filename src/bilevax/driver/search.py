"""The search of a solver on the host: step by step, watched, with the best and the last point remembered."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.clock import OutOfTime, deadline
from bilevax._support.heap import give_back
from bilevax.certificate.status import Status
from bilevax.convex.problem import Outcome
from bilevax.driver.arguments import Start
from bilevax.driver.checkpoints import Files
from bilevax.driver.ending import Ending
from bilevax.driver.solution import Solution
from bilevax.driver.watch import Watch
from bilevax.exact.lower import solve_flat
from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import HostSolver, Snapshot
from bilevax.solvers.diary import Diary


@dataclasses.dataclass
class _Seen:
    """What a search has shown so far: the best snapshot, the last one, and how many there were."""

    best: Snapshot | None = None
    last: Snapshot | None = None
    count: int = 0

    def add(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        self.count += 1
        if self.best is None or snapshot.replaces(self.best):
            self.best = snapshot


def search(flat: FlatProblem, solver: HostSolver, start: Start, watch: Watch, files: Files) -> Ending:
    """Run a search on the host, a look after each of its steps."""
    checkpoint, resume = files
    x, y, multipliers = _first_guess(flat, start)
    guess = trees.flatten_host(x), None if y is None else trees.flatten_host(y), multipliers
    seen, written = _Seen(), None
    if resume is not None:
        with resume.trusted():
            guess, seen.best, seen.count, written = resume.load()
            assert seen.best is None or (isinstance(seen.best, Snapshot) and seen.best.x.shape == (flat.n_x,))
            assert isinstance(seen.count, int)

    def keep(contents: Callable[[], dict[str, Any]]) -> None:
        if checkpoint is not None:
            checkpoint.save((guess, seen.best, seen.count, contents()))

    with contextlib.nullcontext() if resume is None else resume.trusted():
        diary = Diary(written, keep)
        steps = solver.search(flat, guess[0], guess[1], watch.limits.rtol, guess[2], diary)
    keep(diary.contents)
    _look_at_each(flat, steps if resume is None else resume.going_on(steps), seen, watch)
    watch.close()
    del steps, diary  # with the factors of the search, before the certificate makes its own
    give_back(flat.n_x + flat.n_y)
    best = _start_as_snapshot(flat, x, y, watch) if seen.best is None else seen.best
    last = best if seen.last is None else seen.last
    if best.final:
        watch.ended = None
    return Ending(
        x=flat.x_tree(best.x),
        y=flat.y_tree(best.y),
        steps=max(seen.count - 1, 0),
        sweeps=last.sweeps,
        converged=best.converged,
        failure=None if best.converged or watch.ended is not None else Status.STALLED,
        exact=best.exact,
        later=functools.partial(_made_exact, flat, solver, last, best),
    )


def _first_guess(flat: FlatProblem, start: Start) -> tuple[PyTree, PyTree | None, np.ndarray | None]:
    """Return x, y and the multipliers to begin with; raise ValueError for a warm start of another form."""
    warm = start.warm_start
    if warm is None:
        return start.x, start.y, None
    form = lambda tree: (jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)])
    wanted = form((flat.x_like, flat.y_like, flat.problem.unwrap_rows(flat.row_shapes)))
    if not isinstance(warm, Solution) or form((warm.x, warm.y, warm.multipliers)) != wanted:
        raise ValueError("warm_start: expected a Solution of a problem with the same shapes.")
    return warm.x, warm.y, trees.flatten_host(warm.multipliers)


def _look_at_each(flat: FlatProblem, steps: Iterable[Snapshot], seen: _Seen, watch: Watch) -> None:
    """Go through the steps of a search until it ends or something ends it; ``watch`` knows what."""
    try:
        with deadline(watch.ends):
            for last in steps:
                seen.add(last)
                numbers: dict[str, Any] = {"phase": last.phase, "upper": last.value}
                if seen.best is not None and seen.best.exact:
                    numbers["best"] = seen.best.value
                if last.slope is not None:
                    numbers["stationarity"] = last.slope
                if last.sweeps is not None:
                    numbers["sweeps"] = last.sweeps
                point = (None, None) if watch.callback is None else (flat.x_tree(last.x), flat.y_tree(last.y))
                if watch.look(seen.count - 1, *point, numbers):
                    break
    except KeyboardInterrupt:
        watch.ended = Status.INTERRUPTED
    except OutOfTime:
        watch.ended = Status.TIME_LIMIT


def _start_as_snapshot(flat: FlatProblem, x: PyTree, y: PyTree | None, watch: Watch) -> Snapshot:
    """Return the start, for a search that was stopped before there was anything to show."""
    inside = trees.flatten_host(flat.problem.x_set.project(x))
    start = Snapshot(inside, np.zeros(flat.n_y) if y is None else trees.flatten_host(y), "start", np.inf, exact=False)
    if not watch.records:  # a history has at least where the run began
        watch.record(0, {"phase": start.phase, "upper": start.value})
    return start


def _made_exact(flat: FlatProblem, solver: HostSolver, last: Snapshot, best: Snapshot) -> tuple[PyTree, PyTree] | None:
    """Return the last point of a search with its exact lower level, if it is better than the best exact point."""
    if last.exact or last.final:
        return None
    x, lower = last.x, solve_flat(flat, last.x, last.y)
    if lower.outcome is Outcome.INFEASIBLE:
        x = solver.settle(flat, x)
        lower = solve_flat(flat, x, last.y)
    better = not best.exact or flat.value("upper", x, lower.y) < best.value
    return (flat.x_tree(x), flat.y_tree(lower.y)) if lower.outcome is Outcome.OPTIMAL and better else None
