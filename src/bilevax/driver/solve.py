"""`solve`, the front door, and `run`, its pure twin for ``jit`` and ``vmap``.

The loop runs in one compiled program, in chunks: whole blocks of steps, a stopping test after each block. Between
chunks the host looks at the clock, records the history, calls back and writes checkpoints. Blocks always end at
multiples of ``solver.check_every``, so how a run was cut into chunks does not change a single bit of it.
"""

import contextlib
import functools
import numbers
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from bilevax._support import trees
from bilevax._support.clock import OutOfTime, deadline, in_time
from bilevax._support.precision import float64
from bilevax.certificate.certificate import Certificate, certify_flat
from bilevax.certificate.challenge import falls_forever
from bilevax.certificate.status import Status
from bilevax.convex.problem import Outcome
from bilevax.driver.checkpoints import Checkpoint
from bilevax.driver.solution import Solution
from bilevax.exact.lower import solve_flat
from bilevax.exact.lower_level import solve_lower_level
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, place, validate
from bilevax.solvers.base import AbstractSolver, HostSolver, Snapshot
from bilevax.solvers.default import Default
from bilevax.solvers.diary import Diary

_MOST_PURSUITS = 5  # searches that go on from a point that refuted the last answer
# An iterate this many times larger than its start has left every sensible scale: reported before it overflows.
_DIVERGENCE_FACTOR = 1e12


class Progress(NamedTuple):
    """Where a run stands; what callbacks see, together with the point."""

    steps: int
    time: float
    x: PyTree
    y: PyTree
    residuals: dict[str, float]


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


class _Loop(NamedTuple):
    state: Any
    steps: Any
    converged: Any
    diverged: Any
    residuals: dict[str, Any]
    bound: Any


def solve(
    problem: BilevelProblem,
    x0: PyTree,
    *,
    y0: PyTree = None,
    solver: AbstractSolver | HostSolver | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    max_steps: int | None = None,
    time_limit: float | None = None,
    callback: Callable[[Progress], bool | None] | None = None,
    progress: bool | None = None,
    checkpoint: Any = None,
    resume: Any = None,
    warm_start: Any = None,
    throw: bool = False,
    dtype: Any = np.float64,
) -> Solution:
    """Solve a bilevel problem and certify the answer.

    Parameters
    ----------
    problem
        What to solve.
    x0
        The start, a number, an array or a pytree; it gives x its structure, and is projected onto X.
    y0
        The lower level's start; y*(x0), solved exactly, when absent.
    solver
        A solver object such as ``SFLCB(...)``; the tuning-free `Default` when absent.
    rtol, atol
        Tolerances of the solver's stopping test; the certificate's stationarity has to be at most ``rtol``.
    max_steps, time_limit
        Limits: steps (the solver's own default when absent) and seconds of the search. The certificate takes at most
        a tenth of that more, a second at least, and else says that it is not ``complete``.
    callback
        Called between chunks with a `Progress`; returning True stops the run.
    progress
        Whether to show a live line, on standard error; by default only where that is a terminal.
    checkpoint, resume
        Paths: where to write the state on the way, and from which file to go on, to the same answer bit for bit. A
        compiled solver writes it between chunks, the default after each of its phases.
    warm_start
        A previous `Solution` of a problem of the same shapes, to go on from its state.
    throw
        Whether to raise a `RuntimeError` instead of returning an answer without success.
    dtype
        Precision of the run, float64 by default whatever JAX's global setting; the certificate is always float64.

    Returns
    -------
    Solution
        With ``success`` true only when the run converged and the certificate confirms the answer.

    Raises
    ------
    ValueError
        If the problem or an argument is wrong; it says what came and what was expected.
    """
    began = time.monotonic()
    check_arguments(rtol, atol, max_steps, time_limit)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: expected a function of a Progress, got {type(callback).__name__}.")
    for name, path in (("checkpoint", checkpoint), ("resume", resume)):
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ValueError(f"{name}: expected a path, got {type(path).__name__}.")
    with float64():
        x, y_like, y = validate(problem, x0, y0, dtype)
        _warn_outside(problem, x)
        method, flat = chosen(solver), FlatProblem(problem, x, y_like)
        limit = method.default_max_steps if max_steps is None else int(max_steps)
        watch = Watch(began, limit, time_limit, callback, progress, steady=isinstance(method, AbstractSolver))
        # A search looks at rtol all the way; a compiled loop only to stop.
        settings = {"rtol": rtol} if isinstance(method, HostSolver) else {}
        open_file = lambda path: None if path is None else Checkpoint(path, problem, method, **settings)
        files = open_file(checkpoint), open_file(resume)
        if isinstance(method, HostSolver):
            if any(files) and not method.keeps_diary:
                raise ValueError(
                    "checkpoint, resume: expected the default or a compiled solver such as SFLCB(...), got "
                    f"{type(method).__name__}."
                )
            ending = search(flat, method, x, y, warm_start, rtol, watch, *files)
            ending, certificate = _pursued(flat, method, ending, rtol, watch, files[0])
        else:
            method.check(problem, x, y_like)
            ending = _iterate(problem, method, x, y_like, y, warm_start, rtol, atol, dtype, watch, *files)
            ending, certificate = _judged(flat, method, ending, watch)
        if ending.failure is not Status.DIVERGED and not certificate.confirms(rtol) and watch.ended is None:
            with deadline(watch.ends + watch.grace):
                if in_time(lambda: falls_forever(problem, ending.x, certificate.y, x)):
                    ending = ending._replace(failure=Status.UNBOUNDED)
        solution = conclude(method, ending, certificate, watch, rtol)
    if throw and not solution.success:
        raise RuntimeError(f"{solution.status}: {solution.message}")
    return solution


def run(
    problem: BilevelProblem,
    x0: PyTree,
    *,
    y0: PyTree = None,
    solver: AbstractSolver,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    max_steps: int | None = None,
) -> RunResult:
    """Run a solver as a pure function of arrays, without host work: no certificate, no clock, no callback.

    It runs in the precision of x0 under JAX's current settings, and may be transformed by ``jit`` and ``vmap``. The
    lower level starts at the projection of 0 onto Y when no y0 is given. Judge an answer with `certify`.
    """
    if isinstance(chosen(solver), HostSolver):
        raise ValueError(
            f"solver: run expects a compiled solver such as SFLCB(...), got {type(chosen(solver)).__name__}, "
            "which works on the host: use solve(...)."
        )
    limit = solver.default_max_steps if max_steps is None else max_steps
    begin, advance = parts_of_run(problem, y0, solver, rtol, atol)
    return shown(problem, solver, advance(begin(x0), jnp.asarray(limit)))


def parts_of_run(
    problem: BilevelProblem, y0: PyTree, solver: AbstractSolver, rtol: float, atol: float
) -> tuple[Callable[[PyTree], _Loop], Callable[[_Loop, Any], _Loop]]:
    """Return the two pure functions that `run` is made of: from x0 to where a run begins, and on to so many steps."""
    dtype = jnp.result_type(float)
    placed, method = place(problem, dtype), place_solver(solver, dtype)
    tolerances = jnp.asarray(rtol, dtype), jnp.asarray(atol, dtype)

    def begin(x0: PyTree) -> _Loop:
        x, y_like, y = validate(problem, x0, y0, dtype, traced=True)
        solver.check(problem, x, y_like)
        x = placed.x_set.project(x)
        if y is None:
            y = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), y_like)
        return _first(placed, method, x, placed.y_set.project(y), *tolerances)

    return begin, lambda loop, limit: _advance(placed, method, loop, limit, *tolerances)


def shown(problem: BilevelProblem, solver: AbstractSolver, loop: _Loop) -> RunResult:
    """Return what `run` shows of where it has come to."""
    point = solver.iterate(loop.state)
    return RunResult(
        x=point.x,
        y=point.y,
        multipliers=problem.unwrap_rows(point.multipliers),
        steps=loop.steps,
        converged=loop.converged,
        diverged=loop.diverged,
        residuals=loop.residuals,
        state=loop.state,
    )


def place_solver(solver: AbstractSolver, dtype: Any) -> AbstractSolver:
    """Return the solver with its parameters on the device in ``dtype``."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, np.ndarray) else leaf, solver)


@eqx.filter_jit
def _first(problem: BilevelProblem, solver: AbstractSolver, x: PyTree, y: PyTree, rtol: Any, atol: Any) -> _Loop:
    return _look(problem, solver, solver.init(problem, x, y), rtol, atol)


@eqx.filter_jit
def _look(problem: BilevelProblem, solver: AbstractSolver, state: Any, rtol: Any, atol: Any) -> _Loop:
    done, residuals = solver.terminate(problem, state, rtol, atol)
    bound = _DIVERGENCE_FACTOR * (1 + trees.max_abs(state))
    return _Loop(state, jnp.zeros((), int), done, jnp.logical_not(trees.all_finite(state)), residuals, bound)


@eqx.filter_jit
def _advance(problem: BilevelProblem, solver: AbstractSolver, loop: _Loop, limit: Any, rtol: Any, atol: Any) -> _Loop:
    """Run to ``limit`` steps or until the stopping test holds, in blocks of ``check_every``."""
    block = solver.check_every
    step = lambda _, state: solver.step(problem, state)

    def look(before: _Loop, state: Any, count: Any) -> _Loop:
        sane = trees.all_finite(state) & (trees.max_abs(state) <= before.bound)
        # After a divergence the last sane state is kept: it can be looked at, NaN cannot.
        state = jax.tree.map(lambda new, old: jnp.where(sane, new, old), state, before.state)
        done, residuals = solver.terminate(problem, state, rtol, atol)
        return _Loop(state, before.steps + jnp.where(sane, count, 0), done & sane, ~sane, residuals, before.bound)

    def proceed(loop: _Loop) -> Any:
        return (loop.steps + block <= limit) & ~loop.converged & ~loop.diverged

    # The block length is static: under vmap a trip count that differs between members would make every step masked.
    loop = jax.lax.while_loop(
        proceed, lambda loop: look(loop, jax.lax.fori_loop(0, block, step, loop.state), block), loop
    )
    rest = jnp.where(loop.converged | loop.diverged, 0, jnp.clip(limit - loop.steps, 0, block))
    finish = lambda loop: look(loop, jax.lax.fori_loop(0, rest, step, loop.state), rest)
    return jax.lax.cond(rest > 0, finish, lambda loop: loop, loop)


def _start(
    placed: BilevelProblem,
    solver: AbstractSolver,
    x: PyTree,
    y: PyTree | None,
    warm_start: Any,
    y_like: PyTree,
    rtol: Array,
    atol: Array,
    dtype: Any,
) -> _Loop:
    if warm_start is not None:
        state = warm_start.state if isinstance(warm_start, Solution) else warm_start
        wanted = eqx.filter_eval_shape(solver.init, placed, x, trees.zeros(y_like))
        if jax.tree.structure(state) != jax.tree.structure(wanted) or not jax.tree.all(
            jax.tree.map(lambda a, b: np.shape(a) == b.shape, state, wanted)
        ):
            raise ValueError(
                "warm_start: expected a Solution of the same solver and of a problem with the same shapes."
            )
        return _look(placed, solver, jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), state), rtol, atol)
    y = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), y)
    return _first(placed, solver, x, placed.y_set.project(y), rtol, atol)


class Watch:
    """What looks at a run from outside: the clock, the step limit, the callback, the live line and the history.

    Of a run that is ``steady``, one step costing what another does, the step limit tells how long it will take.
    """

    def __init__(
        self,
        began: float,
        limit: int,
        time_limit: float | None,
        callback: Any,
        progress: bool | None,
        steady: bool = False,
    ):
        self.began, self.limit, self.time_limit, self.callback = began, limit, time_limit, callback
        self.show = sys.stderr.isatty() if progress is None else progress
        self.steady = steady
        self.records: list[dict[str, Any]] = []
        self.ended: Status | None = None
        self._shown = -np.inf

    @property
    def ends(self) -> float:
        """When the search has to end, in the seconds of ``time.monotonic``."""
        return np.inf if self.time_limit is None else self.began + self.time_limit

    @property
    def last_call(self) -> float:
        """When a certificate has to that begins now: a tenth of the time limit later than that, a second at least."""
        return max(self.ends, time.monotonic()) + self.grace

    @property
    def grace(self) -> float:
        """What comes after the search may take, in seconds."""
        return max(1.0, 0.1 * (self.time_limit or 0.0))

    @property
    def attentive(self) -> bool:
        """Whether anything has to be looked at between steps."""
        return self.time_limit is not None or self.callback is not None or self.show

    def record(self, steps: int, numbers: dict[str, Any]) -> float:
        """Record where the run stands; return the seconds that it has taken."""
        elapsed = time.monotonic() - self.began
        self.records.append({"step": steps, "time": elapsed, **numbers})
        return elapsed

    def look(self, steps: int, x: PyTree, y: PyTree, numbers: dict[str, Any]) -> bool:
        """Record where the run stands; return whether it has to stop, and remember why."""
        elapsed = self.record(steps, numbers)
        if self.show and elapsed - self._shown >= _EVERY:
            self._shown = elapsed
            print(
                f"\r\033[K{self._line()[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True
            )
        if self.callback is not None and self.callback(Progress(steps, elapsed, x, y, numbers)):
            self.ended = Status.CALLBACK
        elif self.time_limit is not None and elapsed >= self.time_limit:
            self.ended = Status.TIME_LIMIT
        elif steps >= self.limit:
            self.ended = Status.MAX_STEPS
        return self.ended is not None

    def _line(self) -> str:
        """Return the live line: steps, time, how fast, how much longer at most, and the solver's own numbers."""
        first, last = self.records[0], self.records[-1]
        steps, elapsed = last["step"], last["time"]
        passed = elapsed - first["time"]
        rate = (steps - first["step"]) / passed if passed > 0 else 0.0
        left = [] if self.time_limit is None else [self.time_limit - elapsed]
        left += [(self.limit - steps) / rate] if self.steady and rate > 0 else []
        return "  ".join(
            [
                f"step {steps}/{self.limit}",
                f"{_duration(elapsed)}",
                *([f"{rate:.3g} steps/s"] if rate > 0 else []),
                *([f"{_duration(max(min(left), 0.0))} left"] if left else []),
                *(f"{key} {_short(last[key])}" for key in ("phase", "upper") if key in last),
                *(f"{key} {_short(last[key])}" for key in last if key not in ("step", "time", "phase", "upper")),
            ]
        )

    def close(self) -> None:
        """Remove the live line."""
        if self.show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    @property
    def history(self) -> dict[str, np.ndarray]:
        """The records as columns of equal length; NaN where a record has no such number."""
        keys = dict.fromkeys(key for record in self.records for key in record)
        return {key: np.array([record.get(key, np.nan) for record in self.records]) for key in keys}


_EVERY = 0.1  # seconds between two live lines


class Ending(NamedTuple):
    """How a run came out, whichever solver ran.

    A search that was stopped between exact points may have been on its way to a better one: ``later`` returns it, made
    exact, or None.
    """

    x: PyTree
    y: PyTree
    steps: int
    converged: bool
    failure: Status | None = None
    state: Any = None
    sweeps: int | None = None
    exact: bool = False
    later: Callable[[], tuple[PyTree, PyTree] | None] = lambda: None


def _iterate(
    problem: BilevelProblem,
    solver: AbstractSolver,
    x: PyTree,
    y_like: PyTree,
    y: PyTree | None,
    warm_start: Any,
    rtol: float,
    atol: float,
    dtype: Any,
    watch: Watch,
    checkpoint: Checkpoint | None,
    resume: Checkpoint | None,
) -> Ending:
    """Run a compiled solver in chunks of about a quarter of a second until something ends the run."""
    placed, method = place(problem, dtype), place_solver(solver, dtype)
    # As arrays they are traced: another tolerance or limit compiles nothing.
    tolerances = jnp.asarray(rtol, dtype), jnp.asarray(atol, dtype)
    inside = placed.x_set.project(x)
    if y is None and warm_start is None:
        with deadline(watch.ends):
            exact = in_time(lambda: solve_lower_level(problem, inside, y_like))
        y = trees.zeros(y_like) if exact is None else exact.y
    loop = _start(placed, method, inside, y, warm_start, y_like, *tolerances, dtype)
    if resume is not None:
        stored = resume.load_like(loop)
        # The tolerances may be new ones: only the test is done again, the rest of the run's record stays.
        loop = stored._replace(converged=_look(placed, method, stored.state, *tolerances).converged)
    chunk = method.check_every if watch.attentive or checkpoint is not None else watch.limit
    try:
        while not (watch.look(int(loop.steps), *_point_and_numbers(method, loop)) or loop.converged or loop.diverged):
            tick = time.monotonic()
            stop = min(watch.limit, int(loop.steps) + chunk)
            loop = jax.block_until_ready(_advance(placed, method, loop, jnp.asarray(stop), *tolerances))
            if checkpoint is not None:
                checkpoint.save(jax.tree.leaves(loop))
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


def search(
    flat: FlatProblem,
    solver: HostSolver,
    x: PyTree,
    y: PyTree | None,
    warm_start: Any,
    rtol: float,
    watch: Watch,
    checkpoint: Checkpoint | None = None,
    resume: Checkpoint | None = None,
) -> Ending:
    """Run a search on the host, a look after each of its steps."""
    problem, multipliers = flat.problem, None
    if warm_start is not None:
        form = lambda tree: (jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)])
        wanted = form((flat.x_like, flat.y_like, problem.unwrap_rows(flat.row_shapes)))
        if not isinstance(warm_start, Solution) or form((warm_start.x, warm_start.y, warm_start.multipliers)) != wanted:
            raise ValueError("warm_start: expected a Solution of a problem with the same shapes.")
        x, y, multipliers = warm_start.x, warm_start.y, trees.flatten_host(warm_start.multipliers)
    start = trees.flatten_host(x), None if y is None else trees.flatten_host(y), multipliers
    best = last = written = None
    count = 0
    if resume is not None:
        with resume.trusted():
            start, best, count, written = resume.load()
            assert best is None or (isinstance(best, Snapshot) and best.x.shape == (flat.n_x,))
            assert isinstance(count, int)

    def keep(contents: Callable[[], dict[str, Any]]) -> None:
        if checkpoint is not None:
            checkpoint.save((start, best, count, contents()))

    with contextlib.nullcontext() if resume is None else resume.trusted():
        diary = Diary(written, keep)
        guess = start[0], start[1], rtol, start[2]
        steps = solver.search(flat, *guess, diary)
    keep(diary.contents)
    try:
        with deadline(watch.ends):
            for last in steps if resume is None else resume.going_on(steps):
                count += 1
                if best is None or last.replaces(best):
                    best = last
                numbers = {"phase": last.phase, "upper": last.value}
                if last.sweeps is not None:
                    numbers["sweeps"] = last.sweeps
                if watch.look(count - 1, flat.x_tree(last.x), flat.y_tree(last.y), numbers):
                    break
    except KeyboardInterrupt:
        watch.ended = Status.INTERRUPTED
    except OutOfTime:
        watch.ended = Status.TIME_LIMIT
    watch.close()
    if best is None:  # stopped before there was anything to show
        inside = trees.flatten_host(problem.x_set.project(x))
        best = Snapshot(
            inside, np.zeros(flat.n_y) if y is None else trees.flatten_host(y), "start", np.inf, exact=False
        )
        if not watch.records:  # a history has at least where the run began
            watch.record(0, {"phase": best.phase, "upper": best.value})
    if best.final:
        watch.ended = None
    return Ending(
        x=flat.x_tree(best.x),
        y=flat.y_tree(best.y),
        steps=max(count - 1, 0),
        sweeps=(last or best).sweeps,
        converged=best.converged,
        failure=None if best.converged or watch.ended is not None else Status.STALLED,
        exact=best.exact,
        later=functools.partial(_made_exact, flat, solver, last or best, best),
    )


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


def certified(flat: FlatProblem, solver: AbstractSolver | HostSolver, ending: Ending) -> tuple[Ending, Certificate]:
    """Return an ending and its certificate: for a run that was stopped, the better of its best and its last point."""

    def judge(x: PyTree, y: PyTree) -> Certificate:
        # A lower-level iterate that is not finite is no help, but still tells the structure of y.
        y = jax.tree.map(lambda leaf: np.nan_to_num(leaf, posinf=0.0, neginf=0.0), y)
        return certify_flat(flat, x, y, getattr(solver, "delta", None))

    later = in_time(ending.later) if ending.exact else None
    ending = ending if later is None else ending._replace(x=later[0], y=later[1])
    certificate = judge(ending.x, ending.y)
    if certificate.failure is Status.LOWER_INFEASIBLE and (later := in_time(ending.later)) is not None:
        ending = ending._replace(x=later[0], y=later[1])
        certificate = judge(*later)
    if np.isnan(certificate.value):
        x, y = trees.flatten_host(ending.x), trees.flatten_host(certificate.y)
        numbers = in_time(lambda: [flat.value_and_gradients(level, x, y) for level in ("upper", "lower")])
        if not all(np.isfinite(part).all() for level in numbers or () for part in level):
            ending = ending._replace(failure=Status.NOT_A_NUMBER)
    return ending, certificate


def _judged(
    flat: FlatProblem, solver: AbstractSolver | HostSolver, ending: Ending, watch: "Watch"
) -> tuple[Ending, Certificate]:
    """Return `certified` in the time that a certificate has."""
    with deadline(watch.last_call):
        return certified(flat, solver, ending)


def _pursued(
    flat: FlatProblem,
    solver: HostSolver,
    ending: Ending,
    rtol: float,
    watch: "Watch",
    checkpoint: Checkpoint | None,
) -> tuple[Ending, Certificate]:
    """Return an ending and its certificate; where the challenge found a better point, the search goes on from there."""
    ending, certificate = _judged(flat, solver, ending, watch)
    for _ in range(_MOST_PURSUITS if solver.keeps_diary else 0):
        over = watch.ended is not None or time.monotonic() >= watch.ends
        if certificate.descent is None or certificate.failure is not None or over:
            break
        further = search(flat, solver, certificate.descent.x, certificate.y, None, rtol, watch, checkpoint)
        found = _judged(flat, solver, further._replace(steps=ending.steps), watch)
        if not found[1].value < certificate.value:
            break
        ending, certificate = found
    return ending, certificate


def _point_and_numbers(solver: AbstractSolver, loop: _Loop) -> tuple[PyTree, PyTree, dict[str, float]]:
    point = solver.iterate(loop.state)
    return point.x, point.y, {name: float(value) for name, value in loop.residuals.items()}


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def conclude(
    solver: AbstractSolver | HostSolver, ending: Ending, certificate: Certificate, watch: Watch, rtol: float
) -> Solution:
    """Return the solution that an ending and its certificate amount to."""
    status = _status(ending, watch.ended, certificate, rtol)
    stats = {"solver": type(solver).__name__, "steps": ending.steps, "time": time.monotonic() - watch.began}
    if ending.sweeps is not None:
        stats["sweeps"] = ending.sweeps
    objection = certificate.objection(rtol)
    reason = "" if status is Status.CONVERGED or objection is None else f" Not confirmed: {objection}."
    numbers = (
        f"value {certificate.value:.6g}, "
        f"stationarity {certificate.stationarity:.2g} ({certificate.stationarity_test}), "
        f"lower-level infeasibility {certificate.lower_infeasibility:.2g}, after {ending.steps} steps."
    )
    return Solution(
        x=ending.x,
        y=certificate.y,
        value=certificate.value,
        multipliers=certificate.multipliers,
        status=status,
        success=status is Status.CONVERGED,
        message=f"{status.value}{reason} ({numbers})",
        certificate=certificate,
        history=watch.history,
        stats=stats,
        state=ending.state,
    )


def _status(ending: Ending, ended: Status | None, certificate: Certificate, rtol: float) -> Status:
    if ending.failure in (Status.NOT_A_NUMBER, Status.DIVERGED, Status.UNBOUNDED):
        return ending.failure
    if certificate.failure is not None:
        return certificate.failure
    if not (certificate.complete or certificate.confirms(rtol)):
        return Status.TIME_LIMIT
    # A search that saw no further progress may have arrived without noticing: that is for the certificate to tell.
    if ending.converged or ending.failure is Status.STALLED:
        if certificate.confirms(rtol):
            return Status.CONVERGED
        return Status.ALMOST_SOLVED if ending.converged else Status.STALLED
    return ended or ending.failure or Status.MAX_STEPS


def _warn_outside(problem: BilevelProblem, x: PyTree) -> None:
    violation = problem.x_set.rows(trees.shapes(x)).violation(trees.flatten_host(x))
    if violation > 1e-6:  # rounding, to float32 at least, is no news
        warnings.warn(
            f"x0: expected a point of X, got one that is outside by {violation:.2g} (relative). "
            "The run starts from its projection.",
            stacklevel=3,
        )


def chosen(solver: Any) -> AbstractSolver | HostSolver:
    """Return the solver, the default when there is none."""
    method = Default() if solver is None else solver
    if not isinstance(method, AbstractSolver | HostSolver):
        names = "Default(), SFLCB(...), BLOCC(...), LVHBA(...), BiCGAFFA(...), GAM(...) or ProjectedPenalty(...)"
        came = repr(solver) if isinstance(solver, str | type) else type(solver).__name__
        raise ValueError(f"solver: expected a solver object, one of {names}, got {came}.")
    return method


def check_arguments(rtol: Any, atol: Any, max_steps: Any, time_limit: Any) -> None:
    """Refuse tolerances and limits that are none."""
    is_number = lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not (is_number(value) and np.isfinite(value) and value >= 0):
            raise ValueError(f"{name}: expected a number >= 0, got {value!r}.")
    if max_steps is not None and not (
        is_number(max_steps) and isinstance(max_steps, int | np.integer) and max_steps >= 0
    ):
        raise ValueError(f"max_steps: expected a whole number >= 0, got {max_steps!r}.")
    if time_limit is not None and not (is_number(time_limit) and time_limit > 0):
        raise ValueError(f"time_limit: expected a number of seconds > 0, got {time_limit!r}.")
