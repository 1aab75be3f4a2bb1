"""The data of a network: its nodes, its links, the pairs that travel on it, and their routes."""

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from bilevax.problems.network.routes import Graph

#: The numbers of a pair, beside its ends.
NUMBERS = ("demand", "outside", "revenue")
_ENDS = dict.fromkeys(("tail", "head", "origin", "destination"), "a node's position")
_OF_LINKS = ("tail", "head", "time", "cost")
_OF_PAIRS = ("origin", "destination", *NUMBERS)


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Links with times and costs, and pairs of an origin and a destination with travellers; checked.

    `NetworkDesign` tells what each field is.
    """

    nodes: tuple[Hashable, ...]
    # Links
    tail: np.ndarray
    head: np.ndarray
    time: np.ndarray
    cost: np.ndarray
    # Pairs
    origin: np.ndarray
    destination: np.ndarray
    demand: np.ndarray
    outside: np.ndarray
    revenue: np.ndarray
    # What may be known beside them
    coordinates: np.ndarray | None = None
    passable: np.ndarray | None = None
    capacities: np.ndarray | None = None
    existing: np.ndarray | None = None
    detour: float | None = None

    def __post_init__(self):
        count, links, pairs = len(self.nodes), np.shape(self.tail), np.shape(self.origin)
        for name, shape in {**dict.fromkeys(_OF_LINKS, links), **dict.fromkeys(_OF_PAIRS, pairs)}.items():
            array = np.asarray(getattr(self, name), int if name in _ENDS else np.float64)
            if array.ndim != 1 or array.shape != shape or array.size == 0:
                kind, first = ("link", "tail") if name in _OF_LINKS else ("pair", "origin")
                raise ValueError(
                    f"{name}: expected one number a {kind}, at least one and as many as {first}, got {array.shape}."
                )
            object.__setattr__(self, name, array)
        for name, number in _ENDS.items():
            self._refuse(name, (getattr(self, name) < 0) | (getattr(self, name) >= count), number)
        for name in ("time", "cost"):
            self._refuse(name, ~((getattr(self, name) >= 0) & np.isfinite(getattr(self, name))), "a number >= 0")
        if self.existing is not None:
            self._refuse("existing", ~((self.existing >= 0) & np.isfinite(self.existing)), "a number >= 0")
        self._refuse("demand", ~((self.demand > 0) & np.isfinite(self.demand)), "a positive number")
        self._refuse("outside", ~np.isfinite(self.outside), "a number")
        self._refuse("revenue", ~np.isfinite(self.revenue), "a number")
        self._refuse("destination", self.origin == self.destination, "another node than the origin")
        passable = np.ones(count, bool) if self.passable is None else np.asarray(self.passable, bool)
        object.__setattr__(self, "passable", passable)
        sizes = {"coordinates": (count, 2), "passable": (count,), "capacities": links, "existing": links}
        for name, shape in sizes.items():
            if getattr(self, name) is not None and np.shape(getattr(self, name)) != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {np.shape(getattr(self, name))}.")
        if self.detour is not None and not self.detour >= 1:
            raise ValueError(f"detour: expected a factor of at least 1, got {self.detour}.")
        named = lambda positions: [self.nodes[position] for position in positions]
        check_reached(self.shortest_times, named(self.origin), named(self.destination))

    def _refuse(self, name: str, wrong: np.ndarray, expected: str) -> None:
        if wrong.any():
            index = np.flatnonzero(wrong)[0]
            kind = "pair" if name in _OF_PAIRS else "link"
            raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)[index]} for {kind} {index}.")

    @functools.cached_property
    def _graph(self) -> Graph:
        assert self.passable is not None
        return Graph(len(self.nodes), self.tail, self.head, self.time, self.passable)

    @functools.cached_property
    def shortest_times(self) -> np.ndarray:
        """Each pair's shortest travel time on the network."""
        return self._graph.times(self.origin, self.destination)

    @functools.cached_property
    def flows(self) -> tuple[np.ndarray, np.ndarray]:
        """The link and the pair of each entry of ``y["flow"]``, in order; one entry for each usable combination."""
        longest = None if self.detour is None else self.detour * self.shortest_times
        link, pair = np.nonzero(self._graph.usable(self.origin, self.destination, longest).T)
        return link, pair

    @functools.cached_property
    def _ample_load(self) -> np.ndarray:
        """The links' loads if no capacity was scarce and everyone took one shortest way."""
        load = np.zeros(len(self.tail))
        travellers = self.demand * expit(self.outside - self.shortest_times)
        for number, route in zip(travellers, self._graph.shortest_routes(self.origin, self.destination), strict=True):
            load[route] += number
        return load


def check_reached(times: np.ndarray, origin: Sequence[Any], destination: Sequence[Any]) -> None:
    """Raise ValueError where a time between an origin and its destination is infinite: no route joins them."""
    lost = np.flatnonzero(~np.isfinite(times))
    if lost.size:
        raise ValueError(
            f"pairs: expected a route from every origin to its destination, found none for {lost.size} of {len(times)} "
            f"pairs, the first from {origin[lost[0]]!s} to {destination[lost[0]]!s}."
        )
