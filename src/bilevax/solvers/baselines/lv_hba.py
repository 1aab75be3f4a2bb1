"""LV-HBA: single loop on a proximal Lagrangian value function, projecting onto the coupled rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import Iterate
from bilevax.solvers.baselines.growing_penalty import GrowingPenalty
from bilevax.solvers.multipliers import (
    Residual,
    Rows,
    all_hold,
    clip_multipliers,
    projected_gradient,
    proximal_step,
    system_residuals,
)
from bilevax.solvers.parameters import POSITIVE, assign
from bilevax.solvers.projection import RowSet, project_onto, squared_norm


class LVHBAState(NamedTuple):
    """The variables of the algorithm, the projection's multipliers ``w`` with |rows|^2, and the count of steps."""

    x: PyTree
    y: PyTree
    z: Rows
    theta: PyTree
    lam: Rows
    w: Rows
    norm: Any
    count: Any


class LVHBA(GrowingPenalty):
    """Proximal Lagrangian value function method (Yao, Yu, Zeng, Zhang, ICLR 2024).

    For g convex in y and a nonempty ``C = {(x, y) : x in X, y in Y, lower <= h(x, y) <= upper}``, h = B x + A y, onto
    which every step projects: to 1e-10, by a dual method started from the last multipliers. With

        v(x, y, z) = min over theta in Y, max over lam of
                     g(x, theta) + lam'h(x, theta) + |theta - y|^2 / (2 gamma1) - |lam - z|^2 / (2 gamma2)

    it takes one gradient step on theta, lam, (x, y) and z towards the minimum of ``f / c_k + g - v(x, y, z)`` over
    (x, y) in C and ``|z| <= r``, for ``c_k = c0 (k + 1)^p``. y stays off y*(x) by the order of 1 / c_k, and the answer
    too. Only an alpha well below eta lets theta and lam keep up; otherwise it may cycle.

    Parameters
    ----------
    alpha, beta
        Step sizes of (x, y) (alpha_k) and of z (beta_k).
    eta
        Step size of theta and lam (eta_k).
    gamma1, gamma2
        The proximal parameters.
    c0, p
        The penalty grows as ``c0 (k + 1)^p``; p = 0 keeps it.
    r
        Bound on the multipliers z.
    """

    r: Any

    def __init__(
        self,
        alpha: float = 0.005,
        beta: float = 0.05,
        eta: float = 0.1,
        gamma1: float = 1.0,
        gamma2: float = 1.0,
        c0: float = 10.0,
        p: float = 0.3,
        r: float = 1000.0,
    ):
        super().__init__(alpha, beta, eta, gamma1, gamma2, c0, p)
        assign(self, POSITIVE, r=r)

    @classmethod
    def paper_svm(cls) -> "LVHBA":
        """Return the parameters of the SFLCB paper's SVM experiment; beta, c0, p and r, which it omits, are ours."""
        return cls(alpha=0.01, beta=0.01, eta=0.001, gamma1=0.1, gamma2=0.1)

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> LVHBAState:
        zero = jax.tree.map(jnp.zeros_like, problem.rows(x, y))
        coupled = _coupled_set(problem, x, y)
        norm = squared_norm(coupled, (x, y))
        (x, y), w = project_onto(coupled, (x, y), zero, norm)
        return LVHBAState(x, y, zero, y, zero, w, norm, jnp.zeros_like(norm))

    def step(self, problem: BilevelProblem, state: LVHBAState) -> LVHBAState:
        x, y, z, theta, lam, w, norm, count = state
        slope = self._theta_slope(problem, x, y, theta, lam)
        ascent = self._multiplier_ascent(problem, x, theta, lam, z)
        rows = problem.rows(x, theta)
        theta = self._theta_step(problem, theta, slope)
        lam = proximal_step(problem, rows, lam, self.eta, ascent)
        direction = self._direction(problem, state._replace(theta=theta, lam=lam))
        (x, y), w = project_onto(_coupled_set(problem, x, y), trees.add_scaled((x, y), -self.alpha, direction), w, norm)
        z = jax.tree.map(lambda old, new: old + self.beta / self.gamma2 * (new - old), z, lam)
        z = clip_multipliers(problem, rows, z, self.r)
        return LVHBAState(x, y, z, theta, lam, w, norm, count + 1)

    def _direction(self, problem: BilevelProblem, state: LVHBAState) -> tuple[PyTree, PyTree]:
        """Return the gradient of ``f / c_k + g - v`` in x and y."""
        x, y, _, theta, lam, *_ = state
        along_x, along_y = self._objective_gradient(problem, x, y, self._penalty(state.count))
        value_x = jax.grad(problem.lower_value)(x, theta)
        pull = problem.adjoint_x(x, theta, lam)
        return (
            jax.tree.map(lambda a, b, c: a - b - c, along_x, value_x, pull),
            jax.tree.map(lambda a, o, t: a - (o - t) / self.gamma1, along_y, y, theta),
        )

    def terminate(
        self, problem: BilevelProblem, state: LVHBAState, rtol: Any, atol: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Test the saddle point behind v, and the first-order conditions of ``f + c_k (g - v)`` on C and |z| <= r.

        With (d_x, d_y) the gradient of ``f / c_k + g - v``, w the projection's multipliers, W = c_k w / alpha, and
        residuals in the largest-entry norm, it stops when all of these hold, with t = min(1, 1 / c_k) / 10:

            |theta - P_Y(theta - grad_y g(x, theta) - A'lam - (theta - y) / gamma1)|
                                        <= t (atol + rtol (1 + |A'lam| + |the rest of that gradient|))
            |a - clip(a + lam, lower, upper)|   <= t (atol + rtol (1 + |h(x, theta)| + |lam|)),
                                                       a = h(x, theta) - (lam - z) / gamma2
            |x - P_X(x - c_k d_x - B'W)|        <= (atol + rtol (1 + |c_k d_x + B'W|)) / 4
            |y - P_Y(y - c_k d_y - A'W)|        <= (atol + rtol (1 + |c_k d_y| + |A'W|)) / 4
            |h(x, y) - clip(h(x, y) + W, lower, upper)| <= (atol + rtol (1 + |h(x, y)| + |W|)) / 4
            |z - P_z(z + c_k (lam - z) / gamma2)|       <= (atol + rtol (1 + |c_k (lam - z) / gamma2|)) / 4

        where P_z cuts to |z| <= r and to the signs that the rows' sides allow.

        This says nothing of how large c_k is: the certificate does.
        """
        x, y, z, theta, lam, w, *_ = state
        penalty, outer = self._penalty(state.count), self._outer_factor
        scale = lambda tree, factor: jax.tree.map(lambda leaf: factor * leaf, tree)
        slope = self._theta_slope(problem, x, y, theta, lam)
        ascent = self._multiplier_ascent(problem, x, theta, lam, z)
        multipliers = scale(w, penalty / self.alpha)
        along_x, along_y = scale(self._direction(problem, state), penalty)
        along_x = jax.tree.map(jnp.add, along_x, problem.adjoint_x(x, y, multipliers))
        along_y = jax.tree.map(jnp.add, along_y, problem.adjoint_y(x, y, multipliers))
        along_z = scale(trees.subtract(z, lam), penalty / self.gamma2)
        tight = self._tight_factor(penalty)
        theta_part, lam_part = system_residuals(problem, x, theta, lam, slope, ascent, factor=tight)
        y_part, row_part = system_residuals(problem, x, y, multipliers, along_y, factor=outer)
        residuals: dict[str, Residual] = {
            "theta": theta_part,
            "lam": lam_part,
            "x": projected_gradient(problem.x_set.project, x, along_x, factor=outer),
            "y": y_part,
            "rows": row_part,
            "z": projected_gradient(lambda z: clip_multipliers(problem, lam, z, self.r), z, along_z, factor=outer),
        }
        done, record = all_hold(residuals, rtol, atol)
        return done, record | {"upper": problem.upper_value(x, y), "penalty": penalty}

    def iterate(self, state: LVHBAState) -> Iterate:
        return Iterate(state.x, state.y, state.lam)


def _coupled_set(problem: BilevelProblem, x: PyTree, y: PyTree) -> RowSet:
    return RowSet(
        problem,
        rows=lambda point: problem.rows(*point),
        adjoint=lambda w: (problem.adjoint_x(x, y, w), problem.adjoint_y(x, y, w)),
        project=lambda point: (problem.x_set.project(point[0]), problem.y_set.project(point[1])),
    )
