"""Smooth convex lower levels that are not quadratic, and levels that ignore each other."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from attack.families import family
from attack.families.quadratic import draft, unconstrained
from attack.judge.enumeration import standard
from attack.judge.followers import Formula, Quadratic, Smooth
from attack.model import Box, Case, Objective, Problem, Rows, Simplex, free
from attack.objectives import Data, leader, leader_alone, leader_data, quadratic

SHAPES = ((1, 2, 1), (2, 3, 2))  # entries of x and y, rows
RIDGES = 4


def special(xp: Any) -> Any:
    """Return SciPy's special functions, or JAX's."""
    if xp is np:
        return scipy.special
    import jax.scipy.special

    return jax.scipy.special


def inner(x: Any, y: Any, d: Data) -> Any:
    """Return the arguments of the ridges."""
    return d["M"] @ y + d["N"] @ x + d["t"]


def softplus(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Softplus ridges over a small quadratic."""
    return quadratic(xp, x, y, d) + xp.sum(xp.logaddexp(0.0, inner(x, y, d)))


def exponentials(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Exponential ridges over a small quadratic."""
    return quadratic(xp, x, y, d) + xp.sum(xp.exp(inner(x, y, d)))


def log_sum_exp(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A soft maximum over a small quadratic."""
    return quadratic(xp, x, y, d) + special(xp).logsumexp(inner(x, y, d))


Derivatives = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _softplus(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = scipy.special.expit(t)
    return share, np.diag(share * (1 - share))


def _exponentials(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.exp(t), np.diag(np.exp(t))


def _log_sum_exp(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = scipy.special.softmax(t)
    return share, np.diag(share) - np.outer(share, share)


def ridges(random: np.random.Generator, lower: Objective, derivatives: Derivatives) -> Case:
    """Return a problem with ``g = quadratic + function of M y + N x + t``; derivatives are those of the function."""
    n, m, k = SHAPES[random.integers(len(SHAPES))]
    d = draft(random, (n, m, k))
    data = d.data | {
        "H": 0.2 * np.eye(m),
        "R": 0.3 * random.standard_normal((m, n)),
        "M": random.standard_normal((RIDGES, m)),
        "N": random.standard_normal((RIDGES, n)),
        "t": random.standard_normal(RIDGES),
    }
    rows = d.rows._replace(low=np.full(k, -np.inf))
    x_set = Box(np.full(n, -2.0), np.full(n, 2.0))

    def gradient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        first, _ = derivatives(inner(x, y, data))
        return data["H"] @ y + data["R"] @ x + data["c"] + data["M"].T @ first

    def hessian(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        _, second = derivatives(inner(x, y, data))
        return data["H"] + data["M"].T @ second @ data["M"]

    follower = Smooth(gradient, hessian, standard(n, rows, None), lambda x: np.zeros(m))
    return Case(Problem(leader, lower, data, x_set, free(m), d.x0, follower, rows))


@family("softplus")
def softplus_ridges(random: np.random.Generator) -> Case:
    """Softplus ridges under rows."""
    return ridges(random, softplus, _softplus)


@family("exponentials")
def exponential_ridges(random: np.random.Generator) -> Case:
    """Exponentials under rows."""
    return ridges(random, exponentials, _exponentials)


@family("log-sum-exp")
def soft_maximum(random: np.random.Generator) -> Case:
    """A log-sum-exp under rows."""
    return ridges(random, log_sum_exp, _log_sum_exp)


def entropy(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Costs and an entropy, written with a logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):  # the judge, too, may ask for it on the border
        return d["mu"] * xp.sum(y * xp.log(y)) + xp.sum(y * (d["R"] @ x + d["c"]))


def entropy_xlogy(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """The same, written with xlogy."""
    return d["mu"] * xp.sum(special(xp).xlogy(y, y)) + xp.sum(y * (d["R"] @ x + d["c"]))


def on_simplex(random: np.random.Generator, lower: Objective) -> Case:
    """Return a choice among a few options by a logit model."""
    n, m = ((1, 2), (1, 3), (2, 4))[random.integers(3)]
    mu, total = random.uniform(0.2, 1.0), random.choice([1.0, random.uniform(0.5, 3)])
    data = leader_data(random, n, m, a=random.uniform(0, 1, m), b=random.uniform(-0.5, 0.5, n))
    data |= {"mu": mu, "R": random.uniform(-2, 2, (m, n)), "c": random.uniform(-1, 1, m)}
    follower = Formula(lambda x: total * scipy.special.softmax(-(data["R"] @ x + data["c"]) / mu))
    x_set = Box(np.full(n, -1.0), np.full(n, 1.0))
    return Case(Problem(leader, lower, data, x_set, Simplex(total, m), random.uniform(-1, 1, n), follower))


@family("entropy")
def entropy_on_simplex(random: np.random.Generator) -> Case:
    """An entropy on a simplex: defined inside only."""
    return on_simplex(random, entropy)


@family("entropy-xlogy")
def entropy_by_xlogy(random: np.random.Generator) -> Case:
    """An entropy on a simplex, continuous up to its border."""
    return on_simplex(random, entropy_xlogy)


def plan_distance(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """Squared distance to a plan that was observed."""
    return xp.sum((y - d["seen"]) ** 2)


def transport(random: np.random.Generator, n: int, side: int) -> Case:
    """Return an inverse optimal transport problem: features of the costs from an entropic plan."""
    p, q = (random.dirichlet(np.full(side, 3.0)) for _ in range(2))
    mu, m = random.uniform(0.1, 0.4), side * side
    features = random.uniform(0, 1, (n, m))
    eye, one = np.eye(side), np.ones((1, side))
    A = np.vstack([np.kron(eye, one), np.kron(one, eye)])  # sums of rows, sums of columns
    sums = np.r_[p, q]
    rows = Rows(A, np.zeros((2 * side, n)), sums, sums)

    def plan(x: np.ndarray) -> np.ndarray:
        """Balance by Newton's method in the potentials: concave, smooth, and well conditioned here."""
        cost = (features.T @ x).reshape(side, side)
        u, v = np.zeros(side), np.zeros(side)
        for _ in range(100):
            u = mu * (np.log(p) - scipy.special.logsumexp((v - cost) / mu, axis=1))
            v = mu * (np.log(q) - scipy.special.logsumexp((u[:, None] - cost) / mu, axis=0))
        for _ in range(10):
            y = np.exp((u[:, None] + v - cost) / mu)
            off = np.r_[y.sum(axis=1) - p, y.sum(axis=0) - q]
            curvature = np.block([[np.diag(y.sum(axis=1)), y], [y.T, np.diag(y.sum(axis=0))]]) / mu
            step = np.linalg.lstsq(curvature, -off, rcond=1e-12)[0]
            u, v = u + step[:side], v + step[side:]
        return np.exp((u[:, None] + v - cost) / mu).ravel()

    seen = plan(random.uniform(0, 2, n))
    seen = seen * (1 + 0.1 * random.standard_normal(m))
    data = {"mu": mu, "R": features.T, "c": np.zeros(m), "seen": seen}
    y_set, x_set = Box(np.zeros(m), np.full(m, np.inf)), Box(np.zeros(n), np.full(n, 2.0))
    problem = Problem(plan_distance, entropy, data, x_set, y_set, np.ones(n), Formula(plan), rows)
    return Case(problem)


@family("transport")
def small_plans(random: np.random.Generator) -> Case:
    """Entropic plans of 3 by 3 and 5 by 5; their marginals are dependent equality rows."""
    return transport(random, *((2, 3), (3, 5))[random.integers(2)])


@family("transport-10")
def larger_plans(random: np.random.Generator) -> Case:
    """Entropic plans of 10 by 10, five features."""
    return transport(random, 5, 10)


def curved(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A quadratic whose curvature depends on x."""
    return quadratic(xp, x, y, d) + 0.5 * xp.sum(xp.exp(d["E"] @ x) * y**2)


@family("hessian-of-x")
def hessian_of_x(random: np.random.Generator) -> Case:
    """The Hessian of g in y depends on x."""
    n, m, k = SHAPES[random.integers(len(SHAPES))]
    d = draft(random, (n, m, k))
    d.data |= {"E": random.uniform(-1, 1, (m, n))}
    rows = d.rows._replace(low=np.full(k, -np.inf))
    H = lambda x: d.data["H"] + np.diag(np.exp(d.data["E"] @ x))
    follower = Quadratic(H, d.data["R"], d.data["c"], standard(n, rows, None))
    x_set = Box(np.full(n, -2.0), np.full(n, 2.0))
    return Case(Problem(leader, curved, d.data, x_set, free(m), d.x0, follower, rows))


def quadratic_alone(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A follower who does not look at x."""
    return 0.5 * xp.sum(y * (d["H"] @ y)) + xp.sum(d["c"] * y)


@family("g-without-x")
def g_without_x(random: np.random.Generator) -> Case:
    """X reaches the follower through the rows only, or not at all."""
    d = draft(random)
    d.data["R"] = np.zeros_like(d.data["R"])
    d.rows = d.rows._replace(B=d.rows.B * random.integers(0, 2))
    case = d.case()
    return _with(case, lower=quadratic_alone)


@family("f-without-y")
def f_without_y(random: np.random.Generator) -> Case:
    """The leader looks at x alone; y only has to exist."""
    return _with(draft(random).case(), upper=leader_alone)


def residual(xp: Any, x: Any, y: Any, d: Data) -> Any:
    """A function of how far y is from where the follower goes anyway."""
    return xp.sum((y + d["T"] @ x - d["a"]) ** 2) + xp.sum(d["cy"] * (y + d["T"] @ x))


@family("flat-phi")
def flat(random: np.random.Generator) -> Case:
    """Phi is constant, though neither f nor y*(x) is: every x is stationary."""
    d = draft(random)
    m = d.data["c"].size
    d.data["T"] = np.linalg.solve(d.data["H"], d.data["R"])
    at_zero = unconstrained(d.data, np.zeros(d.x0.size))
    d.data["a"] = at_zero + random.uniform(-1, 1, m)
    follower = Formula(lambda x: unconstrained(d.data, x))
    x_set = Box(np.full(d.x0.size, -3.0), np.full(d.x0.size, 3.0))
    return Case(Problem(residual, quadratic, d.data, x_set, free(m), d.x0, follower))


def _with(case: Case, **changes: Any) -> Case:
    """Return the case with another objective, for which the judge's lower level is the same."""
    return dataclasses.replace(case, problem=dataclasses.replace(case.problem, **changes))
