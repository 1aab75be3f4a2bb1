"""Which links serve which origin-destination pair of a network, and the shortest times between them."""

import functools

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra


class Graph:
    """Directed links with nonnegative times; through some nodes no route may pass, it only begins or ends there.

    Every node is split in two, where routes arrive and where they depart; only a node that may be passed joins the two.
    """

    def __init__(self, nodes: int, tail: np.ndarray, head: np.ndarray, time: np.ndarray, passable: np.ndarray):
        self.nodes, self.tail, self.head, self.time, self.passable = nodes, tail, head, time, passable

    @functools.cached_property
    def _fastest(self) -> np.ndarray:
        """Of parallel links only the fastest can lie on a shortest route."""
        order = np.lexsort((self.time, self.head, self.tail))
        key = self.tail[order] * self.nodes + self.head[order]
        return order[np.unique(key, return_index=True)[1]]

    @functools.cached_property
    def _split(self) -> sp.csr_matrix:
        """The graph of the split nodes: arrivals first, departures after them. Its zeros are links of no time."""
        passed = np.flatnonzero(self.passable)
        start = np.concatenate([self.tail[self._fastest] + self.nodes, passed])
        end = np.concatenate([self.head[self._fastest], passed + self.nodes])
        weight = np.concatenate([self.time[self._fastest], np.zeros(len(passed))])
        return sp.csr_matrix((weight, (start, end)), shape=(2 * self.nodes, 2 * self.nodes))

    def times(self, origin: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """Return each pair's shortest time; infinite where there is no route."""
        sources, position = np.unique(origin, return_inverse=True)
        return dijkstra(self._split, indices=sources + self.nodes)[position, destination]

    def times_over_links(self, origin: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """Return the shortest time of each pair over each link, as an array of pairs by links."""
        sources, from_origin = np.unique(origin, return_inverse=True)
        targets, to_destination = np.unique(destination, return_inverse=True)
        before = dijkstra(self._split, indices=sources + self.nodes)[:, self.tail + self.nodes]
        after = dijkstra(self._split.T.tocsr(), indices=targets)[:, self.head]
        return before[from_origin] + self.time + after[to_destination]

    def shortest_routes(self, origin: np.ndarray, destination: np.ndarray) -> list[list[int]]:
        """Return the links of a shortest route for each pair, from its end to its beginning."""
        sources, position = np.unique(origin, return_inverse=True)
        _, before = dijkstra(self._split, indices=sources + self.nodes, return_predecessors=True)
        link = {(self.tail[index], self.head[index]): int(index) for index in self._fastest}
        routes = []
        for row, start, node in zip(position, origin, destination, strict=True):
            route = []
            while node != start:
                last = before[row, node] - self.nodes
                route.append(link[last, node])
                node = last
            routes.append(route)
        return routes

    def usable(self, origin: np.ndarray, destination: np.ndarray, longest: np.ndarray | None = None) -> np.ndarray:
        """Return which links a pair can use at all, as an array of pairs by links.

        A link is of use if some walk over it leaves the origin once, enters the destination once and passes only nodes
        that may be passed. With ``longest``, one number a pair, the shortest walk over each of its links may in
        addition take no longer than that.
        """
        tail, head, passable = self.tail, self.head, self.passable
        origins, destinations = origin[:, None], destination[:, None]
        allowed = (head != origins) & (tail != destinations) & (tail != head)
        allowed &= (passable[tail] | (tail == origins)) & (passable[head] | (head == destinations))
        if longest is not None:
            # Sums of the same numbers in another order differ by rounding.
            allowed &= self.times_over_links(origin, destination) <= longest[:, None] * (1 + 1e-12)
        forward = _reached(allowed, tail, head, origin, self.nodes)
        backward = _reached(allowed, head, tail, destination, self.nodes)
        return allowed & forward[:, tail] & backward[:, head]


def _reached(allowed: np.ndarray, start: np.ndarray, end: np.ndarray, source: np.ndarray, nodes: int) -> np.ndarray:
    """Return the nodes that each pair reaches from its source over its allowed links, as pairs by nodes."""
    into = sp.csr_matrix((np.ones(len(end)), (np.arange(len(end)), end)), shape=(len(end), nodes))
    reached = np.zeros((len(source), nodes), bool)
    reached[np.arange(len(source)), source] = True
    while True:
        further = reached | ((allowed & reached[:, start]).astype(float) @ into > 0)
        if np.array_equal(further, reached):
            return reached
        reached = further
