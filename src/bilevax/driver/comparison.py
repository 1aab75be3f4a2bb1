"""Several methods on one problem, all judged alike: by the lower level solved exactly at their x."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from bilevax._support import html
from bilevax._support.elsewhere import as_they_come, chosen_executor, pickled, unpickled
from bilevax._support.hints import refuse_unknown
from bilevax._support.precision import float64
from bilevax._support.tables import aligned
from bilevax.driver.solution import Solution
from bilevax.driver.solve import solve
from bilevax.driver.watch import Progress
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.model.problem import BilevelProblem, validate
from bilevax.solvers.base import ProblemRefused, Solver
from bilevax.solvers.default import Default
from bilevax.solvers.sflcb import SFLCB

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Visit(NamedTuple):
    """A point on a method's way: after how many steps and seconds, x, and the iteration's own lower-level answer."""

    step: int
    seconds: float
    x: PyTree
    y: PyTree


def follow(
    problem: BilevelProblem,
    x0: PyTree,
    solver: Solver | None = None,
    count: int = 30,
    **options: Any,
) -> tuple[Solution, list[Visit]]:
    """Solve as `bilevax.solve` does; return the answer, and about ``count`` points on the way, itself the last one.

    Compilation and the certificate count in the answer's time.
    """
    visits: list[Visit] = []

    def note(now: Progress) -> None:
        visits.append(Visit(now.steps, now.time, now.x, now.y))

    solution = solve(problem, x0, solver=solver, callback=note, **options)
    kept = np.unique(np.linspace(0, len(visits) - 1, count).round().astype(int)) if count and visits else []
    answer = Visit(solution.stats["steps"], solution.stats["time"], solution.x, solution.y)
    return solution, [*(visits[index] for index in kept), answer]


@dataclasses.dataclass(frozen=True)
class Contender:
    """What one method made of the problem.

    Attributes
    ----------
    name
        As it was given.
    solution
        Its answer with the certificate; None where the method refused the problem or failed.
    refusal
        Why it refused, or what it failed with, else empty.
    failed
        Whether it ended with an error of its own.
    seconds, phi
        The way: seconds after the start, and Phi solved exactly there (NaN where the lower level is infeasible).
    reported
        f at the iteration's own y at the same points: what the method believes.
    """

    name: str
    solution: Solution | None
    refusal: str = ""
    failed: bool = False
    seconds: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    phi: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    reported: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    def row(self) -> dict[str, Any]:
        """Return the line of the table."""
        found = self.solution
        if found is None:
            return dict.fromkeys(_COLUMNS) | {"method": self.name, "status": "failed" if self.failed else "refused"}
        certificate = found.certificate
        return {
            "method": self.name,
            "status": str(found.status),
            "certified": found.success,
            "phi": found.value if np.isfinite(found.value) else None,
            "reported": float(self.reported[-2]) if np.isfinite(self.reported[-2:]).sum() > 1 else None,
            "lower_feasible": certificate.lower_feasible,
            "lower_infeasibility": abs(float(certificate.lower_infeasibility)),
            "stationarity": float(certificate.stationarity),
            "steps": found.stats["steps"],
            "seconds": found.stats["time"],
        }


_COLUMNS = (
    "method",
    "status",
    "certified",
    "phi",
    "reported",
    "lower_feasible",
    "lower_infeasibility",
    "stationarity",
    "steps",
    "seconds",
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The contenders in the order in which they ran; printed, a table."""

    contenders: tuple[Contender, ...]

    def __getitem__(self, name: str) -> Contender:
        for contender in self.contenders:
            if contender.name == name:
                return contender
        raise KeyError(f"expected one of {', '.join(c.name for c in self.contenders)}, got {name!r}.")

    def rows(self) -> list[dict[str, Any]]:
        """Return the table, a dictionary a line: what pandas, polars and json take."""
        return [contender.row() for contender in self.contenders]

    def _table(self) -> tuple[list[str], list[list[str]], list[str]]:
        """Return heads, rows and the sentences below them."""
        rows = [[_short(row[name]) for name in _COLUMNS] for row in self.rows()]
        reasons = [contender.refusal for contender in self.contenders if contender.refusal]
        return [name.replace("_", " ") for name in _COLUMNS], rows, reasons

    def __str__(self) -> str:
        heads, rows, reasons = self._table()
        return "\n".join([aligned([heads, *rows]), *reasons])

    def _repr_html_(self) -> str:
        return html.table(*self._table())

    def plot(self) -> "Figure":
        """Draw true Phi against time: a line a method, dashed what it reports, a diamond where it is certified."""
        from bilevax.app import plot  # matplotlib is an extra

        return plot.comparison(self)


def compare(
    problem: BilevelProblem,
    x0: PyTree,
    solvers: Mapping[str, Solver] | None = None,
    *,
    points: int = 20,
    executor: Any = None,
    workers: int | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on the same problem from the same start, and judge each by its certificate.

    Parameters
    ----------
    problem, x0
        What to solve, and where to start.
    solvers
        The methods by name; the default and `SFLCB` with its own standard parameters when absent. A method that refuses
        the problem, or fails, is listed with its reason.
    points
        At how many points of each method's way Phi is evaluated exactly, for the figure; 0 for none. These evaluations
        do not count in the times.
    executor, workers
        As in `multistart`, a method a task. Methods that share a machine take longer, which their times show; nothing
        else changes. One whose worker dies is listed as failed.
    **options
        For `bilevax.solve`: ``max_steps``, ``time_limit``, ``rtol``, ``y0`` and so on, the same for all.

    Examples
    --------
    >>> import bilevax as bx
    >>> from bilevax.problems import toy
    >>> found = bx.compare(toy(), 0.7, {"default": bx.Default(), "GAM": bx.GAM()}, points=0)
    >>> [row["certified"] for row in found.rows()]
    [True, True]
    """
    refuse_unknown("compare", [*inspect.signature(compare).parameters, *inspect.signature(solve).parameters], options)
    solvers = {"default": Default(), "SFLCB": SFLCB()} if solvers is None else solvers
    if not isinstance(solvers, Mapping) or not solvers:
        raise ValueError(f"solvers: expected a dictionary of solver objects by name, got {solvers!r}.")
    wrong = [name for name, solver in solvers.items() if not isinstance(solver, Solver)]
    if wrong:
        raise ValueError(f"solvers: expected solver objects, got {type(solvers[wrong[0]]).__name__} for {wrong[0]!r}.")
    with float64():
        validate(problem, x0, options.get("y0"))  # what is wrong with the problem is no method's failure
    elsewhere = chosen_executor(executor, workers)
    task = _Task(problem, x0, solvers, points, options)
    if elsewhere is None:
        return Comparison(tuple(task.contender(name) for name in solvers))
    payload = pickled(task)
    found = dict(as_they_come(elsewhere, _contender_elsewhere, solvers, lambda name: (name, payload)))
    lost = {name: _failed(name, error) for name, error in found.items() if isinstance(error, BaseException)}
    return Comparison(tuple((found | lost)[name] for name in solvers))


@dataclasses.dataclass(frozen=True)
class _Task:
    """What all methods have to do, and one exact Phi in a process that judges them all."""

    problem: BilevelProblem
    x0: PyTree
    solvers: Mapping[str, Solver]
    points: int
    options: Mapping[str, Any]

    @functools.cached_property
    def exact(self) -> Hyperobjective:
        return Hyperobjective(self.problem, self.x0, self.options.get("y0"))

    def contender(self, name: str) -> Contender:
        """Return what a method makes of the problem."""
        try:
            solution, visits = follow(self.problem, self.x0, self.solvers[name], self.points, **self.options)
        except ProblemRefused as refusal:
            return Contender(name, None, str(refusal))
        except Exception as error:  # one method's failure is a row, not the end of the comparison
            return _failed(name, error)
        if not self.points:
            return Contender(name, solution)
        return Contender(
            name,
            solution,
            seconds=np.array([visit.seconds for visit in visits]),
            phi=np.array([self.exact(visit.x).value for visit in visits[:-1]] + [solution.value]),
            reported=np.array([self.exact.upper(visit.x, visit.y) for visit in visits]),
        )


def _contender_elsewhere(name: str, payload: bytes) -> Contender:
    return unpickled(payload).contender(name)


def _failed(name: str, error: BaseException) -> Contender:
    return Contender(name, None, f"{name}: {type(error).__name__}: {error}", failed=True)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
