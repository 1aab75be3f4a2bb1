"""Network design: an operator builds capacities, travellers choose between its network and an outside option."""

import dataclasses
import functools
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, PyTree
from scipy.special import expit

from bilevax._support import parsing
from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box, NonNegative, Product
from bilevax.problems.network import tntp
from bilevax.problems.network.routes import Graph
from bilevax.problems.network.rows import Conservation, Load


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkDesign:
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

    nodes: tuple[Hashable, ...]
    tail: np.ndarray
    head: np.ndarray
    time: np.ndarray
    cost: np.ndarray
    origin: np.ndarray
    destination: np.ndarray
    demand: np.ndarray
    outside: np.ndarray
    revenue: np.ndarray
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
        _check_reached(self.shortest_times, named(self.origin), named(self.destination))

    def _refuse(self, name: str, wrong: np.ndarray, expected: str) -> None:
        if wrong.any():
            index = np.flatnonzero(wrong)[0]
            kind = "pair" if name in _OF_PAIRS else "link"
            raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)[index]} for {kind} {index}.")

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
        tail, head, origin, destination = (_names(ends) for ends in (tail, head, origin, destination))
        names = tuple(_in_order({*tail, *head}) if nodes is None else nodes)
        position = {name: index for index, name in enumerate(names)}
        if len(position) != len(names):
            raise ValueError("nodes: expected different names, got one of them twice.")

        def find(ends: Iterable[Hashable], name: str) -> np.ndarray:
            unknown = [end for end in ends if end not in position]
            if unknown:
                raise ValueError(f"{name}: expected names of nodes, got {unknown[0]!r}, which is none.")
            return np.array([position[end] for end in ends], int)

        links, pairs = len(tail), len(origin)
        passable = np.ones(len(names), bool)
        passable[find(_names(not_passed), "not_passed")] = False
        return cls(
            nodes=names,
            tail=find(tail, "tail"),
            head=find(head, "head"),
            time=_spread(time, links, "time"),
            cost=_spread(cost, links, "cost"),
            origin=find(origin, "origin"),
            destination=find(destination, "destination"),
            demand=_spread(demand, pairs, "demand"),
            outside=_spread(outside, pairs, "outside"),
            revenue=_spread(revenue, pairs, "revenue"),
            coordinates=None if coordinates is None else np.asarray(coordinates, np.float64),
            passable=passable,
            capacities=None if capacities is None else _spread(capacities, links, "capacities"),
            existing=None if existing is None else _spread(existing, links, "existing"),
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
        path = Path(path)
        try:
            content = json.loads(parsing.text(path))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: expected JSON: {error.msg}.") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path}: expected an object with links and od, got {type(content).__name__}.")
        link = _columns(path, content, "links", ("i", "j", "t", "c"))
        pair = _columns(path, content, "od", ("o", "d", "w", "t_ext", "m"))
        node = _columns(path, content, "nodes", ("id", "lon", "lat")) if "nodes" in content else None
        return cls.from_arrays(
            *(link[key] for key in ("i", "j", "t", "c")),
            *(pair[key] for key in ("o", "d", "w", "t_ext", "m")),
            nodes=None if node is None else node["id"],
            coordinates=None if node is None else np.column_stack([node["lon"], node["lat"]]),
            capacities=content.get("x_start"),
            detour=detour,
        )

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
        road, demand = tntp.read_network(net), tntp.read_trips(trips)
        largest = max(demand.origin.max(), demand.destination.max())
        if largest > road.nodes:
            raise ValueError(f"{trips}: expected nodes from 1 to {road.nodes} as in {net}, got {largest}.")
        passable = np.arange(1, road.nodes + 1) >= road.first_through_node
        ends = demand.origin - 1, demand.destination - 1
        graph = lambda time: Graph(road.nodes, road.tail - 1, road.head - 1, time, passable)
        shortest = graph(road.free_flow_time).times(*ends)
        _check_reached(shortest, demand.origin.tolist(), demand.destination.tolist())
        mean_time = np.average(shortest, weights=demand.demand)
        if mean_time == 0:
            raise ValueError(f"{net}: expected trips that take time, got free-flow times of 0 on all their ways.")
        time = np.maximum(road.free_flow_time / mean_time, minimal_time)
        weight = demand.demand / demand.demand.mean()
        network = cls(
            nodes=tuple(range(1, road.nodes + 1)),
            tail=road.tail - 1,
            head=road.head - 1,
            time=time,
            cost=cost_rate * time,
            origin=ends[0],
            destination=ends[1],
            demand=weight,
            outside=outside_factor * graph(time).times(*ends) + outside_constant,
            revenue=fare * weight,
            coordinates=None if nodes is None else tntp.read_coordinates(nodes, road.nodes),
            passable=passable,
            detour=detour,
        )
        return dataclasses.replace(network, existing=np.full(len(time), existing_part * network._ample_load.mean()))

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
        if not (hasattr(graph, "edges") and hasattr(graph, "is_directed") and hasattr(graph, "nodes")):
            raise ValueError(
                f"graph: expected a networkx graph (pip install 'bilevax[networks]'), got {type(graph).__name__}."
            )
        edges = [(start, end, data) for start, end, data in graph.edges(data=True)]
        for start, end, data in edges:
            for key in (time, cost):
                if key not in data:
                    raise ValueError(f"graph: expected edge ({start!r}, {end!r}) to have {key!r}, got {sorted(data)}.")
        if not graph.is_directed():
            edges += [(end, start, data) for start, end, data in edges]
        for ends, numbers in pairs.items():
            if set(numbers) != set(_NUMBERS):
                raise ValueError(f"pairs: expected {', '.join(_NUMBERS)} for {ends!r}, got {', '.join(numbers)}.")
        places = [data.get(position) for _, data in graph.nodes(data=True)]
        return cls.from_arrays(
            [edge[0] for edge in edges],
            [edge[1] for edge in edges],
            [edge[2][time] for edge in edges],
            [edge[2][cost] for edge in edges],
            [ends[0] for ends in pairs],
            [ends[1] for ends in pairs],
            *([numbers[key] for numbers in pairs.values()] for key in _NUMBERS),
            nodes=list(graph.nodes),
            coordinates=None if any(place is None for place in places) else places,
            not_passed=not_passed,
            existing=existing,
            detour=detour,
        )

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
        link, pair = np.nonzero(self._graph.usable(self.origin, self.destination, self.detour).T)
        return link, pair

    def problem(self, minimal_share: float = 1e-6) -> BilevelProblem:
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
        link, pair = self.flows
        links, pairs = len(self.tail), len(self.origin)
        conservation = Conservation(self.tail[link], self.head[link], pair, self.origin, len(self.nodes))
        load = Load(self.demand[pair], link, links, pairs)
        return BilevelProblem(
            upper=_loss,
            lower=_travel,
            coupling=[
                LinearCoupling(A=conservation, lower=0.0, upper=0.0),
                LinearCoupling(A=load, B=-sp.eye(links), upper=0.0),
            ],
            x_set=NonNegative() if self.existing is None else Box(self.existing, np.inf),
            y_set=Product({"flow": Box(0.0, 1.0), "share": Box(minimal_share, 1 - minimal_share)}),
            data={
                "flow_time": self.demand[pair] * self.time[link],
                **{name: getattr(self, name) for name in ("cost", "demand", "outside", "revenue")},
            },
            y_like={"flow": np.zeros(len(link)), "share": np.zeros(pairs)},
        )

    def start(self) -> np.ndarray:
        """Return capacities to start from: those the network came with, or what its travellers would fill.

        The latter are the loads if everyone took the shortest way and the shares were those of ample capacity; no
        link has less than a tenth of the mean, so that all of them are open.
        """
        if self.capacities is not None:
            return self.capacities
        load = self._ample_load
        return np.maximum(np.maximum(load, 0.1 * load.mean()), 0.0 if self.existing is None else self.existing)

    @functools.cached_property
    def _ample_load(self) -> np.ndarray:
        """The links' loads if no capacity was scarce and everyone took one shortest way."""
        load = np.zeros(len(self.tail))
        travellers = self.demand * expit(self.outside - self.shortest_times)
        for number, route in zip(travellers, self._graph.shortest_routes(self.origin, self.destination), strict=True):
            load[route] += number
        return load

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
            "travel_time": time / share,
            "outside_time": self.outside,
        }

    def _labels(self, positions: np.ndarray) -> np.ndarray:
        plain = all(type(name) is type(self.nodes[0]) for name in self.nodes) and isinstance(self.nodes[0], int | str)
        labels = np.empty(len(self.nodes), object)
        labels[:] = self.nodes
        return (np.array(self.nodes) if plain else labels)[positions]


_ENDS = dict.fromkeys(("tail", "head", "origin", "destination"), "a node's position")
_OF_LINKS = ("tail", "head", "time", "cost")
_NUMBERS = ("demand", "outside", "revenue")
_OF_PAIRS = ("origin", "destination", *_NUMBERS)


def _loss(x: Float[Array, " links"], y: dict[str, Array], data: dict[str, Array]) -> Float[Array, ""]:
    return data["cost"] @ x - data["revenue"] @ y["share"]


def _travel(x: Float[Array, " links"], y: dict[str, Array], data: dict[str, Array]) -> Float[Array, ""]:
    share, rest = y["share"], 1 - y["share"]
    choice = data["outside"] * rest + share * (jnp.log(share) - 1) + rest * (jnp.log(rest) - 1)
    return data["flow_time"] @ y["flow"] + data["demand"] @ choice


def _check_reached(times: np.ndarray, origin: Sequence[Any], destination: Sequence[Any]) -> None:
    lost = np.flatnonzero(~np.isfinite(times))
    if lost.size:
        raise ValueError(
            f"pairs: expected a route from every origin to its destination, found none for {lost.size} of {len(times)} "
            f"pairs, the first from {origin[lost[0]]!s} to {destination[lost[0]]!s}."
        )


def _names(ends: Iterable[Any]) -> list[Hashable]:
    """Return names as Python objects: numpy's integers would be printed with their type."""
    return [end.item() if isinstance(end, np.generic) else end for end in ends]


def _in_order(names: set[Hashable]) -> list[Any]:
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:  # names of different kinds have no order of their own
        return sorted(names, key=repr)


def _spread(numbers: Any, count: int, name: str) -> np.ndarray:
    try:
        return np.broadcast_to(np.asarray(numbers, np.float64), (count,)).copy()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a number or {count} numbers, got shape {np.shape(numbers)}.") from error


def _columns(path: Path, content: dict[str, Any], table: str, keys: tuple[str, ...]) -> dict[str, list[Any]]:
    rows = content.get(table)
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a list {table!r}, got {type(rows).__name__}.")
    for index, row in enumerate(rows):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            raise ValueError(f"{path}, {table}[{index}]: expected {', '.join(keys)}, found no {', '.join(missing)}.")
    return {key: [row[key] for row in rows] for key in keys}
