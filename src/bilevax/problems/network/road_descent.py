"""Exact descent next to a point of existing roads, on the flows that matter on its way.

The travellers of a step know only the flows that are kept. Prices at its end tell whether they would use others: then
the step is taken back, and made again with these.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.problem import validate
from bilevax.problems.network.contraction import Contraction
from bilevax.problems.network.narrowing import Design, Narrowed
from bilevax.problems.network.settings import NARROWING
from bilevax.problems.network.ways import Ways
from bilevax.solvers.default.direct import sparsely
from bilevax.solvers.default.phases import land
from bilevax.solvers.default.pieces.descent import exact_descent
from bilevax.solvers.default.pieces.sparse import SparsePieces
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import EXACT
from bilevax.solvers.diary import Diary


class Followed(NamedTuple):
    """A design on the way, and which flows were enough to get there."""

    design: Design
    kept: np.ndarray


def descend(small: Contraction, last: Followed, minimal_share: float, rtol: float) -> Iterator[Followed]:
    """Yield designs of a contracted network on the way down from one, with the flows that were enough so far."""
    design, kept = last
    kept, drag = kept | (Ways(small, design.price).excess <= NARROWING.margin), EXACT.first_drag
    while True:
        yield Followed(design, kept)
        for there in _steps(Narrowed(small, kept), design, minimal_share, rtol, drag):
            excess = Ways(small, there.price).excess
            if np.any(excess[~kept] <= NARROWING.noticed):
                kept = kept | (excess <= NARROWING.margin)
                break
            design, drag = there, NARROWING.drag  # the next descent goes on in the middle of this one
            yield Followed(design, kept)
        else:
            return


def _steps(narrowed: Narrowed, design: Design, minimal_share: float, rtol: float, drag: float) -> Iterator[Design]:
    """Yield the designs of an exact descent with the flows that are left; its first step has that drag."""
    start = narrowed.start(design)
    problem = narrowed.part.problem(minimal_share)
    with float64():
        x, y_like, _ = validate(problem, start.x, start.y)
    flat = equilibrated(FlatProblem(problem, x, y_like), start.x, start.y)
    scales, x, y = flat.scales, flat.x_flat(start.x), flat.y_flat(start.y)
    pieces = sparsely(flat, UpperSet(flat.x_rows), x, y, Diary()).pieces
    assert isinstance(pieces, SparsePieces)
    pieces.first_drag, pieces.least_drag = drag, NARROWING.least_drag
    multipliers = np.concatenate(start.multipliers) / scales.rows * scales.lower
    point = pieces.resume(x, y, multipliers)
    point = land(pieces, x, y) if point is None else point
    if point is None:
        return
    count = trees.size(flat.row_shapes)
    for found, _, _ in exact_descent(pieces, point, rtol):
        of_rows = flat.multiplier_tree(pieces.rows.coupled(found.multiplier, count))
        value = found.value / scales.upper
        yield narrowed.in_network(flat.x_tree(found.x), flat.y_tree(found.y), np.asarray(of_rows[-1]), value)
