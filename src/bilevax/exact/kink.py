"""A kink of Phi, where pieces meet: on each of them all required rows are active, and some of the optional ones."""

import dataclasses

import numpy as np

from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.sensitivity import PointDerivatives, solve_kkt
from bilevax.exact.settings import EXACT_SETTINGS
from bilevax.exact.tolerances import EXACT_TOLERANCES
from bilevax.model.compressed_rows import rows_where


@dataclasses.dataclass(frozen=True)
class Kink:
    """The optional rows at a kink, with y and the required rows eliminated: a piece costs a tiny linear solve.

    Attributes
    ----------
    gradient
        The gradient of Phi on the piece without any optional row.
    slope
        How the optional rows' values move with x: ``slope d`` in direction d.
    compliance
        How multipliers xi of the optional rows change these values: by ``-compliance xi``.
    response
        ``a_i w`` of the optional rows, for the adjoint w of ``gradient``: ``H w + a' xi = -grad_y f`` with a the
        required rows, on which ``a w = 0``.
    reduced, multiplier
        The optional rows outside the span of the required ones, in coordinates, and what their multipliers have to add
        up to there: ``reduced' xi = multiplier``.
    zero_multiplier
        The size up to which a multiplier counts as zero.
    """

    gradient: np.ndarray
    slope: np.ndarray
    compliance: np.ndarray
    response: np.ndarray
    reduced: np.ndarray
    multiplier: np.ndarray
    zero_multiplier: float


class Kinks:
    """`eliminate` at one point, remembered for each choice of optional rows."""

    def __init__(self, point: PointDerivatives, active: ActiveRows):
        self.point, self.active = point, active
        self._known: dict[bytes, Kink | None] = {}

    def of(self, optional: np.ndarray) -> Kink | None:
        """Return the kink with these rows optional."""
        key = optional.tobytes()
        if key not in self._known:
            self._known[key] = eliminate(self.point, self.active, optional)
        return self._known[key]


def eliminate(point: PointDerivatives, active: ActiveRows, optional: np.ndarray) -> Kink | None:
    """Eliminate y and the required rows; None where these alone do not determine y."""
    required_a, required_b = (rows_where(rows, ~optional) for rows in (active.a, active.b))
    optional_a, optional_b = (rows_where(rows, optional) for rows in (active.a, active.b))
    n_y, required = active.a.shape[1], required_a.shape[0]
    count = optional_a.shape[0]
    right = np.zeros((n_y + required, 1 + count))
    right[:n_y, 0] = -point.f_y
    right[:n_y, 1:] = optional_a.T.toarray()
    solved = solve_kkt(point.hessian, required_a, right)
    if solved is None:
        return None
    gradients = point.mixed.T @ solved[:n_y] + required_b.T @ solved[n_y:]
    # The part of each optional row outside the span of the required ones tells which sets can balance grad_y g.
    dense = required_a.toarray()
    reduced = optional_a.toarray()
    if required:
        reduced = reduced - (np.linalg.lstsq(dense.T, reduced.T, rcond=EXACT_SETTINGS.rows_cutoff)[0].T @ dense)
    basis = np.linalg.qr(reduced.T)[0]
    reduced = reduced @ basis
    return Kink(
        gradient=point.f_x + gradients[:, 0],
        slope=optional_b.toarray() - gradients[:, 1:].T,
        compliance=optional_a @ solved[:n_y, 1:],
        response=optional_a @ solved[:n_y, 0],
        reduced=reduced,
        multiplier=reduced.T @ active.multiplier[optional],
        zero_multiplier=EXACT_TOLERANCES.piece_zero * (1 + np.abs(active.multiplier).max(initial=0.0)),
    )
