"""pympcc with IPOPT on a bilevel problem: the lower level's KKT system with complementarity, as its manual says.

`pympcc.bilevel.from_lower_level` emits that system and takes derivatives with JAX; the manual recommends both. Bounds
on y become rows of the lower level, since they have multipliers. Strategy, tolerances and IPOPT options are its own.
"""

import dataclasses
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from comparisons.instance import Instance, Rows
from comparisons.report import timed

#: Ways to run it. "documented": to the letter of its manual. "compiled": with the functions it emits compiled, too,
#: which pympcc leaves to its caller and which makes it faster. "exact": with exact Hessians besides. "none": not run.
MODES = ("compiled", "documented", "exact", "none")


class MpccAnswer(NamedTuple):
    """What pympcc came back with: its own value, its own word on success, seconds after compilation."""

    x: np.ndarray
    y: np.ndarray
    value: float
    success: bool
    message: str
    seconds: float


def wanted(mode: str) -> bool:
    """Return whether pympcc takes part: it is asked for, and installed with IPOPT."""
    return mode != "none" and all(importlib.util.find_spec(name) is not None for name in ("pympcc", "cyipopt"))


def solve_as_mpcc(instance: Instance, mode: str, turns: int = 1) -> MpccAnswer:
    """Return pympcc's answer, timed as bilevax is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pympcc announces that JAX takes the derivatives
        (z, value, success, message), seconds = timed(_program(instance, mode), turns)
    x, y = z[: instance.n_x], z[instance.n_x : instance.n_x + instance.n_y]
    return MpccAnswer(x, y, float(value), bool(success), str(message), seconds)


_Program = Callable[[], tuple[np.ndarray, float, bool, str]]


def _program(instance: Instance, mode: str) -> _Program:
    data = jax.tree.map(jnp.asarray, instance.data)
    upper = jax.jit(lambda x, y: jnp.reshape(instance.upper(x, y, data), ()))
    lower = jax.jit(lambda x, y: jnp.reshape(instance.lower(x, y, data), ()))
    equal, below = _lower_rows(instance)
    if not len(below[1]):
        return _regular_program(instance, upper, lower)
    (low, high), both = instance.x_bounds(), lambda x, y: jnp.concatenate([x, y])
    problem = importlib.import_module("pympcc.bilevel").from_lower_level(
        n_x=instance.n_x,
        n_y=instance.n_y,
        x0=instance.x0,
        y0=instance.y0,
        f_upper=upper,
        f_lower=lower,
        n_g_lower=len(below[1]),
        g_lower=lambda x, y: below[0] @ both(x, y) - below[1],
        n_h_lower=len(equal[1]),
        h_lower=(lambda x, y: equal[0] @ both(x, y) - equal[1]) if len(equal[1]) else None,
        xl=low,
        xu=high,
        derivatives="jax",
    )
    problem = _with_rows_on_x(problem, instance)
    for name in ("objective", "eq_constraints", "ineq_constraints", "comp_H"):
        if mode != "documented" and getattr(problem, name) is not None:
            setattr(problem, name, jax.jit(getattr(problem, name)))
    if mode == "exact":
        _give_hessian(problem)
    solve = importlib.import_module("pympcc").solve

    def program() -> tuple[np.ndarray, float, bool, str]:
        result = solve(problem)
        return result.x, result.obj, result.success, result.message

    return program


def _with_rows_on_x(problem: Any, instance: Instance) -> Any:
    """Return the emitted problem with the upper level's own rows, which the emitter has no argument for."""
    equal, below = _split(instance.x_rows or Rows.none(instance.n_x))
    on_x = lambda rows: lambda z: rows[0] @ z[: instance.n_x] - rows[1]
    changes: dict[str, Any] = {}
    if len(below[1]):
        changes |= {"n_ineq": len(below[1]), "ineq_constraints": on_x(below), "ineq_jacobian": "jax"}
    if len(equal[1]):
        emitted, more = problem.eq_constraints, on_x(equal)
        changes |= {
            "n_eq": problem.n_eq + len(equal[1]),
            "eq_constraints": lambda z: jnp.concatenate([emitted(z), more(z)]),
            "eq_jacobian": "jax",
            "eq_jacobian_sparsity": None,
        }
    return dataclasses.replace(problem, **changes)


def _give_hessian(problem: Any) -> None:
    """Give IPOPT the exact Hessian, off by default; pympcc's own way to do so would compile it again at each solve."""
    pairs, first = problem.n_comp, problem.n_ineq + problem.n_eq

    def lagrangian(z: Any, multipliers: Any, factor: Any) -> Any:
        G, H = problem.comp_G(z), problem.comp_H(z)
        parts = [problem.ineq_constraints(z)] if problem.n_ineq else []
        parts += [problem.eq_constraints(z)] if problem.n_eq else []
        values = jnp.concatenate([*parts, G, H, G * H])
        return factor * problem.objective(z) + multipliers @ values

    hessian = jax.jit(jax.hessian(lagrangian))
    # Where an entry vanishes at random points and multipliers, it vanishes.
    random = np.random.default_rng(0)
    pattern = np.zeros((problem.n, problem.n), bool)
    for _ in range(3):
        z, multipliers = problem.x0 + random.uniform(0.1, 0.2, problem.n), random.uniform(1.0, 2.0, first + 3 * pairs)
        pattern |= np.asarray(hessian(z, multipliers, 1.0)) != 0
    rows, columns = np.nonzero(np.tril(pattern))
    problem.lagrangian_hessian_sparsity = rows, columns
    problem.lagrangian_hessian = lambda z, multipliers, factor: np.asarray(hessian(z, multipliers, factor))[
        rows, columns
    ]


def _regular_program(instance: Instance, upper: Callable, lower: Callable) -> _Program:
    """Return a program for a lower level without inequalities: pympcc asks to solve that "as a regular NLP instead"."""
    if instance.x_rows is not None or len(instance.rows.lower):
        raise NotImplementedError("rows without an inequality of the lower level")
    n_x, minimize = instance.n_x, importlib.import_module("cyipopt").minimize_ipopt
    value = lambda z: upper(z[:n_x], z[n_x:])
    system = lambda z: jax.grad(lower, argnums=1)(z[:n_x], z[n_x:])
    functions = [jax.jit(fn) for fn in (value, jax.grad(value), system, jax.jacobian(system))]
    on_host = [lambda z, fn=fn: np.asarray(fn(z)) for fn in functions]
    start = np.concatenate([instance.x0, instance.y0])
    bounds = np.full((len(start), 2), [-np.inf, np.inf])
    bounds[:n_x] = np.column_stack(instance.x_bounds())

    def program() -> tuple[np.ndarray, float, bool, str]:
        constraint = {"type": "eq", "fun": on_host[2], "jac": on_host[3]}
        result = minimize(on_host[0], start, jac=on_host[1], bounds=bounds, constraints=constraint)
        return result.x, result.fun, result.success, result.message

    return program


_Sides = tuple[np.ndarray, np.ndarray]


def _lower_rows(instance: Instance) -> tuple[_Sides, _Sides]:
    """Return everything the lower level is subject to as (M, b): M (x, y) = b, and M (x, y) <= b."""
    box = Rows.bounds(*instance.y_bounds())
    matrix = sp.hstack([sp.csr_matrix((box.matrix.shape[0], instance.n_x)), box.matrix]).toarray()
    equal, below = _split(instance.rows)
    equal_box, below_box = _split(Rows(matrix, box.lower, box.upper))
    join = lambda one, other: (np.vstack([one[0], other[0]]), np.concatenate([one[1], other[1]]))
    return join(equal, equal_box), join(below, below_box)


def _split(rows: Rows) -> tuple[_Sides, _Sides]:
    matrix = rows.matrix.toarray() if sp.issparse(rows.matrix) else rows.matrix
    above = np.isfinite(rows.lower) & ~rows.equal
    below = np.isfinite(rows.upper) & ~rows.equal
    sides = np.vstack([matrix[below], -matrix[above]]), np.concatenate([rows.upper[below], -rows.lower[above]])
    return (matrix[rows.equal], rows.upper[rows.equal]), sides
