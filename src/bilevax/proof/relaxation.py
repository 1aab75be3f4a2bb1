"""The convex program of a node: solved by a warm-started dual active-set method, its bound computed from multipliers.

The solver is not believed. Whatever it says, a bound is what its multipliers prove; see `LeastDistance`.
"""

import dataclasses
from typing import Any

import clarabel
import daqp
import numpy as np
import scipy.sparse as sp

from bilevax._support.programs import conic
from bilevax.proof.least_distance import LeastDistance
from bilevax.proof.settings import PROOF

_INFINITE = 1e30  # as daqp writes it
_ACTIVE, _AT_LOWER = 1, 2  # daqp's bits


@dataclasses.dataclass(frozen=True)
class Relaxed:
    """A proven lower bound on a node, its multipliers, and the minimiser; None where there is none, or none was found.

    ``bound`` is infinite where the node is proven to be empty.
    """

    bound: float
    s: np.ndarray | None
    multipliers: np.ndarray


class Relaxation:
    """All nodes' programs: they differ only in the bounds of the rows."""

    def __init__(self, program: LeastDistance):
        self.program = program
        self.solves = 0
        count, size = program.curved, program.basis.shape[1]
        self._curved, self._flat = program.rows[:, :count], program.rows[:, count:]
        self._weight = np.concatenate([np.ones(count), np.full(size - count, PROOF.proximal)])
        self._cost = np.concatenate([np.zeros(count), program.slope])
        self._lengths = np.linalg.norm(program.rows / np.sqrt(self._weight), axis=1)
        self._slope_size = 1 + np.abs(program.slope).max(initial=0.0)
        self._model: Any = None
        if size and len(program.rows):
            self._model = daqp.Model()
            lower, upper = np.maximum(program.lower, -_INFINITE), np.minimum(program.upper, _INFINITE)
            rows = np.ascontiguousarray(program.rows)
            self._model.setup(np.diag(self._weight), self._cost.copy(), rows, upper, lower)
            self._model.settings = {"primal_tol": 1e-10, "dual_tol": 1e-12, "iter_limit": 10 * (size + len(rows)) + 100}

    def solve(self, lower: np.ndarray, upper: np.ndarray, guess: np.ndarray) -> Relaxed:
        """Solve the program with these bounds; the multipliers of a similar one say where to begin."""
        self.solves += 1
        if self._model is None:
            return self._without_rows(lower, upper)
        sense = np.where(guess > 0, _ACTIVE, np.where(guess < 0, _ACTIVE | _AT_LOWER, 0)).astype(np.intc)
        self._model.update(
            bupper=np.minimum(upper, _INFINITE), blower=np.maximum(lower, -_INFINITE), f=self._cost, sense=sense
        )
        s, _, flag, info = self._model.solve()
        if flag >= 0 and self.program.curved < len(self._cost):
            s, flag, info = self._proximal(s, flag, info)
        multipliers = np.array(info["lam"])
        found = self._judged(
            flag >= 0, flag == -1, np.array(s), multipliers / (self._lengths if flag == -1 else 1.0), lower, upper
        )
        if found.bound == np.inf or (found.bound > -np.inf and found.s is not None):
            return found
        again = self._by_interior_point(lower, upper)
        return max(again, found, key=lambda each: (each.bound, each.s is not None))

    def _judged(
        self, solved: bool, empty: bool, s: np.ndarray, multipliers: np.ndarray, lower: np.ndarray, upper: np.ndarray
    ) -> Relaxed:
        """Return what the multipliers of a solver prove, which says that a node is solved, or empty."""
        if empty:
            return Relaxed(np.inf if self.proves_empty(multipliers, lower, upper) else -np.inf, None, multipliers)
        bound, multipliers = self.dual_bound(multipliers, lower, upper)
        solved = solved and self._violation(s, lower, upper) <= PROOF.feasible * (1 + np.abs(s).max())
        return Relaxed(bound, s if solved else None, multipliers)

    def _violation(self, s: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
        value = self.program.rows @ s
        return float(np.maximum(lower - value, value - upper).max(initial=0.0))

    def _by_interior_point(self, lower: np.ndarray, upper: np.ndarray) -> Relaxed:
        """Solve a node by Clarabel: slower, for those few where the other method's multipliers prove nothing."""
        settings = clarabel.DefaultSettings()
        settings.verbose = settings.presolve_enable = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = settings.tol_infeas_abs = 1e-12
        hessian = np.where(np.arange(len(self._cost)) < self.program.curved, 1.0, 0.0)
        equal, at_upper = lower == upper, np.isfinite(upper)
        ups, lows = np.flatnonzero(at_upper & ~equal), np.flatnonzero(np.isfinite(lower) & ~equal)
        both = np.flatnonzero(equal)
        rows = self.program.rows
        answer = conic(
            sp.csc_matrix(sp.diags(hessian)),
            self._cost,
            sp.csc_matrix(np.vstack([rows[both], rows[ups], -rows[lows]])),
            np.concatenate([upper[both], upper[ups], -lower[lows]]),
            [clarabel.ZeroConeT(len(both)), clarabel.NonnegativeConeT(len(ups) + len(lows))],
            settings=settings,
        )
        multipliers, found = np.zeros(len(rows)), np.array(answer.z)
        np.add.at(multipliers, np.concatenate([both, ups]), found[: len(both) + len(ups)])
        np.add.at(multipliers, lows, -found[len(both) + len(ups) :])
        empty = "PrimalInfeasible" in str(answer.status)
        return self._judged("Solved" in str(answer.status), empty, np.array(answer.x), multipliers, lower, upper)

    def _without_rows(self, lower: np.ndarray, upper: np.ndarray) -> Relaxed:
        bound, multipliers = self.dual_bound(np.zeros(len(lower)), lower, upper)
        return Relaxed(bound, np.zeros(len(self._cost)), multipliers)

    def _proximal(self, s: np.ndarray, flag: int, info: Any) -> tuple[np.ndarray, int, Any]:
        """Repeat from each answer, with a pull towards it where the objective is linear, until it stays."""
        count = self.program.curved
        for _ in range(PROOF.proximal_steps):
            last = np.array(s)
            cost = self._cost.copy()
            cost[count:] -= PROOF.proximal * last[count:]
            self._model.update(f=cost)
            s, _, flag, info = self._model.solve()
            moved = np.abs(s[count:] - last[count:]).max(initial=0.0)
            if flag < 0 or moved <= PROOF.settled * (1 + np.abs(last).max()):
                break
        return s, flag, info

    def dual_bound(self, multipliers: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the bound that multipliers prove, and the multipliers it is for; -inf where they prove nothing."""
        program = self.program
        side = np.where(multipliers > 0, upper, lower)
        multipliers = np.where(np.isfinite(side), multipliers, 0.0)
        if self._flat.shape[1]:
            balanced = balanced_part(self._flat, multipliers, program.slope, floor=1.0)
            if balanced is None:
                return -np.inf, multipliers
            multipliers = balanced
        used = multipliers != 0
        pull, terms = self._curved[used].T @ multipliers[used], multipliers[used] * side[used]
        margin = PROOF.margin * (abs(program.constant) + 0.5 * pull @ pull + np.abs(terms).sum())
        return program.constant - 0.5 * pull @ pull - terms.sum() - margin, multipliers

    def proves_empty(self, ray: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> bool:
        """Return whether the rows, weighted by a ray, add up to a contradiction: ``0 <= a negative number``."""
        side = np.where(ray > 0, upper, lower)
        ray = np.where(np.isfinite(side), ray, 0.0) / max(np.abs(ray).max(initial=0.0), 1e-300)
        exact = balanced_part(self.program.rows, ray, np.zeros(len(self._cost)), floor=0.0)
        if exact is None or not np.any(exact):
            return False
        terms = exact[exact != 0] * side[exact != 0]
        return bool(terms.sum() < -PROOF.contradiction * np.abs(terms).sum())


def balanced_part(rows: np.ndarray, multipliers: np.ndarray, slope: np.ndarray, floor: float) -> np.ndarray | None:
    """Return `balance` of the largest multipliers, of as many as can be balanced; None if of none.

    ``floor`` is the size from which multipliers count as large, if they are not larger themselves.
    """
    largest = np.abs(multipliers).max(initial=floor)
    for part in PROOF.balanced_parts:
        balanced = balance(rows, np.where(np.abs(multipliers) > part * largest, multipliers, 0.0), slope, floor)
        if balanced is not None:
            return balanced
    return None


def balance(rows: np.ndarray, multipliers: np.ndarray, slope: np.ndarray, floor: float) -> np.ndarray | None:
    """Return multipliers with ``rows' multipliers + slope = 0``, a small relative change of those given; or None.

    Zeros stay zeros, and signs stay as they are.
    """
    used = np.flatnonzero(multipliers)
    if not len(used):
        return multipliers if np.all(slope == 0) else None
    rows = rows[used].T * np.abs(multipliers[used])
    part, size = np.sign(multipliers[used]), max(np.abs(multipliers).max(), np.abs(slope).max(initial=0.0), floor)
    for _ in range(3):
        left = rows @ part + slope
        if np.abs(left).max() <= PROOF.rounding * size:
            break
        part = part + np.linalg.lstsq(rows, -left, rcond=PROOF.rounding)[0]
    else:
        return None
    if np.any(part * multipliers[used] < 0):
        return None
    balanced = multipliers.copy()
    balanced[used] = part * np.abs(multipliers[used])
    return balanced
