"""The compiled loop of a solver, and `run`, the pure twin of `solve` for ``jit`` and ``vmap``.

The loop runs whole blocks of steps, with a stopping test after each block. Blocks always end at multiples of
``solver.check_every``, so how a run was cut into chunks does not change a single bit of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from bilevax._support import trees
from bilevax._support.memory import Frozen
from bilevax.driver.arguments import chosen
from bilevax.model.problem import BilevelProblem, place, validate
from bilevax.solvers.base import CompiledSolver, HostSolver

Result = TypeVar("Result")

# An iterate this many times larger than its start has left every sensible scale: reported before it overflows.
_DIVERGENCE_FACTOR = 1e12

# LLVM uses 256 bits where a processor has 512, which costs a step on a network a quarter.
_COMPILER_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


class RunResult(NamedTuple):
    """What `run` returns: arrays only, so that it may be batched."""

    x: PyTree
    y: PyTree
    multipliers: PyTree
    steps: Int[Array, ""]
    converged: Bool[Array, ""]
    diverged: Bool[Array, ""]
    residuals: dict[str, Array]
    state: Any


class Loop(NamedTuple):
    """Where the loop stands: the solver's state, what the last stopping test said, and how large a state may get."""

    state: Any
    steps: Any
    converged: Any
    diverged: Any
    residuals: dict[str, Any]
    bound: Any


def run(
    problem: BilevelProblem,
    x0: PyTree,
    *,
    y0: PyTree = None,
    solver: CompiledSolver,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    max_steps: int | None = None,
) -> RunResult:
    """Run a solver as a pure function of arrays, without host work: no certificate, no clock, no callback.

    It runs in the precision of x0 under JAX's current settings, and may be transformed by ``jit`` and ``vmap``. The
    lower level starts at the projection of 0 onto Y when no y0 is given. Judge an answer with `certify`.
    """
    solver = chosen(solver).dispatch(compiled=lambda method: method, host=_refuse)
    limit = solver.default_max_steps if max_steps is None else max_steps
    begin, go_on = parts_of_run(problem, y0, solver, rtol, atol)
    return shown(problem, solver, go_on(begin(x0), jax.device_put(limit)))


def _refuse(solver: HostSolver) -> NoReturn:
    raise ValueError(
        f"solver: run expects a compiled solver such as SFLCB(...), got {type(solver).__name__}, "
        "which works on the host: use solve(...)."
    )


def parts_of_run(
    problem: BilevelProblem, y0: PyTree, solver: CompiledSolver, rtol: float, atol: float
) -> tuple[Callable[[PyTree], Loop], Callable[[Loop, Any], Loop]]:
    """Return the two pure functions that `run` is made of: from x0 to where a run begins, and on to so many steps."""
    dtype = jnp.result_type(float)
    placed, method = place(problem, dtype), place(solver, dtype)
    tolerances = jax.device_put(rtol).astype(dtype), jax.device_put(atol).astype(dtype)

    def begin(x0: PyTree) -> Loop:
        x, y_like, y = validate(problem, x0, y0, dtype, traced=True)
        solver.check(problem, x, y_like)
        return _loop_from_start(placed, method, x, y, Frozen(y_like), *tolerances)

    return begin, lambda loop, limit: advance(placed, method, loop, limit, *tolerances)


def shown(problem: BilevelProblem, solver: CompiledSolver, loop: Loop) -> RunResult:
    """Return what `run` shows of where it has come to."""
    point = solver.iterate(loop.state)
    return RunResult(
        x=point.x,
        y=trees.everywhere(point.y, problem),  # what one process has of it is all of it
        multipliers=problem.unwrap_rows(point.multipliers),
        steps=loop.steps,
        converged=loop.converged,
        diverged=loop.diverged,
        residuals=loop.residuals,
        state=loop.state,
    )


@eqx.filter_jit
def _loop_from_start(
    problem: BilevelProblem, solver: CompiledSolver, x: PyTree, y: PyTree | None, y_like: Frozen, rtol: Any, atol: Any
) -> Loop:
    """Return the loop before its first step, at the projections of a start onto X and Y."""
    y = trees.zeros(y_like.tree) if y is None else y
    return loop_from_point(problem, solver, problem.x_set.project(x), problem.y_set.project(y), rtol, atol)


@eqx.filter_jit
def loop_from_point(
    problem: BilevelProblem, solver: CompiledSolver, x: PyTree, y: PyTree, rtol: Any, atol: Any
) -> Loop:
    """Return the loop before its first step, at a start inside X and Y."""
    return loop_from_state(problem, solver, solver.init(problem, x, y), rtol, atol)


@eqx.filter_jit
def loop_from_state(problem: BilevelProblem, solver: CompiledSolver, state: Any, rtol: Any, atol: Any) -> Loop:
    """Return a loop that begins with this state: no steps yet, the stopping test done."""
    done, residuals = solver.terminate(problem, state, rtol, atol)
    bound = _DIVERGENCE_FACTOR * (1 + trees.max_abs(state))
    return Loop(state, jnp.zeros((), int), done, jnp.logical_not(trees.all_finite(state)), residuals, bound)


@eqx.filter_jit
def advance(problem: BilevelProblem, solver: CompiledSolver, loop: Loop, limit: Any, rtol: Any, atol: Any) -> Loop:
    """Run to ``limit`` steps or until the stopping test holds, in blocks of ``check_every``."""
    block = solver.check_every

    def after(before: Loop, count: Any) -> Loop:
        state, beside = solver.steps(problem, before.state, count)
        sane = (trees.max_abs(state) < before.bound) & trees.all_finite(beside)  # no NaN is smaller than the bound
        # After a divergence the last sane state is kept: it can be looked at, NaN cannot.
        state = jax.tree.map(lambda new, old: jnp.where(sane, new, old), state, before.state)
        done, residuals = solver.terminate(problem, state, rtol, atol)
        return Loop(state, before.steps + jnp.where(sane, count, 0), done & sane, ~sane, residuals, before.bound)

    def proceed(loop: Loop) -> Any:
        return (loop.steps + block <= limit) & ~loop.converged & ~loop.diverged

    # The block length is static: under vmap a trip count that differs between members would make every step masked.
    loop = jax.lax.while_loop(proceed, lambda loop: after(loop, block), loop)
    rest = jnp.where(loop.converged | loop.diverged, 0, jnp.clip(limit - loop.steps, 0, block))
    return jax.lax.cond(rest > 0, lambda loop: after(loop, rest), lambda loop: loop, loop)


def alone(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function compiled as a program of its own: inside of another one that one's options count."""
    jit: Any = eqx.filter_jit  # whose types leave out what it hands on to `jax.jit`
    return jit(function, compiler_options=_COMPILER_OPTIONS)


#: What `solve` runs: `advance` as such a program.
advance_alone = alone(advance)
