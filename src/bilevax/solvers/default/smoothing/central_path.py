"""The direct oracle: Phi smoothed by the lower level's central path, with first and second derivatives in x.

    F(x) = f(x, y(x)) + kappa * softness * sum(multiplier),

whose second term is the price of leaving the set of x for which the lower level is feasible. With K the KKT matrix at
the central point and ``K (p, q) = (grad_y f, kappa softness)``,

    grad F = grad_x f - g_yx' p - B' q,

and its Hessian follows from the second derivatives of ``f - p' grad_y g`` and of the barriers along the directions
``(1, dy/dx, dmultiplier/dx)``, which cost one solve with K each.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax.solvers.default.lower.central import CentralLower, CentralPoint
from bilevax.solvers.default.quasi_newton import SmoothPoint
from bilevax.solvers.default.settings import SMOOTHING
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class Barrier:
    """How much is smoothed: the barrier, the softness of the rows, and the penalty kappa on violated rows."""

    barrier: float
    softness: float
    kappa: float


@dataclasses.dataclass(frozen=True)
class SmoothState:
    """The central point and the adjoints p and q there; p only where second derivatives may be asked for."""

    central: CentralPoint
    adjoint: np.ndarray | None
    sensitivity: np.ndarray


class PathState(NamedTuple):
    """Within what radius the second derivatives last told the truth."""

    radius: float


class CentralPath(Learning):
    """The smoothed objective from a start on, smoothed as much as ``first`` says to begin with."""

    State = PathState

    def __init__(self, lower: CentralLower, start: CentralPoint, first: Barrier):
        self.lower, self.start, self.first = lower, start, first
        self.radius = np.inf
        # Where `hessian` was evaluated last, and the derivative of y and the general rows' multipliers there.
        self._tangent: tuple[CentralPoint, np.ndarray] | None = None

    def begin(self) -> SmoothPoint | None:
        """Return the smoothed point at the start, at no price yet."""
        return self._evaluate(self.start.x, self.first, self.start)

    def evaluate(self, x: np.ndarray, smoothing: Barrier, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a near one, and along the tangent where it is known."""
        central = warm.state.central
        if self._tangent is not None and self._tangent[0] is central:
            central = self.lower.moved(central, x, (x - central.x) @ self._tangent[1])
        return self._evaluate(x, smoothing, central)

    def price(self, point: SmoothPoint) -> float:
        """Return a price for leaving the feasible set: above the rows' typical marginal value."""
        rows = self.lower.rows
        marginal = np.abs(point.state.sensitivity[: rows.general][rows.inequality[: rows.general]])
        return SMOOTHING.price * float(np.quantile(marginal, 0.75)) if len(marginal) else 0.0

    def tighten(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point at the same x with ten times less smoothing."""
        self._tangent = None  # of no use beyond the stage: a run resumed there would not know it
        before = point.smoothing
        less = SMOOTHING.tightening
        tighter = dataclasses.replace(before, barrier=less * before.barrier, softness=less * before.softness)
        return self._evaluate(point.x, tighter, point.state.central)

    def advance(self, point: SmoothPoint, stiff: SmoothPoint) -> tuple[SmoothPoint, Barrier]:
        """Return where the next stage starts, and its smoothing."""
        return stiff, stiff.smoothing

    def refit(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return None: a stage's smoothing stays as it is."""
        return None

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point itself: it is exact."""
        return point

    def _evaluate(self, x: np.ndarray, smoothing: Barrier, warm: CentralPoint) -> SmoothPoint | None:
        lower, flat = self.lower, self.lower.flat
        central = lower.solve(x, smoothing.barrier, smoothing.softness, warm)
        if central is None:
            return None
        try:
            factor = lower.factor(central)
        except FloatingPointError:
            return None
        value, f_x, f_y = flat.value_and_gradients("upper", x, central.y)
        price = smoothing.kappa * smoothing.softness * (lower.rows.inequality * lower.soft)
        adjoint, sensitivity = factor.solve(f_y, price)
        gradient = f_x - factor.mixed.T @ adjoint - lower.rows.B.T @ sensitivity
        value += float(price @ central.multiplier)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        positive = central.multiplier * lower.rows.inequality
        return SmoothPoint(
            x, central.y, positive, value, gradient, smoothing, SmoothState(central, adjoint, sensitivity)
        )

    def hessian(self, point: SmoothPoint) -> np.ndarray:
        """Return the second derivative of the smoothed objective in x."""
        lower, flat, central, rows = self.lower, self.lower.flat, point.state.central, self.lower.rows
        assert point.state.adjoint is not None
        answers = lower.factor(central).response(rows.B)
        self._tangent = central, answers
        bent = flat.lagrangian_hessian(point.x, point.y, -point.state.adjoint)
        of_x, of_both, of_y = bent[: flat.n_x, : flat.n_x], bent[: flat.n_x, flat.n_x :], bent[flat.n_x :, flat.n_x :]
        # The barriers bend too: (barrier / slack)'' = 2 barrier / slack^3, and so for the rows' barrier / multiplier.
        steep = -rows.sign * central.multiplier[rows.bounds] / central.slack[rows.bounds] ** 2
        along_y = np.bincount(rows.column, steep, minlength=flat.n_y)
        general, inequality = slice(rows.general), rows.inequality[: rows.general]
        positive = np.where(inequality, central.multiplier[general], 1.0)
        along_rows = np.where(inequality, -central.slack[general] / positive**2, 0.0)
        barriers = np.concatenate([along_y * point.state.adjoint, along_rows * point.state.sensitivity[general]])
        weights = sp.csr_matrix(
            sp.block_diag([of_y, sp.csr_matrix((rows.general, rows.general))]) + sp.diags(2 * barriers)
        )
        curvature = of_x.toarray() + _quadratic_form(answers, weights)
        if of_both.nnz:
            curvature += 2 * (of_both @ answers[:, : flat.n_y].T)
        return 0.5 * (curvature + curvature.T)


def _quadratic_form(rows: np.ndarray, weights: sp.csr_matrix) -> np.ndarray:
    """Return ``rows weights rows'`` without the columns that add nothing to it: most of a network's flows are zero."""
    size = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    share = size * (abs(weights) @ size)
    used = np.flatnonzero(share > 1e-14 * share.max(initial=0.0))
    part = rows[:, used]
    return part @ (weights[used][:, used] @ part.T)
