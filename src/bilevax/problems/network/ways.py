"""How long the ways of each pair are, under prices, and by how much those over a flow are longer than the shortest.

Prices are multipliers of an answer of the lower level where all flows run on shortest ways and each pair's share is
that of their length. A flow whose ways are all longer is zero there, and stays so while prices change by less.
"""

import dataclasses
import functools

import numpy as np

from bilevax.problems.network.contraction import Contraction, shortest


@dataclasses.dataclass(frozen=True)
class Ways:
    """The ways over a contracted network under prices of its capacities."""

    small: Contraction
    price: np.ndarray

    @functools.cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows where flows begin and end and where pairs start; one beyond the last where that is the end."""
        rows, pairs = self.small.conservation.shape[0], len(self.small.part.pairs)
        entries = self.small.conservation.tocoo()
        leaving, entering = np.full((2, self.small.conservation.shape[1]), rows)
        leaving[entries.col[entries.data > 0]] = entries.row[entries.data > 0]
        entering[entries.col[entries.data < 0]] = entries.row[entries.data < 0]
        return leaving[:-pairs], entering[:-pairs], entering[-pairs:]

    @functools.cached_property
    def _weight(self) -> np.ndarray:
        """The time and price of each flow and share, for each traveller."""
        numbers = self.small.numbers()
        own = np.concatenate([numbers["flow_time"], np.zeros(len(self.small.part.pairs))])
        return (own + self.small.load.T @ self.price) / numbers["demand"][self.small.pair]

    @functools.cached_property
    def ahead(self) -> np.ndarray:
        """The length of the shortest way from each row of conservation to the end of its pair; 0 behind them."""
        flows = self._weight[: -len(self.small.part.pairs)]
        tail, head, _ = self._ends
        return shortest(tail, head, flows, self.small.conservation.shape[0])

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The length of each pair's shortest way, without the time that all its ways have in common."""
        return self.ahead[self._ends[2]] + self._weight[-len(self.small.part.pairs) :]

    @property
    def excess(self) -> np.ndarray:
        """By how much the shortest way over each flow is longer than the shortest one of its pair."""
        return self.over_flows - self.lengths[self.small.pair[: len(self.over_flows)]]

    @functools.cached_property
    def over_flows(self) -> np.ndarray:
        """The length of the shortest way over each flow, likewise."""
        pairs, rows = len(self.small.part.pairs), self.small.conservation.shape[0]
        tail, head, start = self._ends
        weight = self._weight[:-pairs]
        behind = np.full(rows + 1, np.inf)
        behind[start] = self._weight[-pairs:]
        while True:
            nearer = behind.copy()
            np.minimum.at(nearer, head, weight + behind[tail])
            nearer[rows] = np.inf  # no way goes on from its end, which all pairs share
            if np.array_equal(nearer, behind):
                break
            behind = nearer
        return behind[tail] + weight + self.ahead[head]

    def multipliers(self) -> tuple[np.ndarray, ...]:
        """Return the multipliers of the contracted problem's rows."""
        conserved = self.small.conservation
        if not conserved.shape[0]:
            return (self.price,)
        demand = np.zeros(conserved.shape[0])
        entries = conserved.tocoo()
        demand[entries.row] = self.small.numbers()["demand"][self.small.pair[entries.col]]
        return -demand * self.ahead[:-1], self.price
