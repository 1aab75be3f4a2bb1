"""Phi by the compiled program, for lower levels with few enough variables and constraints for dense matrices."""

import jax
import numpy as np

from bilevax.model.flat import FlatProblem
from bilevax.model.kernels import evaluation
from bilevax.solvers.default.hypergradient.descent import Answer
from bilevax.solvers.default.hypergradient.program import Lower, Rows, Units, phi_program
from bilevax.solvers.default.lower.rows import LowerRows
from bilevax.solvers.default.quasi_newton import SmoothPoint


class CompiledPhi:
    """Phi of one problem as an objective for `quasi_newton`."""

    def __init__(self, flat: FlatProblem, rows: LowerRows):
        self.flat, self.rows, scales = flat, rows, flat.scales
        function, self._numbers = flat.functions
        self._program = phi_program(function)
        with evaluation():
            units, matrices = Units(scales.x, scales.y, scales.upper, scales.lower), (rows.A, rows.B)
            A, B = (part.toarray() for part in matrices)
            self._units, self._rows = jax.device_put((units, Rows(A, B, rows.c, ~rows.inequality)))

    def begin(self, x: np.ndarray, y: np.ndarray) -> SmoothPoint | None:
        """Return the point at x, y being the only guess."""
        return self._evaluate(x, Lower(y, np.zeros(self.rows.count), ~self.rows.inequality))

    def evaluate(self, x: np.ndarray, smoothing: None, warm: SmoothPoint) -> SmoothPoint | None:
        """Return the point at x, started from a near one; None where the lower level is not solved."""
        return self._evaluate(x, Lower(warm.y, warm.multiplier, warm.state.active))

    def refit(self, point: SmoothPoint) -> None:
        """Return None: there is no smoothing."""

    def refine(self, point: SmoothPoint) -> SmoothPoint:
        """Return the point itself: it is exact."""
        return point

    def _evaluate(self, x: np.ndarray, guess: Lower) -> SmoothPoint | None:
        with evaluation():
            found = self._program(self._numbers, self._units, self._rows, x, guess)
            value, gradient, lower, values, solved = jax.tree.map(np.asarray, found)
        if not (solved and np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        return SmoothPoint(x, lower.y, lower.multiplier, float(value), gradient, None, Answer(lower.active, -values))
