"""The lower level's answers around x where g is a quadratic: a linear system for each set of active rows."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from bilevax._support import clock
from bilevax._support.division import positive
from bilevax.convex.curvature import full_hessian
from bilevax.convex.full_systems import FullSystems
from bilevax.convex.problem import ConvexSolution
from bilevax.exact.lower import constraints_at
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.flat import FlatProblem


@dataclasses.dataclass(frozen=True)
class Responses:
    """The answers around a solved lower level, each of them checked by the optimality conditions.

    With the rows S held at their sides s, ``H y + A_S' m = -(gradient + M x)`` and ``A_S y = s - B_S x``. If the answer
    has a multiplier of the wrong sign or violates a row, such rows are let go or held instead, and it is solved again.
    A system that can be solved has one answer, so that a minimiser found by it is the only one.

    Attributes
    ----------
    lower
        The lower level's answer at x.
    gradient, hessian, mixed
        The numbers of g: its gradient in y is ``gradient + hessian y + mixed x``.
    a, b, low, high
        The rows, those of Y last: ``low <= a y + b x <= high``.
    equality
        Which rows are equations.
    side
        1 for rows held at their upper side at x, -1 at their lower one, 0 for others.
    allowed
        By how much each row may be violated.
    lengths
        Of the rows in y.
    large
        Where there are many variables: what solves systems, given the held rows, of length 1, and the right sides.
    factors
        Where there are few, what is known of systems: the held rows and the factorised matrix, by ``side``.
    """

    lower: ConvexSolution
    gradient: np.ndarray
    hessian: np.ndarray
    mixed: np.ndarray
    a: np.ndarray
    b: np.ndarray
    low: np.ndarray
    high: np.ndarray
    equality: np.ndarray
    side: np.ndarray
    allowed: np.ndarray
    lengths: np.ndarray
    large: Callable[..., tuple[np.ndarray, np.ndarray] | None] | None
    factors: dict[bytes, tuple[np.ndarray, np.ndarray] | None] = dataclasses.field(default_factory=dict)

    def at(self, points: np.ndarray) -> list[ConvexSolution | None]:
        """Return the lower level's answers at other points, one a row; None where one is not found."""
        shift, linear = points @ self.b.T, self.gradient + points @ self.mixed.T
        low, high = self.low - shift, self.high - shift
        found: list[ConvexSolution | None] = [None] * len(points)
        open_ones = {self.side.tobytes(): (self.side, list(range(len(points))))}
        for _ in range(EXACT_SETTINGS.most_changes):
            others: dict[bytes, tuple[np.ndarray, list[int]]] = {}
            for side, which in open_ones.values():
                clock.check()
                if (answers := self._held(side, linear[which], low[which], high[which])) is None:
                    continue
                for place, y, multipliers, optimal, other in zip(which, *answers, strict=True):
                    if optimal:
                        found[place] = dataclasses.replace(self.lower, y=y, multipliers=multipliers)
                    elif not np.array_equal(other, side):
                        others.setdefault(other.tobytes(), (other, []))[1].append(place)
            open_ones = others
        return found

    def _held(
        self, side: np.ndarray, linear: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Return y and multipliers with rows held, at some points, whether that is optimal, and what else to hold.

        None where the system is singular.
        """
        held = np.flatnonzero(side)
        sides = np.where(side > 0, high, low)[:, held]
        if (solved := self._solve(side, held, linear, sides)) is None:
            return None
        y, multipliers = solved[0], np.zeros(low.shape)
        multipliers[:, held] = solved[1]
        image = y @ self.a.T
        above, below = image > high + self.allowed, image < low - self.allowed
        wrong = (side != 0) & ~self.equality & (side * multipliers <= 0)
        gradient = linear + y @ self.hessian
        size = np.abs(gradient) + self.hessian.diagonal() * (1 + np.abs(y))
        steep = np.abs(gradient + multipliers @ self.a) > EXACT_TOLERANCES.response_residual * size
        off = np.abs(image[:, held] - sides) > self.allowed[held]
        refuted = (wrong | above | below).any(axis=1) | steep.any(axis=1) | off.any(axis=1)
        other = np.where(wrong, 0, np.where(side != 0, side, above.astype(int) - below))
        return y, multipliers, ~refuted, other

    def _solve(
        self, side: np.ndarray, held: np.ndarray, linear: np.ndarray, sides: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return y and the multipliers of held rows at some points, one a row."""
        if self.large is not None:
            found = self.large(held, -linear.T, (sides / self.lengths[held]).T)
            return None if found is None else (found[0].T, found[1].T / self.lengths[held])
        if (factor := self._factor(side, held)) is None:
            return None
        solved = lapack.dgetrs(*factor, np.concatenate([-linear, sides], axis=1).T)[0].T
        return solved[:, : linear.shape[1]], solved[:, linear.shape[1] :]

    def _factor(self, side: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the system of held rows, factorised; None where it is singular."""
        key = side.tobytes()
        if key not in self.factors:
            n_y = len(self.gradient)
            system = np.zeros((n_y + len(held), n_y + len(held)))
            system[:n_y, :n_y], system[n_y:, :n_y], system[:n_y, n_y:] = self.hessian, self.a[held], self.a[held].T
            matrix, pivots, singular = lapack.dgetrf(system)
            if singular or lapack.dgecon(matrix, np.abs(system).sum(axis=0).max())[0] < np.finfo(float).eps:
                found = None
            else:
                found = matrix, pivots
            if len(self.factors) >= EXACT_SETTINGS.most_pieces:
                return found
            self.factors[key] = found
        return self.factors[key]


def responses(flat: FlatProblem, x: np.ndarray, lower: ConvexSolution) -> Responses | None:
    """Return the responses around x; None where g is not quadratic, y not unique, or the problem large."""
    quadratic, rows = flat.lower_quadratic, constraints_at(flat, x)
    if quadratic is None or not lower.unique or flat.y_rows.balls or lower.domain.bounded:
        return None
    large = max(flat.n_x, flat.n_y, len(rows.lower)) > EXACT_SETTINGS.dense_response
    most = EXACT_SETTINGS.full_response
    if large and (len(rows.lower) * (flat.n_x + flat.n_y) > most or full_hessian(quadratic.hessian) is None):
        return None
    a, b = rows.matrix.toarray(), np.zeros((len(rows.lower), flat.n_x))
    b[: rows.relaxable] = flat.rows.B.toarray()
    low, high = (
        np.concatenate(sides) for sides in ((flat.rows.lower, flat.y_rows.lower), (flat.rows.upper, flat.y_rows.upper))
    )
    equality, finite = low == high, lambda side: np.where(np.isfinite(side), np.abs(side), 0.0)
    lengths = positive(np.sqrt(np.einsum("ij,ij->i", a, a)))
    of_y, of_x = quadratic.operators if large else (quadratic.hessian.toarray(), quadratic.mixed.toarray())
    return Responses(
        lower=lower,
        gradient=quadratic.gradient,
        hessian=of_y,
        mixed=of_x,
        a=a,
        b=b,
        low=low,
        high=high,
        equality=equality,
        side=np.where(equality, 1, np.sign(lower.multipliers)).astype(int),
        allowed=EXACT_TOLERANCES.response_residual
        * (np.linalg.norm(a, axis=1) + np.maximum(finite(low), finite(high))),
        lengths=lengths,
        large=functools.partial(FullSystems(a / lengths[:, None]).solve, quadratic.hessian) if large else None,
    )
