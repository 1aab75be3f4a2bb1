"""The pieces of Phi that meet at a kink: one for each set of optional rows that can be active next to x."""

import dataclasses
import itertools

import numpy as np
from scipy.optimize import nnls

from bilevax._support.programs import linprog
from bilevax.certificate.settings import STATIONARITY
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.kink import Kink, Kinks
from bilevax.exact.sensitivity import PointDerivatives
from bilevax.exact.settings import EXACT_SETTINGS


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of Phi next to x: its gradient, and the directions ``cone d <= 0`` that lead into it."""

    gradient: np.ndarray
    cone: np.ndarray


def adjacent_pieces(kinks: Kinks, weak: np.ndarray, unique: np.ndarray) -> tuple[list[Piece], bool]:
    """Return pieces of Phi that meet at x, and whether these are all of them.

    Optional rows, active on some pieces only, are the weakly active ones and those without a unique multiplier.
    """
    active = kinks.active
    optional = ~active.equality & (weak | ~unique)
    too_large = active.a.shape[0] * active.a.shape[1] > EXACT_SETTINGS.dense_entries
    if too_large or optional.sum() > STATIONARITY.optional_rows:
        return [], False
    kink = kinks.of(optional)
    if kink is None:
        return [], False
    count = int(optional.sum())
    complete = 2**count <= STATIONARITY.pieces
    if complete:
        subsets = itertools.chain.from_iterable(itertools.combinations(range(count), r) for r in range(count + 1))
    else:
        subsets = _sample_subsets(kink)
    independent = 0 < count <= kink.reduced.shape[1] and _smallest(kink.reduced) >= TOLERANCES.piece_rows
    found = (_piece(kink, np.array(chosen, int), independent) for chosen in subsets)
    return [piece for piece in found if piece is not None], complete


def _piece(kink: Kink, chosen: np.ndarray, independent: bool) -> Piece | None:
    """Return the piece on which exactly ``chosen`` of the optional rows stay active, or None if there is none.

    ``independent`` says whether all optional rows are known to be so.
    """
    stays = np.zeros(len(kink.slope), bool)
    stays[chosen] = True
    multiplier, values, gradient, weak = np.zeros(len(chosen)), kink.slope[~stays], kink.gradient, kink.slope[:0]
    if len(chosen):
        part = kink.reduced[chosen]
        if not independent and (len(chosen) > part.shape[1] or _smallest(part) < TOLERANCES.piece_rows):
            return None
        if kink.multiplier.any():
            multiplier = np.linalg.lstsq(part.T, kink.multiplier, rcond=None)[0]
        own = np.column_stack([kink.slope[chosen], kink.response[chosen]])
        moved = np.linalg.solve(kink.compliance[chosen[:, None], chosen], own)
        response, gradient = moved[:, :-1], gradient + kink.slope[chosen].T @ moved[:, -1]
        # In directions into the piece the other rows' values must not become positive, nor zero multipliers negative.
        values = values - kink.compliance[~stays][:, chosen] @ response
        weak = -response[multiplier <= kink.zero_multiplier]
    unbalanced = np.abs(kink.reduced[chosen].T @ multiplier - kink.multiplier).max(initial=0.0)
    if unbalanced > kink.zero_multiplier or np.any(multiplier < -kink.zero_multiplier):
        return None
    cone = np.vstack([values, weak])
    norms = np.sqrt(np.einsum("ij,ij->i", cone, cone))
    bounding = norms > TOLERANCES.piece_normal
    cone = cone[bounding] / norms[bounding][:, None]
    return Piece(gradient, cone) if _has_interior(cone) else None


def _smallest(rows: np.ndarray) -> float:
    """Return the smallest singular value of rows: removing one of them never makes it smaller."""
    return float(np.linalg.svd(rows, compute_uv=False)[-1])


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
    """Return whether a direction with entries up to 1 is further than a tolerance from all sides of ``cone d <= 0``.

    The shortest convex combination of the rows, which have unit length, tells: against it all rows fall as much as they
    can at once. That distance is one proof. The other is by duality: no direction is further away from all rows than
    the sum of the absolute entries of any convex combination. Where neither proves anything, a linear program decides.
    """
    if len(cone) <= 1:
        return True
    try:
        weights = nnls(np.vstack([cone.T, np.ones(len(cone))]), np.r_[np.zeros(cone.shape[1]), 1.0])[0]
    except RuntimeError:  # too many iterations
        return _program_has_interior(cone)
    shortest = weights @ cone / weights.sum()
    largest = np.abs(shortest).max()
    if largest > 0 and (cone @ shortest).min() > TOLERANCES.piece_interior * largest:
        return True
    return np.abs(shortest).sum() > TOLERANCES.piece_interior and _program_has_interior(cone)


def _program_has_interior(cone: np.ndarray) -> bool:
    """Return the same, by a linear program."""
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
