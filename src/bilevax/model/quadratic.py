"""A lower objective that is a quadratic in x and y together: a few matrices say all about it, and NumPy suffices."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax.convex.problem import Objective
from bilevax.model.operators import scaled
from bilevax.model.scales import Scales


class Quadratic(NamedTuple):
    """A lower objective ``gradient' y + y' H y / 2 + y' M x``, up to what depends on x alone; by NumPy, without JAX."""

    gradient: np.ndarray
    hessian: sp.csc_matrix
    mixed: sp.csc_matrix

    def in_units(self, scales: Scales) -> "Quadratic":
        """Return the numbers in other units than the user's, in which these are."""
        of_y = scales.lower * scales.y
        return Quadratic(of_y * self.gradient, scaled(self.hessian, of_y, scales.y), scaled(self.mixed, of_y, scales.x))

    def gradient_at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the gradient in y."""
        return self.gradient + self.mixed @ x + self.hessian @ y

    def at(self, x: np.ndarray) -> Objective:
        """Return g at x."""
        linear, hessian = self.gradient + self.mixed @ x, self.hessian
        return Objective(
            value=lambda y: float(linear @ y + 0.5 * y @ (hessian @ y)),
            gradient=lambda y: linear + hessian @ y,
            hessian=lambda y: hessian,
        )
