"""BiC-GAFFA: single loop on a doubly regularised gap function, without any projection onto the coupled rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import Iterate
from bilevax.solvers.baselines.growing_penalty import GrowingPenalty
from bilevax.solvers.multipliers import Residual, Rows, all_hold, clip_multipliers, projected_gradient, proximal_step
from bilevax.solvers.parameters import POSITIVE, assign


class BiCGAFFAState(NamedTuple):
    """The variables of the algorithm and the count of steps; lam follows from them."""

    x: PyTree
    y: PyTree
    z: Rows
    theta: PyTree
    count: Any


class BiCGAFFA(GrowingPenalty):
    """Gap function method (Yao, Yin, Zeng, Zhang, NeurIPS 2024).

    For g convex in y. With h = B x + A y, and rows as in `bilevax.solvers.multipliers`,

        G(x, y, z) = max over theta in Y, lam of  g(x, y) + lam'h(x, y) - g(x, theta) - z'h(x, theta)
                     - |theta - y|^2 / (2 gamma1) - |lam - z|^2 / (2 gamma2)

    it takes one gradient step on theta (lam has a formula), x, y and z towards the minimum of ``f / c_k + G`` over
    x in X, y in Y and ``|z| <= R``, for ``c_k = c0 (k + 1)^p``. y misses y*(x), and the rows, by the order of 1 / c_k.

    Parameters
    ----------
    alpha, beta
        Step sizes of (x, y) (alpha_k) and of z (beta_k).
    eta
        Step size of theta (eta_k).
    gamma1, gamma2
        The regularisation parameters.
    c0, p
        The penalty grows as ``c0 (k + 1)^p``; p = 0 keeps it.
    R
        Bound on the multipliers z (r in the method's own paper).
    """

    R: Any

    def __init__(
        self,
        alpha: float = 0.02,
        beta: float = 0.1,
        eta: float = 0.2,
        gamma1: float = 1.0,
        gamma2: float = 1.0,
        c0: float = 10.0,
        p: float = 0.3,
        R: float = 1000.0,
    ):
        super().__init__(alpha, beta, eta, gamma1, gamma2, c0, p)
        assign(self, POSITIVE, R=R)

    @classmethod
    def paper_svm(cls) -> "BiCGAFFA":
        """Return the parameters of the SFLCB paper's SVM experiment."""
        return cls(alpha=0.001, beta=0.001, eta=0.01, gamma1=10.0, gamma2=0.01, c0=10.0, p=0.3, R=10.0)

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> BiCGAFFAState:
        return BiCGAFFAState(x, y, jax.tree.map(jnp.zeros_like, problem.rows(x, y)), y, jnp.zeros_like(self.eta))

    def step(self, problem: BilevelProblem, state: BiCGAFFAState) -> BiCGAFFAState:
        x, y, z, theta, count = state
        theta = self._theta_step(problem, theta, self._theta_slope(problem, x, y, theta, z))
        along_x, along_y, ascent_z = self._directions(problem, state._replace(theta=theta))
        z = proximal_step(problem, z, z, self.beta, ascent_z)
        return BiCGAFFAState(
            x=problem.x_set.project(trees.add_scaled(x, -self.alpha, along_x)),
            y=problem.y_set.project(trees.add_scaled(y, -self.alpha, along_y)),
            z=clip_multipliers(problem, z, z, self.R),
            theta=theta,
            count=count + 1,
        )

    def _directions(self, problem: BilevelProblem, state: BiCGAFFAState) -> tuple[PyTree, PyTree, Rows]:
        """Return the derivatives of ``f / c_k + G`` in x and y, and minus that in z without the support of z."""
        x, y, z, theta, count = state
        along_x, along_y = self._objective_gradient(problem, x, y, self._penalty(count))
        theta_x = jax.grad(problem.lower_value)(x, theta)
        rows = problem.rows(x, y)
        lam = proximal_step(problem, rows, z, self.gamma2, rows)
        pull_x, pull_y = problem.adjoint_x(x, y, trees.subtract(lam, z)), problem.adjoint_y(x, y, lam)
        return (
            jax.tree.map(lambda a, b, c: a - b + c, along_x, theta_x, pull_x),
            jax.tree.map(lambda a, b, o, t: a + b - (o - t) / self.gamma1, along_y, pull_y, y, theta),
            self._multiplier_ascent(problem, x, theta, lam, z),
        )

    def terminate(
        self, problem: BilevelProblem, state: BiCGAFFAState, rtol: Any, atol: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Test theta, and the first-order conditions of ``f + c_k G`` over X, Y and |z| <= R.

        With d_x, d_y the gradients of ``f / c_k + G``, a_z = h(x, theta) - (lam - z) / gamma2, and residuals in the
        largest-entry norm, it stops when all of these hold, with t = min(1, 1 / c_k) / 10:

            |theta - P_Y(theta - d_theta)|  <= t (atol + rtol (1 + |d_theta|)),
                                                   d_theta = grad_y g(x, theta) + A'z + (theta - y) / gamma1
            |x - P_X(x - c_k d_x)|          <= (atol + rtol (1 + |c_k d_x|)) / 4
            |y - P_Y(y - c_k d_y)|          <= (atol + rtol (1 + |c_k d_y|)) / 4
            c_k |z - z'|                    <= (atol + rtol (1 + c_k |a_z|)) / 4,   z' the z-step of size 1 from z

        This says nothing of how large c_k is: the certificate does.
        """
        x, y, z, theta, count = state
        penalty, outer = self._penalty(count), self._outer_factor
        along_x, along_y, ascent_z = self._directions(problem, state)
        grow = lambda tree: jax.tree.map(lambda leaf: penalty * leaf, tree)
        moved = clip_multipliers(problem, z, proximal_step(problem, z, z, 1.0, ascent_z), self.R)
        tight = self._tight_factor(penalty)
        slope = self._theta_slope(problem, x, y, theta, z)
        residuals = {
            "theta": projected_gradient(problem.y_set.project, theta, slope, factor=tight),
            "x": projected_gradient(problem.x_set.project, x, grow(along_x), factor=outer),
            "y": projected_gradient(problem.y_set.project, y, grow(along_y), factor=outer),
            "z": Residual(penalty * trees.max_abs(trees.subtract(moved, z)), penalty * trees.max_abs(ascent_z), outer),
        }
        done, record = all_hold(residuals, rtol, atol)
        return done, record | {"upper": problem.upper_value(x, y), "penalty": penalty}

    def iterate(self, state: BiCGAFFAState) -> Iterate:
        return Iterate(state.x, state.y, state.z)
