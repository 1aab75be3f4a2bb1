"""Sweeps of the first-order variant to a certified 1e-4 against SFLCB steps, SFLCB with the best of 60 settings.

A sweep costs about what an SFLCB step costs. SFLCB has arrived at the first looked-at step whose x has a feasible lower
level and |Phi(x) - Phi*| <= 1e-4 (1 + |Phi*|), with Phi* the certified answer of the basin in which that run ends.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.model.problem import place
from bilevax.problems.toy import toy
from comparisons.instance import Instance, QuadraticLower, Rows
from comparisons.judge import Judge
from comparisons.quadratics import Family, draw
from comparisons.report import Report, median
from comparisons.variants import variants

_TOLERANCE = 1e-4
_MAX_STEPS = 20_000
# Steps at which SFLCB's x is looked at: closely where the ratio depends on it.
_LOOKS = np.concatenate([np.arange(10, 1000, 10), np.arange(1000, _MAX_STEPS + 1, 50)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", type=int, default=12, help="how many random problems, beside the toy")
    parser.add_argument("--settings", type=int, default=60, help="how many random settings of SFLCB a problem")
    parser.add_argument("--seed", type=int, default=20_000)


def run(arguments: argparse.Namespace) -> Report:
    report = Report(
        ("problem", "certified", "sweeps", "exact", "value", "steps", "value_sflcb", "arrived", "ratio"), arguments.json
    )
    solver = variants().get("first-order")
    if solver is None:
        report.remarks.append("The library has no first-order variant: SFLCB's steps alone.")
    kinds = [Family(f"cond {c:g}", 5, 10, 5, condition=c) for c in (1.0, 100.0)]
    drawn = [draw(kinds[index % 2], arguments.seed + index // 2) for index in range(arguments.problems)]
    for instance in [_toy(), *drawn]:
        row: dict[str, Any] = {"problem": instance.name}
        if solver is not None:
            found = bx.solve(instance.to_bilevax(), instance.x0, solver=solver, rtol=_TOLERANCE)
            row |= {"certified": found.success, "sweeps": found.stats["sweeps"], "value": found.value}
            row |= {"exact": list(found.history["phase"]).count("exact descent")}
        steps, value, arrived = _best_of_sflcb(instance, arguments.settings, arguments.seed)
        row |= {"steps": steps, "value_sflcb": value, "arrived": f"{arrived}/{arguments.settings}"}
        if row.get("certified"):
            row["ratio"] = steps / row["sweeps"]
        report.add(**row)
    missed = sum(row["value_sflcb"] is None for row in report.rows)
    report.remarks.append(
        f"SFLCB did not arrive within {_MAX_STEPS} steps on {missed} problems, which count as so many."
    )
    report.remarks.append(
        "ratio: SFLCB steps / sweeps. What is not a sweep: the steps of exact descents, column exact,"
    )
    report.remarks.append("each of which factorises the matrices of a piece and solves the lower level exactly.")
    report.target("median ratio", median(report.column("ratio")), ">=", 20)
    return report


def _best_of_sflcb(instance: Instance, settings: int, seed: int) -> tuple[int, float | None, int]:
    """Return the fewest steps to arrive, the value there, and how many settings end near a certified answer at all."""
    problem, judge = instance.to_bilevax(), Judge(instance)
    paths = _paths(instance, problem, _settings(instance, settings, seed))
    steps, value, arrived = _MAX_STEPS, None, 0
    known: list[Any] = []
    for path in paths:
        end = path[-1]
        if not np.isfinite(end).all() or not np.isfinite(judge.value(end)):
            continue
        optimum = _answer_of_basin(problem, end, known)
        if optimum is None:
            continue
        close = lambda x, goal=optimum: abs(judge.value(x) - goal) <= _TOLERANCE * (1 + abs(goal))
        arrived += close(end)
        for look, x in zip(_LOOKS, path, strict=True):
            if look >= steps:
                break
            if np.isfinite(x).all() and close(x):
                steps, value = int(look), judge.value(x)
                break
    return steps, value, arrived


def _answer_of_basin(problem: bx.BilevelProblem, x: np.ndarray, known: list[Any]) -> float | None:
    """Return Phi at the certified answer that descent from x leads to; starts near a known answer share it."""
    for start, value in known:
        if np.linalg.norm(x - start) <= 0.01 * (1 + np.linalg.norm(start)):
            return value
    # A warm start skips the default's smoothing, which might leave the basin.
    here = bx.solve(problem, x, solver=bx.SFLCB(), max_steps=0)
    found = bx.solve(problem, x, warm_start=here)
    value = found.value if found.success else None
    known.append((np.ravel(found.x) if found.success else x, value))
    return value


def _settings(instance: Instance, count: int, seed: int) -> dict[str, np.ndarray]:
    """Return random settings near the good ones, in the scales of the problem, which a person would have to find.

    Log-uniform: delta in [3e-4, 0.1]; rho in [1e-2, 10]; eta_y = eta_z in [0.3, 1.5] / (L + rho |A|^2), up to the limit
    of stability; eta_u = eta_v in [1e-2, 1] rho; eta_x in [0.1, 10] eta_y. Narrowed by hand
    after a look at the first two problems, which can only help SFLCB.
    """
    assert instance.quadratic is not None
    random = np.random.default_rng(seed)
    between = lambda low, high: np.exp(random.uniform(np.log(low), np.log(high), count))
    smoothness = np.linalg.norm(instance.quadratic.H, 2)
    strength = np.linalg.norm(instance.rows.matrix[:, instance.n_x :], 2) ** 2
    delta, rho = between(3e-4, 0.1), between(1e-2, 10.0)
    eta_y = between(0.3, 1.5) / (smoothness + rho * strength)
    eta_u, eta_x = between(1e-2, 1.0) * rho, between(0.1, 10.0) * eta_y
    found = {"delta": delta, "rho1": rho, "rho2": rho, "eta_x": eta_x}
    return found | {"eta_y": eta_y, "eta_z": eta_y, "eta_u": eta_u, "eta_v": eta_u}


def _paths(instance: Instance, problem: bx.BilevelProblem, settings: dict[str, np.ndarray]) -> np.ndarray:
    """Return x at the looks, for all settings at once: (settings, looks, n_x)."""
    placed = place(problem, np.float64)
    y0 = Judge(instance).answer(instance.x0)

    def path(parameters: dict[str, Any]) -> jax.Array:
        solver = bx.SFLCB(**parameters)
        step = lambda _, state: solver.step(placed, state)

        def block(state: Any, steps: Any) -> tuple[Any, Any]:
            state = jax.lax.fori_loop(0, steps, step, state)
            return state, jnp.ravel(state.x)

        state = solver.init(placed, jnp.asarray(instance.x0), jnp.asarray(instance.y0 if y0 is None else y0))
        return jax.lax.scan(block, state, jnp.diff(_LOOKS, prepend=0))[1]

    return np.asarray(jax.jit(jax.vmap(path))({name: jnp.asarray(values) for name, values in settings.items()}))


def _toy() -> Instance:
    """Return the paper's toy problem; its lower objective is (y - 2x)^2 up to a constant."""
    one = np.ones(1)
    scalar = toy()
    return Instance(
        name="toy",
        upper=lambda x, y, _: scalar.upper(x[0], y[0]),
        lower=lambda x, y, _: scalar.lower(x[0], y[0]),
        data={},
        rows=Rows(np.array([[-1.0, 1.0]]), np.array([-np.inf]), np.zeros(1)),
        x0=0.7 * one,
        y0=0.7 * one,
        x_box=(0 * one, 3 * one),
        quadratic=QuadraticLower(np.array([[2.0]]), np.array([[-4.0]]), np.zeros(1)),
    )
