"""`ProofStatus`: how a proof ended."""

import enum


class ProofStatus(enum.Enum):
    """How a proof ended. The value is a sentence a person can act on."""

    PROVEN = "Proven: no x has a smaller value than the solution's, up to the gap."
    TIME_LIMIT = "Stopped at time_limit: the bounds hold, but the gap between them is not closed. Allow more time."
    INTERRUPTED = "Interrupted from the keyboard: the bounds hold, but the gap between them is not closed."
    UNSETTLED = (
        "The bounds hold, but rounding keeps the gap between them from closing. Scale the problem, or raise gap."
    )
    RELAXED = "Bounded by the high-point relaxation alone, which leaves a gap: the problem cannot be branched on."
    INFEASIBLE = "Proven: no x in X has a lower level with a minimiser that satisfies all rows."
    UNSUPPORTED = "Nothing can be proven: the problem is outside the class for which there are global bounds."

    def __str__(self) -> str:
        return self.name.lower()
