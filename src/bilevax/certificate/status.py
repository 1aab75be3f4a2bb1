"""`Status`: how a run ended, or why nothing can be proven about a point."""

import enum


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
    UPPER_INFEASIBLE = (
        "An upper row is violated at the returned x: no x that satisfies them all was found. "
        "The certificate says by how much; start elsewhere, or look whether the rows contradict each other."
    )
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
