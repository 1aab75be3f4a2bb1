"""Phi with its gradient as one compiled program: the lower level, the adjoint, the value.

The lower level at x is solved by Newton's method on its KKT conditions with a set of active constraints. Once it has
converged, multipliers that are negative leave the set and constraints that are violated join it, until none does. With
K the KKT matrix there, one more solve gives the gradient:

    K' (p, q) = (grad_y f, 0),      grad Phi = grad_x f - g_yx' p - B' q.

The last Newton step has factorised K next to there, or just there if g is quadratic in y. So this solve uses that
factor, refined with products of K itself: to form K is most of the work. Nothing is larger than the data and the square
of y and its constraints; g_yx' p is one product. All numbers are arguments, so another x, or new data of the same
shapes, compiles nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve

from bilevax._support.compiling import foreseen
from bilevax.model.kernels import along_each
from bilevax.solvers.default.hypergradient.phi import Lower
from bilevax.solvers.default.settings import ALGEBRA, EXACT, HYPERGRADIENT


class Units(NamedTuple):
    """The scales of x, y, f and g: see `bilevax.model.scales`."""

    x: Any
    y: Any
    upper: Any
    lower: Any


class Rows(NamedTuple):
    """Constraints ``A y + B x <= c``; those of the mask ``equality`` are equations."""

    A: Any
    B: Any
    c: Any
    equality: Any


class Evaluated(NamedTuple):
    """Phi and its gradient, the lower-level answer with the constraints' values, and whether it is one."""

    value: Any
    gradient: Any
    lower: Lower
    values: Any
    solved: Any


class _State(NamedTuple):
    """Where Newton's method stands; ``before`` is how large the misfit was a step ago, ``factor`` of that step."""

    lower: Lower
    misfit: Any
    before: Any
    factor: Any
    steps: Any
    settled: Any


@functools.lru_cache(maxsize=64)
def phi_program(function: Callable) -> Callable[..., Evaluated]:
    """Return the compiled program of ``(numbers, units, rows, x, guess)``.

    ``function(level, numbers)`` returns f or g of flat vectors in the user's units.
    """

    def phi(numbers: Any, units: Units, rows: Rows, x: Any, guess: Lower) -> Evaluated:
        lower = lambda x, y: units.lower * function("lower", numbers)(x * units.x, y * units.y)
        upper = lambda x, y: units.upper * function("upper", numbers)(x * units.x, y * units.y)
        system = _System(jax.grad(lower, argnums=1), rows, x)
        answer, factor, solved = _solve(system, guess)
        value, (f_x, f_y) = jax.value_and_grad(upper, argnums=(0, 1))(x, answer.y)
        adjoint = _adjoint(system, answer, factor, jnp.concatenate([f_y, jnp.zeros_like(rows.c)]))
        p, q = adjoint[: f_y.shape[0]], jnp.where(answer.active, adjoint[f_y.shape[0] :], 0.0)
        follows = jax.vjp(lambda x: system.gradient(x, answer.y), x)[1](p)[0]
        return Evaluated(value, f_x - follows - rows.B.T @ q, answer, system.values(answer.y), solved)

    return foreseen(jax.jit(phi), HYPERGRADIENT.compiling)


class _System:
    """The KKT conditions at x with a set of active constraints, as equations: inactive multipliers are zero."""

    def __init__(self, gradient: Callable[[Any, Any], Any], rows: Rows, x: Any):
        self.gradient, self.rows, self.x = gradient, rows, x
        self.given = rows.B @ x - rows.c

    def values(self, y: Any) -> Any:
        """Return the constraints' values, positive where they are violated."""
        return self.rows.A @ y + self.given

    def misfit(self, lower: Lower) -> Any:
        """Return what is left of the equations."""
        along_y = self.gradient(self.x, lower.y) + self.rows.A.T @ lower.multiplier
        return jnp.concatenate([along_y, jnp.where(lower.active, self.values(lower.y), lower.multiplier)])

    def bent(self, lower: Lower) -> Callable[[Any], Any]:
        """Return the products of the second derivative of g in y with directions."""
        along = lambda y: self.gradient(self.x, y)
        return lambda direction: jax.jvp(along, (lower.y,), (direction,))[1]

    def matrix(self, lower: Lower) -> Any:
        """Return the derivative of `misfit` in y and the multipliers."""
        hessian = along_each(self.bent(lower), jnp.eye(lower.y.shape[0]))
        active = lower.active.astype(hessian.dtype)
        return jnp.block([[hessian, self.rows.A.T], [active[:, None] * self.rows.A, jnp.diag(1.0 - active)]])

    def transposed(self, lower: Lower, vector: Any) -> Any:
        """Return `matrix` transposed times a vector, without forming it."""
        p, q = vector[: lower.y.shape[0]], vector[lower.y.shape[0] :]
        along_y = self.bent(lower)(p) + self.rows.A.T @ jnp.where(lower.active, q, 0.0)
        return jnp.concatenate([along_y, self.rows.A @ p + jnp.where(lower.active, 0.0, q)])


def _adjoint(system: _System, answer: Lower, factor: Any, right: Any) -> Any:
    """Solve with the transposed matrix at the answer by the factor of a matrix near it, refined while that gains."""
    left = lambda solution: right - system.transposed(answer, solution)
    size = lambda residual: jnp.abs(residual).max()

    def refined(state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        solution, residual, _, count = state
        better = solution + lu_solve(factor, residual, trans=1)
        after = left(better)
        gains = size(after) < 0.5 * size(residual)  # false for NaN
        return jnp.where(gains, better, solution), jnp.where(gains, after, residual), gains, count + 1

    first = lu_solve(factor, right, trans=1)
    going_on = lambda state: state[2] & (state[3] < ALGEBRA.refinements)
    solution, residual, _, _ = jax.lax.while_loop(going_on, refined, (first, left(first), True, 0))
    anew = lambda: lu_solve(lu_factor(system.matrix(answer)), right, trans=1)
    near = size(residual) <= EXACT.accurate * (size(right) + size(solution))  # or the last step was a long one
    return jax.lax.cond(near, lambda: solution, anew)


def _solve(system: _System, guess: Lower) -> tuple[Lower, Any, Any]:
    """Return the lower-level answer at x from a guess, the factor of the last Newton step, and whether it is one."""
    rows = system.rows

    def fine(state: _State) -> Any:
        # Newton's method goes on as long as it gains: what is left would show in small differences of Phi.
        size = jnp.abs(state.misfit).max() / (1 + jnp.abs(rows.A.T @ state.lower.multiplier).max())
        small = (size <= EXACT.finest) | ((size <= EXACT.accurate) & (size > 0.1 * state.before))
        return small & (state.steps > 0)  # there is a factor, which the gradient needs

    def look(state: _State) -> _State:
        y, multiplier, active = state.lower
        violated = system.values(y) > HYPERGRADIENT.violated * (1 + jnp.abs(y).max())
        chosen = rows.equality | jnp.where(active, multiplier > 0.0, violated)
        lower = Lower(y, jnp.where(chosen, multiplier, 0.0), chosen)
        settled = jnp.all(chosen == active)
        return _State(lower, system.misfit(lower), jnp.inf, state.factor, state.steps + 1, settled)

    def newton(state: _State) -> _State:
        factor = lu_factor(system.matrix(state.lower))
        step = -lu_solve(factor, state.misfit)
        length, lower, misfit = _shortened(system, state, step)
        size = jnp.abs(state.misfit).max() / (1 + jnp.abs(rows.A.T @ state.lower.multiplier).max())
        failed = (length == 0.0) & (size > EXACT.accurate)
        steps = jnp.where(failed, HYPERGRADIENT.newton_steps, state.steps + 1)
        return _State(lower, misfit, size, factor, steps, False)

    misfit = system.misfit(guess)
    size = misfit.shape[0]
    none_yet = jnp.zeros((size, size), misfit.dtype), jnp.zeros(size, jnp.int32)
    state = _State(guess, misfit, jnp.inf, none_yet, 0, False)
    going_on = lambda state: ~state.settled & (state.steps < HYPERGRADIENT.newton_steps)
    state = jax.lax.while_loop(going_on, lambda state: jax.lax.cond(fine(state), look, newton, state), state)
    return state.lower, state.factor, state.settled


def _shortened(system: _System, state: _State, step: Any) -> tuple[Any, Lower, Any]:
    """Return how much of a Newton step lets the misfit fall, 0 where nothing does, and where it leads."""
    (y, multiplier, active), size = state.lower, jnp.linalg.norm(state.misfit)
    count = y.shape[0]

    def end(length: Any) -> tuple[Any, Lower, Any]:
        lower = Lower(y + length * step[:count], multiplier + length * step[count:], active)
        return length, lower, system.misfit(lower)

    def short_enough(trial: tuple[Any, Lower, Any]) -> Any:
        return jnp.linalg.norm(trial[2]) <= (1 - 1e-4 * trial[0]) * size  # false for NaN

    least = 0.5**HYPERGRADIENT.halvings
    shorter = lambda trial: end(0.5 * trial[0])
    trial = jax.lax.while_loop(lambda trial: ~short_enough(trial) & (trial[0] > least), shorter, end(1.0))
    here = 0.0, state.lower, state.misfit
    return jax.tree.map(lambda new, old: jnp.where(short_enough(trial), new, old), trial, here)
