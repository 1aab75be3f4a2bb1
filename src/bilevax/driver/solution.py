"""`Solution`: what a run comes back with."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support import html
from bilevax._support.trees import summarise
from bilevax.certificate.status import Status


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
    proof
        The `Proof` that there is nothing better, where one was found; else None.
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
    proof: Any = dataclasses.field(default=None, repr=False)

    def _lines(self) -> list[tuple[str, str]]:
        return [
            ("status", f"{self.status} ({'success' if self.success else 'no success'})"),
            ("value", f"{self.value:.10g}"),
            ("x", summarise(self.x)),
            ("y", summarise(self.y)),
            *((key, _format(value)) for key, value in self.stats.items()),
        ]

    def __str__(self) -> str:
        lines = self._lines()
        width = max(len(key) for key, _ in lines)
        body = "\n".join(f"  {key:<{width}}  {value}" for key, value in lines)
        proof = "" if self.proof is None else f"\n{self.proof}"
        return f"Solution: {self.message}\n{body}\n{self.certificate}{proof}"

    def _repr_html_(self) -> str:
        proof = "" if self.proof is None else self.proof._repr_html_()
        return html.facts(f"Solution: {self.message}", self._lines()) + self.certificate._repr_html_() + proof


def to_go_on_from(x: PyTree, y: PyTree, value: float, multipliers: Any) -> Solution:
    """Return a point that no solve returned as a ``warm_start``; nothing is proven of it."""
    unproven: dict[str, Any] = {"success": False, "message": "", "certificate": None, "history": {}, "stats": {}}
    return Solution(x, y, value, multipliers, status=Status.STALLED, **unproven)


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
