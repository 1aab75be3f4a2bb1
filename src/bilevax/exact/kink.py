"""A kink of Phi: the optional rows, active on some of the pieces that meet at x, with the required ones eliminated."""

import dataclasses

import numpy as np

from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives, solve_kkt

ZERO_MULTIPLIER = 1e-6  # relative to 1 plus the largest: a multiplier up to this counts as zero on a piece


@dataclasses.dataclass(frozen=True)
class Kink:
    """The optional rows with the required ones, active on all pieces, eliminated: a piece costs a tiny linear solve.

    With the required rows kept active, optional row i has ``value = slope_i d`` in direction d of x, and multipliers
    ``xi`` of the optional rows change the row values by ``-compliance xi`` and the gradient by ``slope' xi``.
    """

    gradient: np.ndarray
    slope: np.ndarray
    compliance: np.ndarray
    response: np.ndarray
    reduced: np.ndarray
    multiplier: np.ndarray
    fragile_size: float


def eliminate(point: PointDerivatives, active: ActiveRows, optional: np.ndarray) -> Kink | None:
    """Eliminate all rows but the optional ones; None where the others alone do not determine y."""
    required_a, required_b = active.a[~optional], active.b[~optional]
    optional_a, optional_b = active.a[optional], active.b[optional]
    n_y, required = active.a.shape[1], required_a.shape[0]
    count = optional_a.shape[0]
    right = np.zeros((n_y + required, 1 + count))
    right[:n_y, 0] = -point.f_y
    right[:n_y, 1:] = optional_a.T.toarray()
    solved = solve_kkt(point.hessian, required_a, right)
    if solved is None:
        return None
    gradients = point.mixed.T @ solved[:n_y] + required_b.T @ solved[n_y:]
    # The part of each optional row outside the span of the required ones: tells which sets can balance grad_y g.
    dense = required_a.toarray()
    reduced = optional_a.toarray()
    if required:
        reduced = reduced - (np.linalg.lstsq(dense.T, reduced.T, rcond=1e-10)[0].T @ dense)
    basis = np.linalg.qr(reduced.T)[0]
    reduced = reduced @ basis
    return Kink(
        gradient=point.f_x + gradients[:, 0],
        slope=optional_b.toarray() - gradients[:, 1:].T,
        compliance=optional_a @ solved[:n_y, 1:],
        response=optional_a @ solved[:n_y, 0],
        reduced=reduced,
        multiplier=reduced.T @ active.multiplier[optional],
        fragile_size=ZERO_MULTIPLIER * (1 + np.abs(active.multiplier).max(initial=0.0)),
    )
