"""The lower level's answer around x where g is a quadratic: affine in x as long as the same rows stay active."""

import dataclasses
import functools

import numpy as np

from bilevax.convex.problem import ConvexSolution
from bilevax.exact.lower import constraints_at
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.flat import FlatProblem


@dataclasses.dataclass(frozen=True)
class Response:
    """The affine answer around a solved lower level; `at` checks the optimality conditions wherever it is used.

    With the active rows S held, ``H dy + A_S' dm = -M dx`` and ``A_S dy = -B_S dx`` for a step dx.

    Attributes
    ----------
    x, lower
        The point and the lower level's answer there.
    gradient, hessian, mixed
        The numbers of g: its gradient in y is ``gradient + hessian y + mixed x``.
    a, b, low, high
        The rows, those of Y last: ``low <= a y + b x <= high``.
    held, sign, side
        The active rows, the signs of their multipliers (0 for equalities), and the values of their active sides.
    of_y, of_multipliers
        How y and the multipliers of the held rows move with x.
    """

    x: np.ndarray
    lower: ConvexSolution
    gradient: np.ndarray
    hessian: np.ndarray
    mixed: np.ndarray
    a: np.ndarray
    b: np.ndarray
    low: np.ndarray
    high: np.ndarray
    held: np.ndarray
    sign: np.ndarray
    side: np.ndarray
    of_y: np.ndarray
    of_multipliers: np.ndarray

    @functools.cached_property
    def _allowed(self) -> np.ndarray:
        """By how much each row may be violated."""
        finite = lambda side: np.where(np.isfinite(side), np.abs(side), 0.0)
        sizes = np.linalg.norm(self.a, axis=1) + np.maximum(finite(self.low), finite(self.high))
        return EXACT_TOLERANCES.response_residual * sizes

    def at(self, x: np.ndarray) -> ConvexSolution | None:
        """Return the lower level's answer at another x, or None where other rows are active there."""
        step, held = x - self.x, self.held
        y, multipliers = self.lower.y + self.of_y @ step, self.lower.multipliers.copy()
        multipliers[held] += self.of_multipliers @ step
        if np.any((self.sign != 0) & (self.sign * multipliers[held] <= 0)):
            return None
        image = self.a @ y + self.b @ x
        outside = np.maximum(image - self.high, self.low - image)
        if np.any(outside > self._allowed) or np.any(np.abs(image[held] - self.side) > self._allowed[held]):
            return None
        gradient = self.gradient + self.hessian @ y + self.mixed @ x
        size = np.abs(gradient) + self.hessian.diagonal() * (1 + np.abs(y))
        if np.any(np.abs(gradient + self.a.T @ multipliers) > EXACT_TOLERANCES.response_residual * size):
            return None
        return dataclasses.replace(self.lower, y=y, multipliers=multipliers)


def affine_response(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Response | None:
    """Return the response around x; None where g is not quadratic, y not unique, or the problem large."""
    most = EXACT_SETTINGS.dense_response
    if not lower.unique or flat.y_rows.balls or max(flat.n_x, flat.n_y) > most or lower.domain.bounded:
        return None
    quadratic, rows = flat.lower_quadratic, constraints_at(flat, x)
    if quadratic is None or len(rows.lower) > most:
        return None
    a, b = rows.matrix.toarray(), np.zeros((len(rows.lower), flat.n_x))
    b[: rows.relaxable] = flat.rows.B.toarray()
    low, high = rows.lower + b @ x, rows.upper + b @ x
    equality = low == high
    held = np.flatnonzero(equality | (lower.multipliers != 0))
    hessian, mixed = quadratic.hessian.toarray(), quadratic.mixed.toarray()
    saddle = np.block([[hessian, a[held].T], [a[held], np.zeros((len(held), len(held)))]])
    try:
        moved = np.linalg.solve(saddle, -np.vstack([mixed, b[held]]))
    except np.linalg.LinAlgError:
        return None
    if not np.all(np.isfinite(moved)):
        return None
    return Response(
        x=x,
        lower=lower,
        gradient=quadratic.gradient,
        hessian=hessian,
        mixed=mixed,
        a=a,
        b=b,
        low=low,
        high=high,
        held=held,
        sign=np.where(equality, 0.0, np.sign(lower.multipliers))[held],
        side=np.where(lower.multipliers < 0, low, high)[held],
        of_y=moved[: flat.n_y],
        of_multipliers=moved[flat.n_y :],
    )
