"""`solve`, the front door: checks what it is given, runs the solver, certifies and judges the answer."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support.hints import names_arguments
from bilevax._support.precision import float64
from bilevax.certificate.certificate import Certificate
from bilevax.driver.arguments import Limits, Start, check_callback, check_limits, check_paths, chosen, warn_outside
from bilevax.driver.asked import Asked
from bilevax.driver.at_once import AtOnce, proven_at_once
from bilevax.driver.checkpoints import Files
from bilevax.driver.chunks import run_in_chunks
from bilevax.driver.ending import Ending
from bilevax.driver.proof import concluded
from bilevax.driver.search import search
from bilevax.driver.solution import Solution
from bilevax.driver.verdict import conclude, judged, pursued, unbounded_if_it_falls_forever
from bilevax.driver.watch import Progress, Watch
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, validate
from bilevax.proof.settings import PROOF
from bilevax.solvers.base import CompiledSolver, HostSolver, Solver


@names_arguments
def solve(
    problem: BilevelProblem,
    x0: PyTree,
    *,
    y0: PyTree = None,
    solver: Solver | None = None,
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
        A solver object such as ``SFLCB(...)``. When absent, the tuning-free `Default`; before it, where the problem is
        small and its class allows that, a global optimum is looked for, which then comes with its ``proof``; not so
        with a callback, a limit of steps, a checkpoint or a warm start, which are about the search.
    rtol, atol
        Tolerances of the solver's stopping test; the certificate's stationarity has to be at most ``rtol``.
    max_steps, time_limit
        Limits: steps (the solver's own default when absent) and seconds of the search. The certificate has to end
        within a second after that, and else says that it is not ``complete``.
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
    check_limits(rtol, atol, max_steps, time_limit)
    check_callback(callback)
    check_paths(checkpoint=checkpoint, resume=resume)
    asked = Asked(problem, x0, y0, solver)
    problem, y0 = asked.problem, asked.start(y0)
    callback, warm_start = asked.watching(callback), asked.earlier(warm_start)
    with float64():
        x, y_like, y = validate(problem, x0, y0, dtype)
        method, flat = chosen(solver), FlatProblem(problem, x, y_like)
        warn_outside(flat, x)
        start, limits = Start(x, y_like, y, warm_start), Limits.of(method, rtol, atol, max_steps, time_limit)
        watch = Watch(began, limits, callback, progress, steady=method.steady)
        # A search looks at rtol all the way; a compiled loop only to stop.
        fixed = method.dispatch(compiled=lambda _: {}, host=lambda _: {"rtol": rtol})
        files = Files.open(checkpoint, resume, problem, method, **fixed)
        method.check(problem, x, y_like)
        unwatched = solver is callback is max_steps is checkpoint is resume is warm_start is None
        if unwatched and (at_once := proven_at_once(flat, x, watch)) is not None:
            return with_proof(at_once, watch, asked)
        ending, certificate = method.dispatch(
            compiled=lambda solver: _stepped(flat, solver, start, dtype, watch, files),
            host=lambda solver: _searched(flat, solver, start, watch, files),
        )
        ending = unbounded_if_it_falls_forever(flat, x, ending, certificate, watch)
        solution = asked.answer(conclude(type(method).__name__, ending, certificate, watch))
    if throw and not solution.success:
        raise RuntimeError(f"{solution.status}: {solution.message}")
    return solution


def with_proof(found: AtOnce, watch: Watch, asked: Asked) -> Solution:
    """Return a global optimum as a solution, with its proof."""
    solution = asked.answer(conclude("branch and bound", found.ending, found.certificate, watch))
    proof = concluded(found.bounds, solution, PROOF.gap_at_once, solution.stats["time"])
    return dataclasses.replace(solution, proof=proof)


def _stepped(
    flat: FlatProblem, solver: CompiledSolver, start: Start, dtype: Any, watch: Watch, files: Files
) -> tuple[Ending, Certificate]:
    """Return how the run of a compiled solver ended, and its certificate."""
    return judged(flat, solver, run_in_chunks(flat.problem, solver, start, dtype, watch, files), watch)


def _searched(
    flat: FlatProblem, solver: HostSolver, start: Start, watch: Watch, files: Files
) -> tuple[Ending, Certificate]:
    """Return how a search on the host ended, and its certificate; raise ValueError for files that it cannot keep."""
    if any(files) and not solver.keeps_diary:
        raise ValueError(
            "checkpoint, resume: expected the default or a compiled solver such as SFLCB(...), got "
            f"{type(solver).__name__}."
        )
    return pursued(flat, solver, search(flat, solver, start, watch, files), watch, files.checkpoint)
