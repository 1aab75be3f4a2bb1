"""Convex quadratic programs in which most variables stand in one row each, by an interior point on what is left.

    minimise  v' H v / 2 + g' v    with    lower <= C v <= upper

High-point relaxations with one x a row and few y are of this kind. All systems are those of `_support.elimination`.
"""

from typing import Any, NamedTuple

import numpy as np

from bilevax._support.division import positive
from bilevax._support.elimination import Factor, Split
from bilevax.solvers.default.settings import PROGRAMS


class _Iterate(NamedTuple):
    """The variables, the equations' multipliers, and slacks and multipliers of the sides; or a step of them."""

    v: np.ndarray
    of_equal: np.ndarray
    slack: np.ndarray
    multiplier: np.ndarray


class _Residuals(NamedTuple):
    """What is left of the gradient, of the sides and of the equations, and the largest of it, relative."""

    dual: np.ndarray
    over: np.ndarray
    off: np.ndarray
    size: float


class Eliminated:
    """A program by Mehrotra's interior point, then with its active rows as equations.

    The finite sides of inequality rows are ``sign * (C v)[row] + slack = level`` with multipliers >= 0.
    """

    def __init__(self, parts: Split, hessian: Any, gradient: np.ndarray, matrix: Any, lower: Any, upper: Any):
        self.parts, self.hessian, self.gradient, self.matrix = parts, hessian, gradient, matrix
        self.lower, self.upper, self.equal = lower, upper, lower == upper
        above, below = (np.flatnonzero(np.isfinite(side) & ~self.equal) for side in (upper, lower))
        self.row, self.sign = np.concatenate([above, below]), np.repeat([1.0, -1.0], [len(above), len(below)])
        self.level = np.concatenate([upper[above], -lower[below]])
        self.size = 1 + np.abs(self.level).max(initial=0.0)
        self.pull = positive(float(np.abs(gradient).max(initial=0.0)))

    @np.errstate(over="ignore", invalid="ignore")  # a failure shows in its numbers, and returns None
    def solve(self) -> np.ndarray | None:
        """Return the minimiser, exact to rounding; None where it was not found."""
        try:
            side = self._by_interior_point()
            return None if side is None else self._on_active(side)
        except np.linalg.LinAlgError:
            return None

    def _on_rows(self, of_sides: np.ndarray) -> np.ndarray:
        """Return what numbers of the sides add up to on their rows."""
        return np.bincount(self.row, of_sides, len(self.lower))

    def _by_interior_point(self) -> np.ndarray | None:
        """Return the active sides: +1 for rows active on the upper side, -1 on the lower one."""
        at = self._start()
        count = max(len(at.slack), 1)
        for _ in range(PROGRAMS.interior_steps):
            gap, left = float(at.multiplier @ at.slack) / count, self._residuals(at)
            if left.size <= PROGRAMS.near and gap <= PROGRAMS.near_gap * self.size * self.pull:
                break
            stiff = self._on_rows(at.multiplier / at.slack)
            give = np.where(self.equal, 0.0, np.divide(1.0, stiff, out=np.full(len(stiff), np.inf), where=stiff > 0))
            factor = self.parts.factorise(give)
            ahead = self._newton(factor, at, left, -at.slack * at.multiplier)
            slack = at.slack + _reach(at.slack, ahead.slack) * ahead.slack
            multiplier = at.multiplier + _reach(at.multiplier, ahead.multiplier) * ahead.multiplier
            centre = gap * (float(slack @ multiplier) / count / positive(gap)) ** 3
            products = centre - at.slack * at.multiplier - ahead.slack * ahead.multiplier
            step = self._newton(factor, at, left, products)
            part = min(_reach(at.slack, step.slack), _reach(at.multiplier, step.multiplier))
            at = _Iterate(*(now + PROGRAMS.reach * part * by for now, by in zip(at, step, strict=True)))
            if not np.isfinite(at.v).all():
                return None
        active = np.where(at.multiplier / self.pull > at.slack / self.size, self.sign, 0.0)
        return np.sign(self._on_rows(active)).astype(np.int8)

    def _start(self) -> "_Iterate":
        """Return the minimiser where every row gives way, with slacks and multipliers made positive."""
        v, q = self.parts.factorise(np.where(self.equal, 0.0, 1.0)).solve(-self.gradient, np.zeros(len(self.lower)))
        slack, multiplier = self.level - self.sign * (self.matrix @ v)[self.row], self.sign * q[self.row]
        slack = np.maximum(slack, 0.0) + max(-1.5 * slack.min(initial=0.0), 1e-2 * self.size)
        multiplier = np.maximum(multiplier, 0.0) + max(-1.5 * multiplier.min(initial=0.0), 1e-2 * self.pull)
        return _Iterate(v, np.where(self.equal, q, 0.0), slack, multiplier)

    def _residuals(self, at: "_Iterate") -> "_Residuals":
        image = self.matrix @ at.v
        dual = self.hessian @ at.v + self.gradient
        dual = dual + self.matrix.T @ (self._on_rows(self.sign * at.multiplier) + at.of_equal)
        over = self.sign * image[self.row] + at.slack - self.level
        off = np.where(self.equal, image - np.where(self.equal, self.upper, 0.0), 0.0)
        primal = max(np.abs(over).max(initial=0.0), np.abs(off).max(initial=0.0))
        return _Residuals(dual, over, off, max(primal / self.size, np.abs(dual).max() / self.pull))

    def _newton(self, factor: Factor, at: "_Iterate", left: "_Residuals", products: np.ndarray) -> "_Iterate":
        """Return the step that closes the residuals and changes slack * multiplier by ``products``."""
        force = (products + at.multiplier * left.over) / at.slack
        step, pushed = factor.solve(-left.dual - self.matrix.T @ self._on_rows(self.sign * force), -left.off)
        slack = -left.over - self.sign * (self.matrix @ step)[self.row]
        return _Iterate(step, np.where(self.equal, pushed, 0.0), slack, (products - at.multiplier * slack) / at.slack)

    def _on_active(self, side: np.ndarray) -> np.ndarray | None:
        """Return the minimiser with the active rows as equations, corrected until signs and rows are right."""
        seen = set()
        while side.tobytes() not in seen and len(seen) < PROGRAMS.pivots:
            seen.add(side.tobytes())
            active, level = self.equal | (side != 0), np.where(side < 0, self.lower, self.upper)
            factor = self.parts.factorise(np.where(active, 0.0, np.inf))
            v, q, image, left = np.zeros(len(self.gradient)), np.zeros(len(level)), np.zeros(len(level)), np.inf
            for _ in range(PROGRAMS.refinements):
                along = -self.gradient - self.hessian @ v - self.matrix.T @ q
                image = self.matrix @ v
                missing = np.where(active, np.where(active, level, 0.0) - image, 0.0)
                left = max(np.abs(along).max() / self.pull, np.abs(missing).max(initial=0.0) / self.size)
                if left <= _ROUNDING:
                    break
                step, pushed = factor.solve(along, missing)
                v, q = v + step, q + np.where(active, pushed, 0.0)
            slack = PROGRAMS.zero * self.size
            drop = ~self.equal & (side * q < -PROGRAMS.zero * self.pull)
            high, low = ~active & (image > self.upper + slack), ~active & (image < self.lower - slack)
            if not (drop.any() or high.any() or low.any()):
                return v if left <= PROGRAMS.proof else None
            side = np.where(high, 1, np.where(low, -1, np.where(drop, 0, side))).astype(np.int8)
        return None


_ROUNDING = 1e-15


def _reach(value: np.ndarray, step: np.ndarray) -> float:
    """Return the share of a step, at most 1, that keeps positive numbers from becoming negative."""
    shrinking = step < 0
    return min(1.0, float(np.min(-value[shrinking] / step[shrinking], initial=np.inf)))
