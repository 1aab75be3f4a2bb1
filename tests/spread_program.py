"""Run by `test_spread` in a process with two devices: what is spread over them stays there, and finds the same.

With a script as an argument, that runs first.
"""

import re
import runpy
import sys
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bilevax as bx
from bilevax._support import trees
from bilevax.driver import compiled
from bilevax.model import operators
from bilevax.model.operators import SpreadRows
from bilevax.model.problem import place, validate
from bilevax.solvers.default.hypergradient import choice
from known import linear_rows

# More rows than are copied to be looked at side by side; blocks of a thousand leave some over on each device.
ROWS, COLUMNS = 8212, 6
LARGE_AND_BLOCK = operators._LARGE, operators._BLOCK
COLLECTIVE = re.compile(r"= .*?\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def on_one(array):
    return array


def spread(axis_type):
    """Return what puts the rows of an array on both devices."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(axis_type,))
    return lambda array: jax.device_put(array, NamedSharding(mesh, PartitionSpec("rows")))


def judging_loss(x, y, data):
    return jnp.mean(jnp.exp(-data["judges"] @ y)) + 0.5 * jnp.mean(x * x)


def size(x, y, data):
    return 0.5 * y @ y


def svm(put):
    """Return a small problem of the form of the paper's SVM, and its start."""
    random = np.random.default_rng(0)
    margins = random.standard_normal((ROWS, COLUMNS)) + 0.3
    problem = bx.BilevelProblem(
        judging_loss,
        size,
        coupling=bx.LinearCoupling(A=put(margins), B=sp.eye(ROWS), lower=put(np.ones(ROWS))),
        x_set=bx.NonNegative(),
        data={"judges": put(margins[:512])},
    )
    return problem, put(np.full(ROWS, 3.0))


def distance(found, expected):
    """Return how far arrays are from each other, relative to the largest entry of each."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True)]
    return max(np.abs(a - b).max() / (1 + np.abs(b).max()) for a, b in pairs)


def svm_run(put, in_blocks=False):
    """Return what a run comes to; in blocks, each device passes over its rows a thousand at a time."""
    operators._LARGE, operators._BLOCK = (0, 1000 * COLUMNS * 8) if in_blocks else LARGE_AND_BLOCK
    problem, x0 = svm(put)
    if put is not on_one:
        assert linear_rows(problem).A.whole.is_transposed != in_blocks  # it is another program
    found = bx.run(problem, x0, solver=bx.SFLCB(), max_steps=150)
    return found.x, found.y, found.multipliers


def check_run(put):
    """A run on two devices comes to the same as on one, in blocks or not, and leaves its answer where the rows are."""
    alone = svm_run(on_one)
    for found in (svm_run(put), svm_run(put, in_blocks=True)):
        assert distance(found, alone) <= 1e-12
        assert found[0].sharding.spec == found[2].sharding.spec == PartitionSpec("rows")


def check_divergence(put):
    """NaN is seen on whichever device it is."""
    problem, x0 = svm(put)
    found = bx.run(problem, x0, solver=bx.SFLCB(eta_y=1e3), max_steps=150)
    assert found.diverged
    assert np.isfinite(found.x).all()


def check_steps(put):
    """The other compiled solvers take the same steps on two devices as on one."""
    for solver in (bx.BLOCC(), bx.LVHBA(), bx.BiCGAFFA()):
        states = []
        for each in (on_one, put):
            problem, x0 = svm(each)
            x, y_like, _ = validate(problem, x0)
            placed, method = place(problem, np.float64), place(solver, np.float64)
            state = method.init(placed, x, trees.zeros(y_like))
            step = eqx.filter_jit(lambda problem, method, state: method.step(problem, state))
            for _ in range(5):
                state = step(placed, method, state)
            states.append(jax.tree.leaves(state))
        assert distance(*states) <= 1e-12, type(solver)


def check_traffic(put):
    """A step of SFLCB is one all-reduce for the rows and one for the data, of no more numbers than y has."""
    problem, x0 = svm(put)
    solver = bx.SFLCB()
    assert isinstance(linear_rows(problem).A, SpreadRows)
    begin, _ = compiled.parts_of_run(problem, None, solver, 1e-6, 1e-8)
    placed, method = place(problem, np.float64), place(solver, np.float64)
    program = cast(Any, compiled.advance).lower(
        placed, method, begin(x0), jnp.asarray(100), jnp.asarray(1e-6), jnp.asarray(1e-8)
    )
    text = program.compile().compiled.as_text()
    found = [(match[1], line) for line in text.splitlines() if (match := COLLECTIVE.search(line))]
    assert {kind for kind, _ in found} == {"all-reduce"}
    steps = [line for _, line in found if "while/body/while/body" in line]
    assert 1 <= len(steps) <= 2, steps
    shapes = [shape for line in steps for shape in re.findall(r"f64\[([\d,]*)\]", line.split(" all-reduce")[0])]
    assert sum(np.prod([int(side) for side in shape.split(",")]) for shape in shapes) == 3 * COLUMNS, steps


def training_loss(x, y, data):
    return jnp.mean(jax.nn.softplus(-data["trains"] @ y)) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def validation_loss(x, y, data):
    return jnp.mean(jax.nn.softplus(-data["judges"] @ y))


def check_default(put):
    """The default finds the same with data on two devices, whose compiled Phi asks for sums alone."""
    random = np.random.default_rng(0)
    features = random.standard_normal((800, 50))
    signed = features * np.sign(features[:, :5].sum(axis=1) + random.standard_normal(800))[:, None]

    def problem(put):
        data = {"trains": put(signed[:400]), "judges": put(signed[400:])}
        return bx.BilevelProblem(
            validation_loss, training_loss, x_set=bx.Box(-6.0, 4.0), data=data, y_like=np.zeros(50)
        )

    texts, program = [], choice.CompiledPhi._evaluate

    def looked_at(self, x, guess):
        if not texts:
            lowered = self._program.__wrapped__.lower(self._numbers, self._units, self._rows, x, guess)
            texts.append(lowered.compile().as_text())
        return program(self, x, guess)

    alone = bx.solve(problem(on_one), np.zeros(50))
    choice.CompiledPhi._evaluate = looked_at
    found = bx.solve(problem(put), np.zeros(50))
    kinds = {match[1] for line in texts[0].splitlines() if (match := COLLECTIVE.search(line))}
    assert kinds == {"all-reduce"}, kinds
    assert found.success
    assert alone.success
    assert abs(found.value - alone.value) <= 1e-12, (found.value, alone.value)


def main():
    for script in sys.argv[1:]:
        runpy.run_path(script, run_name="__main__")
    jax.config.update("jax_enable_x64", True)
    assert jax.device_count() == 2
    automatic, explicit = spread(AxisType.Auto), spread(AxisType.Explicit)
    check_traffic(automatic)
    for check in (check_traffic, check_divergence, check_steps, check_default, check_run):
        check(explicit)


if __name__ == "__main__":
    main()
