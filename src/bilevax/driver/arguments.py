"""What a run is asked to do: where it starts, which solver runs, its tolerances and limits; all checked here."""

import dataclasses
import numbers
import os
import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax.model.coupling import LinearCoupling
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import Solver
from bilevax.solvers.default import Default


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a run begins, after `validate`: x need not lie in X yet, and y is None where the user gave none.

    ``y_like`` has the shapes of y, and ``warm_start`` is the earlier `Solution` to go on from, or None.
    """

    x: PyTree
    y_like: PyTree
    y: PyTree | None
    warm_start: Any = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """The tolerances of the stopping test, and after how many steps and seconds a run ends without it."""

    rtol: float
    atol: float
    max_steps: int
    time_limit: float | None

    @classmethod
    def of(
        cls,
        solver: Solver,
        rtol: float,
        atol: float,
        max_steps: int | None,
        time_limit: float | None,
    ) -> "Limits":
        """Return the limits of a run; without a number of steps, the solver's own default is the limit."""
        return cls(rtol, atol, solver.default_max_steps if max_steps is None else int(max_steps), time_limit)


def check_limits(rtol: Any, atol: Any, max_steps: Any, time_limit: Any) -> None:
    """Raise ValueError for invalid tolerances and limits."""
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


def check_callback(callback: Any) -> None:
    """Raise ValueError for a callback that cannot be called."""
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: expected a function of a Progress, got {type(callback).__name__}.")


def check_paths(**paths: Any) -> None:
    """Raise ValueError for arguments, given by their names, that are neither a path nor None."""
    for name, path in paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ValueError(f"{name}: expected a path, got {type(path).__name__}.")


def chosen(solver: Any) -> Solver:
    """Return the solver, the default when it is None; raise ValueError for anything that is no solver."""
    method = Default() if solver is None else solver
    if not isinstance(method, Solver):
        names = "Default(), SFLCB(...), BLOCC(...), LVHBA(...), BiCGAFFA(...), GAM(...) or ProjectedPenalty(...)"
        came = repr(solver) if isinstance(solver, str | type) else type(solver).__name__
        raise ValueError(f"solver: expected a solver object, one of {names}, got {came}.")
    return method


def shapes_of_x(problem: BilevelProblem) -> PyTree | None:
    """Return the shapes of x where the set X or a matrix B tells them, else None."""
    like = problem.x_set.like()
    matrices = [part.B for part in problem.coupling if isinstance(part, LinearCoupling) and part.B is not None]
    if like is None and matrices:
        return jax.ShapeDtypeStruct((matrices[0].shape[1],), np.float64)
    return like


def warn_outside(flat: FlatProblem, x: PyTree) -> None:
    """Warn the caller of the caller that a start lies outside X."""
    violation = flat.x_rows.violation(flat.x_flat(x))
    if violation > 1e-6:  # rounding, to float32 at least, is no news
        warnings.warn(
            f"x0: expected a point of X, got one that is outside by {violation:.2g} (relative). "
            "The run starts from its projection.",
            stacklevel=4,  # through `names_arguments`
        )
