"""What a solver is: `init`, `step` and `terminate`, compiled, or a search on the host. No files, clocks or printing."""

import abc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.diary import Diary

Result = TypeVar("Result")


class ProblemRefused(ValueError):
    """Raised by a method for a problem outside its class; the message names the limit and a method that would do."""


class Solver(abc.ABC):
    """A method for bilevel problems, of one of two kinds: `CompiledSolver` or `HostSolver`."""

    default_max_steps: ClassVar[int]
    steady: ClassVar[bool]  # whether one step costs what another does
    # Whether the rows have to be affine, and the lower level's, and f to depend on x and y alone.
    only_affine: ClassVar[bool] = True

    def check(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> None:
        """Raise `ProblemRefused` if the method cannot handle the problem. The point (x, y) only gives shapes."""
        name = type(self).__name__
        if self.only_affine and problem.upper_rows:
            raise ProblemRefused(f"{name}: expected a problem without upper_rows, got some. Use the default.")
        if self.only_affine and problem.multipliers_in_upper:
            raise ProblemRefused(f"{name}: expected an f of x and y alone, got multipliers_in_upper. Use the default.")
        if self.only_affine and problem.curved:
            raise ProblemRefused(f"{name}: expected rows that are affine, got a ConvexCoupling. Use the default.")

    @abc.abstractmethod
    def dispatch(
        self, compiled: Callable[["CompiledSolver"], Result], host: Callable[["HostSolver"], Result]
    ) -> Result:
        """Call the function that is for solvers of this kind with this solver, and return its result."""


class Iterate(NamedTuple):
    """What every compiled solver can show of its state: the point, and the lower level's row multipliers."""

    x: PyTree
    y: PyTree
    multipliers: tuple[PyTree, ...]


class CompiledSolver(Solver, eqx.Module):
    """An iterative method whose ``init``, ``step`` and ``terminate`` are pure functions of arrays.

    The driver compiles, batches and resumes them.
    """

    steady: ClassVar[bool] = True
    check_every: ClassVar[int] = 100

    @abc.abstractmethod
    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> Any:
        """Return the state at the start (x, y)."""

    @abc.abstractmethod
    def step(self, problem: BilevelProblem, state: Any) -> Any:
        """Return the state after one step."""

    def steps(self, problem: BilevelProblem, state: Any, count: Any) -> tuple[Any, Any]:
        """Return the state after so many steps, and what else of the last one has to be finite: here nothing."""
        return jax.lax.fori_loop(0, count, lambda _, now: self.step(problem, now), state), ()

    @abc.abstractmethod
    def terminate(
        self, problem: BilevelProblem, state: Any, rtol: Any, atol: Any
    ) -> tuple[Bool[Array, ""], dict[str, Float[Array, ""]]]:
        """Return whether the stopping test holds, and the numbers it looked at."""

    @abc.abstractmethod
    def iterate(self, state: Any) -> Iterate:
        """Return the point that the state stands for."""

    def dispatch(
        self, compiled: Callable[["CompiledSolver"], Result], host: Callable[["HostSolver"], Result]
    ) -> Result:
        return compiled(self)


class Snapshot(NamedTuple):
    """Where a search stands after a step; ``exact`` where the value is Phi(x), not a smoothed one.

    ``slope`` is how steeply Phi still falls where that was last looked at, per length of x and relative to the size of
    its gradient; None where nobody looked. ``sweeps`` counts the work of the default's first-order variant so far: None
    in all others.
    """

    x: np.ndarray
    y: np.ndarray
    phase: str
    value: float
    exact: bool = True
    final: bool = False
    converged: bool = False
    sweeps: int | None = None
    slope: float | None = None

    def replaces(self, best: "Snapshot") -> bool:
        """Return whether this is the one to keep; where nothing exact is known yet, the latest is."""
        return self.final or (self.value <= best.value if self.exact and best.exact else self.exact or not best.exact)


class HostSolver(Solver):
    """A method that solves lower levels exactly and so runs on the host: a generator of snapshots."""

    steady: ClassVar[bool] = False
    keeps_diary: ClassVar[bool] = False

    @abc.abstractmethod
    def search(
        self,
        flat: FlatProblem,
        x0: np.ndarray,
        y0: np.ndarray | None,
        rtol: float,
        multipliers: np.ndarray | None = None,
        diary: Diary | None = None,
    ) -> Iterator[Snapshot]:
        """Yield a snapshot after each step, first of all the start; the answer is the best one, or the final one.

        With the coupled rows' ``multipliers`` the start is an earlier answer, perhaps of other data. With the diary of
        an earlier run from the same start, go on behind its entries: what they have shown is not shown again.
        """

    def settle(self, flat: FlatProblem, x: np.ndarray) -> np.ndarray:
        """Return the nearest point to x for which the lower level is feasible, as far as the method can tell."""
        return x

    def dispatch(
        self, compiled: Callable[["CompiledSolver"], Result], host: Callable[["HostSolver"], Result]
    ) -> Result:
        return host(self)
