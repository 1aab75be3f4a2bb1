"""The penalty method with a projection oracle, for rows that do not involve x."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax._support import trees
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import CompiledSolver, Iterate, ProblemRefused
from bilevax.solvers.multipliers import Rows, all_hold
from bilevax.solvers.parameters import COUNT, POSITIVE, assign
from bilevax.solvers.penalty import gradients_of_k, penalty_residuals
from bilevax.solvers.projection import RowSet, project_onto, squared_norm


class ProjectedPenaltyState(NamedTuple):
    """The variables of the algorithm, the multipliers of both projections, and |A|^2."""

    x: PyTree
    y: PyTree
    z: PyTree
    w_y: Rows
    w_z: Rows
    norm: Any


class ProjectedPenalty(CompiledSolver):
    """Penalty method with a projection oracle (Kwon, Kwon, Wright, Nowak, ICLR 2024), in its deterministic form.

    For g strongly convex in y and rows ``lower <= A y <= upper`` without x. A step takes M projected gradient steps of
    size eta on ``sigma f + g`` (y) and on g (z), each over {y in Y : rows}, then one of size xi on x along
    ``grad_x f(x, y) + (grad_x g(x, y) - grad_x g(x, z)) / sigma``. The projections are exact to 1e-10, by a dual method
    started from the last multipliers; those, divided by eta, become the lower level's.

    Parameters
    ----------
    sigma
        The penalty sigma: delta.
    xi
        Step size of x (xi).
    eta
        Step size of y and z (alpha and gamma in the method's own paper).
    M
        Inner steps (M); ``M=1`` is the single loop.
    """

    sigma: Any
    xi: Any
    eta: Any
    M: Any

    default_max_steps: ClassVar[int] = 50_000

    def __init__(self, sigma: float = 0.1, xi: float = 0.01, eta: float = 0.1, M: int = 10):
        assign(self, POSITIVE, sigma=sigma, xi=xi, eta=eta)
        assign(self, COUNT, M=M)

    @property
    def delta(self) -> Any:
        """The penalty in the notation of Phi_delta."""
        return self.sigma

    def check(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> None:
        super().check(problem, x, y)
        with jax.ensure_compile_time_eval():  # inside jit, too, what is known is looked at now
            zero_x, zero_y = trees.zeros(x), trees.zeros(y)
            like = jax.eval_shape(problem.rows, zero_x, zero_y)
            random = np.random.default_rng(0)
            weights = jax.tree.map(lambda leaf: jnp.asarray(random.uniform(1.0, 2.0, leaf.shape), leaf.dtype), like)
            pull = jax.tree.leaves(problem.adjoint_x(zero_x, zero_y, weights))
        if all(map(trees.is_concrete, pull)) and any(np.any(np.asarray(leaf)) for leaf in pull):
            raise ProblemRefused(
                "ProjectedPenalty: expected rows that do not involve x (B = 0), got rows that do: its projection onto "
                "{y : rows} would move with x. Use SFLCB or the default."
            )

    def init(self, problem: BilevelProblem, x: PyTree, y: PyTree) -> ProjectedPenaltyState:
        rows = _lower_set(problem, x, y)
        zero = jax.tree.map(jnp.zeros_like, problem.rows(x, y))
        norm = squared_norm(rows, y)
        y, _ = project_onto(rows, y, zero, norm)
        return ProjectedPenaltyState(x, y, y, zero, zero, norm)

    def step(self, problem: BilevelProblem, state: ProjectedPenaltyState) -> ProjectedPenaltyState:
        x, norm = state.x, state.norm
        rows = _lower_set(problem, x, state.y)

        def descend(weight: Any, y: PyTree, w: Rows) -> tuple[PyTree, Rows]:
            value = lambda y: weight * problem.upper_value(x, y) + problem.lower_value(x, y)
            move = lambda _, carry: project_onto(
                rows, trees.add_scaled(carry[0], -self.eta, jax.grad(value)(carry[0])), carry[1], norm
            )
            return jax.lax.fori_loop(0, jnp.round(self.M).astype(int), move, (y, w))

        y, w_y = descend(self.sigma, state.y, state.w_y)
        z, w_z = descend(0.0, state.z, state.w_z)
        grad_x, _, _ = gradients_of_k(problem, self.sigma, x, y, z, w_y, w_z)
        x = problem.x_set.project(trees.add_scaled(x, -self.xi / self.sigma, grad_x))
        return ProjectedPenaltyState(x, y, z, w_y, w_z, norm)

    def _multipliers(self, w: Rows) -> Rows:
        """Return a projection's multipliers as those of the lower problem on which the step was taken."""
        return jax.tree.map(lambda leaf: leaf / self.eta, w)

    def terminate(
        self, problem: BilevelProblem, state: ProjectedPenaltyState, rtol: Any, atol: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Test both lower problems and the projected gradient of Phi_delta, delta = sigma.

        The inequalities are those of `bilevax.solvers.penalty.penalty_residuals` with u and v the projections'
        multipliers divided by eta.
        """
        x, y, z, w_y, w_z, _ = state
        residuals = penalty_residuals(problem, self.sigma, x, y, z, self._multipliers(w_y), self._multipliers(w_z))
        done, record = all_hold(residuals, rtol, atol)
        return done, record | {"upper": problem.upper_value(x, y)}

    def iterate(self, state: ProjectedPenaltyState) -> Iterate:
        return Iterate(state.x, state.y, self._multipliers(state.w_z))


def _lower_set(problem: BilevelProblem, x: PyTree, y: PyTree) -> RowSet:
    return RowSet(
        problem,
        rows=lambda y: problem.rows(x, y),
        adjoint=lambda w: problem.adjoint_y(x, y, w),
        project=problem.y_set.project,
    )
