"""`Bounds`: what a search for global bounds came to, in the user's units."""

import dataclasses

import numpy as np

from bilevax.proof.incumbents import Incumbent
from bilevax.proof.settings import PROOF
from bilevax.proof.status import ProofStatus


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a global search came to: bounds in the user's units, the best point in natural units.

    ``trace`` has rows of seconds, nodes, lower and upper bound; ``unit`` is f's natural unit.
    """

    lower: float
    upper: float
    best: Incumbent | None
    nodes: int
    status: ProofStatus
    remark: str = ""
    unit: float = 1.0
    trace: tuple[tuple[float, int, float, float], ...] = ()


def relative_gap(lower: float, upper: float, unit: float) -> float:
    """Return how far bounds are apart, relative to the upper one or, where larger, to a part of f's natural unit."""
    if lower == upper:
        return 0.0  # both may be infinite
    return (upper - lower) / max(abs(upper), PROOF.smallest_value * unit) if np.isfinite(upper) else np.inf
