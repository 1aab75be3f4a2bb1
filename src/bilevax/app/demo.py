"""What ``bilevax demo`` solves: the paper's toy, the hyperparameters of an SVM, and the design of a small network."""

from typing import Any, NamedTuple

import numpy as np

from bilevax import datasets
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.design import NetworkDesign
from bilevax.problems.svm import svm
from bilevax.problems.toy import toy


class Case(NamedTuple):
    """A problem with its start, what it is about, and the network it comes from, if any."""

    name: str
    about: str
    problem: BilevelProblem
    x0: Any
    network: NetworkDesign | None = None


def cases() -> list[Case]:
    """Return the problems of the demonstration."""
    split = datasets.paper_splits(datasets.quadratic_features(datasets.diabetes()), 1)[0]
    network = datasets.network("paper3")
    return [
        Case("toy", "one variable each, four local minima", toy(), 0.7),
        Case(
            "svm",
            "500 hyperparameters, the Pima diabetes data",
            svm(split.train, split.validation),
            np.full(len(split.train), 3.0),
        ),
        Case(
            "network",
            f"capacities of {len(network.tail)} links, the paper's network of 3 nodes",
            network.problem(),
            network.start(),
            network,
        ),
    ]
