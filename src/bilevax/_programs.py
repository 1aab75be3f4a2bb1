"""Linear and conic programs that look at the clock: SciPy's and Clarabel's, stopped at the deadline."""

from typing import Any

import clarabel
import numpy as np
import scipy.optimize

from bilevax import _deadline


def linprog(*program: Any, options: dict[str, Any] | None = None, **more: Any) -> scipy.optimize.OptimizeResult:
    """Return what ``scipy.optimize.linprog`` returns; raise `OutOfTime` where it had to stop at the deadline."""
    _deadline.check()
    limit = {"time_limit": _deadline.remaining()} if np.isfinite(_deadline.remaining()) else {}
    answer = scipy.optimize.linprog(*program, options={**(options or {}), **limit}, **more)
    _deadline.check()
    return answer


def conic(*program: Any, settings: clarabel.DefaultSettings) -> clarabel.DefaultSolution:
    """Return what Clarabel makes of a program; raise `OutOfTime` where it had to stop at the deadline."""
    _deadline.check()
    settings.time_limit = _deadline.remaining()
    answer = clarabel.DefaultSolver(*program, settings).solve()
    _deadline.check()
    return answer
