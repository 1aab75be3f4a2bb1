"""Phi by the compiled program, for lower levels with few enough variables and constraints for dense matrices."""

import jax
import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.model.kernels import evaluation
from bilevax.solvers.default.hypergradient.phi import Answer, Lower, Phi
from bilevax.solvers.default.hypergradient.program import Rows, Units, phi_program
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.quasi_newton import SmoothPoint


class CompiledPhi(Phi):
    """Phi of one problem by one compiled program."""

    def __init__(self, flat: FlatProblem, rows: LowerRows):
        super().__init__(flat, rows)
        scales = flat.scales
        function, self._numbers = flat.functions
        self._program = phi_program(function)
        with evaluation():
            units, matrices = Units(scales.x, scales.y, scales.upper, scales.lower), (rows.A, rows.B)
            A, B = (part.toarray() for part in matrices)
            self._units, self._rows = jax.device_put((units, Rows(A, B, rows.c, ~rows.inequality)))

    def _evaluate(self, x: np.ndarray, guess: Lower) -> SmoothPoint | None:
        with evaluation():
            found = self._program(self._numbers, self._units, self._rows, x, guess)
            value, gradient, lower, values, solved = jax.tree.map(np.asarray, found)
        if not (solved and np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        return SmoothPoint(x, lower.y, lower.multiplier, float(value), gradient, None, Answer(lower.active, -values))
