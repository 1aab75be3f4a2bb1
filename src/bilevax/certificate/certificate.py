"""`certify`: the lower level solved exactly at x, and what follows from it. The judge of every answer."""

import dataclasses
import time
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support import clock, html, trees
from bilevax._support.clock import deadline, in_time
from bilevax._support.hints import names_arguments
from bilevax._support.memory import Frozen
from bilevax._support.precision import float64
from bilevax._support.threads import blas_threads
from bilevax._support.trees import summarise
from bilevax.certificate.challenge import Challenge, Descent, challenge
from bilevax.certificate.convexity import Evidence, LowerConvexity, lower_convexity
from bilevax.certificate.settings import CERTIFICATE
from bilevax.certificate.stationarity import Stationarity, measure
from bilevax.certificate.status import Status
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.convex.problem import ConvexSolution, Outcome
from bilevax.exact.lower import smallest_relaxation_at, solve_flat
from bilevax.exact.lower_level import wrap
from bilevax.exact.phi import Phi, evaluate
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.problem import BilevelProblem, Level, validate
from bilevax.model.row_functions import upper_rows_of

_FAILURES = {
    Outcome.INFEASIBLE: Status.LOWER_INFEASIBLE,
    Outcome.UNBOUNDED: Status.LOWER_UNBOUNDED,
    Outcome.NOT_CONVEX: Status.LOWER_NOT_CONVEX,
    Outcome.INACCURATE: Status.STALLED,
}


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
        Whether y is known to be the only minimiser. If not, ``problem.choice`` says which one counts, and y is that.
    value_range
        The least and the largest f over the minimisers of the lower level at x, of which ``value`` is one.
    value_error
        A bound on how far ``value`` may be from Phi(x), as y is known to a limited accuracy only.
    value_unit
        f's natural unit: the size of an ordinary change of f (see `bilevax.model.scales`).
    x_infeasibility
        Distance of x from X.
    upper_infeasibility
        The largest violation of an upper row at (x, y), relative to the size of what is added up there.
    upper_multipliers
        Those of the upper rows, in the form in which they were given: ``grad f + upper_multipliers' grad c + ... = 0``,
        positive only on an active upper side, negative only on an active lower side. None without upper rows.
    hypergradient
        The gradient of Phi at x, or None where Phi has none (a kink, a border).
    stationarity, stationarity_test
        The slope of Phi that is left, relative to the slopes of its pieces, at kinks and borders too, and the test
        that gave it: smooth, strong or hull (see `bilevax.certificate.stationarity`).
    radius
        How far x would have to move, in natural units, for ``stationarity`` to hold: the rows that are active, and
        the multipliers that are zero, only within a margin are exactly so at a point that far away. 0 where no margin
        was used.
    descent
        A point next to x with a smaller Phi, which refutes x, or None.
    challenges
        At how many points around x Phi was evaluated in search of such a point.
    licq, smallest_singular_value
        Whether the active rows' gradients in y are independent, by their smallest singular value.
    strict_complementarity, complementarity_margin
        Whether every active row has a positive multiplier (in some multiplier vector, where they are not unique), and
        the smallest of max(slack, multiplier) over the rows.
    penalty_gap, delta
        Phi(x) - Phi_delta(x) for that delta; None where it was not asked for or g + delta f is not convex.
    y_error
        Largest distance, entry by entry, of the y that was given from the exact one; None when none was given.
    lower_convexity
        Whether g is convex in y: "proven" by its composition or its constant Hessian, "tested" at points across the
        feasible set at x, "refuted" there, or "unknown".
    failure
        Why nothing can be proven at x, or None.
    remark
        Details of the failure: the kink that makes an objective nonsmooth, the point where g is not convex.
    complete
        Whether there was time to measure everything.
    """

    value: float
    y: PyTree
    multipliers: PyTree
    lower_feasible: bool
    lower_stationarity: float
    lower_infeasibility: float
    lower_complementarity: float
    lower_unique: bool
    value_range: tuple[float, float]
    value_error: float
    value_unit: float
    x_infeasibility: float
    upper_infeasibility: float
    upper_multipliers: PyTree | None
    hypergradient: PyTree | None
    stationarity: float
    stationarity_test: str
    radius: float
    descent: Descent | None
    challenges: int
    licq: bool
    smallest_singular_value: float
    strict_complementarity: bool
    complementarity_margin: float
    penalty_gap: float | None
    delta: float | None
    y_error: float | None
    lower_convexity: Evidence
    failure: Status | None
    remark: str = ""
    complete: bool = True

    def confirms(self, rtol: float) -> bool:
        """Return whether x is proven feasible (1e-7), lower-level optimal (1e-7) and stationary (rtol).

        Stationary means that both ``stationarity`` and ``radius`` are at most ``rtol``, that Phi(x) is known to 1e-6 of
        its size and its unit, and that no point around x was found with a smaller Phi.
        """
        return self.objection(rtol) is None

    def objection(self, rtol: float) -> str | None:
        """Return what keeps `confirms` from holding, in words, or None."""
        accuracy = max(self.lower_stationarity, self.lower_infeasibility, self.lower_complementarity)
        needed = TOLERANCES.value * (self.value_unit + abs(self.value))
        low, high = self.value_range
        reasons = {
            self.remark or "nothing can be proven at x": self.failure is not None,
            "the lower level is infeasible at x": not self.lower_feasible,
            "Phi(x) is not a number": not np.isfinite(self.value),
            f"the lower level is solved to {accuracy:.2g} only": not accuracy <= TOLERANCES.lower,
            f"x is outside X by {self.x_infeasibility:.2g}": not self.x_infeasibility <= TOLERANCES.lower,
            f"an upper row is violated by {self.upper_infeasibility:.2g}": not self._satisfies_upper_rows,
            f"the lower level has several minimisers, over which f differs ({low:.6g} to {high:.6g}), and the one that "
            "counts was not found": not self.value_error <= needed and not self.lower_unique and high - low > needed,
            f"y*(x) is known so badly that Phi(x) may be off by {self.value_error:.2g}": not self.value_error <= needed,
            f"Phi has a slope of {self.stationarity:.2g} left": not self.stationarity <= rtol,
            f"x would have to move by {self.radius:.2g} of its natural unit": not self.radius <= rtol,
            "a point next to x has a smaller Phi": self.descent is not None,
            "there was no time to measure everything": not self.complete,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def _satisfies_upper_rows(self) -> bool:
        return self.upper_infeasibility <= TOLERANCES.lower

    @property
    def proves_value(self) -> bool:
        """Whether x is proven feasible and y lower-level optimal (1e-7), whatever is known of stationarity."""
        accuracy = max(self.lower_stationarity, self.lower_infeasibility, self.lower_complementarity)
        return bool(
            self.failure is None
            and self.lower_feasible
            and np.isfinite(self.value)
            and accuracy <= TOLERANCES.lower
            and self.x_infeasibility <= TOLERANCES.lower
            and self._satisfies_upper_rows
            and self.value_error <= TOLERANCES.value * (self.value_unit + abs(self.value))
        )

    def _lines(self) -> list[tuple[str, str]]:
        gap = "not measured" if self.penalty_gap is None else f"{self.penalty_gap:.3g} at delta {self.delta:g}"
        residuals = (
            f"stationarity {self.lower_stationarity:.2g}, infeasibility {self.lower_infeasibility:.2g}, "
            f"complementarity {self.lower_complementarity:.2g}"
        )
        lines = [
            ("Phi(x)", f"{self.value:.10g}"),
            ("y*(x)", summarise(self.y)),
            ("lower level", ("feasible; " if self.lower_feasible else "INFEASIBLE; ") + residuals),
            *([] if self.upper_multipliers is None else [("upper rows", self._upper_rows())]),
            ("g convex in y", self.lower_convexity),
            (
                "y* unique",
                "yes" if self.lower_unique else "not proven; f in [{:.6g}, {:.6g}]".format(*self.value_range),
            ),
            ("known to", f"{self.value_error:.2g}"),
            (
                "stationarity",
                f"slope {self.stationarity:.3g} within a radius of {self.radius:.3g} (test: {self.stationarity_test})",
            ),
            (
                "challenged",
                f"at {self.challenges} points around, "
                + ("none lower" if self.descent is None else f"refuted: {self.descent.value:.10g}"),
            ),
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
            lines.insert(0, ("failure", " ".join(filter(None, [self.failure.value, self.remark]))))
        return lines

    def _upper_rows(self) -> str:
        held = "satisfied" if self._satisfies_upper_rows else "VIOLATED"
        return f"{held} ({self.upper_infeasibility:.2g}); multipliers {summarise(self.upper_multipliers)}"

    def __str__(self) -> str:
        return "Certificate\n" + "\n".join(f"  {key:<13}  {value}" for key, value in self._lines())

    def _repr_html_(self) -> str:
        return html.facts("Certificate", self._lines())


@names_arguments
def certify(
    problem: BilevelProblem, x: PyTree, y: PyTree = None, *, delta: Any = None, time_limit: float | None = None
) -> Certificate:
    """Check anybody's answer: solve the lower level at x exactly and measure what can be proven.

    Parameters
    ----------
    problem, x
        The problem and the point, in float64 whatever JAX's settings.
    y
        A lower-level answer to compare with: it also gives y its structure, and a start to the exact solve where that
        needs one.
    delta
        Also measure the gap Phi - Phi_delta at this penalty (one more exact solve).
    time_limit
        Seconds after which what is proven by then is returned: a weaker certificate, which is not ``complete``.
    """
    limit = np.inf if time_limit is None else time.monotonic() + time_limit
    with float64():
        point, y_like, guess = validate(problem, x, y)
    with deadline(limit):
        return certify_flat(FlatProblem(problem, point, y_like), point, guess, delta)


def certify_flat(user: FlatProblem, x: PyTree, y: PyTree, delta: Any = None) -> Certificate:
    """Return the certificate of x, for a flat problem in the user's units; see `certify`."""
    with blas_threads(max(user.n_y, min(user.rows.A.shape[0], 2 * user.n_y))):
        helpful = y if user.n_y > CERTIFICATE.start_counts else None
        flat = in_time(lambda: equilibrated(user, x, helpful)) or user  # without the time, nothing will be measured
        start = None if y is None else flat.y_flat(y)
        return _certify(flat, flat.x_flat(x), start, None if delta is None else float(delta))


def _certify(flat: FlatProblem, x: np.ndarray, start: np.ndarray | None, delta: float | None) -> Certificate:
    found = in_time(lambda: _evaluate(flat, x, start))
    phi = Phi(_unsolved(flat, start), np.nan, np.nan, np.nan, np.inf, False) if found is None else found
    lower, solved = phi.lower, phi.solved
    answer = wrap(flat, lower)
    feasible = lower.outcome is not Outcome.INFEASIBLE
    quality = (in_time(lambda: measure(flat, x, lower)) or _TOO_LATE) if solved else _NOTHING
    tried, lowest = (in_time(lambda: challenge(flat, x, phi, quality)) if solved else None) or Challenge(0, None)
    convexity = (in_time(lambda: lower_convexity(flat, x, lower.y)) if feasible else None) or LowerConvexity("unknown")
    gap = in_time(lambda: _penalty_gap(flat, x, lower, phi.value, delta)) if solved and delta is not None else None
    missing = lower.infeasibility if feasible else in_time(lambda: smallest_relaxation_at(flat, x))
    outside = (in_time(lambda: upper_rows_at(flat, x, lower.y).violation) if solved else None) or 0.0
    complete = clock.remaining() > 0
    failure, remark = (Status.TIME_LIMIT, "") if found is None else _failure(flat, phi, convexity, outside)
    unit = flat.scales.upper
    return Certificate(
        value=phi.value / unit,
        y=answer.y,
        multipliers=answer.multipliers,
        lower_feasible=feasible,
        lower_stationarity=lower.stationarity,
        lower_infeasibility=np.inf if missing is None else missing,
        lower_complementarity=lower.complementarity,
        lower_unique=phi.unique,
        value_range=(phi.low / unit, phi.high / unit),
        value_error=phi.error / unit,
        value_unit=1 / unit,
        x_infeasibility=flat.x_rows.violation(x),
        upper_infeasibility=outside,
        upper_multipliers=_upper_multipliers(flat, quality),
        hypergradient=None if quality.hypergradient is None else flat.gradient_tree(quality.hypergradient),
        stationarity=quality.value,
        stationarity_test=quality.test,
        radius=quality.radius,
        descent=None if lowest is None else Descent(flat.x_tree(lowest.x), lowest.value / unit),
        challenges=tried,
        licq=quality.licq,
        smallest_singular_value=quality.smallest_singular_value,
        strict_complementarity=quality.strict_complementarity,
        complementarity_margin=quality.complementarity_margin,
        penalty_gap=gap,
        delta=delta,
        y_error=None if start is None else float(np.abs((start - lower.y) * flat.scales.y).max(initial=0.0)),
        lower_convexity=convexity.evidence,
        failure=failure,
        remark=remark,
        complete=complete,
    )


def _evaluate(flat: FlatProblem, x: np.ndarray, start: np.ndarray | None) -> Phi:
    """Return Phi at x; a start for y is used only where the lower level is large or not solved without it.

    In between it is used for a minimiser that is the only one, so that the start makes no difference.
    """
    size = max(flat.n_y, flat.rows.A.shape[0])
    if start is None or size > CERTIFICATE.start_helps:
        found = evaluate(flat, x, start)
        if start is None or size > CERTIFICATE.start_counts or found.lower.unique:
            return found
    cold = evaluate(flat, x)
    return cold if cold.solved or cold.lower.outcome is Outcome.INFEASIBLE else evaluate(flat, x, start)


def _upper_multipliers(flat: FlatProblem, quality: Stationarity) -> PyTree | None:
    """Return the multipliers of the upper rows in the user's units and structure."""
    problem = flat.problem
    if not problem.upper_rows:
        return None
    shapes = upper_rows_of(problem, Frozen(flat.x_like), Frozen(flat.y_like)).shapes
    known = quality.upper_multipliers if len(quality.upper_multipliers) else np.full(trees.size(shapes), np.nan)
    found = trees.unflatten(known / flat.scales.upper, shapes)
    return found[0] if problem.single_upper_rows else found


def _failure(flat: FlatProblem, phi: Phi, convexity: LowerConvexity, outside: float) -> tuple[Status | None, str]:
    """Return why nothing can be proven at x, and details of it; None if something can."""
    names: dict[Level, str] = {"upper": "the upper objective", "lower": "the lower objective"}
    for level, name in names.items():
        if kinks := flat.properties(level).refused:
            return Status.NOT_SMOOTH, f"{name} has a kink: {kinks[0]}"
    if convexity.point is not None:
        return Status.LOWER_NOT_CONVEX, f"g curves down at y = {summarise(convexity.point)}."
    if phi.solved and outside > TOLERANCES.lower:
        return Status.UPPER_INFEASIBLE, f"an upper row is violated by {outside:.2g}"
    if phi.solved:
        return None, ""
    return _FAILURES[phi.lower.outcome], "" if phi.lower.outcome is not Outcome.INACCURATE else (
        f"the lower level could be solved to {phi.lower.residual:.2g} only"
    )


_NOTHING = Stationarity(
    value=np.inf,
    radius=np.inf,
    test="none: the lower level has no proven minimiser",
    scale=np.inf,
    pieces=(),
    hypergradient=None,
    licq=False,
    smallest_singular_value=np.nan,
    strict_complementarity=False,
    complementarity_margin=np.nan,
)
_TOO_LATE = dataclasses.replace(_NOTHING, test="none: out of time")


def _unsolved(flat: FlatProblem, start: np.ndarray | None) -> ConvexSolution:
    """Return a placeholder for a lower level that there was no time to solve: its start, with infinite residuals."""
    rows, balls = flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0], len(flat.y_rows.balls)
    y = np.zeros(flat.n_y) if start is None else start
    return ConvexSolution(y, np.zeros(rows), np.zeros(balls), Outcome.INACCURATE)


def _penalty_gap(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution, value: float, delta: float) -> float | None:
    """Return Phi(x) - Phi_delta(x); None where ``g + delta f`` has no proven minimiser."""
    weight = flat.penalty(delta)
    penalised = solve_flat(flat, x, lower.y, penalty=weight)
    if penalised.outcome is not Outcome.OPTIMAL:
        return None
    excess = flat.value("lower", x, penalised.y) - flat.value("lower", x, lower.y)
    return (value - (flat.value("upper", x, penalised.y) + excess / weight)) / flat.scales.upper
