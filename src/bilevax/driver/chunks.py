"""A compiled solver run in chunks.

Between chunks the host looks at the clock, records the history, calls back and writes checkpoints.
"""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax._support.clock import deadline, in_time
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Start
from bilevax.driver.checkpoints import Files
from bilevax.driver.compiled import Loop, advance_alone, loop_from_point, loop_from_state
from bilevax.driver.ending import Ending
from bilevax.driver.solution import Solution
from bilevax.driver.watch import Watch
from bilevax.exact.lower_level import solve_lower_level
from bilevax.model.problem import BilevelProblem, place
from bilevax.solvers.base import CompiledSolver


def run_in_chunks(
    problem: BilevelProblem, solver: CompiledSolver, start: Start, dtype: Any, watch: Watch, files: Files
) -> Ending:
    """Run a compiled solver in chunks of about a quarter of a second until something ends the run."""
    placed, method = place(problem, dtype), place(solver, dtype)
    # As arrays they are traced: another tolerance or limit compiles nothing.
    tolerances = jnp.asarray(watch.limits.rtol, dtype), jnp.asarray(watch.limits.atol, dtype)
    loop = _begin(problem, placed, method, start, dtype, watch, tolerances)
    if files.resume is not None:
        stored = files.resume.load_like(loop)
        # The tolerances may be new ones: only the test is done again, the rest of the run's record stays.
        loop = stored._replace(converged=loop_from_state(placed, method, stored.state, *tolerances).converged)
    limit = watch.limits.max_steps
    chunk = method.check_every if watch.attentive or files.checkpoint is not None else limit
    try:
        while not (watch.look(int(loop.steps), *_point_and_numbers(method, loop)) or loop.converged or loop.diverged):
            tick = time.monotonic()
            stop = min(limit, int(loop.steps) + chunk)
            loop = jax.block_until_ready(advance_alone(placed, method, loop, jnp.asarray(stop), *tolerances))
            if files.checkpoint is not None:
                files.checkpoint.save(jax.tree.leaves(loop))
            chunk = next_chunk(chunk, time.monotonic() - tick, method.check_every)
    except KeyboardInterrupt:
        watch.ended = Status.INTERRUPTED
    watch.close()
    point = method.iterate(loop.state)
    return Ending(
        x=jax.tree.map(np.asarray, point.x),
        y=point.y,
        steps=int(loop.steps),
        converged=bool(loop.converged),
        failure=Status.DIVERGED if bool(loop.diverged) else None,
        state=jax.tree.map(np.asarray, loop.state),
    )


def next_chunk(chunk: int, taken: float, block: int) -> int:
    """Return of how many steps, in whole blocks, the next chunk is to take about a quarter of a second."""
    if taken < 0.1:
        return 2 * chunk
    return max(block, chunk // 4 * 2 // block * block) if taken > 0.5 else chunk


def _begin(
    problem: BilevelProblem,
    placed: BilevelProblem,
    solver: CompiledSolver,
    start: Start,
    dtype: Any,
    watch: Watch,
    tolerances: tuple[Array, Array],
) -> Loop:
    """Return the loop before its first step: from a warm start, the given y or the exact y*(x)."""
    x, y = placed.x_set.project(start.x), start.y
    if start.warm_start is not None:
        state = _state_to_go_on_from(placed, solver, x, start)
        return loop_from_state(placed, solver, jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), state), *tolerances)
    if y is None:
        with deadline(watch.ends):
            exact = in_time(lambda: solve_lower_level(problem, x, start.y_like))
        y = trees.zeros(start.y_like) if exact is None else exact.y
    y = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), y)
    return loop_from_point(placed, solver, x, placed.y_set.project(y), *tolerances)


def _state_to_go_on_from(placed: BilevelProblem, solver: CompiledSolver, x: PyTree, start: Start) -> Any:
    """Return the state of a warm start; raise ValueError where the solver has states of another form."""
    warm = start.warm_start
    state = warm.state if isinstance(warm, Solution) else warm
    wanted = eqx.filter_eval_shape(solver.init, placed, x, trees.zeros(start.y_like))
    if jax.tree.structure(state) != jax.tree.structure(wanted) or not jax.tree.all(
        jax.tree.map(lambda a, b: np.shape(a) == b.shape, state, wanted)
    ):
        raise ValueError("warm_start: expected a Solution of the same solver and of a problem with the same shapes.")
    return state


def _point_and_numbers(solver: CompiledSolver, loop: Loop) -> tuple[PyTree, PyTree, dict[str, float]]:
    point = solver.iterate(loop.state)
    return point.x, point.y, {name: float(value) for name, value in loop.residuals.items()}
