"""The judge's lower levels, one class a way of solving one exactly."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from attack.judge.enumeration import ActiveSets, Points, Standard, consistent
from attack.model import Abstain

_SAME = 1e-9


class Leader(NamedTuple):
    """f in y at a given x, ``y'Py/2 + p(x)'y``: needed only where the lower level has several minimisers."""

    P: np.ndarray
    p: Callable[[np.ndarray], np.ndarray]


class Quadratic:
    """``g = y'H y/2 + (R x + c)'y`` under rows: all active sets; ties are broken in the leader's favour.

    Parameters
    ----------
    H
        A matrix, or a function of x that returns one; positive semidefinite.
    leader
        f as a function of y. Without it a tie makes the judge abstain.
    """

    def __init__(
        self,
        H: np.ndarray | Callable[[np.ndarray], np.ndarray],
        R: np.ndarray,
        c: np.ndarray,
        limits: Standard,
        leader: Leader | None = None,
    ):
        self.H, self.R, self.c, self.limits, self.leader = H, R, c, limits, leader
        self.sets = None if callable(H) else ActiveSets(H, limits.A, limits.E)

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        b, e = self.limits.at(x)
        idle = np.linalg.norm(self.limits.A, axis=1) == 0
        if (b[idle] < -slack).any() or not consistent(self.limits.E, e, slack):
            return None
        H = self.H(x) if callable(self.H) else self.H
        sets = ActiveSets(H, self.limits.A, self.limits.E) if self.sets is None else self.sets
        points = sets.points(self.R @ x + self.c, b, e, slack)
        if not len(points.y):
            return None
        strongly_convex = np.linalg.eigvalsh(H)[0] > 1e-9 * np.abs(H).max()
        if strongly_convex or np.abs(points.y - points.y[0]).max() <= _SAME:
            return points.y[0]
        return self._tie(x, H, points, b, e, slack)

    def _tie(self, x: np.ndarray, H: np.ndarray, points: Points, b: np.ndarray, e: np.ndarray, slack: float):
        """Minimise f over the minimisers: rows that press anywhere stay tight, and H y does not change."""
        if self.leader is None:
            raise Abstain("several minimisers")
        y, multipliers, _ = points
        force = np.abs(self.R @ x + self.c).max() + np.abs(y @ H).max()
        tight = (multipliers > max(slack, _SAME) * 10 * force).any(axis=0)
        # With a forgiving slack two faces may be optimal at once: their rows are kept only where both touch them.
        tight &= (np.abs(y @ self.limits.A.T - b) <= 10 * max(slack, _SAME)).all(axis=0)
        values, vectors = np.linalg.eigh(H)
        basis = vectors[:, values > 1e-9 * max(values[-1], 1e-300)].T if values[-1] > 0 else np.empty((0, len(e)))
        basis = basis.reshape(-1, y.shape[1])
        E = np.vstack([self.limits.E, self.limits.A[tight], basis])
        free = ActiveSets(self.leader.P, self.limits.A[~tight], E)
        found = free.points(self.leader.p(x), b[~tight], np.r_[e, b[tight], basis @ y[0]], max(slack, 1e-8))
        if not len(found.y):
            raise Abstain("no best minimiser found")
        return found.y[0]


class BallQuadratic:
    """``g = y'H y/2 + (R x + c)'y`` over a ball, H positive definite: the secular equation."""

    def __init__(self, H: np.ndarray, R: np.ndarray, c: np.ndarray, radius: float, center: np.ndarray):
        self.R, self.c, self.radius, self.center = R, c, radius, center
        self.values, self.vectors = np.linalg.eigh(H)
        self.H = H

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        slope = self.vectors.T @ (self.R @ x + self.c + self.H @ self.center)
        length = lambda shift: np.linalg.norm(slope / (self.values + shift))
        shift = 0.0
        if length(0.0) > self.radius:
            high = np.linalg.norm(slope) / self.radius
            # 1/length is nearly linear in the shift: well conditioned where length itself is steep.
            shift = brentq(lambda s: 1 / length(s) - 1 / self.radius, 0.0, high, xtol=1e-15, rtol=1e-15, maxiter=500)
        return self.center - self.vectors @ (slope / (self.values + shift))


class Smooth:
    """A smooth strictly convex g under rows: Newton's method on one active set after another, the last one first.

    Parameters
    ----------
    gradient, hessian
        Of g in y, as functions of (x, y).
    start
        A point, as a function of x, inside the domain of g.
    inside
        Whether a y is in the domain of g.
    """

    def __init__(
        self,
        gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
        hessian: Callable[[np.ndarray, np.ndarray], np.ndarray],
        limits: Standard,
        start: Callable[[np.ndarray], np.ndarray],
        inside: Callable[[np.ndarray], bool] = lambda y: True,
    ):
        self.gradient, self.hessian, self.limits, self.start, self.inside = gradient, hessian, limits, start, inside
        count = len(limits.A)
        most = len(limits.A[0]) if count else 0
        self.sets = [s for size in range(most + 1) for s in itertools.combinations(range(count), size)] or [()]
        self.last: tuple[int, ...] = ()

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        b, e = self.limits.at(x)
        for active in (self.last, *(s for s in self.sets if s != self.last)):
            index = list(active)
            rows = np.vstack([self.limits.E, self.limits.A[index]])
            if len(index) and np.linalg.matrix_rank(rows, tol=1e-9) < len(rows):
                continue
            found = self._newton(x, rows, np.r_[e, b[index]])
            if found is None:
                continue
            y, multipliers = found
            against = -multipliers[len(e) :].min(initial=0.0)
            if (self.limits.A @ y - b).max(initial=0.0) <= slack and against <= slack * self._force(x, y):
                self.last = active
                return y
        return None

    def _force(self, x: np.ndarray, y: np.ndarray) -> float:
        return 1.0 + float(np.abs(self.gradient(x, y)).max())

    def _newton(self, x: np.ndarray, rows: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        y, m = self.start(x), rows.shape[1]
        multipliers = np.zeros(len(rows))
        residual = lambda y, v: np.r_[self.gradient(x, y) + rows.T @ v, rows @ y - right]
        with np.errstate(all="ignore"):
            rest = residual(y, multipliers)
            for _ in range(200):
                if np.abs(rest).max(initial=0.0) <= 1e-14 * (1 + np.abs(right).max(initial=0.0)):
                    break
                system = np.block([[self.hessian(x, y), rows.T], [rows, np.zeros((len(rows), len(rows)))]])
                if not np.isfinite(system).all():
                    return None
                step = np.linalg.lstsq(system, -rest, rcond=1e-14)[0]
                length, target = 1.0, np.linalg.norm(rest)
                while length > 1e-12:
                    after = y + length * step[:m]
                    trial = residual(after, multipliers + length * step[m:])
                    if self.inside(after) and np.linalg.norm(trial) <= (1 - 1e-4 * length) * target:
                        break
                    length /= 2
                else:
                    break
                y, multipliers, rest = after, multipliers + length * step[m:], trial
        terms = 1.0 + np.abs(rows.T @ multipliers).max(initial=0.0) + np.abs(right).max(initial=0.0)
        return (y, multipliers) if np.abs(rest).max() <= 1e-11 * terms else None


class Formula:
    """A lower level whose only minimiser is a formula."""

    def __init__(self, formula: Callable[[np.ndarray], np.ndarray]):
        self.formula = formula

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        return self.formula(x)


class Candidates:
    """A lower level with a closed form: the best by g of a few candidates, and of those equal in g the best by f."""

    def __init__(
        self,
        candidates: Callable[[np.ndarray], np.ndarray],
        g: Callable[[np.ndarray, np.ndarray], float],
        f: Callable[[np.ndarray, np.ndarray], float],
    ):
        self.candidates, self.g, self.f = candidates, g, f

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        found = np.asarray(self.candidates(x), float)
        if not len(found):
            return None
        costs = np.array([self.g(x, y) for y in found])
        equal = found[costs <= costs.min() + max(slack, 1e-12) * (1e-3 + np.abs(costs).max())]
        return min(equal, key=lambda y: self.f(x, y))
