"""Networks from networkx graphs."""

from collections.abc import Hashable, Mapping
from typing import Any

from bilevax.problems.network.data import NUMBERS


def read(
    graph: Any, pairs: Mapping[tuple[Hashable, Hashable], Mapping[str, float]], time: str, cost: str, position: str
) -> dict[str, Any]:
    """Return the arguments of `NetworkDesign.from_arrays` that a graph holds; see `NetworkDesign.from_networkx`."""
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
        if set(numbers) != set(NUMBERS):
            raise ValueError(f"pairs: expected {', '.join(NUMBERS)} for {ends!r}, got {', '.join(numbers)}.")
    places = [data.get(position) for _, data in graph.nodes(data=True)]
    return {
        "tail": [edge[0] for edge in edges],
        "head": [edge[1] for edge in edges],
        "time": [edge[2][time] for edge in edges],
        "cost": [edge[2][cost] for edge in edges],
        "origin": [ends[0] for ends in pairs],
        "destination": [ends[1] for ends in pairs],
        **{key: [numbers[key] for numbers in pairs.values()] for key in NUMBERS},
        "nodes": list(graph.nodes),
        "coordinates": None if any(place is None for place in places) else places,
    }
