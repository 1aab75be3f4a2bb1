"""What a solver is: an object with `init`, `step` and `terminate`, and nothing about files, clocks or printing."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Float, PyTree

from bilevax.problem import BilevelProblem


class Iterate(NamedTuple):
    """What every solver can show of its state: the point, and the lower level's row multipliers."""

    x: PyTree
    y: PyTree
    multipliers: tuple[PyTree, ...]


class AbstractSolver(eqx.Module):
    """An iterative method for bilevel problems.

    ``init``, ``step`` and ``terminate`` are pure functions of arrays: they are compiled, batched and resumed by the
    driver.
    """

    default_max_steps: ClassVar[int]
    check_every: ClassVar[int] = 100

    @abc.abstractmethod
    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> Any:
        """Return the state at the start (x, y)."""

    @abc.abstractmethod
    def step(self, problem: BilevelProblem, state: Any) -> Any:
        """Return the state after one step."""

    @abc.abstractmethod
    def terminate(
        self, problem: BilevelProblem, state: Any, rtol: Any, atol: Any
    ) -> tuple[Bool[Array, ""], dict[str, Float[Array, ""]]]:
        """Return whether the stopping test holds, and the numbers it looked at."""

    @abc.abstractmethod
    def iterate(self, state: Any) -> Iterate:
        """Return the point that the state stands for."""

    def check(self, problem: BilevelProblem) -> None:
        """Raise a `ValueError` if the method cannot handle the problem."""
        return
