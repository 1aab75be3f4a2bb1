"""The sparse direct oracle: Phi smoothed by the central path of `interior`, with first and second derivatives in x.

    F(x) = f(x, y(x)) + kappa * softness * sum(multiplier)

With K the matrix of `interior` at the central point and ``K (p, q) = (grad_y f, kappa softness)``,

    grad F = grad_x f - g_yx' p - B' q,

and its Hessian follows from the second derivatives of ``f - p' grad_y g`` and of the barriers along the directions
``(1, dy/dx, dforce/dx)``, which cost one solve with K each.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax.solvers.default.central_path import Barrier
from bilevax.solvers.default.interior import InteriorLower, InteriorPoint
from bilevax.solvers.default.smoothing import SmoothPoint
from bilevax.solvers.diary import Learning


@dataclasses.dataclass(frozen=True)
class _State:
    """The central point and the adjoints p and q there."""

    central: InteriorPoint
    adjoint: np.ndarray
    sensitivity: np.ndarray


class SparseState(NamedTuple):
    """Within what radius the second derivatives last told the truth."""

    radius: float


class SparsePath(Learning):
    """The smoothed objective from a start x on."""

    State = SparseState

    def __init__(self, lower: InteriorLower, x: np.ndarray, y: np.ndarray | None = None):
        self.lower = lower
        self.start = lower.start(x, y)
        self.radius = np.inf
        # Where `hessian` was evaluated last, and d(y, multiplier)/dx there.
        self._tangent: tuple[InteriorPoint, np.ndarray] | None = None

    def begin(self) -> SmoothPoint | None:
        """Return the smoothed point at the start, at no price yet."""
        lower = self.lower
        scale = Barrier(
            1e-3 * lower.multiplier_scale * lower.slack_scale,
            1e-5 * lower.slack_scale / lower.multiplier_scale,
            kappa=0.0,
        )
        return self._evaluate(self.start.x, scale, self.start)

    def evaluate(self, x: np.ndarray, smoothing: Barrier, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the smoothed point at x, started from a near one, and along the tangent where it is known."""
        central = warm.state.central
        if self._tangent is not None and self._tangent[0] is central:
            central = self.lower.moved(central, x, (x - central.x) @ self._tangent[1])
        return self._evaluate(x, smoothing, central)

    def price(self, point: SmoothPoint) -> float:
        """Return a price for leaving the feasible set: above the rows' typical marginal value."""
        inequality = self.lower.inequality
        if not inequality.any():
            return 0.0
        return 2 * float(np.quantile(np.abs(point.state.sensitivity[inequality]), 0.75))

    def tighten(self, point: SmoothPoint) -> SmoothPoint | None:
        """Return the point at the same x with ten times less smoothing."""
        self._tangent = None  # of no use beyond the stage: a run resumed there would not know it
        before = point.smoothing
        tighter = dataclasses.replace(before, barrier=0.1 * before.barrier, softness=0.1 * before.softness)
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

    def _evaluate(self, x: np.ndarray, smoothing: Barrier, warm: InteriorPoint) -> SmoothPoint | None:
        lower, flat = self.lower, self.lower.flat
        central = lower.solve(x, smoothing.barrier, smoothing.softness, warm)
        if central is None:
            return None
        try:
            self._factorise(central)
        except FloatingPointError:
            return None
        f_x, f_y = flat.gradients("upper", x, central.y)
        price = smoothing.kappa * smoothing.softness * lower.inequality
        adjoint, sensitivity = lower.back(f_y, price)
        gradient = f_x - flat.hessian("lower", "y", "x", x, central.y).T @ adjoint - lower.B.T @ sensitivity
        value = flat.value("upper", x, central.y) + float(price @ central.multiplier)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        positive = central.multiplier * lower.inequality
        return SmoothPoint(x, central.y, positive, value, gradient, smoothing, _State(central, adjoint, sensitivity))

    def hessian(self, point: SmoothPoint) -> np.ndarray:
        """Return the second derivative of the smoothed objective in x."""
        lower, flat, central = self.lower, self.lower.flat, point.state.central
        self._factorise(central)
        answers = lower.back_all(-flat.hessian("lower", "y", "x", point.x, point.y), -sp.csc_matrix(lower.B))
        self._tangent = central, answers
        bent = flat.lagrangian_hessian(point.x, point.y, -point.state.adjoint)
        of_x, of_both, of_y = bent[: flat.n_x, : flat.n_x], bent[: flat.n_x, flat.n_x :], bent[flat.n_x :, flat.n_x :]
        # The barriers bend too: (barrier / slack)'' = 2 barrier / slack^3, and so for the rows' barrier / multiplier.
        slack_low, slack_high = lower.bound_slacks(point.y)
        along_y = np.where(lower.has_low, central.below / slack_low**2, 0.0)
        along_y = along_y - np.where(lower.has_high, central.above / slack_high**2, 0.0)
        positive = np.where(lower.inequality, central.multiplier, 1.0)
        along_rows = np.where(lower.inequality, -central.slack / positive**2, 0.0)
        barriers = sp.diags(2 * np.concatenate([along_y * point.state.adjoint, along_rows * point.state.sensitivity]))
        count = len(along_rows)
        weights = sp.csr_matrix(sp.block_diag([of_y, sp.csr_matrix((count, count))]) + barriers)
        curvature = of_x.toarray() + _quadratic_form(answers, weights)
        if of_both.nnz:
            curvature += 2 * (of_both @ answers[:, : flat.n_y].T)
        return 0.5 * (curvature + curvature.T)

    def _factorise(self, central: InteriorPoint) -> None:
        positive = np.where(self.lower.inequality, central.multiplier, 1.0)
        give = np.where(self.lower.inequality, central.slack / positive, 0.0) + central.softness
        self.lower.factorise(central.x, central.y, central.below, central.above, give)


def _quadratic_form(rows: np.ndarray, weights: sp.csr_matrix) -> np.ndarray:
    """Return ``rows weights rows'`` without the columns that add nothing to it: most of a network's flows are zero."""
    size = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    share = size * (abs(weights) @ size)
    used = np.flatnonzero(share > 1e-14 * share.max(initial=0.0))
    part = rows[:, used]
    return part @ (weights[used][:, used] @ part.T)
