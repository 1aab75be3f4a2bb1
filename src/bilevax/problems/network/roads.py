"""Design problems from road networks, whose files hold roads and trips, but no costs, revenues or alternatives."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax.problems.network import tntp
from bilevax.problems.network.data import check_reached
from bilevax.problems.network.routes import Graph


class Rates(NamedTuple):
    """What a design problem has beyond roads and trips; `NetworkDesign.from_tntp` tells what each is."""

    cost_rate: float
    fare: float
    outside_factor: float
    outside_constant: float
    minimal_time: float


def derive(net: str | Path, trips: str | Path, nodes: str | Path | None, rates: Rates) -> dict[str, Any]:
    """Return the fields of a network, of numbers of the order of one, that TNTP files and rates tell."""
    road, demand = tntp.read_network(net), tntp.read_trips(trips)
    largest = max(demand.origin.max(), demand.destination.max())
    if largest > road.nodes:
        raise ValueError(f"{trips}: expected nodes from 1 to {road.nodes} as in {net}, got {largest}.")
    passable = np.arange(1, road.nodes + 1) >= road.first_through_node
    ends = demand.origin - 1, demand.destination - 1
    graph = lambda time: Graph(road.nodes, road.tail - 1, road.head - 1, time, passable)
    shortest = graph(road.free_flow_time).times(*ends)
    check_reached(shortest, demand.origin.tolist(), demand.destination.tolist())
    mean_time = np.average(shortest, weights=demand.demand)
    if mean_time == 0:
        raise ValueError(f"{net}: expected trips that take time, got free-flow times of 0 on all their ways.")
    time = np.maximum(road.free_flow_time / mean_time, rates.minimal_time)
    weight = demand.demand / demand.demand.mean()
    return {
        "nodes": tuple(range(1, road.nodes + 1)),
        "tail": road.tail - 1,
        "head": road.head - 1,
        "time": time,
        "cost": rates.cost_rate * time,
        "origin": ends[0],
        "destination": ends[1],
        "demand": weight,
        "outside": rates.outside_factor * graph(time).times(*ends) + rates.outside_constant,
        "revenue": rates.fare * weight,
        "coordinates": None if nodes is None else tntp.read_coordinates(nodes, road.nodes),
        "passable": passable,
    }
