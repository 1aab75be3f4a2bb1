"""`prove`: is it the best there is? Global bounds, and the best solution that is known."""

import dataclasses
import time
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support import clock, trees
from bilevax._support.clock import deadline, in_time
from bilevax._support.elsewhere import chosen_executor
from bilevax._support.hints import names_arguments
from bilevax._support.precision import float64
from bilevax._support.threads import blas_threads
from bilevax.certificate.certify import certify_flat
from bilevax.driver.arguments import Limits, check_limits, shapes_of_x
from bilevax.driver.asked import Asked
from bilevax.driver.ending import Ending
from bilevax.driver.proof import Proof, concluded
from bilevax.driver.solution import Solution
from bilevax.driver.solve import solve
from bilevax.driver.verdict import conclude
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.problem import BilevelProblem, validate
from bilevax.proof.bounds import Bounds, relative_gap
from bilevax.proof.search import global_bounds
from bilevax.proof.settings import PROOF
from bilevax.proof.status import ProofStatus
from bilevax.solvers.default import Default

_RTOL = 1e-6  # as in `solve`


@names_arguments
def prove(
    problem: BilevelProblem,
    solution: Any = None,
    *,
    gap: float = 1e-4,
    time_limit: float = 60.0,
    executor: Any = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Proof:
    """Bound the least value of a bilevel problem from below, for all x at once, and find the best x.

    No bounds on multipliers and no boxes are needed. What is outside of the class for which there are bounds (see
    the page on proofs) is refused by name: the status is then ``unsupported``, and the lower bound minus infinity.

    Parameters
    ----------
    problem
        What to solve.
    solution
        A `Solution` of it, or a point x, to begin with. Without one, `solve` is called where the search does not end at
        once; the structure of x then has to be told by the set X or by a matrix B.
    gap
        When to stop: the difference of the bounds, relative to the value (see `Proof`).
    time_limit
        Seconds of the search. The certificate of its answer comes on top of that.
    executor, workers
        As in `multistart`, for the subtrees of a search that does not end within some hundred nodes. Bounds and answer
        do not depend on how many workers there are; without any, a search takes another way to bounds as close.
    progress
        Whether to show a live line, on standard error; by default only where that is a terminal.

    Returns
    -------
    Proof
        With ``proven`` true only if the bounds are as close as asked for.

    Raises
    ------
    ValueError
        If the problem or an argument is wrong; it says what came and what was expected.
    """
    began = time.monotonic()
    check_limits(gap, 0.0, None, time_limit)
    others = chosen_executor(executor, workers)
    watch = _Watch(began, Limits(_RTOL, 0.0, np.iinfo(np.int64).max, time_limit), None, progress)
    with float64():
        start = _start(problem, solution)
        asked = Asked(problem, start)
        problem, solution = asked.problem, asked.earlier(solution)
        x, y_like, _ = validate(problem, start)
        flat = FlatProblem(problem, x, y_like)
        given = solution if isinstance(solution, Solution) else None
        with deadline(watch.ends), blas_threads(flat.n_y):
            natural = in_time(lambda: equilibrated(flat, x)) or flat
            helper = _Helper(problem, x, given, natural)
            known = None if solution is None else natural.x_flat(x)
            bounds = global_bounds(natural, known, gap, helper, watch.show_bounds, executor=others)
        watch.close()
        with deadline(watch.last_call):
            best = certified_best(flat, natural, bounds, helper.solution, watch)
        if bounds.status is ProofStatus.PROVEN and best is not None and not best.success:
            best, bounds = _polished(flat.problem, best, bounds, gap, watch)
        best = None if best is None else asked.answer(best)
    return concluded(bounds, best, gap, time.monotonic() - began)


class _Watch(Watch):
    """The live line of a proof: nodes and bounds."""

    def show_bounds(self, nodes: int, lower: float, upper: float) -> None:
        """Look at the clock and, where it is shown, renew the live line."""
        clock.check()
        if self.show:
            self.look(nodes, None, None, {"lower": lower, "upper": upper})

    def _line(self) -> str:
        last = self.records[-1]
        return f"{last['step']} nodes  {last['time']:.1f} s  lower {last['lower']:.6g}  upper {last['upper']:.6g}"


@dataclasses.dataclass
class _Helper:
    """Calls `solve` for an incumbent, once, where the search does not end at once and no solution was given."""

    problem: BilevelProblem
    x0: PyTree
    solution: Solution | None
    natural: FlatProblem

    def __call__(self) -> np.ndarray | None:
        if self.solution is None:
            limit = max(PROOF.help_share * clock.remaining(), 1e-3)
            limit = limit if np.isfinite(limit) else None
            inside = self.problem.x_set.project(self.x0)
            self.solution = solve(self.problem, inside, time_limit=limit, progress=False)
        return self.natural.x_flat(self.solution.x)


def certified_best(
    flat: FlatProblem, natural: FlatProblem, bounds: Bounds, known: Solution | None, watch: Watch
) -> Solution | None:
    """Return the best solution: what the search found, certified, or what was known before if that is not worse."""
    if bounds.best is None:
        return known
    allowed = PROOF.same_value * (bounds.unit + abs(bounds.upper))
    if known is not None and known.success and known.value <= bounds.upper + allowed:
        return known
    x, y = natural.x_tree(bounds.best.x), natural.y_tree(bounds.best.y)
    certificate = certify_flat(flat, x, y, earlier=(natural.scales, bounds.best.phi))
    watch.record(bounds.nodes, {"phase": "proof", "upper": bounds.upper})
    ending = Ending(x, y, bounds.nodes, converged=True)
    return conclude("branch and bound", ending, certificate, watch)


def _polished(
    problem: BilevelProblem, best: Solution, bounds: Bounds, gap: float, watch: Watch
) -> tuple[Solution, Bounds]:
    """Return a certified solution near one that is too rough, and the bounds with it; the same where there is none."""
    found = solve(problem, best.x, y0=best.y, solver=Default(), time_limit=watch.grace, progress=False)
    left = relative_gap(bounds.lower, float(found.value), bounds.unit)
    if not found.success or abs(left) > gap:
        return best, bounds
    value = float(found.value)
    return found, dataclasses.replace(bounds, lower=min(bounds.lower, value), upper=value)


def _start(problem: BilevelProblem, solution: Any) -> PyTree:
    """Return a point x of the right structure; raise ValueError where nothing tells it."""
    if isinstance(solution, Solution):
        return solution.x
    if solution is not None:
        return solution
    if not isinstance(problem, BilevelProblem):
        raise ValueError(f"problem: expected a BilevelProblem, got {type(problem).__name__}.")
    like = shapes_of_x(problem)
    if like is None:
        raise ValueError("solution: expected a Solution or a point x, since neither X nor B tells the shape of x.")
    return problem.x_set.project(trees.zeros(like))
