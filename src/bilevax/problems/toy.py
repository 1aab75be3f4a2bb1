"""The paper's toy example: one variable each, four local minima."""

import jax.numpy as jnp

from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box

#: The local minima of Phi on [0, 3].
LOCAL_MINIMA = (0.14889100, 0.98622483, 2.01972563, 2.99077403)


def toy() -> BilevelProblem:
    """Return the toy problem: x in [0, 3], y <= x, and y*(x) = x."""
    return BilevelProblem(
        upper=_upper, lower=_lower, coupling=LinearCoupling(A=1.0, B=-1.0, upper=0.0), x_set=Box(0.0, 3.0)
    )


def _upper(x, y):
    return jnp.exp(2 - y) / (2 + jnp.cos(6 * x)) + 0.5 * jnp.log((4 * x - 2) ** 2 + 1)


def _lower(x, y):
    return (y - 2 * x) ** 2
