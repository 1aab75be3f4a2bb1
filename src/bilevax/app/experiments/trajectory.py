"""Runs seen from outside: the points a method passes, with its clock stopped while they are written down."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax._support.precision import float64
from bilevax.driver.comparison import follow
from bilevax.driver.solution import Solution
from bilevax.model.problem import BilevelProblem, place
from bilevax.solvers.base import CompiledSolver, HostSolver
from bilevax.solvers.sflcb import SFLCBState


class Visit(NamedTuple):
    """A point on the way: after how many steps and seconds, x, and the iteration's own lower-level answer."""

    step: int
    seconds: float
    x: PyTree
    y: PyTree
    z: PyTree


def marks(steps: int, count: int = 30) -> list[int]:
    """Return 0 and about ``count`` numbers of steps up to ``steps``, geometrically spaced over three decades."""
    return [0, *np.unique(np.geomspace(max(1, steps // 1000), steps, count).round().astype(int)).tolist()]


def first_state(
    problem: BilevelProblem, solver: CompiledSolver, x: PyTree, y: PyTree, multipliers: tuple[PyTree, ...] | None = None
) -> SFLCBState:
    """Return the state at (x, y), with z = y and u = v = ``multipliers``, 0 when absent."""
    with float64():
        arrays = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, float), tree)
        state = place(solver, np.float64).init(place(problem, np.float64), arrays(x), arrays(y))
        return state if multipliers is None else state._replace(u=arrays(multipliers), v=arrays(multipliers))


def follow_steps(problem: BilevelProblem, solver: CompiledSolver, state: Any, at: list[int]) -> Iterator[Visit]:
    """Run as the paper does, a fixed number of steps and no stopping test, and yield the points at these steps.

    Compilation does not count in the time. Only SFLCB has two lower-level answers, y and z.
    """
    with float64():
        placed, method = place(problem, np.float64), place(solver, np.float64)
        jax.block_until_ready(_advance(placed, method, state, jnp.asarray(0)))
    done, seconds = 0, 0.0
    for step in at:
        with float64():
            began = time.perf_counter()
            state = jax.block_until_ready(_advance(placed, method, state, jnp.asarray(step - done)))
        seconds += time.perf_counter() - began
        done = step
        point = method.iterate(state)
        second = state.z if isinstance(state, SFLCBState) else point.y
        yield Visit(step, seconds, *jax.tree.map(np.asarray, (point.x, point.y, second)))


def follow_search(
    problem: BilevelProblem, x0: PyTree, count: int = 30, solver: HostSolver | None = None, **options: Any
) -> tuple[Solution, list[Visit]]:
    """Solve with the default, or another search; return the answer, and about ``count`` points on the way to it.

    Compilation and the certificate count in the time.
    """
    solution, visits = follow(problem, x0, solver, count, **options)
    return solution, [Visit(visit.step, visit.seconds, visit.x, visit.y, visit.y) for visit in visits]


@eqx.filter_jit
def _advance(problem: BilevelProblem, solver: CompiledSolver, state: Any, steps: Any) -> Any:
    return jax.lax.fori_loop(0, steps, lambda _, now: solver.step(problem, now), state)
