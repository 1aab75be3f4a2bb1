"""Quadratic problems in the space of x and the multipliers: y, and what f makes of it, are eliminated once.

Where g is a quadratic, y is affine in x and the multipliers of its constraints, ``(dx, dy) = T (dx, dmultiplier)``, and
f, if it is one, too, is the quadratic with the Hessian ``T' M T``. With the constraints' own values, also affine, that
is all that smoothing and exact descent ask of a problem; neither y nor the user's functions are needed on the way.
"""

import dataclasses

import numpy as np
from scipy.linalg import blas, lapack

from bilevax._support import clock


@dataclasses.dataclass(frozen=True)
class RowSpace:
    """F and y as functions of x and the multipliers; a step of both is one vector, that of x first.

    ``answer`` is the derivative of y, ``slope`` and ``compliance`` tell the constraints' values: they change by
    ``slope dx - compliance dmultiplier``. ``hessian`` is that of f.
    """

    answer: np.ndarray
    slope: np.ndarray
    compliance: np.ndarray
    hessian: np.ndarray

    @property
    def n_x(self) -> int:
        """How many entries of a step are those of x."""
        return self.slope.shape[1]

    def gradient(self, f_x: np.ndarray, f_y: np.ndarray) -> np.ndarray:
        """Return the gradient of f, given those in x and in y."""
        gradient = self.answer.T @ f_y
        gradient[: self.n_x] += f_x
        return gradient


def row_space(
    inverse_mixed: np.ndarray,
    inverse_rows: np.ndarray,
    slope: np.ndarray,
    compliance: np.ndarray,
    of_x: np.ndarray,
    of_both: np.ndarray,
    of_y: np.ndarray,
) -> RowSpace:
    """Return the space of a problem.

    The second derivatives of f are those in x, in x and y, and in y; the inverses are H^-1 times the mixed derivative
    of g and times the constraints' normals.
    """
    n_x = inverse_mixed.shape[1]
    answer = np.empty((len(inverse_mixed), n_x + inverse_rows.shape[1]), order="F")
    np.negative(inverse_mixed, out=answer[:, :n_x])
    np.negative(inverse_rows, out=answer[:, n_x:])
    with clock.work(len(of_y) ** 3 / 3):
        factor, failed = lapack.dpotrf(of_y.T, clean=1)
    product = len(of_y) * answer.size  # operations of a triangle times the answer, or of half a square of it
    if failed:
        with clock.work(4 * product):
            hessian = answer.T @ (of_y @ answer)
    else:  # f is convex in y: half the work
        with clock.work(product):
            half = blas.dtrmm(1.0, factor, answer)
        with clock.work(len(half) * half.shape[1] ** 2):
            hessian = half.T @ half
    with clock.work(2 * n_x * answer.size):
        cross = of_both @ answer
    hessian[:n_x] += cross
    hessian[:, :n_x] += cross.T
    hessian[:n_x, :n_x] += of_x
    return RowSpace(answer, slope, compliance, hessian)
