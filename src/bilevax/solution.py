"""`Status` and `Solution`: what a run comes back with."""

import dataclasses
import enum
from typing import Any

import numpy as np
from jaxtyping import PyTree


class Status(enum.Enum):
    """How a run ended. The value is a sentence a person can act on."""

    CONVERGED = "Converged: the stopping test holds and the certificate confirms the answer."
    ALMOST_SOLVED = (
        "Almost solved: the stopping test holds, but the certificate does not confirm stationarity to rtol. "
        "Lower delta, or raise rtol if the certificate's numbers are good enough."
    )
    MAX_STEPS = "Stopped at max_steps before the stopping test held. Allow more steps, or warm-start from this answer."
    TIME_LIMIT = "Stopped at time_limit before the stopping test held. Allow more time, or resume from the checkpoint."
    STALLED = "Stalled: no further progress at this precision. The certificate says how good the answer is."
    DIVERGED = "Diverged: the iterates grew without bound or became NaN. Use smaller step sizes."
    LOWER_INFEASIBLE = "The lower level has no feasible point at the returned x. The certificate says by how much."
    LOWER_UNBOUNDED = "The lower level has no minimiser at the returned x: it decreases without bound."
    LOWER_NOT_CONVEX = "The lower objective is not convex in y at the returned x, so its minimiser cannot be proven."
    NOT_SMOOTH = (
        "An objective is not smooth: its gradient jumps, so that neither the search nor a certificate can rely on it. "
        "Write the kink as rows and variables."
    )
    UNBOUNDED = "The upper objective decreases without bound: there is no best x. Bound x, or look at the model."
    NOT_A_NUMBER = (
        "An objective is NaN or infinite at the returned x, or its derivatives are. "
        "Bound x and y to where both objectives are defined, or start elsewhere."
    )
    CALLBACK = "Stopped by the callback."
    INTERRUPTED = (
        "Interrupted from the keyboard: this is the best point so far. "
        "Warm-start from it, or resume from the checkpoint."
    )

    def __str__(self) -> str:
        return self.name.lower()


@dataclasses.dataclass(frozen=True)
class Solution:
    """The answer of a run, judged by its certificate.

    Attributes
    ----------
    x, y
        The answer: x from the solver, y the exact lower-level answer at x from the certificate.
    value
        Phi(x) from the certificate, never the iteration's own f(x, y).
    multipliers
        Of the lower level's rows at (x, y), in the form in which the coupling was given.
    status, success, message
        ``success`` is true only when the run converged and the certificate confirms it.
    certificate
        The exact evaluation at x.
    history
        Columns of numbers and words, one entry a look at the run: ``step``, ``time``, ``upper`` (f there) and the
        solver's residuals or its ``phase``. ``pandas.DataFrame(solution.history)`` is a table, as in polars.
    stats
        ``steps``, ``time``, ``solver`` and what else the solver counts.
    state
        The solver's last state, from which a later run may be warm-started.
    """

    x: PyTree
    y: PyTree
    value: float
    multipliers: PyTree
    status: Status
    success: bool
    message: str
    certificate: Any
    history: dict[str, np.ndarray]
    stats: dict[str, Any]
    state: Any = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [
            ("status", f"{self.status} ({'success' if self.success else 'no success'})"),
            ("value", f"{self.value:.10g}"),
            ("x", summarise(self.x)),
            ("y", summarise(self.y)),
            *((key, _format(value)) for key, value in self.stats.items()),
        ]
        width = max(len(key) for key, _ in lines)
        body = "\n".join(f"  {key:<{width}}  {value}" for key, value in lines)
        return f"Solution: {self.message}\n{body}\n{self.certificate}"


def summarise(value: PyTree) -> str:
    """Return a short text for a point: its numbers when few, its shape when many."""
    from bilevax import _trees

    flat = _trees.flatten_host(value)
    if flat.size <= 6:
        return np.array2string(flat, precision=8, separator=", ")
    return f"{_trees.describe(value)}, entries in [{flat.min():.4g}, {flat.max():.4g}]"


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
