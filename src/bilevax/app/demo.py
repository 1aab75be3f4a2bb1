"""What ``bilevax demo`` solves: the paper's toy, the hyperparameters of an SVM, and the design of a small network."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax import datasets
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.design import NetworkDesign
from bilevax.problems.svm import svm
from bilevax.problems.toy import toy

_BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[4] / "shared" / "data"


class Case(NamedTuple):
    """A problem with its start, what it is about, and the network it comes from, if any."""

    name: str
    about: str
    problem: BilevelProblem
    x0: Any
    network: NetworkDesign | None = None


def cases() -> list[Case]:
    """Return the problems of the demonstration, with the data that are at hand; ``about`` says which these are."""
    data, origin = _diabetes()
    split = datasets.paper_splits(datasets.quadratic_features(data), 1)[0]
    network, place = _network()
    return [
        Case("toy", "one variable each, four local minima", toy(), 0.7),
        Case("svm", f"500 hyperparameters, {origin}", svm(split.train, split.validation), np.full(500, 3.0)),
        Case(
            "network", f"capacities of {len(network.tail)} links, {place}", network.problem(), network.start(), network
        ),
    ]


def _diabetes() -> tuple[datasets.Dataset, str]:
    path = _folder() / "libsvm" / "diabetes_scale"
    try:
        return datasets.diabetes(path if path.is_file() else None), "the Pima diabetes data"
    except FileNotFoundError:
        random = np.random.default_rng(0)
        features = random.uniform(-1.0, 1.0, (768, 8))
        labels = np.where(features @ random.normal(size=8) + random.normal(size=768) >= 0, 1.0, -1.0)
        return datasets.Dataset(features, labels), "synthetic data of the diabetes data's size, which were not found"


def _network() -> tuple[NetworkDesign, str]:
    path = _folder() / "networks" / "net3.json"
    if path.is_file():
        return NetworkDesign.from_json(path), "the paper's network of 3 nodes"
    return made_up_network(), "a made-up network, for the paper's was not found"


def made_up_network() -> NetworkDesign:
    """Return a network of three places that needs no file."""
    return NetworkDesign.from_arrays(
        tail=["harbour", "station", "harbour", "airport", "station", "airport"],
        head=["station", "harbour", "airport", "harbour", "airport", "station"],
        time=[1.0, 1.0, 4.0, 4.0, 2.0, 2.0],
        cost=[1.0, 1.0, 5.0, 5.0, 2.5, 2.5],
        origin=["harbour", "station", "harbour", "station"],
        destination=["station", "harbour", "airport", "airport"],
        demand=[1.0, 1.0, 1.5, 1.0],
        outside=[3.0, 3.0, 5.0, 4.0],
        revenue=[2.0, 2.0, 9.0, 3.0],
        coordinates=[[1.0, 0.8], [0.0, 0.0], [0.4, 0.5]],
        nodes=["airport", "harbour", "station"],
    )


def _folder() -> Path:
    return Path(os.environ.get("BILEVAX_DATA") or _BESIDE_THE_CHECKOUT)
