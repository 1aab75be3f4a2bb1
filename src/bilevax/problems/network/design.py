"""Network design: an operator builds capacities, travellers choose between its network and an outside option."""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import PyTree

from bilevax.driver.solution import Solution
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network import json_file, marginal, networkx_graph
from bilevax.problems.network.arrays import Nodes, plain_names, spread
from bilevax.problems.network.data import Network
from bilevax.problems.network.existing_roads import solve_on_roads
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.restriction import whole
from bilevax.problems.network.roads import Rates, derive
from bilevax.problems.network.solving import check_starts, solve_by_prices

#: Shares stay this far from 0 and 1 where a problem has a floor under them.
MINIMAL_SHARE = 1e-6


class NetworkDesign(Network):
    """A network whose links' capacities x are to be chosen, and its travellers.

    The operator maximises ``sum(revenue * share) - sum(cost * x)``. Each origin-destination pair of travellers chooses
    its routes, and what share of it travels there at all instead of by an outside option, as in a logit model:
    they minimise the sum over the pairs of

        demand * [ sum over links of time * flow + outside * (1 - share)
                   + share (ln share - 1) + (1 - share) (ln(1 - share) - 1) ]

    subject to conservation of flow at the nodes and to ``sum over pairs of demand * flow <= x`` on every link. A pair's
    flow on a link is the part of its demand that travels there. The lower level is linear in the flows, hence convex
    but not strongly; the shares, all that the operator's utility sees of it, are unique.

    Only combinations of a pair and a link that can be of use are variables: a pair's links into its origin, out of
    its destination, or on no way between the two, are left out, which changes no share, load or value.

    Build one with `from_arrays`, `from_json`, `from_tntp` or `from_networkx`.

    Attributes
    ----------
    nodes
        The nodes' names.
    tail, head, time, cost
        The links: positions in ``nodes`` where they begin and end, travel time, cost of a unit of capacity.
    origin, destination, demand, outside, revenue
        The pairs: positions in ``nodes``, travellers, time of the outside option, revenue if all of them come.
    coordinates
        Where the nodes are, (nodes, 2), for plots; or None.
    passable
        Whether a route may pass through a node; where not, it can only begin or end there.
    capacities
        Where `start` starts, if it is known; or None.
    existing
        What is built already: a link's capacity cannot be less. None for nothing.
    detour
        A restriction that makes large networks small: a pair's variables are only the links on ways that take at most
        this factor times its shortest time, as if its travellers refused longer ways. None restricts nothing.
    """

    @classmethod
    def from_arrays(
        cls,
        tail: Sequence[Any] | np.ndarray,
        head: Sequence[Any] | np.ndarray,
        time: Any,
        cost: Any,
        origin: Sequence[Any] | np.ndarray,
        destination: Sequence[Any] | np.ndarray,
        demand: Any,
        outside: Any,
        revenue: Any,
        *,
        nodes: Iterable[Hashable] | None = None,
        coordinates: Any = None,
        not_passed: Iterable[Hashable] = (),
        capacities: Any = None,
        existing: Any = None,
        detour: float | None = None,
    ) -> Self:
        """Return the network of these links and pairs, whose ends are names of nodes.

        Parameters
        ----------
        tail, head, time, cost
            One entry a link; times and costs may be one number for all.
        origin, destination, demand, outside, revenue
            One entry a pair; the last three may be one number for all.
        nodes
            The nodes' names, in the order of ``coordinates``; sorted as the links name them when absent.
        not_passed
            Nodes through which no route may pass.
        coordinates, capacities, existing, detour
            See the class; of the capacities, one entry a link or one number for all.
        """
        tail, head, origin, destination = (plain_names(ends) for ends in (tail, head, origin, destination))
        known = Nodes(nodes, {*tail, *head})
        links, pairs = len(tail), len(origin)
        passable = np.ones(len(known.names), bool)
        passable[known.find(plain_names(not_passed), "not_passed")] = False
        return cls(
            nodes=known.names,
            tail=known.find(tail, "tail"),
            head=known.find(head, "head"),
            time=spread(time, links, "time"),
            cost=spread(cost, links, "cost"),
            origin=known.find(origin, "origin"),
            destination=known.find(destination, "destination"),
            demand=spread(demand, pairs, "demand"),
            outside=spread(outside, pairs, "outside"),
            revenue=spread(revenue, pairs, "revenue"),
            coordinates=None if coordinates is None else np.asarray(coordinates, np.float64),
            passable=passable,
            capacities=None if capacities is None else spread(capacities, links, "capacities"),
            existing=None if existing is None else spread(existing, links, "existing"),
            detour=detour,
        )

    @classmethod
    def from_json(cls, path: str | Path, *, detour: float | None = None) -> Self:
        """Read a network from a JSON file.

        It holds ``links``, a list of ``{"i", "j", "t", "c"}`` (from, to, time, cost), and ``od``, a list of
        ``{"o", "d", "w", "t_ext", "m"}`` (origin, destination, demand, outside time, revenue). It may hold ``nodes``, a
        list of ``{"id", "lon", "lat"}``, and ``x_start``, capacities to start from.

        Raises
        ------
        ValueError
            With the file and the entry that is malformed, what came and what was expected.
        """
        return cls.from_arrays(**json_file.read(path), detour=detour)

    @classmethod
    def from_tntp(
        cls,
        net: str | Path,
        trips: str | Path,
        nodes: str | Path | None = None,
        *,
        cost_rate: float = 1.0,
        fare: float = 1.5,
        outside_factor: float = 1.5,
        outside_constant: float = 0.5,
        minimal_time: float = 0.01,
        existing_part: float = 0.1,
        detour: float | None = None,
    ) -> Self:
        """Read a road network from TNTP files, and derive a design problem of numbers of the order of one.

        The files hold roads and trips, but no costs, revenues or alternatives. With times in units of the mean trip
        (the mean over the demand of the shortest free-flow time) and demand in units of the mean pair,

        - a link's time is its free-flow time, at least ``minimal_time``, for files have links of no time at all;
        - a unit of capacity costs ``cost_rate * time``, so serving a pair costs ``cost_rate`` times its travel time;
        - a pair earns ``fare * demand``, so it is worth serving alone where its travel time is below
          ``fare / cost_rate``: for trips up to half longer than the mean, as the numbers stand;
        - the outside option takes ``outside_factor * shortest time + outside_constant``;
        - every road exists: its capacity is at least ``existing_part`` of the mean load of the links if everyone took
          the shortest way. The files' own capacities have no common unit with their trips.

        Parameters
        ----------
        net, trips, nodes
            The files ``*_net.tntp``, ``*_trips.tntp`` and, for the coordinates, ``*_node.tntp``.
        cost_rate, fare, outside_factor, outside_constant, minimal_time, existing_part
            As above. Congestion, tolls and capacities of the file are not used.
        detour
            See the class.

        Raises
        ------
        ValueError
            With the file and the line that is malformed, or the pair that no route joins.
        """
        rates = Rates(cost_rate, fare, outside_factor, outside_constant, minimal_time)
        network = cls(**derive(net, trips, nodes, rates), detour=detour)
        existing = np.full(len(network.time), existing_part * network._ample_load.mean())
        return dataclasses.replace(network, existing=existing)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        pairs: Mapping[Any, Mapping[str, float]],
        *,
        time: str = "time",
        cost: str = "cost",
        position: str = "pos",
        not_passed: Iterable[Hashable] = (),
        existing: Any = None,
        detour: float | None = None,
    ) -> Self:
        """Return the network of a networkx graph; an edge of an undirected one is two links.

        Parameters
        ----------
        graph
            A ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``.
        pairs
            ``{(origin, destination): {"demand": ..., "outside": ..., "revenue": ...}}``.
        time, cost, position
            The attributes with the edges' times and costs, and with the nodes' coordinates, if they have any.
        not_passed, existing, detour
            See `from_arrays`.
        """
        found = networkx_graph.read(graph, pairs, time, cost, position)
        return cls.from_arrays(**found, not_passed=not_passed, existing=existing, detour=detour)

    def problem(self, minimal_share: float = MINIMAL_SHARE) -> BilevelProblem:
        """Return the bilevel problem: x the capacities, y ``{"flow": (flows,), "share": (pairs,)}``.

        `flows` tells what the entries of ``y["flow"]`` are. The couplings are conservation and capacity, in this order.

        Parameters
        ----------
        minimal_share
            Shares stay this far from 0 and 1. Where so little is built that not even this share can travel, the
            lower level is infeasible.
        """
        if not 0 < minimal_share < 0.5:
            raise ValueError(f"minimal_share: expected a number between 0 and 0.5, got {minimal_share}.")
        return whole(self).problem(minimal_share)

    def start(self) -> np.ndarray:
        """Return capacities to start from: those the network came with, or what its travellers would fill.

        The latter are the loads if everyone took the shortest way and the shares were those of ample capacity; no
        link has less than a tenth of the mean, so that all of them are open.
        """
        if self.capacities is not None:
            return self.capacities
        load = self._ample_load
        return np.maximum(np.maximum(load, 0.1 * load.mean()), 0.0 if self.existing is None else self.existing)

    def solve(
        self,
        x0: Any = None,
        *,
        starts: int = 1,
        time_limit: float | None = None,
        progress: bool | None = None,
        rtol: float = 1e-6,
        key: int = 0,
    ) -> Solution:
        """Return the best design that is found, certified, without a floor under the shares.

        Links that are not built have a capacity of exactly 0, and pairs that no built route joins a share of exactly 0.
        ``success`` is true only if the design is stationary on its built links, by the certificate of the network
        pruned to them, and no unbuilt link, pair of links or route that was priced would pay; `marginal_values` tells
        what each unbuilt link is worth. ``value`` is minus the utility, as for `problem`.

        Where capacities exist already, or ways are restricted by ``detour``, this is `bilevax.solve` of `problem`, and
        where all of them exist it starts from where a search with smoothed travellers leads.

        Parameters
        ----------
        x0
            Capacities; the first start begins with the links that have any. Random prices when absent.
        starts
            Searches with different links open; the best design is judged, and the next ones as long as none is proven.
        time_limit
            Seconds of the search. Certificate and prices take at most a second more.
        progress
            Whether to show a live line, on standard error; by default only where that is a terminal.
        rtol
            The certificate's stationarity has to be at most this.
        key
            Seed of the starts.

        Returns
        -------
        Solution
            For the whole network: ``y``, ``multipliers`` and ``certificate`` are those of the pruned one, extended by
            zeros. ``stats`` holds the number of ``built`` links and ``served`` pairs, ``best_unbuilt``, the largest
            marginal value of what is not built, and how much was ``priced``.
        """
        check_starts(starts, x0, len(self.tail))
        if self.detour is not None or (self.existing is not None and np.any(self.existing > 0)):
            first = self.start() if x0 is None else np.asarray(x0, np.float64)
            return solve_on_roads(self, first, starts, time_limit, progress, rtol, key, MINIMAL_SHARE)
        return solve_by_prices(self, x0, starts, time_limit, progress, rtol, key)

    def marginal_values(self, solution: Any) -> dict[str, np.ndarray]:
        """Return what a unit of each unbuilt link's capacity is worth next to a design, as columns.

        ``value`` is the change of the utility per unit of capacity, to first order, with the built links widened as the
        link's travellers need; ``test`` says who would use it: "new travellers" that no built route serves, somebody
        who takes an "other route" now, or "nobody". Where no value is positive, no single link pays. The design has to
        be stationary on its built links. ``solution`` is that of `solve`; ``pandas.DataFrame`` and ``polars.DataFrame``
        take the result.
        """
        x, price = np.asarray(solution.x), np.asarray(solution.multipliers[1])
        priced = Priced(self, np.where(x > 0, np.maximum(price, 0.0), np.inf))
        values = marginal.of_links(priced)
        links = np.array([one.links[0] for one in values], int)
        return {
            "from": self._labels(self.tail[links]),
            "to": self._labels(self.head[links]),
            "value": np.array([one.value for one in values]),
            "test": np.array([one.test for one in values], dtype=object).astype(str),
        }

    def utility(self, x: Any, y: PyTree) -> float:
        """Return what the shares earn minus what the capacities cost."""
        return float(self.revenue @ np.asarray(y["share"]) - self.cost @ np.asarray(x))

    def links_table(self, solution: Any) -> dict[str, np.ndarray]:
        """Return the links with their capacity, flow (travellers) and the used part of the capacity, as columns.

        ``solution`` is a `Solution` of `problem`; ``pandas.DataFrame`` and ``polars.DataFrame`` take the result.
        """
        link, pair = self.flows
        capacity = np.asarray(solution.x)
        flow = np.bincount(link, self.demand[pair] * np.asarray(solution.y["flow"]), minlength=len(self.tail))
        return {
            "from": self._labels(self.tail),
            "to": self._labels(self.head),
            "capacity": capacity,
            "flow": flow,
            "used": np.divide(flow, capacity, out=np.zeros_like(flow), where=capacity > 0),
        }

    def pairs_table(self, solution: Any) -> dict[str, np.ndarray]:
        """Return the pairs with their share, mean travel time on the network, outside time and demand, as columns."""
        link, pair = self.flows
        share = np.asarray(solution.y["share"])
        time = np.bincount(pair, self.time[link] * np.asarray(solution.y["flow"]), minlength=len(share))
        return {
            "origin": self._labels(self.origin),
            "destination": self._labels(self.destination),
            "demand": self.demand,
            "share": share,
            "travel_time": np.divide(time, share, out=np.full_like(time, np.nan), where=share > 0),
            "outside_time": self.outside,
        }

    def _labels(self, positions: np.ndarray) -> np.ndarray:
        plain = all(type(name) is type(self.nodes[0]) for name in self.nodes) and isinstance(self.nodes[0], int | str)
        labels = np.empty(len(self.nodes), object)
        labels[:] = self.nodes
        return (np.array(self.nodes) if plain else labels)[positions]
