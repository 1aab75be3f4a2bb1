"""Data of the benchmark: from the folder that tests use, or synthetic of the same sizes where it is missing."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Network:
    """Links with travel time and building cost; origin-destination pairs with demand, outside time and revenue."""

    nodes: int
    tail: np.ndarray
    head: np.ndarray
    time: np.ndarray
    cost: np.ndarray
    origin: np.ndarray
    destination: np.ndarray
    demand: np.ndarray
    outside: np.ndarray
    revenue: np.ndarray


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Return the paper's 45 quadratic features of the diabetes data, and the labels, shuffled."""
    random = np.random.default_rng(0)
    path = _folder() / "libsvm" / "diabetes_scale"
    if path.exists():
        rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
        labels = np.array([float(row[0]) for row in rows])
        base = np.zeros((len(rows), 8))
        for index, row in enumerate(rows):
            for entry in row[1:]:
                column, value = entry.split(":")
                base[index, int(column) - 1] = float(value)
    else:
        base = random.uniform(-1.0, 1.0, (768, 8))
        labels = np.sign(base.sum(axis=1) + random.standard_normal(768))
    first, second = np.triu_indices(base.shape[1], k=1)
    features = np.column_stack([np.ones(len(base)), base, base**2, base[:, first] * base[:, second]])
    order = random.permutation(len(base))
    return features[order], labels[order]


def nine_nodes() -> Network:
    """Return the 9-node network of the paper's experiments: 30 links, 72 pairs."""
    path = _folder() / "networks" / "net9.json"
    if not path.exists():
        return _synthetic(nodes=9, links=30, pairs=72)
    content = json.loads(path.read_text())
    column = lambda rows, key: np.array([row[key] for row in content[rows]])
    ends = lambda rows, key: (column(rows, key) - 1).astype(np.int32)
    return Network(
        nodes=content["n_nodes"],
        tail=ends("links", "i"),
        head=ends("links", "j"),
        time=column("links", "t"),
        cost=column("links", "c"),
        origin=ends("od", "o"),
        destination=ends("od", "d"),
        demand=column("od", "w"),
        outside=column("od", "t_ext"),
        revenue=column("od", "m"),
    )


def sioux_falls() -> Network:
    """Return a problem on the Sioux Falls network: 24 nodes, 76 links, 528 pairs; numbers of the order of one."""
    folder = _folder() / "tntp" / "SiouxFalls"
    if not folder.exists():
        return _synthetic(nodes=24, links=76, pairs=528)
    table = (folder / "SiouxFalls_net.tntp").read_text().split("~")[-1].splitlines()[1:]
    links = np.array([line.split()[:5] for line in table if line.strip()], dtype=float)
    trips, origin = [], 0
    for line in (folder / "SiouxFalls_trips.tntp").read_text().split("<END OF METADATA>")[-1].splitlines():
        if line.startswith("Origin"):
            origin = int(line.split()[1])
        for entry in filter(str.strip, line.split(";") if ":" in line else []):
            destination, flow = entry.split(":")
            if float(flow) > 0:
                trips.append((origin - 1, int(destination) - 1, float(flow)))
    pairs = np.array(trips)
    time, demand = links[:, 4] / 10, pairs[:, 2] / 1000
    return Network(
        nodes=int(links[:, :2].max()),
        tail=(links[:, 0] - 1).astype(np.int32),
        head=(links[:, 1] - 1).astype(np.int32),
        time=time,
        cost=2 * time,
        origin=pairs[:, 0].astype(np.int32),
        destination=pairs[:, 1].astype(np.int32),
        demand=demand,
        outside=np.full(len(pairs), 1.5),
        revenue=3 * demand,
    )


def _folder() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("BILEVAX_DATA", beside))


def _synthetic(nodes: int, links: int, pairs: int) -> Network:
    """Return a ring with random chords, all links in both directions, of the given sizes."""
    random = np.random.default_rng(0)
    ring = [(node, (node + 1) % nodes) for node in range(nodes)]
    others = [(i, j) for i in range(nodes) for j in range(i + 1, nodes) if (i, j) not in ring and (j, i) not in ring]
    chords = [others[index] for index in random.permutation(len(others))[: links // 2 - nodes]]
    ends = np.array([pair for i, j in ring + chords for pair in ((i, j), (j, i))], np.int32)
    all_pairs = np.array([(i, j) for i in range(nodes) for j in range(nodes) if i != j], np.int32)
    chosen = all_pairs[np.sort(random.permutation(len(all_pairs))[:pairs])]
    return Network(
        nodes=nodes,
        tail=ends[:, 0].copy(),
        head=ends[:, 1].copy(),
        time=random.uniform(0.3, 1.0, links),
        cost=random.uniform(1.0, 3.0, links),
        origin=chosen[:, 0].copy(),
        destination=chosen[:, 1].copy(),
        demand=random.uniform(0.1, 2.0, pairs),
        outside=random.uniform(1.0, 2.0, pairs),
        revenue=random.uniform(1.0, 5.0, pairs),
    )
