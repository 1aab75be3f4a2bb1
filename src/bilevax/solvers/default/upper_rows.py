"""Upper rows by the augmented Lagrangian: a sequence of problems without them, each solved by the method itself.

The problem of a round minimises f plus, for each row ``lower <= c(x, y) <= upper`` of unit length,

    price / 2 * (t - the nearest number in [lower, upper])^2,    t = c + multiplier / price,

a smooth function; the next multiplier is ``price * (t - that number)``. Where the multipliers come to rest and the rows
hold, x is stationary under the rows. The price rises while violations do not fall fast enough.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.division import positive
from bilevax.model.compressed_rows import row_squares, scaled
from bilevax.model.coupling import Coupling
from bilevax.model.derived import Family, derived, representative
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.model.row_functions import RowFunctions, upper_rows_of
from bilevax.solvers.base import Snapshot
from bilevax.solvers.default.settings import UPPER_ROWS
from bilevax.solvers.diary import Diary

# From a point, an earlier answer's multipliers, and how accurately: to the snapshots of a search.
Search = Callable[[FlatProblem, np.ndarray, np.ndarray | None, np.ndarray | None, float], Iterator[Snapshot]]


class Penalised(eqx.Module):
    """An upper objective with the price of violated upper rows."""

    upper: Any
    rows: tuple[Coupling, ...]
    weight: np.ndarray
    low: np.ndarray
    high: np.ndarray
    multiplier: np.ndarray
    price: np.ndarray

    def __call__(self, x: PyTree, y: PyTree, *data: PyTree) -> Any:
        values = [part.value(x, y, data[0] if data else None) for part in self.rows]
        shifted = self.weight * trees.flatten(values) + self.multiplier / self.price
        beyond = shifted - jnp.clip(shifted, self.low, self.high)
        return self.upper(x, y, *data) + 0.5 * self.price * jnp.sum(beyond * beyond)


@dataclasses.dataclass(frozen=True)
class _Round:
    """Where the rounds stand: the point, the rows' multipliers and price, and by how much a row misses at most."""

    x: np.ndarray
    y: np.ndarray | None
    multiplier: np.ndarray
    price: float
    miss: float
    converged: bool = False
    settled: bool = False


class UpperRowsSearch:
    """The rounds for one problem, given the search for problems without upper rows; all in the user's units."""

    def __init__(self, flat: FlatProblem, search: Search, x: np.ndarray, y: np.ndarray | None, rtol: float):
        self._flat, self._search, self._rtol = flat, search, rtol
        self._rows: RowFunctions = upper_rows_of(flat.problem, *flat.shapes)
        natural = equilibrated(flat, flat.x_tree(x), None if y is None else flat.y_tree(y)).scales
        self._unit = 1 / natural.upper
        inside = flat.y_rows.well_inside(np.zeros(flat.n_y)) if y is None else y
        slopes = zip(self._rows.jacobian(x, inside), (natural.x, natural.y), strict=True)
        length = np.sqrt(sum(row_squares(scaled(part, np.ones(self._rows.count), unit)) for part, unit in slopes))
        self._weight = 1 / positive(np.where(length > 0, length, 1.0))
        self._low, self._high = self._weight * self._rows.lower, self._weight * self._rows.upper
        self._far = UPPER_ROWS.far * (1 + self._violation(self._weight * self._rows.values(x, inside)))
        typical = self._penalised(np.ones(self._rows.count), 1.0)
        of_upper = derived(flat.problem, upper=typical, upper_rows=None)
        self._family = Family(of_upper, representative(flat.problem, "lower"))

    def search(self, x: np.ndarray, y: np.ndarray | None, diary: Diary) -> Iterator[Snapshot]:
        """Yield the snapshots of all rounds; the last one is the answer.

        Where they lead to a point that violates the rows, others follow that do not look beyond the start's own basin:
        there the rows may hold.
        """
        now = None
        for attempt, price in enumerate((UPPER_ROWS.first_price, UPPER_ROWS.high_price)):
            now = _Round(x, y, np.zeros(self._rows.count), price * self._unit, np.inf)
            for number in range(UPPER_ROWS.rounds):
                name, near = f"round {number} of attempt {attempt}", bool(number or attempt)
                now = yield from diary.phase(name, self._round(now, near))
                if now.settled or now.y is None or now.price > UPPER_ROWS.highest_price * self._unit:
                    break
            if now.settled:
                break
        assert now is not None
        answer = np.zeros(self._flat.n_y) if now.y is None else now.y
        yield Snapshot(now.x, answer, "answer", np.inf, final=True, converged=now.settled and now.converged)

    def _violation(self, value: np.ndarray) -> float:
        return float(np.abs(value - np.clip(value, self._low, self._high)).max(initial=0.0))

    def _penalised(self, multiplier: np.ndarray, price: float) -> Penalised:
        problem, bounds = self._flat.problem, (self._weight, self._low, self._high)
        return Penalised(problem.upper, problem.upper_rows, *bounds, multiplier, np.array(price))

    def _round(self, now: _Round, near: bool) -> Generator[Snapshot, None, _Round]:
        """Minimise at the price at hand; if ``near``, without looking for other basins."""
        flat = self._flat
        multiplier, upper = now.multiplier, self._penalised(now.multiplier, now.price)
        inner = FlatProblem(derived(flat.problem, self._family, upper=upper, upper_rows=None), flat.x_like, flat.y_like)
        known = np.zeros(trees.size(flat.row_shapes)) if near else None  # an earlier answer is gone on from
        last, value = None, np.zeros(self._rows.count)
        # While the rows are far from holding, the minimiser need not be accurate.
        accuracy = float(np.clip(UPPER_ROWS.accuracy * now.miss, self._rtol, UPPER_ROWS.least_accuracy))
        for last in self._search(inner, now.x, now.y, known, accuracy):
            yield last._replace(exact=False, final=False, converged=False)
            value = self._weight * self._rows.values(last.x, last.y)
            if not self._violation(value) <= self._far:  # f falls faster than the rows cost
                return dataclasses.replace(now, price=UPPER_ROWS.dearer * now.price)
        if last is None:
            return dataclasses.replace(now, y=None)
        # A row misses by how far it is violated, or open though its multiplier is not zero.
        shifted = value + multiplier / now.price
        miss = value - np.clip(shifted, self._low, self._high)
        largest, size = float(np.abs(miss).max(initial=0.0)), 1 + np.abs(value).max(initial=0.0)
        settled = largest <= UPPER_ROWS.satisfied * size
        dearer = UPPER_ROWS.dearer if largest > UPPER_ROWS.fall * now.miss and not settled else 1.0
        return _Round(
            x=last.x,
            y=last.y,
            multiplier=multiplier + now.price * miss,
            price=dearer * now.price,
            miss=largest,
            converged=last.converged,
            settled=settled and accuracy == self._rtol,
        )
