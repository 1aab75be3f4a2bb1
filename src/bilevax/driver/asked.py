"""What is asked and what is solved: a problem whose f knows the multipliers is answered by a larger, usual one."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from bilevax.driver.arguments import chosen
from bilevax.driver.solution import Solution
from bilevax.driver.watch import Progress
from bilevax.model.prices import usual
from bilevax.model.problem import BilevelProblem

Callback = Callable[[Progress], bool | None] | None


class Asked:
    """The problem that is solved for a user's, and the way back; see `bilevax.model.prices`.

    Parameters
    ----------
    problem, x, y
        The user's problem and points that tell the shapes of its variables; None for y where the problem tells it.
    solver
        Which has to accept the user's problem.
    """

    def __init__(self, problem: BilevelProblem, x: PyTree, y: PyTree = None, solver: Any = None):
        self._usual = usual(problem, x, y)
        self.problem = self._usual.problem
        self.same = self.problem is problem
        if not self.same:
            chosen(solver).check(problem, x, y)
        self.start = self._usual.start

    def watching(self, callback: Callback) -> Callback:
        """Return a callback for the problem that is solved, which shows the user's y."""
        if callback is None or self.same:
            return callback
        return lambda now: callback(now._replace(y=self._usual.y(now.y)))

    def earlier(self, solution: Any) -> Any:
        """Return an earlier solution of the user's as one of the problem that is solved: it is kept as its state."""
        if self.same or not isinstance(solution, Solution):
            return solution
        if not isinstance(solution.state, Solution):
            raise ValueError("expected a Solution of a problem with multipliers_in_upper, got another's.")
        return solution.state

    def answer(self, solution: Solution) -> Solution:
        """Return a solution of the problem that is solved as one of the user's."""
        if self.same:
            return solution
        certificate = self._usual.answer(solution.certificate)
        return self._usual.answer(solution, certificate=certificate, state=dataclasses.replace(solution, history={}))
