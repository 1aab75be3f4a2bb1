"""SFLCB, the paper's Algorithm 1: one gradient step on everything, every time."""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import CompiledSolver, Iterate
from bilevax.solvers.multipliers import Residual, all_hold
from bilevax.solvers.parameters import NONNEGATIVE, POSITIVE, assign
from bilevax.solvers.penalty import gradients_of_k, gradients_with_pulls


class SFLCBState(NamedTuple):
    """The variables of Algorithm 1; slacks in the units of the rows (the paper's alpha is ``s_y - upper``)."""

    x: PyTree
    y: PyTree
    z: PyTree
    s_y: tuple[PyTree, ...]
    s_z: tuple[PyTree, ...]
    u: tuple[PyTree, ...]
    v: tuple[PyTree, ...]


class SFLCB(CompiledSolver):
    """Single-loop first-order method (Shen et al. 2025) for strongly convex g; guaranteed only with theory steps.

    It descends in x, y and the slack s_y, and ascends in z, s_z, on the augmented Lagrangian

        K = delta f(x, y) + g(x, y) - g(x, z) + u'(h(x, y) - s_y) - v'(h(x, z) - s_z)
            + rho1/2 |h(x, y) - s_y|^2 - rho2/2 |h(x, z) - s_z|^2

    in the order printed: u and v first, then x, (y, s_y), (z, s_z) from the old point and the new multipliers. Slacks
    are clipped to [lower, upper], which covers inequality, equality and range rows alike.

    Parameters
    ----------
    delta
        The penalty: the smaller, the closer Phi_delta is to Phi, and the slower the method.
    rho1, rho2
        Augmentation of the y and of the z system.
    eta_x, eta_y, eta_z, eta_u, eta_v
        Step sizes. ``SFLCB.from_theory`` computes those of the theorems.
    """

    delta: Any
    rho1: Any
    rho2: Any
    eta_x: Any
    eta_y: Any
    eta_z: Any
    eta_u: Any
    eta_v: Any

    default_max_steps: ClassVar[int] = 100_000

    def __init__(
        self,
        delta: float = 0.1,
        rho1: float = 1.0,
        rho2: float = 1.0,
        eta_x: float = 0.01,
        eta_y: float = 0.01,
        eta_z: float = 0.01,
        eta_u: float = 0.01,
        eta_v: float = 0.01,
    ):
        assign(self, POSITIVE, delta=delta, eta_x=eta_x, eta_y=eta_y, eta_z=eta_z, eta_u=eta_u, eta_v=eta_v)
        assign(self, NONNEGATIVE, rho1=rho1, rho2=rho2)

    @classmethod
    def paper_svm(cls) -> "SFLCB":
        """Return the parameters of the paper's SVM experiment."""
        return cls._with_one_step(delta=0.01, rho=0.01, eta=1e-3)

    @classmethod
    def paper_network3(cls) -> "SFLCB":
        """Return the parameters of the paper's network of 3 nodes, which ran for 30,000 steps."""
        return cls._with_one_step(delta=0.1, rho=1000.0, eta=3e-4)

    @classmethod
    def paper_network9(cls) -> "SFLCB":
        """Return the parameters of the paper's network of 9 nodes, which ran for 300,000 steps."""
        return cls._with_one_step(delta=0.25, rho=50.0, eta=3e-5)

    @classmethod
    def _with_one_step(cls, delta: float, rho: float, eta: float) -> "SFLCB":
        return cls(delta, rho, rho, eta, eta, eta, eta, eta)

    @classmethod
    def from_theory(
        cls,
        problem: BilevelProblem,
        x0: PyTree,
        *,
        delta: float | None = None,
        constants: Any = None,
        setting: Literal["coupled", "uncoupled"] | None = None,
        y0: PyTree = None,
    ) -> "SFLCB":
        """Return the solver with the step sizes of the convergence theorems.

        They come with a proof and are very small: use them to check the theory, not to be fast. The arguments, and
        the errors they may raise, are those of `bilevax.paper.step_sizes.step_sizes_for`.
        """
        from bilevax.paper.step_sizes import step_sizes_for  # a layer that builds on this one

        sizes = step_sizes_for(problem, x0, delta=delta, constants=constants, setting=setting, y0=y0)
        return cls(**sizes.parameters())

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> SFLCBState:
        rows = problem.rows(x, y)
        slack = _clip_rows(problem, rows, rows)
        zero = jax.tree.map(jnp.zeros_like, rows)
        return SFLCBState(x, y, y, slack, slack, zero, zero)

    def step(self, problem: BilevelProblem, state: SFLCBState) -> SFLCBState:
        return self._step(problem, state)[0]

    def steps(self, problem: BilevelProblem, state: SFLCBState, count: Any) -> tuple[SFLCBState, Any]:
        # The forces go from step to step although none reads those of the last: what leaves a loop XLA computes once
        # and stores. It would compute the forces again in each of the loops that use them, from slacks that it would
        # have to copy first.
        advance = lambda _, now: self._step(problem, now[0])
        return jax.lax.fori_loop(0, count, advance, (state, (state.u, state.v)))

    def _step(self, problem: BilevelProblem, state: SFLCBState) -> tuple[SFLCBState, Any]:
        """Return the state after one step, and the forces with which the rows acted on y and z."""
        x, y, z, *rows = state
        (pull_y, pull_z), moved = problem.there_and_back(x, (y, z), self._move_rows, tuple(rows))
        s_y, s_z, u, v, force_y, force_z = zip(*moved, strict=True) if moved else ((),) * 6
        pull_x = problem.adjoint_x(x, y, trees.subtract(force_y, force_z))
        grad_x, grad_y, grad_z = gradients_with_pulls(problem, self.delta, x, y, z, pull_x, pull_y, pull_z)
        after = SFLCBState(
            x=problem.x_set.project(trees.add_scaled(x, -self.eta_x, grad_x)),
            y=problem.y_set.project(trees.add_scaled(y, -self.eta_y, grad_y)),
            z=problem.y_set.project(trees.add_scaled(z, self.eta_z, grad_z)),
            s_y=s_y,
            s_z=s_z,
            u=u,
            v=v,
        )
        return after, (force_y, force_z)

    def _move_rows(self, values: tuple[PyTree, ...], rows: tuple[PyTree, ...], lower: PyTree, upper: PyTree) -> Any:
        """Return the forces on y and z, and the rows after the step: slacks, multipliers and these forces."""
        s_y, s_z, u, v = rows
        residual_y, residual_z = map(trees.subtract, values, (s_y, s_z))
        u = trees.add_scaled(u, self.eta_u, residual_y)
        v = trees.add_scaled(v, self.eta_v, residual_z)
        # The multipliers that act on (x, y, s_y) and (x, z, s_z): the derivative of K in the rows.
        force_y = trees.add_scaled(u, self.rho1, residual_y)
        force_z = trees.add_scaled(v, self.rho2, residual_z)
        s_y = jax.tree.map(jnp.clip, trees.add_scaled(s_y, self.eta_y, force_y), lower, upper)
        s_z = jax.tree.map(jnp.clip, trees.add_scaled(s_z, self.eta_z, force_z), lower, upper)
        return (force_y, force_z), (s_y, s_z, u, v, force_y, force_z)

    def terminate(
        self, problem: BilevelProblem, state: SFLCBState, rtol: Any, atol: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Residual the KKT systems of y and z, and the projected gradient of Phi_delta.

        With residuals in the largest-entry norm it stops when all of these hold, with t = min(1, delta) / 10 since the
        gradient of Phi_delta sees the residuals of both systems divided by delta:

            |h(x, y) - s_y|                               <= t (atol + rtol (1 + |h(x, y)|))     (and with z, s_z)
            |y - P_Y(y - grad_y (delta f + g) - A'u)|     <= t (atol + rtol (1 + |A'u| + |grad_y g|))   (and with z, v)
            |s_y - clip(s_y + u, lower, upper)|           <= t (atol + rtol (1 + |u|))           (and with s_z, v)
            |x - P_X(x - grad Phi_delta)|                 <= (atol + rtol (1 + |grad Phi_delta|)) / 2
        """
        x, y, z, s_y, s_z, u, v = state
        rows_y, rows_z = problem.rows(x, y), problem.rows(x, z)
        grad_x, grad_y, grad_z = gradients_of_k(problem, self.delta, x, y, z, u, v)
        size = trees.max_abs
        step_y = trees.subtract(y, problem.y_set.project(trees.subtract(y, grad_y)))
        step_z = trees.subtract(z, problem.y_set.project(jax.tree.map(jnp.add, z, grad_z)))
        step_x = trees.subtract(x, problem.x_set.project(trees.add_scaled(x, -1 / self.delta, grad_x)))
        slack_y = trees.subtract(s_y, _clip_rows(problem, rows_y, jax.tree.map(jnp.add, s_y, u)))
        slack_z = trees.subtract(s_z, _clip_rows(problem, rows_z, jax.tree.map(jnp.add, s_z, v)))
        force_y, force_z = problem.adjoint_y(x, y, u), problem.adjoint_y(x, z, v)
        tight = 0.1 * jnp.minimum(self.delta, 1.0)
        residuals = {
            "rows_y": Residual(size(trees.subtract(rows_y, s_y)), size(rows_y), tight),
            "rows_z": Residual(size(trees.subtract(rows_z, s_z)), size(rows_z), tight),
            "stationarity_y": Residual(size(step_y), size(force_y) + size(trees.subtract(grad_y, force_y)), tight),
            "stationarity_z": Residual(
                size(step_z), size(force_z) + size(jax.tree.map(jnp.add, grad_z, force_z)), tight
            ),
            "complementarity_y": Residual(size(slack_y), size(u), tight),
            "complementarity_z": Residual(size(slack_z), size(v), tight),
            "gradient": Residual(size(step_x), size(grad_x) / self.delta, 0.5),
        }
        done, record = all_hold(residuals, rtol, atol)
        return done, record | {"upper": problem.upper_value(x, y)}

    def iterate(self, state: SFLCBState) -> Iterate:
        return Iterate(state.x, state.y, state.v)


def _clip_rows(problem: BilevelProblem, rows: Any, slack: Any) -> Any:
    """Return the slack clipped to the bounds of the rows: the projection of every kind of row."""
    lower, upper = problem.row_bounds(rows)
    return jax.tree.map(jnp.clip, slack, lower, upper)
