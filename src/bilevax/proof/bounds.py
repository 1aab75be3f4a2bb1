"""`Bounds`: what a search for global bounds came to, in the user's units."""

import dataclasses

from bilevax.proof.incumbents import Incumbent
from bilevax.proof.status import ProofStatus


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a global search came to: bounds in the user's units, the best point in natural units.

    ``trace`` has rows of seconds, nodes, lower and upper bound.
    """

    lower: float
    upper: float
    best: Incumbent | None
    nodes: int
    status: ProofStatus
    remark: str = ""
    trace: tuple[tuple[float, int, float, float], ...] = ()
