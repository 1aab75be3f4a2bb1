"""What a user would write who knows that Phi is smooth: L-BFGS-B on it, Newton's method below, implicit gradients."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize


def compiled_phi(upper: Callable, lower: Callable) -> Callable:
    """Return the compiled function (x, y, data) -> Phi(x), its gradient and y*(x), started from y."""

    @jax.jit
    def phi(x: Any, y: Any, data: Any) -> tuple[Any, Any, Any]:
        gradient, hessian = jax.grad(lower, 1), jax.hessian(lower, 1)
        more = lambda state: (jnp.abs(gradient(x, state[0], data)).max() > 1e-12) & (state[1] < 30)
        newton = lambda y: y - jnp.linalg.solve(hessian(x, y, data), gradient(x, y, data))
        y, _ = jax.lax.while_loop(more, lambda state: (newton(state[0]), state[1] + 1), (y, 0))
        value, (f_x, f_y) = jax.value_and_grad(upper, (0, 1))(x, y, data)
        adjoint = jnp.linalg.solve(hessian(x, y, data), f_y)
        return value, f_x - jax.vjp(lambda x: gradient(x, y, data), x)[1](adjoint)[0], y

    return phi


def solve_by_script(
    phi: Callable, x0: np.ndarray, y0: np.ndarray, data: Any, bounds: Any = None, limit: float = np.inf
) -> Any:
    """Return SciPy's result, each lower level started from the last answer, after ``limit`` seconds at most."""
    last, ends = [y0], time.process_time() + limit

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, last[0] = phi(x, last[0], data)
        return float(value), np.asarray(gradient)

    def stop_in_time(intermediate_result: Any) -> None:
        if time.process_time() > ends:
            raise StopIteration

    options = {"ftol": 0.0, "gtol": 1e-9, "maxiter": 5000, "maxfun": 20000}
    return minimize(evaluate, x0, jac=True, method="L-BFGS-B", bounds=bounds, options=options, callback=stop_in_time)
