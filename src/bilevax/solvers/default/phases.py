"""What both kinds of search have in common: landing on an exact point, and descending from it."""

from collections.abc import Generator

import numpy as np

from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.pieces.dense import DensePieces
from bilevax.solvers.default.pieces.descent import exact_descent
from bilevax.solvers.default.pieces.point import ExactPoint
from bilevax.solvers.default.pieces.sparse import SparsePieces
from bilevax.solvers.default.programs.feasible import nearest_feasible

AnyPieces = DensePieces | SparsePieces


def snapshot(point: ExactPoint, phase: str, sweeps: int | None = None) -> Snapshot:
    """Return an exact point as a snapshot of the search."""
    return Snapshot(point.x, point.y, phase, point.value, sweeps=sweeps)


def land(pieces: AnyPieces, x: np.ndarray, y: np.ndarray) -> ExactPoint | None:
    """Return the exact point at x, or at the nearest x of X for which the lower level is feasible."""
    point = pieces.evaluate(x, y) if pieces.lands_anywhere else None
    if point is None:
        nearest = nearest_feasible(pieces.flat, x, pieces.inset)
        if nearest is not None:
            point = pieces.evaluate(pieces.upper.project(nearest[0]), nearest[1])
    return point


def descend(
    pieces: AnyPieces, basin: ExactPoint, rtol: float, sweeps: int | None = None, below: float = np.inf
) -> Generator[Snapshot, None, tuple[ExactPoint, bool]]:
    """Descend on the exact pieces of Phi; return where that led, and whether no descent is left.

    A descent that does not promise to come ``below`` a value is not finished.
    """
    point, finished = basin, False
    for step in exact_descent(pieces, basin, rtol, below):
        point, finished, slope = step
        yield snapshot(point, "exact descent", sweeps)._replace(slope=slope)
    return point, finished
