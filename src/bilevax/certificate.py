"""`certify`: the lower level solved exactly at x, and what follows from it. The judge of every answer."""

import dataclasses
import time
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax import _deadline, _trees
from bilevax._deadline import deadline, in_time
from bilevax._precision import float64
from bilevax._threads import blas_threads
from bilevax.convex import ConvexSolution, Outcome
from bilevax.derivatives import FlatProblem
from bilevax.lower_level import solve_flat, wrap
from bilevax.problem import BilevelProblem, validate
from bilevax.solution import Status, summarise
from bilevax.stationarity import Stationarity, measure, value_spread

_FAILURES = {
    Outcome.INFEASIBLE: Status.LOWER_INFEASIBLE,
    Outcome.UNBOUNDED: Status.LOWER_UNBOUNDED,
    Outcome.NOT_CONVEX: Status.LOWER_NOT_CONVEX,
    Outcome.INACCURATE: Status.STALLED,
}
LOWER_TOLERANCE = 1e-7
VALUE_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What is proven about a point x.

    Attributes
    ----------
    value
        Phi(x) = f(x, y*(x)); inf where the lower level is infeasible, NaN where it has no proven minimiser.
    y, multipliers
        The exact lower-level answer at x, and the multipliers of the rows (``grad_y g + A' multipliers + ... = 0``).
    lower_feasible
        Whether some y in Y satisfies the rows at x.
    lower_stationarity, lower_infeasibility, lower_complementarity
        KKT residuals of (y, multipliers), relative. Where the lower level is infeasible, ``lower_infeasibility`` is the
        smallest uniform relaxation of the rows that would make it feasible, in the rows' own units.
    lower_unique
        Whether y is known to be the only minimiser. If not, Phi(x) may depend on which one the lower level takes.
    value_spread
        How far f is seen to move over the minimisers of the lower level; 0 where y is the only one.
    x_infeasibility
        Distance of x from X.
    hypergradient
        The gradient of Phi at x, or None where Phi has none (a kink, a border).
    stationarity, stationarity_test
        Relative distance from first-order stationarity, kinks and borders included, and the test that gave it:
        smooth, strong or hull (see `bilevax.stationarity`). Where rows had to be moved by more than 1e-5 to
        find x stationary, it is at least that margin, and the test names it.
    licq, smallest_singular_value
        Whether the active rows' gradients in y are independent, by their smallest singular value.
    strict_complementarity, complementarity_margin
        Whether every active row has a positive multiplier (in some multiplier vector, where they are not unique), and
        the smallest of max(slack, multiplier) over the rows.
    penalty_gap, delta
        Phi(x) - Phi_delta(x) for that delta; None where it was not asked for or g + delta f is not convex.
    y_error
        Largest distance, entry by entry, of the y that was given from the exact one; None when none was given.
    failure
        Why the lower level could not be solved at x, or None.
    complete
        Whether everything was measured to its end, within the time there was.
    """

    value: float
    y: PyTree
    multipliers: PyTree
    lower_feasible: bool
    lower_stationarity: float
    lower_infeasibility: float
    lower_complementarity: float
    lower_unique: bool
    value_spread: float
    x_infeasibility: float
    hypergradient: PyTree | None
    stationarity: float
    stationarity_test: str
    licq: bool
    smallest_singular_value: float
    strict_complementarity: bool
    complementarity_margin: float
    penalty_gap: float | None
    delta: float | None
    y_error: float | None
    failure: Status | None
    complete: bool = True

    def confirms(self, rtol: float) -> bool:
        """Return whether x is proven feasible (1e-7), lower-level optimal (1e-7) and stationary (rtol).

        Where the lower level has several minimisers, f has to agree on them (1e-6, relative).
        """
        return bool(
            self.proves_value
            and self.value_spread <= VALUE_TOLERANCE * (1 + abs(self.value))
            and self.stationarity <= rtol
        )

    @property
    def proves_value(self) -> bool:
        """Whether x is proven feasible and y lower-level optimal (1e-7), whatever is known of stationarity."""
        return bool(
            self.failure is None
            and self.lower_feasible
            and np.isfinite(self.value)
            and max(self.lower_stationarity, self.lower_infeasibility, self.lower_complementarity) <= LOWER_TOLERANCE
            and self.x_infeasibility <= LOWER_TOLERANCE
        )

    def __str__(self) -> str:
        gap = "not measured" if self.penalty_gap is None else f"{self.penalty_gap:.3g} at delta {self.delta:g}"
        residuals = (
            f"stationarity {self.lower_stationarity:.2g}, infeasibility {self.lower_infeasibility:.2g}, "
            f"complementarity {self.lower_complementarity:.2g}"
        )
        lines = [
            ("Phi(x)", f"{self.value:.10g}"),
            ("y*(x)", summarise(self.y)),
            ("lower level", ("feasible; " if self.lower_feasible else "INFEASIBLE; ") + residuals),
            ("y* unique", "yes" if self.lower_unique else f"not proven; f moves by {self.value_spread:.2g} over them"),
            ("stationarity", f"{self.stationarity:.3g} (test: {self.stationarity_test})"),
            ("hypergradient", "none here" if self.hypergradient is None else summarise(self.hypergradient)),
            (
                "LICQ",
                f"{'yes' if self.licq else 'no'} (smallest singular value {self.smallest_singular_value:.2g})",
            ),
            (
                "strict compl.",
                f"{'yes' if self.strict_complementarity else 'no'} (margin {self.complementarity_margin:.2g})",
            ),
            ("penalty gap", gap),
        ]
        if self.failure is not None:
            lines.insert(0, ("failure", self.failure.value))
        return "Certificate\n" + "\n".join(f"  {key:<13}  {value}" for key, value in lines)


def certify(
    problem: BilevelProblem, x: PyTree, y: PyTree = None, *, delta: Any = None, time_limit: float | None = None
) -> Certificate:
    """Check anybody's answer: solve the lower level at x exactly and measure what can be proven.

    Parameters
    ----------
    problem, x
        The problem and the point, in float64 whatever JAX's settings.
    y
        Somebody's lower-level answer: gives y its structure, starts the exact solve, and is compared with its result.
    delta
        Also measure the gap Phi - Phi_delta at this penalty (one more exact solve).
    time_limit
        Seconds after which what is known by then is returned: a certificate that is weaker, not ``complete``, and
        confirms nothing that it has not proven.
    """
    limit = np.inf if time_limit is None else time.monotonic() + time_limit
    with float64():
        point, y_like, guess = validate(problem, x, y)
    flat = FlatProblem(problem, point, y_like)
    x_flat = _trees.flatten_host(point)
    start = None if guess is None else _trees.flatten_host(guess)
    with blas_threads(max(flat.n_x, flat.n_y, flat.rows.A.shape[0])), deadline(limit):
        return _certify(flat, x_flat, start, None if delta is None else float(delta))


def proven(lower: ConvexSolution) -> bool:
    """Return whether a lower-level answer may be relied on.

    On the border of feasibility 1e-9 may be out of reach: what `Certificate.confirms` asks for will do.
    """
    accurate = lower.residual <= LOWER_TOLERANCE
    return lower.outcome is Outcome.OPTIMAL or (lower.outcome is Outcome.INACCURATE and accurate)


def _certify(flat: FlatProblem, x_flat: np.ndarray, start: np.ndarray | None, delta: float | None) -> Certificate:
    def exact() -> tuple[ConvexSolution, float]:
        lower = solve_flat(flat, x_flat, start)
        otherwise = np.inf if lower.outcome is Outcome.INFEASIBLE else np.nan
        return lower, flat.value("upper", x_flat, lower.y) if proven(lower) else otherwise

    found = in_time(exact)
    lower, value = (_unsolved(flat, start), np.nan) if found is None else found
    answer = wrap(flat, lower)
    feasible = lower.outcome is not Outcome.INFEASIBLE
    solved = proven(lower)
    quality = (in_time(lambda: measure(flat, x_flat, lower)) or _TOO_LATE) if solved else _NOTHING
    spread = in_time(lambda: value_spread(flat, x_flat, lower)) if solved else None
    gap = in_time(lambda: _penalty_gap(flat, x_flat, lower, value, delta)) if solved and delta is not None else None
    return Certificate(
        value=value,
        y=answer.y,
        multipliers=answer.multipliers,
        lower_feasible=feasible,
        lower_stationarity=lower.stationarity,
        lower_infeasibility=lower.infeasibility if feasible else lower.relaxation,
        lower_complementarity=lower.complementarity,
        lower_unique=lower.unique,
        value_spread=np.inf if spread is None else spread,
        x_infeasibility=flat.x_rows.violation(x_flat),
        hypergradient=None if quality.hypergradient is None else flat.x_tree(quality.hypergradient),
        stationarity=quality.value,
        stationarity_test=quality.test,
        licq=quality.licq,
        smallest_singular_value=quality.smallest_singular_value,
        strict_complementarity=quality.strict_complementarity,
        complementarity_margin=quality.complementarity_margin,
        penalty_gap=gap,
        delta=delta,
        y_error=None if start is None else float(np.abs(start - lower.y).max(initial=0.0)),
        failure=None if solved else Status.TIME_LIMIT if found is None else _FAILURES.get(lower.outcome),
        complete=_deadline.remaining() > 0,
    )


_NOTHING = Stationarity(
    value=np.inf,
    test="none: the lower level has no proven minimiser",
    hypergradient=None,
    licq=False,
    smallest_singular_value=np.nan,
    strict_complementarity=False,
    complementarity_margin=np.nan,
)
_TOO_LATE = dataclasses.replace(_NOTHING, test="none: out of time")


def _unsolved(flat: FlatProblem, start: np.ndarray | None) -> ConvexSolution:
    """Return what is known of a lower level that there was no time to solve: nothing but where to start."""
    rows, balls = flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0], len(flat.y_rows.balls)
    y = np.zeros(flat.n_y) if start is None else start
    return ConvexSolution(y, np.zeros(rows), np.zeros(balls), Outcome.INACCURATE)


def _penalty_gap(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, value: float, delta: float) -> float | None:
    penalised = solve_flat(flat, x, lower.y, penalty=delta)
    if penalised.outcome is not Outcome.OPTIMAL:
        return None
    excess = flat.value("lower", x, penalised.y) - flat.value("lower", x, lower.y)
    return value - (flat.value("upper", x, penalised.y) + excess / delta)
