"""The least value of a bilevel problem with quadratics on both levels, by brute force: every set of active rows.

For each set of active rows and sides the lower level's optimality conditions are linear, and the best f on them is a
convex quadratic program, solved by Clarabel; the least of all is the optimum. No bound is used, nothing is left out.
"""

import itertools
from typing import NamedTuple

import clarabel
import numpy as np
import scipy.sparse as sp

_ENUMERATED = 1e-6  # how well enumeration knows an optimum, relative
_GAP = 2e-4  # how much worse than the optimum a proven value may be


class Quadratics(NamedTuple):
    """Minimise ``z'Wz/2 + w'z``, z = (x, y), y a minimiser of ``y'Qy/2 + (Rx + c)'y``; ``low <= Bx + Ay <= high``.

    ``leader`` are rows (matrix in z, low, high) that only the leader has to satisfy.
    """

    W: np.ndarray
    w: np.ndarray
    Q: np.ndarray
    R: np.ndarray
    c: np.ndarray
    A: np.ndarray
    B: np.ndarray
    low: np.ndarray
    high: np.ndarray
    leader: tuple[np.ndarray, np.ndarray, np.ndarray]


def least_value(problem: Quadratics) -> float:
    """Return the optimum; infinite where no set of active rows has a point."""
    sides = [
        [side for side, bound in (("upper", high), ("lower", low)) if np.isfinite(bound)] + ["open"]
        if low < high
        else ["equal"]
        for low, high in zip(problem.low, problem.high, strict=True)
    ]
    return min((_on_piece(problem, choice) for choice in itertools.product(*sides)), default=np.inf)


def _on_piece(problem: Quadratics, choice: tuple[str, ...]) -> float:
    """Return the least f where each row is active at that side (equal: at both), or open with multiplier zero."""
    m, n = problem.R.shape
    active = [k for k, side in enumerate(choice) if side != "open"]
    size, count = n + m + len(active), len(active)
    zeros = np.zeros
    pull = problem.A[active].T
    rows = np.hstack([problem.B, problem.A, zeros((len(choice), count))])
    equal = [(np.hstack([problem.R, problem.Q, pull]), -problem.c)]
    most: list[tuple[np.ndarray, np.ndarray]] = []
    for k, side in enumerate(choice):
        place = n + m + active.index(k) if side != "open" else 0
        unit = np.eye(1, size, place)
        if side in ("upper", "equal"):
            equal.append((rows[k : k + 1], problem.high[k : k + 1]))
        if side == "lower":
            equal.append((rows[k : k + 1], problem.low[k : k + 1]))
        if side in ("upper", "lower"):
            most.append((-unit if side == "upper" else unit, zeros(1)))
        if side != "equal":
            most += [(rows[k : k + 1], problem.high[k : k + 1]), (-rows[k : k + 1], -problem.low[k : k + 1])]
    matrix, low, high = problem.leader
    wide = np.hstack([matrix, zeros((len(matrix), count))])
    most += [(wide, high), (-wide, -low)]
    hessian = zeros((size, size))
    hessian[: n + m, : n + m] = problem.W
    return _least(hessian, np.concatenate([problem.w, zeros(count)]), equal, most)


def _least(hessian: np.ndarray, cost: np.ndarray, equal: list, most: list) -> float:
    left, right = (np.concatenate(parts) for parts in zip(*equal, strict=True))
    below, above = (np.concatenate(parts) for parts in zip(*most, strict=True))
    kept = np.isfinite(above)
    settings = clarabel.DefaultSettings()
    settings.verbose = settings.presolve_enable = False
    answer = clarabel.DefaultSolver(
        sp.csc_matrix(np.triu(hessian)),
        cost,
        sp.csc_matrix(np.vstack([left, below[kept]])),
        np.concatenate([right, above[kept]]),
        [clarabel.ZeroConeT(len(right)), clarabel.NonnegativeConeT(int(kept.sum()))],
        settings,
    ).solve()
    status = str(answer.status)
    if status in ("Solved", "AlmostSolved"):
        return answer.obj_val
    return -np.inf if "DualInfeasible" in status else np.inf


def complaint(optimum: float, lower: float, upper: float, proven: bool) -> str:
    """Return what is wrong with global bounds, or nothing; ``proven`` says that they are said to meet."""
    if not np.isfinite(optimum):
        return "" if upper == optimum else f"a point of value {upper:.9g}, but there is none"
    allowed = _ENUMERATED * (1 + abs(optimum))
    if lower > optimum + allowed:
        return f"the lower bound {lower:.9g} is above the optimum {optimum:.9g}"
    if upper < optimum - allowed:
        return f"the value {upper:.9g} is below the optimum {optimum:.9g}"
    worse = upper > optimum + allowed + _GAP * max(1.0, abs(optimum))
    return f"{upper:.9g} is called proven, but the optimum is {optimum:.9g}" if proven and worse else ""
