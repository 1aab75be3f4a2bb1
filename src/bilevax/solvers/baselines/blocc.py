"""BLOCC: a gradient step on x after two max-min problems, each solved approximately."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import CompiledSolver, Iterate
from bilevax.solvers.multipliers import Rows, all_hold, proximal_step
from bilevax.solvers.parameters import COUNT, NONNEGATIVE, POSITIVE, assign
from bilevax.solvers.penalty import gradients_of_k, penalty_residuals


class BLOCCState(NamedTuple):
    """x, and the answers of both max-min problems, from which the next ones start."""

    x: PyTree
    y_g: PyTree
    mu_g: Rows
    y_F: PyTree
    mu_F: Rows


class _MaxMin(NamedTuple):
    """A max-min problem on ``upper_weight f + lower_weight g + mu'h``, with its step sizes on y and mu."""

    upper_weight: Any
    lower_weight: Any
    eta_y: Any
    eta_mu: Any


class BLOCC(CompiledSolver):
    """Penalty method with two inner max-min problems (Jiang, Li, Hong, Tarzanagh, Chen, NeurIPS 2024).

    For g strongly convex in y; the double loop (``T_y=1``) is guaranteed for affine rows with A of full row rank. With
    ``h = B x + A y`` and multipliers as in `bilevax.solvers.multipliers`, a step solves, from where the last one ended,

        max over mu, min over y in Y of  L_g = g + mu'h   and of   L_F = f + gamma g + mu'h

    by T rounds of: extrapolate mu with weight beta, T_y projected gradient steps of size eta_1 on y, one of size eta_2
    on mu. Then x moves by -eta times

        grad_x f(x, y_F) + gamma (grad_x g(x, y_F) - grad_x g(x, y_g)) + B'(mu_F - gamma mu_g).

    Parameters
    ----------
    gamma
        The penalty gamma: 1 / delta.
    eta
        The step size eta of x.
    T, T_y
        Rounds of a max-min problem (T), and steps on y in a round (T_y); ``T_y=1`` is the double loop.
    eta_1g, eta_2g, eta_1F, eta_2F
        Step sizes on y (1) and on mu (2) in the problems of g and of F.
    beta
        Extrapolation of mu, positive in the accelerated form.
    """

    gamma: Any
    eta: Any
    T: Any
    T_y: Any
    eta_1g: Any
    eta_2g: Any
    eta_1F: Any
    eta_2F: Any
    beta: Any

    default_max_steps: ClassVar[int] = 20_000
    check_every: ClassVar[int] = 20

    def __init__(
        self,
        gamma: float = 10.0,
        eta: float = 0.01,
        T: int = 20,
        T_y: int = 1,
        eta_1g: float = 0.1,
        eta_2g: float = 0.1,
        eta_1F: float = 0.01,
        eta_2F: float = 1.0,
        beta: float = 0.0,
    ):
        assign(self, POSITIVE, gamma=gamma, eta=eta, eta_1g=eta_1g, eta_2g=eta_2g, eta_1F=eta_1F, eta_2F=eta_2F)
        assign(self, COUNT, T=T, T_y=T_y)
        assign(self, NONNEGATIVE, beta=beta)

    @classmethod
    def paper_svm(cls) -> "BLOCC":
        """Return the parameters of the SFLCB paper's SVM experiment."""
        return cls(gamma=12.0, eta=0.01, T=20, T_y=20, eta_1g=1e-3, eta_2g=1e-4, eta_1F=1e-5, eta_2F=1e-4)

    @property
    def delta(self) -> Any:
        """The penalty in the notation of Phi_delta."""
        return 1 / self.gamma

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> BLOCCState:
        zero = jax.tree.map(jnp.zeros_like, problem.rows(x, y))
        return BLOCCState(x, y, zero, y, zero)

    def step(self, problem: BilevelProblem, state: BLOCCState) -> BLOCCState:
        x = state.x
        of_g, of_F = _MaxMin(0.0, 1.0, self.eta_1g, self.eta_2g), _MaxMin(1.0, self.gamma, self.eta_1F, self.eta_2F)
        y_g, mu_g = self._max_min(problem, x, state.y_g, state.mu_g, of_g)
        y_F, mu_F = self._max_min(problem, x, state.y_F, state.mu_F, of_F)
        grad_x, _, _ = gradients_of_k(problem, self.delta, x, y_F, y_g, self._scaled(mu_F), mu_g)
        x = problem.x_set.project(trees.add_scaled(x, -self.eta * self.gamma, grad_x))
        return BLOCCState(x, y_g, mu_g, y_F, mu_F)

    def _max_min(self, problem: BilevelProblem, x: PyTree, y: PyTree, mu: Rows, inner: _MaxMin) -> tuple[PyTree, Rows]:
        """Return (y, mu) after T rounds on a max-min problem."""
        value = lambda y: (
            inner.upper_weight * problem.upper_value(x, y) + inner.lower_weight * problem.lower_value(x, y)
        )
        whole = lambda count: jnp.round(count).astype(int)

        def round_of(_: Any, carry: tuple[PyTree, Rows, Rows]) -> tuple[PyTree, Rows, Rows]:
            y, mu, before = carry
            ahead = jax.tree.map(lambda new, old: new + self.beta * (new - old), mu, before)
            pull = problem.adjoint_y(x, y, ahead)
            slope = lambda y: jax.tree.map(jnp.add, jax.grad(value)(y), pull)
            descend = lambda _, y: problem.y_set.project(trees.add_scaled(y, -inner.eta_y, slope(y)))
            y = jax.lax.fori_loop(0, whole(self.T_y), descend, y)
            rows = problem.rows(x, y)
            return y, proximal_step(problem, rows, ahead, inner.eta_mu, rows), mu

        y, mu, _ = jax.lax.fori_loop(0, whole(self.T), round_of, (y, mu, mu))
        return y, mu

    def _scaled(self, mu_F: Rows) -> Rows:
        """Return mu_F as the multiplier of ``delta f + g``."""
        return jax.tree.map(lambda leaf: leaf / self.gamma, mu_F)

    def terminate(
        self, problem: BilevelProblem, state: BLOCCState, rtol: Any, atol: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Test both max-min problems and the projected gradient of Phi_delta, delta = 1 / gamma.

        The inequalities are those of `bilevax.solvers.penalty.penalty_residuals` with y = y_F, z = y_g,
        u = mu_F / gamma and v = mu_g.
        """
        x, y_g, mu_g, y_F, mu_F = state
        done, record = all_hold(
            penalty_residuals(problem, self.delta, x, y_F, y_g, self._scaled(mu_F), mu_g), rtol, atol
        )
        return done, record | {"upper": problem.upper_value(x, y_F)}

    def iterate(self, state: BLOCCState) -> Iterate:
        return Iterate(state.x, state.y_F, state.mu_g)
