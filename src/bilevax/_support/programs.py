"""Linear and conic programs that look at the clock: SciPy's and Clarabel's, stopped at the deadline."""

from typing import Any

import clarabel
import numpy as np
import scipy.optimize

from bilevax._support import clock


def linprog(*program: Any, options: dict[str, Any] | None = None, **more: Any) -> scipy.optimize.OptimizeResult:
    """Return what ``scipy.optimize.linprog`` returns; raise `OutOfTime` where it had to stop at the deadline."""
    clock.check()
    limit = {"time_limit": clock.remaining()} if np.isfinite(clock.remaining()) else {}
    answer = scipy.optimize.linprog(*program, options={**(options or {}), **limit}, **more)
    clock.check()
    return answer


def conic(*program: Any, settings: clarabel.DefaultSettings) -> clarabel.DefaultSolution:
    """Return what Clarabel makes of a program; raise `OutOfTime` where it had to stop at the deadline."""
    clock.check()
    settings.time_limit = clock.remaining()
    answer = clarabel.DefaultSolver(*program, settings).solve()
    clock.check()
    return answer
