"""A network under prices: who travels which way, and what the operator earns.

The multiplier of a link's capacity row is a price that its travellers pay in time: they take a shortest route under
``time + price``, and the share of a pair that travels at all is the logit of the outside time minus that length.
Conversely any nonnegative prices, with the capacities just what is then travelled, are an answer of the lower level. An
operator who pays for capacity builds no more than is used, so the design problem is the same as this one over prices:

    maximise over prices   sum over pairs of  share(length of its shortest route) * (revenue - demand * cost of that
    route),

where of shortest routes that are equally long the cheapest counts, and a link that is not built has an infinite price.
One evaluation takes a shortest-route tree for each origin instead of a convex program.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra
from scipy.special import expit

from bilevax.problems.network.data import Network

# Of routes whose lengths differ by less than this, relative to their cost, the cheaper one counts as the shorter.
_TIE = 1e-9


class Trees(NamedTuple):
    """Shortest routes from some sources to all nodes, one row a source.

    Every node is there twice: where routes arrive, and, that many nodes later, where they depart.

    Attributes
    ----------
    length, cost
        Of the route: its time with prices, and what a unit of capacity along it costs. Infinite where there is none.
    link, previous
        The last link of the route, -1 where a node is only passed, and the node before.
    """

    length: np.ndarray
    cost: np.ndarray
    link: np.ndarray
    previous: np.ndarray


class Layout:
    """What is the same under all prices: the ends of pairs and links, sorted for the search of shortest routes."""

    def __init__(self, network: Network):
        assert network.passable is not None
        self.network, self.nodes = network, len(network.nodes)
        self.origins, self.of_origin = np.unique(network.origin, return_inverse=True)
        self.destinations, self.of_destination = np.unique(network.destination, return_inverse=True)
        self.passed = np.flatnonzero(network.passable)
        self.tie = _TIE * _size(network.time) / _size(network.cost)
        # A cell is a pair of nodes that some link joins: parallel links share one.
        self.cells, self.first, self.cell = np.unique(
            network.tail * self.nodes + network.head, return_index=True, return_inverse=True
        )

    def links(self, weight: np.ndarray) -> np.ndarray:
        """Return the link of each cell: of parallel ones only the shortest can lie on a shortest route."""
        if len(self.cells) == len(self.cell):
            return self.first
        order = np.lexsort((weight, self.cell))
        return order[np.unique(self.cell[order], return_index=True)[1]]


class Priced:
    """A network under prices; a link whose price is infinite does not exist."""

    def __init__(self, network: Network, prices: np.ndarray, layout: Layout | None = None):
        self.network, self.prices = network, prices
        self._layout = Layout(network) if layout is None else layout
        self._from, self._to = self._layout.of_origin, self._layout.of_destination
        self._known: dict[bool, tuple[Trees, int]] = {}  # trees that differ from ours by the price of one link

    def at(self, links: Any, price: Any) -> "Priced":
        """Return the network with the prices of some links replaced."""
        prices = self.prices.copy()
        prices[links] = price
        new = self.under(prices)
        if np.ndim(links) == 0:  # most trees stay as they are
            trees = {False: vars(self).get("onward"), True: vars(self).get("back")}
            new._known = {backward: (known, int(links)) for backward, known in trees.items() if known is not None}
        return new

    def under(self, prices: np.ndarray) -> "Priced":
        """Return the network under other prices."""
        return Priced(self.network, prices, self._layout)

    @functools.cached_property
    def onward(self) -> Trees:
        """The shortest routes from the origins."""
        return self._trees(self._layout.origins + len(self.network.nodes), backward=False)

    @functools.cached_property
    def back(self) -> Trees:
        """The shortest routes to the destinations, as routes from them against the links' directions."""
        return self._trees(self._layout.destinations, backward=True)

    @functools.cached_property
    def length(self) -> np.ndarray:
        """The length of each pair's shortest route, infinite where none exists."""
        return self.onward.length[self._from, self.network.destination]

    @functools.cached_property
    def cost(self) -> np.ndarray:
        """What a unit of capacity along each pair's route costs."""
        return self.onward.cost[self._from, self.network.destination]

    @functools.cached_property
    def profit(self) -> np.ndarray:
        """What each pair earns, minus the cost of the capacity that it uses."""
        return profit(self.network, self.length, self.cost)

    @property
    def utility(self) -> float:
        """What the operator earns: the sum of the pairs' profits."""
        return float(self.profit.sum())

    def over(self, link: int) -> tuple[np.ndarray, np.ndarray]:
        """Return length and cost of each pair's shortest route over a link, whose own price is left out."""
        network = self.network
        tail, head = network.tail[link] + len(network.nodes), network.head[link]
        length = self.onward.length[self._from, tail] + network.time[link] + self.back.length[self._to, head]
        return length, self.onward.cost[self._from, tail] + network.cost[link] + self.back.cost[self._to, head]

    def without(self, link: int) -> "Priced":
        """Return the same network without a link."""
        if not np.isfinite(self.prices[link]) or not np.any(self.onward.link == link):
            return self
        return self.at(link, np.inf)

    def uses(self, link: int) -> bool:
        """Return whether some shortest route from an origin, to any node, or to a destination uses a link."""
        return bool(np.any(self.onward.link == link) or np.any(self.back.link == link))

    def over_differs(self, other: "Priced", link: int) -> bool:
        """Return whether some pair's shortest route over a link is another one than under other prices."""
        here, there = self.over(link)[0], other.over(link)[0]
        return bool(np.any(np.isfinite(here) & (here < there)))

    def routes(self, pairs: np.ndarray) -> sp.csr_matrix:
        """Return the routes of some pairs as a matrix of pairs by links."""
        row, node = self._from[pairs], self.network.destination[pairs]
        number = np.arange(len(pairs))
        rows, links = [], []
        while len(number):
            link, before = self.onward.link[row, node], self.onward.previous[row, node]
            used = link >= 0
            rows.append(number[used])
            links.append(link[used])
            ahead = before != node
            number, row, node = number[ahead], row[ahead], before[ahead]
        rows, links = np.concatenate([[], *rows]).astype(int), np.concatenate([[], *links]).astype(int)
        return sp.csr_matrix((np.ones(len(rows)), (rows, links)), shape=(len(pairs), len(self.prices)))

    @functools.cached_property
    def load(self) -> np.ndarray:
        """The travellers on each link."""
        served = np.flatnonzero(np.isfinite(self.length))
        network = self.network
        travellers = network.demand[served] * expit(network.outside[served] - self.length[served])
        return self.routes(served).T @ travellers

    def _trees(self, sources: np.ndarray, backward: bool) -> Trees:
        """Return all trees; those that a change of one price cannot touch are taken over."""
        known, link = self._known.pop(backward, (None, 0))
        if known is None:
            return self._grown(sources, backward)
        network, nodes = self.network, self._layout.nodes
        ends = network.tail[link] + nodes, network.head[link]
        start, end = ends[::-1] if backward else ends
        shortcut = known.length[:, start] + network.time[link] + self.prices[link]
        tie = self._layout.tie * network.cost.sum()
        touched = np.any(known.link == link, axis=1) | (shortcut <= known.length[:, end] + tie)
        touched &= np.isfinite(known.length[:, start])
        if not touched.any():
            return known
        fresh = self._grown(sources[touched], backward)
        patched = Trees(*(part.copy() for part in known))
        for old, new in zip(patched, fresh, strict=True):
            old[touched] = new
        return patched

    def _grown(self, sources: np.ndarray, backward: bool) -> Trees:
        layout, network, nodes = self._layout, self.network, self._layout.nodes
        weight = network.time + self.prices + layout.tie * network.cost
        links = layout.links(weight)
        links = links[np.isfinite(weight[links])]
        start = np.concatenate([network.tail[links] + nodes, layout.passed])
        end = np.concatenate([network.head[links], layout.passed + nodes])
        start, end = (end, start) if backward else (start, end)
        weights = np.concatenate([weight[links], np.zeros(len(layout.passed))])
        names = np.concatenate([links, np.full(len(layout.passed), -1)])
        edges = start * (2 * nodes) + end
        order = np.argsort(edges)
        rows = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=2 * nodes))])
        graph = sp.csr_matrix((weights[order], end[order], rows), shape=(2 * nodes, 2 * nodes))
        length, previous = dijkstra(graph, indices=sources, return_predecessors=True)
        return _followed(length, previous, edges[order], names[order], network.cost, layout.tie)


def _followed(
    length: np.ndarray, previous: np.ndarray, edges: np.ndarray, names: np.ndarray, cost: np.ndarray, tie: float
) -> Trees:
    """Return trees with their links and costs; ``edges``, in order, are ``start * nodes + end``, with their links."""
    everywhere = np.broadcast_to(np.arange(length.shape[1]), length.shape)
    before = np.where(previous < 0, everywhere, previous)
    place = np.searchsorted(edges, before * length.shape[1] + everywhere)
    link = (
        np.where(previous < 0, -1, names[np.minimum(place, len(names) - 1)]) if len(names) else np.full_like(before, -1)
    )
    # Sums along the routes, over twice as many nodes in each round.
    total, ahead = np.where(link >= 0, cost[link], 0.0), before
    while True:
        total = total + np.take_along_axis(total, ahead, axis=1)
        further = np.take_along_axis(ahead, ahead, axis=1)
        if np.array_equal(further, ahead):
            break
        ahead = further
    reached = np.isfinite(length)
    return Trees(np.where(reached, length - tie * total, np.inf), np.where(reached, total, np.inf), link, before)


def profit(network: Network, length: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Return what pairs earn on routes of these lengths and costs; nothing where there is no route."""
    reached = np.isfinite(length)
    gain = network.revenue - network.demand * np.where(reached, cost, 0.0)
    return np.where(reached, expit(network.outside - length) * gain, 0.0)


def _size(numbers: np.ndarray) -> float:
    return float(np.mean(numbers)) or 1.0
