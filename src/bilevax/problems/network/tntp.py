"""Road networks in the TNTP text format of *Transportation Networks for Research*."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bilevax._support import parsing


@dataclasses.dataclass(frozen=True)
class RoadNetwork:
    """The links of a ``*_net.tntp`` file; nodes are numbered from 1, as in the file.

    Attributes
    ----------
    nodes
        The number of nodes; the first ones are zones, where trips begin and end.
    first_through_node
        Nodes with a smaller number may begin or end a trip, but no trip passes through them.
    tail, head
        The nodes a link leads from and to.
    length, free_flow_time
        One number a link, in the units of the file.
    """

    nodes: int
    first_through_node: int
    tail: np.ndarray
    head: np.ndarray
    length: np.ndarray
    free_flow_time: np.ndarray


@dataclasses.dataclass(frozen=True)
class Trips:
    """The demand of a ``*_trips.tntp`` file: positive, and between different zones."""

    origin: np.ndarray
    destination: np.ndarray
    demand: np.ndarray


def read_network(path: str | Path) -> RoadNetwork:
    """Read a ``*_net.tntp`` file.

    Raises
    ------
    ValueError
        With the file and the line that is malformed, what came and what was expected.
    """
    path = Path(path)
    tags: dict[str, int] = {}
    links: list[tuple[float, ...]] = []
    for number, line in _lines(path):
        if line.startswith("<"):
            tag, _, value = line[1:].partition(">")
            if tag in _COUNTS:
                tags[tag] = parsing.integer(value.strip(), path, number, f"<{tag}> and a count")
        elif not line.startswith("~"):
            links.append(_link(line.split(";")[0].split(), path, number))
            _check_nodes(links[-1][:2], tags.get("NUMBER OF NODES"), path, number)
    for tag in _COUNTS:
        if tag not in tags:
            raise ValueError(f"{path}: expected a line <{tag}>, found none.")
    if len(links) != tags["NUMBER OF LINKS"]:
        raise ValueError(f"{path}: expected {tags['NUMBER OF LINKS']} links as its header says, found {len(links)}.")
    table = np.array(links).reshape(-1, 5)
    return RoadNetwork(
        nodes=tags["NUMBER OF NODES"],
        first_through_node=tags["FIRST THRU NODE"],
        tail=table[:, 0].astype(int),
        head=table[:, 1].astype(int),
        length=table[:, 3],
        free_flow_time=table[:, 4],
    )


def read_trips(path: str | Path) -> Trips:
    """Read a ``*_trips.tntp`` file; pairs without demand, and trips within a zone, are left out.

    Raises
    ------
    ValueError
        With the file and the line that is malformed, what came and what was expected.
    """
    path = Path(path)
    trips: list[tuple[int, int, float]] = []
    origin, total, announced = None, 0.0, None
    for number, line in _lines(path):
        if line.startswith("<TOTAL OD FLOW>"):
            announced = parsing.number(line.partition(">")[2].strip(), path, number, "<TOTAL OD FLOW> and a number")
        if line.startswith(("<", "~")):
            continue
        if line.lower().startswith("origin"):
            origin = parsing.integer(line[len("origin") :].strip(), path, number, "Origin and a node number")
            continue
        if origin is None:
            parsing.refuse(path, number, "a line 'Origin ...' before the first trips", line)
        for entry in filter(str.strip, line.split(";")):
            destination, colon, flow = entry.partition(":")
            if not colon:
                parsing.refuse(path, number, "entries 'destination : flow;'", entry.strip())
            target = parsing.integer(destination.strip(), path, number, "a destination's number before the colon")
            demand = parsing.number(flow.strip(), path, number, "a flow after the colon")
            if not 0 <= demand < np.inf:
                parsing.refuse(path, number, "a flow that is not negative", flow.strip())
            total += demand
            if demand > 0 and target != origin:
                trips.append((origin, target, demand))
    if announced is not None and abs(total - announced) > 1e-3 * announced:
        raise ValueError(f"{path}: expected a total flow of {announced:g} as its header says, found {total:g}.")
    if not trips:
        raise ValueError(f"{path}: expected trips between different zones, found none.")
    return Trips(
        np.array([trip[0] for trip in trips]), np.array([trip[1] for trip in trips]), np.array([t[2] for t in trips])
    )


def read_coordinates(path: str | Path, nodes: int) -> np.ndarray:
    """Read a ``*_node.tntp`` file: one row (x, y) a node, in the order of their numbers.

    Raises
    ------
    ValueError
        With the file and the line that is malformed, or the node that is missing.
    """
    path = Path(path)
    found = np.full((nodes, 2), np.nan)
    for number, line in _lines(path):
        words = line.split(";")[0].split()
        if line.startswith(("<", "~")) or words[:1] == ["Node"] or words[:1] == ["node"]:
            continue
        if len(words) != 3:
            parsing.refuse(path, number, "a node's number and two coordinates", line)
        node = parsing.integer(words[0], path, number, "a node's number")
        _check_nodes((node,), nodes, path, number)
        found[node - 1] = [parsing.number(word, path, number, "a coordinate") for word in words[1:]]
    missing = np.flatnonzero(np.isnan(found).any(axis=1))
    if missing.size:
        raise ValueError(f"{path}: expected coordinates of {nodes} nodes, found none of node {missing[0] + 1}.")
    return found


_COUNTS = ("NUMBER OF NODES", "FIRST THRU NODE", "NUMBER OF LINKS")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold something, stripped, with their numbers."""
    for number, line in enumerate(parsing.text(path).splitlines(), start=1):
        if line.strip():
            yield number, line.strip()


def _link(words: list[str], path: Path, number: int) -> tuple[float, ...]:
    """Return what a design needs of a link's ten columns: its ends, capacity, length and free-flow time."""
    expected = "ten numbers: init node, term node, capacity, length, free-flow time, b, power, speed, toll, type"
    if len(words) != 10:
        raise ValueError(f"{path}, line {number}: expected {expected}, got {len(words)}.")
    ends = [parsing.integer(word, path, number, "the numbers of a link's two nodes") for word in words[:2]]
    rest = [parsing.number(word, path, number, expected) for word in words[2:5]]
    if not (np.isfinite(rest).all() and min(rest) >= 0):
        parsing.refuse(
            path, number, "a capacity, length and free-flow time that are not negative", " ".join(words[2:5])
        )
    return (*ends, *rest)


def _check_nodes(ends: tuple[float, ...], nodes: int | None, path: Path, number: int) -> None:
    for node in ends:
        if node < 1 or (nodes is not None and node > nodes):
            parsing.refuse(path, number, f"a node's number from 1 to {nodes or 'the number of nodes'}", f"{node:g}")
