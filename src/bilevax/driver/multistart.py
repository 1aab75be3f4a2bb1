"""`multistart`: many starts, one ranked list of certified answers."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax._support import html, trees
from bilevax._support.clock import deadline
from bilevax._support.elsewhere import chosen_executor, opened
from bilevax._support.hints import names_arguments
from bilevax._support.precision import float64
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Limits, Start, check_limits, chosen, shapes_of_x
from bilevax.driver.asked import Asked
from bilevax.driver.at_once import proven_at_once
from bilevax.driver.checkpoints import Files
from bilevax.driver.chunks import next_chunk
from bilevax.driver.compiled import alone, parts_of_run, shown
from bilevax.driver.elsewhere import Elsewhere
from bilevax.driver.ending import Ending
from bilevax.driver.search import search
from bilevax.driver.solution import Solution
from bilevax.driver.solve import with_proof
from bilevax.driver.verdict import certified, conclude
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, refuse_tracers, validate
from bilevax.solvers.base import CompiledSolver, HostSolver, Solver


@dataclasses.dataclass(frozen=True)
class Multistart:
    """The distinct answers of many starts, best first.

    Attributes
    ----------
    solutions
        One certified `Solution` for each distinct answer, by value: those first whose value is proven by an exact lower
        level, whether or not they are proven stationary. Of equal values (1e-6) a success comes first. Where a small
        problem's global optimum is proven at once, as in `solve`, it is among them, whether a start led to it or not.
    answer_of
        For each start, the index in ``solutions`` of the answer it led to; -1 for a start that was lost with its
        worker.
    """

    solutions: tuple[Solution, ...]
    answer_of: np.ndarray

    @property
    def best(self) -> Solution:
        """The answer of least proven value; its ``status`` tells whether it is proven stationary, too."""
        return self.solutions[0]

    @property
    def statuses(self) -> list[Status]:
        """The status of the answer of each start that was not lost."""
        return [self.solutions[index].status for index in self.answer_of if index >= 0]

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def _lines(self) -> list[tuple[str, str, str]]:
        counts = np.bincount(self.answer_of[self.answer_of >= 0], minlength=len(self))
        return [
            (f"{solution.value:.9g}", str(solution.status), f"from {_counted(count, 'start')}")
            for solution, count in zip(self.solutions, counts, strict=True)
        ]

    def __str__(self) -> str:
        lines = [f"  {value:<16} {status:<18} {starts}" for value, status, starts in self._lines()]
        return "\n".join([self._title, *lines])

    def _repr_html_(self) -> str:
        return f"<b>{self._title}</b>" + html.table(("value", "status", ""), self._lines())

    @property
    def _title(self) -> str:
        return f"{_counted(len(self), 'distinct answer')} from {_counted(len(self.answer_of), 'start')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


@names_arguments
def multistart(
    problem: BilevelProblem,
    starts: PyTree | int,
    key: int = 0,
    *,
    y0: PyTree = None,
    solver: Solver | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    max_steps: int | None = None,
    time_limit: float | None = None,
    executor: Any = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Multistart:
    """Solve from many starts, merge equal answers, certify and rank them.

    Parameters
    ----------
    starts
        An array (or a pytree of arrays) whose first axis counts the starts, or how many to draw from X.
    key
        Seed of the draw.
    solver
        The default or another search on the host, start after start with everything compiled once; or a compiled
        solver such as ``SFLCB(...)``, all starts in one program.
    time_limit
        Seconds for all starts together; starts not reached by then are left out, but for the first. The certificates,
        together, have to end within a second after that.
    executor
        A ``concurrent.futures`` executor for searches on the host and for certificates: a process pool, Dask's
        ``client.get_executor()``, one of Ray or mpi4py. Needs the extra ``parallel``. The answer does not depend on it;
        a start whose worker dies is lost, with a warning, and Ctrl-C returns what is there.
    workers
        So many processes of this machine instead of an executor.
    progress
        Whether to show how many starts are done, on standard error; by default only where that is a terminal. Only with
        an executor or workers.
    y0, rtol, atol, max_steps
        As in `solve`, for each start.
    """
    began = time.monotonic()
    check_limits(rtol, atol, max_steps, time_limit)
    method = chosen(solver)
    with opened(chosen_executor(executor, workers)) as pool:
        points = _draw(problem, starts, key) if isinstance(starts, int) else _split(starts)
        asked = Asked(problem, points[0], y0, method)
        limits = Limits.of(method, rtol, atol, max_steps, time_limit)
        watch = Watch(began, limits, progress=False if pool is None else progress)
        with float64():
            solutions, answer_of = _answers(asked, points, asked.start(y0), solver, watch, pool)
    order = _ranked(solutions)
    answer_of[answer_of >= 0] = np.argsort(order)[answer_of[answer_of >= 0]]
    return Multistart(tuple(solutions[i] for i in order), answer_of)


def _answers(
    asked: Asked, points: list[PyTree], y0: PyTree, solver: Solver | None, watch: Watch, pool: Any
) -> tuple[list[Solution], np.ndarray]:
    """Return the distinct answers, certified, and which of them each start led to; -1 for starts that were lost."""
    problem, method = asked.problem, chosen(solver)
    elsewhere = None if pool is None else Elsewhere(pool, problem, y0, method, watch)
    endings = method.dispatch(
        compiled=lambda solver: _all_at_once(problem, points, y0, solver, watch),
        host=lambda solver: (
            _one_by_one(problem, points, y0, solver, watch) if elsewhere is None else elsewhere.search(points)
        ),
    )
    reached = np.array([ending is not None for ending in endings])
    endings = [ending for ending in endings if ending is not None]
    if not endings:
        raise RuntimeError("multistart: no start came to an end; the warnings say what became of them.")
    merged, merged_of = _merge(endings)
    flat = FlatProblem(problem, endings[0][0].x, endings[0][0].y)
    judged = _judged(flat, method, [ending for ending, _ in merged], watch, elsewhere)
    name = type(method).__name__
    solutions = [
        asked.answer(conclude(name, *verdict, seen)) for verdict, (_, seen) in zip(judged, merged, strict=True)
    ]
    if solver is None:
        watch = Watch(watch.began, watch.limits)
        best = proven_at_once(flat, endings[0][0].x, watch)
        solutions = solutions if best is None else _with_best(solutions, with_proof(best, watch, asked))
    answer_of = np.full(len(reached), -1)
    answer_of[reached] = merged_of
    return solutions, answer_of


def _judged(
    flat: FlatProblem, method: Solver, endings: list[Ending], watch: Watch, elsewhere: Elsewhere | None
) -> list[tuple[Ending, Certificate]]:
    """Return each ending with its certificate: made elsewhere, or here where nobody is there, or nobody answers."""
    found = None if elsewhere is None else elsewhere.certify(endings)
    missing, last_call, judged = len(endings) if found is None else found.count(None), watch.last_call, []
    for index, ending in enumerate(endings):
        verdict = None if found is None else found[index]
        if verdict is None:
            now = time.monotonic()
            with deadline(now + max(last_call - now, 0.0) / missing):  # to each its share
                verdict = certified(flat, method, ending)
            missing -= 1
        judged.append(verdict)
    return judged


def _with_best(solutions: list[Solution], best: Solution) -> list[Solution]:
    """Return the solutions with a proven global optimum: its proof belongs to one of equal value, if any."""
    same = lambda solution: abs(solution.value - best.value) <= _SAME_VALUE * (1 + abs(best.value))
    equal = next((index for index, solution in enumerate(solutions) if solution.success and same(solution)), None)
    if equal is None:
        return [*solutions, best]
    return [
        dataclasses.replace(solution, proof=best.proof) if index == equal else solution
        for index, solution in enumerate(solutions)
    ]


def _ranked(solutions: list[Solution]) -> list[int]:
    """Return the order of the solutions: proven values first, the least before, and a success before its equals."""
    value = lambda i: solutions[i].value
    proven = [solution.certificate.proves_value for solution in solutions]
    order = sorted(range(len(solutions)), key=lambda i: (not proven[i], np.inf if np.isnan(value(i)) else value(i)))
    group = [0] * len(order)
    for place, i in enumerate(order[1:], start=1):
        first = order[place - 1]
        same = proven[first] == proven[i] and abs(value(i) - value(first)) <= _SAME_VALUE * (1 + abs(value(first)))
        group[place] = group[place - 1] + (not same)
    rank = dict(zip(order, group, strict=True))
    return sorted(order, key=lambda i: (rank[i], not solutions[i].success))


_SAME_VALUE = 1e-6


def _one_by_one(
    problem: BilevelProblem,
    points: list[PyTree],
    y0: PyTree,
    solver: HostSolver,
    watch: Watch,
) -> list[tuple[Ending, Watch]]:
    """Search from one start after another, as long as there is time."""
    endings = []
    for point in points:
        if endings and time.monotonic() >= watch.ends:
            break
        seen = Watch(watch.began, watch.limits)
        x, y_like, y = validate(problem, point, y0)
        endings.append((search(FlatProblem(problem, x, y_like), solver, Start(x, y_like, y), seen, Files()), seen))
    return endings


def _all_at_once(
    problem: BilevelProblem,
    points: list[PyTree],
    y0: PyTree,
    solver: CompiledSolver,
    watch: Watch,
) -> list[tuple[Ending, Watch]]:
    """Run a compiled solver from all starts in one program."""
    limits, limit = watch.limits, watch.limits.max_steps
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *points)
    parts = parts_of_run(problem, y0, solver, limits.rtol, limits.atol)
    begin, advance = (alone(jax.vmap(part, axes)) for part, axes in zip(parts, (0, (0, None)), strict=True))
    loop, stop, chunk = begin(stacked), 0, solver.check_every if watch.attentive else limit
    while stop < limit and not bool((loop.converged | loop.diverged).all()) and time.monotonic() < watch.ends:
        tick = time.monotonic()
        stop = min(limit, stop + chunk)
        loop = jax.block_until_ready(advance(loop, jnp.asarray(stop)))
        chunk = next_chunk(chunk, time.monotonic() - tick, solver.check_every)
    watch.ended = Status.MAX_STEPS if stop >= limit else Status.TIME_LIMIT
    pick = lambda tree, index: jax.tree.map(lambda leaf: np.asarray(leaf[index]), tree)
    results = [shown(problem, solver, pick(loop, index)) for index in range(len(points))]
    return [
        (
            Ending(
                x=result.x,
                y=result.y,
                steps=int(result.steps),
                converged=bool(result.converged),
                failure=Status.DIVERGED if bool(result.diverged) else None,
                state=result.state,
            ),
            watch,
        )
        for result in results
    ]


def _merge(endings: list[tuple[Ending, Watch]]) -> tuple[list[tuple[Ending, Watch]], np.ndarray]:
    """Return the endings that differ in x by more than 1e-5, relative, and which of them each one is."""
    kept: list[tuple[np.ndarray, Ending, Watch]] = []
    answer_of = []
    for ending, watch in endings:
        x = trees.flatten_host(ending.x)
        for index, (other, first, _) in enumerate(kept):
            if first.converged == ending.converged and np.abs(other - x).max() <= 1e-5 * (1 + np.abs(x).max()):
                answer_of.append(index)
                break
        else:
            answer_of.append(len(kept))
            kept.append((x, ending, watch))
    return [(ending, watch) for _, ending, watch in kept], np.array(answer_of)


def _split(starts: PyTree) -> list[PyTree]:
    refuse_tracers(starts=starts)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(starts)]
    if not leaves or any(leaf.ndim == 0 or len(leaf) != len(leaves[0]) for leaf in leaves) or len(leaves[0]) == 0:
        raise ValueError(
            f"starts: expected a number, or arrays whose first axis counts the starts; got {trees.describe(starts)}."
        )
    structure = jax.tree.structure(starts)
    return [jax.tree.unflatten(structure, parts) for parts in zip(*leaves, strict=True)]


def _draw(problem: BilevelProblem, number: int, key: int) -> list[PyTree]:
    """Draw starts: uniform where X is bounded, spread around its finite end or around 0 where it is not."""
    if number < 1:
        raise ValueError(f"starts: expected at least one start, got {number}.")
    like = shapes_of_x(problem)
    if like is None:
        raise ValueError("starts: the shape of x is unknown; give the starts themselves.")
    rows = problem.x_set.rows(like)
    random = np.random.default_rng(key)
    size = trees.size(like)
    lower, upper = rows.intervals()
    width = np.where(np.isfinite(upper - lower), upper - lower, 10.0)
    base = np.where(np.isfinite(lower), lower, np.where(np.isfinite(upper), upper - width, -0.5 * width))
    draws = base + width * random.uniform(size=(number, size))
    return [trees.unflatten(draw, like) for draw in draws]
