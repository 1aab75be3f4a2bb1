"""Data of the step's benchmark, from those in the package: of the order of one, as its fixed step sizes need."""

import dataclasses

import numpy as np

from bilevax import datasets
from bilevax.problems import NetworkDesign


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Return the paper's 45 quadratic features of the diabetes data, and the labels, shuffled."""
    base, labels = datasets.diabetes()
    first, second = np.triu_indices(base.shape[1], k=1)
    features = np.column_stack([np.ones(len(base)), base, base**2, base[:, first] * base[:, second]])
    order = np.random.default_rng(0).permutation(len(base))
    return features[order], labels[order]


def nine_nodes() -> NetworkDesign:
    """Return the 9-node network of the paper's experiments: 30 links, 72 pairs."""
    return datasets.network("paper9")


def sioux_falls() -> NetworkDesign:
    """Return a problem on the Sioux Falls network: 24 nodes, 76 links, 528 pairs."""
    roads = datasets.roads("SiouxFalls")
    time, demand = roads.time / roads.time.max(), roads.demand / roads.demand.mean()
    outside = np.full(len(demand), 1.5)
    return dataclasses.replace(
        roads, time=time, cost=2 * time, demand=demand, outside=outside, revenue=3 * demand, capacities=None
    )
