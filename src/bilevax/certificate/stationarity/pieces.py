"""The pieces of Phi that meet at a kink: one for each set of optional rows that can be active next to x."""

import dataclasses
import itertools

import numpy as np
from scipy.optimize import nnls

from bilevax._support.programs import linprog
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.active_rows import ActiveRows
from bilevax.exact.kink import Kink, eliminate
from bilevax.exact.sensitivity import PointDerivatives
from bilevax.exact.settings import EXACT_SETTINGS


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of Phi next to x: its gradient, and the directions ``cone d <= 0`` that lead into it."""

    gradient: np.ndarray
    cone: np.ndarray


def adjacent_pieces(
    point: PointDerivatives, active: ActiveRows, weak: np.ndarray, unique: np.ndarray
) -> tuple[list[Piece], bool]:
    """Return pieces of Phi that meet at x, and whether these are all of them.

    Optional rows, active on some pieces only, are the weakly active ones and those without a unique multiplier.
    """
    optional = ~active.equality & (weak | ~unique)
    too_large = active.a.shape[0] * active.a.shape[1] > EXACT_SETTINGS.dense_entries
    if too_large or optional.sum() > STATIONARITY.optional_rows:
        return [], False
    kink = eliminate(point, active, optional)
    if kink is None:
        return [], False
    count = int(optional.sum())
    complete = 2**count <= STATIONARITY.pieces
    if complete:
        subsets = itertools.chain.from_iterable(itertools.combinations(range(count), r) for r in range(count + 1))
    else:
        subsets = _sample_subsets(kink)
    pieces = [piece for chosen in subsets if (piece := _piece(kink, np.array(chosen, int))) is not None]
    return pieces, complete


def _piece(kink: Kink, chosen: np.ndarray) -> Piece | None:
    """Return the piece on which exactly ``chosen`` of the optional rows stay active, or None if there is none."""
    others = np.setdiff1d(np.arange(len(kink.slope)), chosen)
    multiplier = np.zeros(0)
    response = np.zeros((0, kink.slope.shape[1]))
    gradient = kink.gradient
    if len(chosen):
        part = kink.reduced[chosen]
        if len(chosen) > part.shape[1] or np.linalg.svd(part, compute_uv=False)[-1] < TOLERANCES.piece_rows:
            return None
        multiplier = np.linalg.lstsq(part.T, kink.multiplier, rcond=None)[0]
        own = kink.compliance[np.ix_(chosen, chosen)]
        response = np.linalg.solve(own, kink.slope[chosen])
        gradient = gradient + kink.slope[chosen].T @ np.linalg.solve(own, kink.response[chosen])
    unbalanced = np.abs(kink.reduced[chosen].T @ multiplier - kink.multiplier).max(initial=0.0)
    if unbalanced > kink.zero_multiplier or np.any(multiplier < -kink.zero_multiplier):
        return None
    # In directions into the piece the other rows' values must not become positive, nor zero multipliers negative.
    values = kink.slope[others] - kink.compliance[np.ix_(others, chosen)] @ response
    weak = -response[multiplier <= kink.zero_multiplier]
    cone = np.vstack([values, weak])
    norms = np.linalg.norm(cone, axis=1)
    bounding = norms > TOLERANCES.piece_normal
    cone = cone[bounding] / norms[bounding][:, None]
    return Piece(gradient, cone) if _has_interior(cone) else None


def _sample_subsets(kink: Kink) -> set[tuple[int, ...]]:
    """Return the sets of active rows of the pieces that random directions of x lead into.

    The lower level's response to a direction is a small quadratic program, solved as nonnegative least squares.
    """
    random = np.random.default_rng(0)
    lift = STATIONARITY.sample_regularisation * np.trace(kink.compliance) / len(kink.compliance)
    factor = np.linalg.cholesky(kink.compliance + lift * np.eye(len(kink.compliance)))
    subsets = set()
    for _ in range(STATIONARITY.samples):
        violation = kink.slope @ random.standard_normal(kink.slope.shape[1])  # if y did not respond
        multiplier = nnls(factor.T, np.linalg.solve(factor, violation))[0]
        subsets.add(tuple(np.flatnonzero(multiplier > TOLERANCES.piece_multiplier * (1 + multiplier.max()))))
    return subsets


def _has_interior(cone: np.ndarray) -> bool:
    """Return whether ``cone d < 0`` for some d (rows of unit length)."""
    if len(cone) == 0:
        return True
    width = cone.shape[1]
    margin = linprog(
        np.r_[np.zeros(width), -1.0],
        A_ub=np.column_stack([cone, np.ones(len(cone))]),
        b_ub=np.zeros(len(cone)),
        bounds=[(-1, 1)] * width + [(0, 1)],
        method="highs",
    )
    return margin.status == 0 and -margin.fun > TOLERANCES.piece_interior


def common_gradient(pieces: list[Piece]) -> np.ndarray | None:
    """Return the gradient that all pieces share, where Phi is smooth although a row is weakly active; else None."""
    if not pieces:
        return None
    first = pieces[0].gradient
    tolerance = TOLERANCES.same_gradient * (1 + np.linalg.norm(first))
    return first if all(np.linalg.norm(piece.gradient - first) <= tolerance for piece in pieces) else None


def steepest_descent(point: PointDerivatives, pieces: list[Piece]) -> float:
    """Return the largest decrease of Phi, to first order, over directions into X with entries in [-1, 1]."""
    normals = point.normals.toarray()
    steepest = 0.0
    for piece in pieces:
        tangent = np.vstack([piece.cone, normals[~point.normal_free]])
        equations = normals[point.normal_free]
        best = linprog(
            piece.gradient,
            A_ub=tangent if len(tangent) else None,
            b_ub=np.zeros(len(tangent)) if len(tangent) else None,
            A_eq=equations if len(equations) else None,
            b_eq=np.zeros(len(equations)) if len(equations) else None,
            bounds=(-1, 1),
            method="highs",
        )
        steepest = max(steepest, -best.fun if best.status == 0 else np.inf)
    return steepest
