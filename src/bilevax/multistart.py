"""`multistart`: many starts, one ranked list of certified answers."""

import dataclasses
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax import _trees
from bilevax._precision import float64
from bilevax.coupling import LinearCoupling
from bilevax.driver import Ending, Watch, certified, check_arguments, chosen, conclude, run, search
from bilevax.problem import BilevelProblem, refuse_tracers, validate
from bilevax.solution import Solution, Status
from bilevax.solvers.base import AbstractSolver, HostSolver


@dataclasses.dataclass(frozen=True)
class Multistart:
    """The distinct answers of many starts, best first.

    Attributes
    ----------
    solutions
        One certified `Solution` for each distinct answer: successes first, each group by value.
    answer_of
        For each start, the index in ``solutions`` of the answer it led to.
    """

    solutions: tuple[Solution, ...]
    answer_of: np.ndarray

    @property
    def best(self) -> Solution:
        """The success of least value; without any success, the best of the others."""
        return self.solutions[0]

    @property
    def statuses(self) -> list[Status]:
        """The status of each start's answer."""
        return [self.solutions[index].status for index in self.answer_of]

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def __str__(self) -> str:
        counts = np.bincount(self.answer_of, minlength=len(self))
        lines = [
            f"  {solution.value:<16.9g} {solution.status!s:<18} from {count} starts"
            for solution, count in zip(self.solutions, counts, strict=True)
        ]
        return f"{len(self)} distinct answers from {len(self.answer_of)} starts\n" + "\n".join(lines)


def multistart(
    problem: BilevelProblem,
    starts: PyTree | int,
    key: int = 0,
    *,
    y0: PyTree = None,
    solver: AbstractSolver | HostSolver | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    max_steps: int | None = None,
    time_limit: float | None = None,
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
        Seconds for all starts together; starts not reached by then are left out, but for the first.
    y0, rtol, atol, max_steps
        As in `solve`, for each start.
    """
    began = time.monotonic()
    check_arguments(rtol, atol, max_steps, time_limit)
    method = chosen(solver)
    points = _draw(problem, starts, key) if isinstance(starts, int) else _split(starts)
    endings = (
        _one_by_one(problem, points, y0, method, rtol, max_steps, time_limit, began)
        if isinstance(method, HostSolver)
        else _all_at_once(problem, points, y0, method, rtol, atol, max_steps)
    )
    merged, answer_of = _merge(endings)
    solutions = []
    for ending in merged:
        watch = Watch(began, method.default_max_steps if max_steps is None else max_steps, None, None, False)
        watch.ended = None if ending.converged or ending.failure else Status.MAX_STEPS
        solutions.append(conclude(method, *certified(problem, method, ending), watch, rtol))
    order = sorted(range(len(solutions)), key=lambda i: (not solutions[i].success, _rank(solutions[i].value)))
    position = np.argsort(order)
    return Multistart(tuple(solutions[i] for i in order), position[answer_of])


def _one_by_one(
    problem: BilevelProblem,
    points: list[PyTree],
    y0: PyTree,
    solver: HostSolver,
    rtol: float,
    max_steps: int | None,
    time_limit: float | None,
    began: float,
) -> list[Ending]:
    endings = []
    with float64():
        for point in points:
            left = None if time_limit is None else time_limit - (time.monotonic() - began)
            if endings and left is not None and left <= 0:
                break
            x, y_like, y = validate(problem, point, y0)
            limit = solver.default_max_steps if max_steps is None else max_steps
            watch = Watch(time.monotonic(), limit, left, None, False)
            endings.append(search(problem, solver, x, y_like, y, None, rtol, watch))
    return endings


def _all_at_once(
    problem: BilevelProblem,
    points: list[PyTree],
    y0: PyTree,
    solver: AbstractSolver,
    rtol: float,
    atol: float,
    max_steps: int | None,
) -> list[Ending]:
    with float64():
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *points)
        go = lambda x: run(problem, x, y0=y0, solver=solver, rtol=rtol, atol=atol, max_steps=max_steps)
        result = jax.jit(jax.vmap(go))(stacked)
        pick = lambda tree, index: jax.tree.map(lambda leaf: np.asarray(leaf[index]), tree)
        return [
            Ending(
                x=pick(result.x, index),
                y=pick(result.y, index),
                steps=int(result.steps[index]),
                converged=bool(result.converged[index]),
                failure=Status.DIVERGED if bool(result.diverged[index]) else None,
                state=pick(result.state, index),
            )
            for index in range(len(points))
        ]


def _merge(endings: list[Ending]) -> tuple[list[Ending], np.ndarray]:
    """Return the endings that differ in x by more than 1e-5, relative, and which of them each one is."""
    kept: list[tuple[np.ndarray, Ending]] = []
    answer_of = []
    for ending in endings:
        x = _trees.flatten_host(ending.x)
        for index, (other, first) in enumerate(kept):
            if first.converged == ending.converged and np.abs(other - x).max() <= 1e-5 * (1 + np.abs(x).max()):
                answer_of.append(index)
                break
        else:
            answer_of.append(len(kept))
            kept.append((x, ending))
    return [ending for _, ending in kept], np.array(answer_of)


def _rank(value: float) -> float:
    return np.inf if np.isnan(value) else value


def _split(starts: PyTree) -> list[PyTree]:
    refuse_tracers(starts=starts)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(starts)]
    if not leaves or any(leaf.ndim == 0 or len(leaf) != len(leaves[0]) for leaf in leaves) or len(leaves[0]) == 0:
        raise ValueError(
            f"starts: expected a number, or arrays whose first axis counts the starts; got {_trees.describe(starts)}."
        )
    structure = jax.tree.structure(starts)
    return [jax.tree.unflatten(structure, parts) for parts in zip(*leaves, strict=True)]


def _draw(problem: BilevelProblem, number: int, key: int) -> list[PyTree]:
    """Draw starts: uniform where X is bounded, spread around its finite end or around 0 where it is not."""
    if number < 1:
        raise ValueError(f"starts: expected at least one start, got {number}.")
    like = problem.x_set.like()
    if like is None:
        linear = [part for part in problem.coupling if isinstance(part, LinearCoupling)]
        columns = [part.B.shape[1] for part in linear if part.B is not None]
        if not columns:
            raise ValueError("starts: the shape of x is unknown; give the starts themselves.")
        like = jax.ShapeDtypeStruct((columns[0],), np.float64)
    rows = problem.x_set.rows(like)
    random = np.random.default_rng(key)
    size = _trees.size(like)
    lower, upper = rows.intervals()
    width = np.where(np.isfinite(upper - lower), upper - lower, 10.0)
    base = np.where(np.isfinite(lower), lower, np.where(np.isfinite(upper), upper - width, -0.5 * width))
    draws = base + width * random.uniform(size=(number, size))
    return [_trees.unflatten(draw, like) for draw in draws]
