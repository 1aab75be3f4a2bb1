"""Phi with its gradient as one compiled program: the lower level, the adjoint, the value.

The lower level at x is solved by Newton's method on its KKT conditions with a set of active constraints. Once it has
converged, multipliers that are negative leave the set and constraints that are violated join it, until none does. With
K the KKT matrix there, one more solve gives the gradient:

    K' (p, q) = (grad_y f, 0),      grad Phi = grad_x f - g_yx' p - B' q.

Nothing is larger than the data and the square of y and its constraints; g_yx' p is one product. All numbers are
arguments, so another x, or new data of the same shapes, compiles nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve

from bilevax.model.kernels import along_each
from bilevax.solvers.default.hypergradient.phi import Lower
from bilevax.solvers.default.settings import EXACT, HYPERGRADIENT


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
    """Where Newton's method stands; ``before`` is how large the misfit was a step ago."""

    lower: Lower
    misfit: Any
    before: Any
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
        answer, solved = _solve(system, guess)
        value, (f_x, f_y) = jax.value_and_grad(upper, argnums=(0, 1))(x, answer.y)
        factor = lu_factor(system.matrix(answer))
        adjoint = lu_solve(factor, jnp.concatenate([f_y, jnp.zeros_like(rows.c)]), trans=1)
        p, q = adjoint[: f_y.shape[0]], jnp.where(answer.active, adjoint[f_y.shape[0] :], 0.0)
        follows = jax.vjp(lambda x: system.gradient(x, answer.y), x)[1](p)[0]
        return Evaluated(value, f_x - follows - rows.B.T @ q, answer, system.values(answer.y), solved)

    return jax.jit(phi)


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

    def matrix(self, lower: Lower) -> Any:
        """Return the derivative of `misfit` in y and the multipliers."""
        along = lambda y: self.gradient(self.x, y)
        product = lambda direction: jax.jvp(along, (lower.y,), (direction,))[1]
        hessian = along_each(product, jnp.eye(lower.y.shape[0]))
        active = lower.active.astype(hessian.dtype)
        return jnp.block([[hessian, self.rows.A.T], [active[:, None] * self.rows.A, jnp.diag(1.0 - active)]])


def _solve(system: _System, guess: Lower) -> tuple[Lower, Any]:
    """Return the lower-level answer at x from a guess, and whether it is one."""
    rows = system.rows

    def fine(state: _State) -> Any:
        # Newton's method goes on as long as it gains: what is left would show in small differences of Phi.
        size = jnp.abs(state.misfit).max() / (1 + jnp.abs(rows.A.T @ state.lower.multiplier).max())
        return (size <= EXACT.finest) | ((size <= EXACT.accurate) & (size > 0.1 * state.before))

    def look(state: _State) -> _State:
        y, multiplier, active = state.lower
        violated = system.values(y) > HYPERGRADIENT.violated * (1 + jnp.abs(y).max())
        chosen = rows.equality | jnp.where(active, multiplier > 0.0, violated)
        lower = Lower(y, jnp.where(chosen, multiplier, 0.0), chosen)
        return _State(lower, system.misfit(lower), jnp.inf, state.steps + 1, jnp.all(chosen == active))

    def newton(state: _State) -> _State:
        step = -lu_solve(lu_factor(system.matrix(state.lower)), state.misfit)
        length, lower, misfit = _shortened(system, state, step)
        size = jnp.abs(state.misfit).max() / (1 + jnp.abs(rows.A.T @ state.lower.multiplier).max())
        failed = (length == 0.0) & (size > EXACT.accurate)
        return _State(lower, misfit, size, jnp.where(failed, HYPERGRADIENT.newton_steps, state.steps + 1), False)

    state = _State(guess, system.misfit(guess), jnp.inf, 0, False)
    going_on = lambda state: ~state.settled & (state.steps < HYPERGRADIENT.newton_steps)
    state = jax.lax.while_loop(going_on, lambda state: jax.lax.cond(fine(state), look, newton, state), state)
    return state.lower, state.settled


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
