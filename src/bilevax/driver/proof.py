"""`Proof`: what is proven about all x at once."""

import dataclasses

import numpy as np

from bilevax._support import html
from bilevax.driver.solution import Solution
from bilevax.proof.bounds import Bounds, relative_gap
from bilevax.proof.status import ProofStatus


@dataclasses.dataclass(frozen=True)
class Proof:
    """Global bounds on the least value of a bilevel problem, and the best solution that is known.

    Attributes
    ----------
    lower_bound
        No x of the problem has a smaller Phi; minus infinity where nothing is proven, infinity where it is proven that
        there is no x at all.
    upper_bound
        The value of ``solution``, exactly evaluated.
    gap
        ``upper_bound - lower_bound``, relative to the size of ``upper_bound``, or to a thousandth of f's natural unit
        where that is larger.
    proven
        Whether the gap is at most what was asked for: ``solution`` is a global optimum.
    solution
        The best that is known, with its certificate; None where none was found.
    nodes
        How many convex programs were solved.
    time
        Seconds.
    status, message
        How the proof ended.
    history
        Columns ``time``, ``nodes``, ``lower_bound`` and ``upper_bound``: how the bounds closed.
    """

    lower_bound: float
    upper_bound: float
    gap: float
    proven: bool
    solution: Solution | None
    nodes: int
    time: float
    status: ProofStatus
    message: str
    history: dict[str, np.ndarray] = dataclasses.field(repr=False)

    def lines(self) -> list[tuple[str, str]]:
        """Return what is proven, a name and a text each."""
        return [
            ("status", f"{self.status} ({'proven' if self.proven else 'not proven'})"),
            ("lower bound", f"{self.lower_bound:.10g}"),
            ("upper bound", f"{self.upper_bound:.10g}"),
            ("gap", f"{self.gap:.3g}"),
            ("nodes", str(self.nodes)),
            ("time", f"{self.time:.4g}"),
        ]

    def __str__(self) -> str:
        return f"Proof: {self.message}\n" + "\n".join(f"  {key:<11}  {value}" for key, value in self.lines())

    def _repr_html_(self) -> str:
        return html.facts(f"Proof: {self.message}", self.lines())


def concluded(bounds: Bounds, best: Solution | None, gap: float, seconds: float) -> Proof:
    """Return the proof that bounds and the certified best solution amount to."""
    left = float(relative_gap(bounds.lower, bounds.upper, bounds.unit))
    numbers = f"between {bounds.lower:.6g} and {bounds.upper:.6g} after {bounds.nodes} nodes"
    message = f"{bounds.status.value} {bounds.remark}".strip() + f" ({numbers}.)"
    columns = np.array(bounds.trace).reshape(-1, 4).T
    names = ("time", "nodes", "lower_bound", "upper_bound")
    return Proof(
        lower_bound=float(bounds.lower),
        upper_bound=float(bounds.upper),
        gap=left,
        proven=left <= gap,
        solution=best,
        nodes=bounds.nodes,
        time=seconds,
        status=bounds.status,
        message=message,
        history=dict(zip(names, columns, strict=True)),
    )
