"""Large problems whose Phi is smooth, or smooth but for few kinks, each with its start; numbers come from a seed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import bilevax as bx


class Smooth(NamedTuple):
    """A problem and where to start; ``functions`` are f and g for those who write their own method."""

    name: str
    problem: bx.BilevelProblem
    x0: np.ndarray
    n_y: int
    functions: tuple[Callable, Callable]
    box: tuple[float, float] | None = None


def weights(rows: int, features: int, seed: int = 0) -> Smooth:
    """Return weights in [0, 1] of noisy training rows: those of the logistic model that predicts clean rows best."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(features)
    training, validation = random.standard_normal((rows, features)), random.standard_normal((rows // 2, features))
    label = lambda table: np.sign(table @ truth + 0.5 * random.standard_normal(len(table)))
    noisy = label(training) * np.where(random.uniform(size=rows) < 0.3, -1.0, 1.0)
    data = {"T": noisy[:, None] * training, "V": label(validation)[:, None] * validation}
    functions = (_validation_loss, _weighted_loss)
    problem = bx.BilevelProblem(*functions, x_set=bx.Box(0.0, 1.0), y_like=np.zeros(features), data=data)
    return Smooth(f"{rows} weights, {features} features", problem, np.full(rows, 0.5), features, functions, (0.0, 1.0))


def _validation_loss(x: Any, y: Any, data: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-data["V"] @ y))


def _weighted_loss(x: Any, y: Any, data: Any) -> Any:
    return jnp.mean(x * jax.nn.softplus(-data["T"] @ y)) + 0.5e-2 * y @ y


def ridge(features: int, seed: int = 0) -> Smooth:
    """Return one penalty a feature of a ridge regression with a bound on the sum of its coefficients."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(features) * (random.uniform(size=features) < 0.3)
    T, V = random.standard_normal((2 * features, features)), random.standard_normal((features, features))
    noise = 2.0 * random.standard_normal(3 * features)
    data = {"T": T, "V": V, "t": T @ truth + noise[: 2 * features], "v": V @ truth + noise[2 * features :]}
    problem = bx.BilevelProblem(
        _ridge_upper,
        _ridge_lower,
        bx.LinearCoupling(A=np.ones((1, features)), upper=0.5 * np.abs(truth).sum()),
        x_set=bx.Box(-5.0, 5.0),
        data=data,
    )
    return Smooth(f"ridge, {features} penalties", problem, np.zeros(features), features, (_ridge_upper, _ridge_lower))


def _ridge_upper(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * jnp.mean((data["V"] @ y - data["v"]) ** 2)


def _ridge_lower(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * jnp.mean((data["T"] @ y - data["t"]) ** 2) + 0.5 * jnp.mean(jnp.exp(x) * y**2)


def prices(goods: int, rows: int, seed: int = 0) -> Smooth:
    """Return prices of goods; the follower buys under sparse rows, with a strongly convex quadratic cost."""
    random = np.random.default_rng(seed)
    A = sp.random(rows, goods, 5 / goods, random_state=seed, data_rvs=random.random, format="csr")
    A = A + sp.csr_matrix((np.ones(rows), (np.arange(rows), random.choice(goods, rows, replace=False))), (rows, goods))
    data = {"curvature": random.uniform(1.0, 2.0, goods), "taste": random.uniform(2.0, 6.0, goods)}
    problem = bx.BilevelProblem(
        _revenue,
        _purchase,
        bx.LinearCoupling(A=A, upper=random.uniform(1.0, 3.0, rows)),
        x_set=bx.Box(0.0, 10.0),
        data=data,
    )
    return Smooth(f"{goods} prices, {rows} rows", problem, np.ones(goods), goods, (_revenue, _purchase))


def _revenue(x: Any, y: Any, data: Any) -> Any:
    return -x @ y


def _purchase(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * (data["curvature"] * y) @ y + (x - data["taste"]) @ y


def controller(steps: int, seed: int = 0) -> Smooth:
    """Return three weights of a controller tuned against a demonstration; its plan of so many steps is the lower level.

    The state (positions and velocities in the plane, pushed by one bounded input) follows linear dynamics, an equality
    row each: four rows and five variables a step.
    """
    random = np.random.default_rng(seed)
    dt = 0.1
    F = np.eye(4) + dt * np.array([[0, 0, 1, 0], [0, 0, 0, 1], [-0.5, 0.2, -0.3, 0], [0.2, -0.5, 0, -0.3]])
    push = dt * np.array([0.0, 0.0, 1.0, 0.5])
    first = np.array([2.0, -1.0, 0.0, 0.0])
    # z = (states after each step, inputs): state_k - F state_{k-1} - push input_k = 0, the first state known.
    states = sp.eye(4 * steps) - sp.kron(sp.eye(steps, k=-1), F)
    A = sp.csr_matrix(sp.hstack([states, -sp.kron(sp.eye(steps), push[:, None])]))
    right = np.concatenate([F @ first, np.zeros(4 * (steps - 1))])
    low = np.concatenate([np.full(4 * steps, -np.inf), np.full(steps, -1.0)])
    demo = np.outer(np.exp(-0.15 * np.arange(1, steps + 1)), first[:2]) + 0.05 * random.standard_normal((steps, 2))
    problem = bx.BilevelProblem(
        _tracking,
        _plan,
        bx.LinearCoupling(A=A, lower=right, upper=right),
        x_set=bx.Box(-3.0, 3.0),
        y_set=bx.Box(low, -low),
        data={"demo": demo},
    )
    return Smooth(f"controller, {steps} steps", problem, np.zeros(3), 5 * steps, (_tracking, _plan))


def _tracking(x: Any, y: Any, data: Any) -> Any:
    steps = data["demo"].shape[0]
    state = y[: 4 * steps].reshape(steps, 4)
    return jnp.mean((state[:, :2] - data["demo"]) ** 2) + 1e-3 * jnp.mean(y[4 * steps :] ** 2)


def _plan(x: Any, y: Any, data: Any) -> Any:
    steps = data["demo"].shape[0]
    weight, state = jnp.exp(x), y[: 4 * steps].reshape(steps, 4)
    place, speed = weight[0] * jnp.sum(state[:, :2] ** 2), weight[1] * jnp.sum(state[:, 2:] ** 2)
    return 0.5 * (place + speed + weight[2] * jnp.sum(y[4 * steps :] ** 2))
