"""How the lower level's answer moves with x where g is a quadratic: affinely, as long as the same rows stay active."""

import dataclasses

import numpy as np

from bilevax.convex.problem import ConvexSolution
from bilevax.exact.lower import constraints_at
from bilevax.model.flat import FlatProblem

_MOST = 300  # variables and rows up to which the response is worth its dense matrices
_EXACT = 1e-10  # residuals up to which an answer counts: a tenth of what `minimise` promises


class Response:
    """The affine answer around a solved lower level; `at` checks the optimality conditions wherever it is used.

    With the active rows S held, ``H dy + A_S' dm = -M dx`` and ``A_S dy = -B_S dx`` for a step dx.
    """

    def __init__(self, flat: FlatProblem, x: np.ndarray, lower: ConvexSolution):
        self._flat, self._x, self._lower = flat, x, lower
        self._known = self._solve()

    def _solve(self) -> bool:
        """Find the response; return whether there is one of this kind."""
        flat, lower = self._flat, self._lower
        if not lower.unique or flat.y_rows.balls or max(flat.n_x, flat.n_y) > _MOST or lower.domain.bounded:
            return False
        quadratic, rows = flat.lower_quadratic, constraints_at(flat, self._x)
        if quadratic is None or len(rows.lower) > _MOST:
            return False
        self._a, self._b = rows.matrix.toarray(), np.zeros((len(rows.lower), flat.n_x))
        self._b[: rows.relaxable] = flat.rows.B.toarray()
        shift = self._b @ self._x
        self._low, self._high = rows.lower + shift, rows.upper + shift  # of a y + b x
        finite = lambda side: np.where(np.isfinite(side), np.abs(side), 0.0)
        self._allowed = _EXACT * (np.linalg.norm(self._a, axis=1) + np.maximum(finite(self._low), finite(self._high)))
        self._hessian, self._mixed = quadratic.hessian.toarray(), quadratic.mixed.toarray()
        self._linear = quadratic.gradient
        equality = self._low == self._high
        self._held = np.flatnonzero(equality | (lower.multipliers != 0))
        self._sign = np.where(equality, 0.0, np.sign(lower.multipliers))[self._held]
        self._side = np.where(lower.multipliers < 0, self._low, self._high)[self._held]
        n_y, held = flat.n_y, self._a[self._held]
        saddle = np.block([[self._hessian, held.T], [held, np.zeros((len(held), len(held)))]])
        try:
            moved = np.linalg.solve(saddle, -np.vstack([self._mixed, self._b[self._held]]))
        except np.linalg.LinAlgError:
            return False
        self._of_y, self._of_multipliers = moved[:n_y], moved[n_y:]
        return bool(np.all(np.isfinite(moved)))

    def at(self, x: np.ndarray) -> ConvexSolution | None:
        """Return the lower level's answer at another x, or None where other rows are active there."""
        if not self._known:
            return None
        step, held = x - self._x, self._held
        y, multipliers = self._lower.y + self._of_y @ step, self._lower.multipliers.copy()
        multipliers[held] += self._of_multipliers @ step
        if np.any((self._sign != 0) & (self._sign * multipliers[held] <= 0)):
            return None
        image = self._a @ y + self._b @ x
        outside = np.maximum(image - self._high, self._low - image)
        off = np.abs(image[held] - self._side)
        if np.any(outside > self._allowed) or np.any(off > self._allowed[held]):
            return None
        gradient = self._linear + self._hessian @ y + self._mixed @ x
        size = np.abs(gradient) + self._hessian.diagonal() * (1 + np.abs(y))
        if np.any(np.abs(gradient + self._a.T @ multipliers) > _EXACT * size):
            return None
        return dataclasses.replace(self._lower, y=y, multipliers=multipliers)
