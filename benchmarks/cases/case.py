"""What a case of the benchmark is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.driver import compiled
from bilevax.model.problem import place, validate
from bilevax.solvers.sflcb import SFLCBState


@dataclass(frozen=True)
class Case:
    """A problem, its solver and start, and the step in NumPy and in C.

    ``numpy_step`` maps a state of NumPy arrays to the next one. ``c_loop`` takes such a state and returns a function
    that runs a number of steps on it in place, so that the preparation is not timed. With ``batched`` every
    leaf of the start has a leading axis of independent members.
    """

    name: str
    problem: bx.BilevelProblem
    solver: bx.SFLCB
    x0: Any
    y0: Any
    numpy_step: Callable[[SFLCBState], SFLCBState]
    c_loop: Callable[[SFLCBState], Callable[[int], None]]
    target: float
    steps: int
    batched: bool = False

    def prepare(self, steps: int) -> tuple[compiled.Loop, Callable[[compiled.Loop], compiled.Loop]]:
        """Return the library's loop at its start, and its own compiled program that advances one by ``steps``.

        The program runs whole blocks with a stopping test after each; tolerances are such that it never holds.
        """
        member = jax.tree.map(lambda leaf: leaf[0], (self.x0, self.y0)) if self.batched else (self.x0, self.y0)
        validate(self.problem, *member)
        problem, solver = place(self.problem, np.float64), place(self.solver, np.float64)
        first = lambda x, y: compiled.loop_from_point(problem, solver, x, y, rtol=0.0, atol=-1.0)
        advance = compiled.advance_alone
        if self.batched:
            first = jax.vmap(first)
            advance = compiled.alone(eqx.filter_vmap(compiled.advance, in_axes=(None, None, 0, None, None, None)))
        loop = first(*jax.tree.map(jnp.asarray, (self.x0, self.y0)))
        return loop, lambda loop: jax.block_until_ready(advance(problem, solver, loop, steps, 0.0, -1.0))
