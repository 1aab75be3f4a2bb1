"""Rows of features with two classes, and their splits: what the problems of classification are built from."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features, each with a label -1 or +1; ``X, y = dataset`` takes it apart.

    Attributes
    ----------
    features
        A matrix with one row an example, dense or scipy.sparse.
    labels
        One -1 or +1 a row.
    name
        What the data are called.
    """

    features: Any
    labels: np.ndarray
    name: str = ""

    def __post_init__(self):
        sparse = sp.issparse(self.features)
        features = sp.csr_matrix(self.features, dtype=np.float64) if sparse else _floats(self.features, "features")
        labels = _floats(self.labels, "labels")
        if features.ndim != 2:
            raise ValueError(f"features: expected a matrix with one row an example, got shape {features.shape}.")
        if not np.isfinite(features.data if sp.issparse(features) else features).all():
            raise ValueError("features: expected finite numbers, got NaN or infinity.")
        if labels.shape != features.shape[:1]:
            raise ValueError(f"labels: expected one a row, {features.shape[0]} in all, got shape {labels.shape}.")
        if not np.isin(labels, (-1.0, 1.0)).all():
            raise ValueError(f"labels: expected -1 and +1, got {np.unique(labels)[:5]}.")
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.features, self.labels))

    def __len__(self) -> int:
        return self.features.shape[0]

    def __getitem__(self, rows: Any) -> "Dataset":
        """Return some of the rows: a slice, a mask or positions."""
        return Dataset(self.features[rows], self.labels[rows], self.name)

    def joined(self, other: "Dataset") -> "Dataset":
        """Return these rows, and those of another data set behind them."""
        parts = (self.features, other.features)
        if parts[0].shape[1] != parts[1].shape[1]:
            raise ValueError(
                f"features: expected {parts[0].shape[1]} features as in the other rows, got {parts[1].shape[1]}."
            )
        sparse = any(map(sp.issparse, parts))
        features = sp.vstack(parts, format="csr") if sparse else np.vstack(parts)
        return Dataset(features, np.concatenate([self.labels, other.labels]), self.name)


class Split(NamedTuple):
    """A data set in three parts."""

    train: Dataset
    validation: Dataset
    test: Dataset


def quadratic_features(dataset: Dataset) -> Dataset:
    """Return the data with the features ``[1, z, z^2, z_i z_j for i < j]``, dense."""
    base = dataset.features.toarray() if sp.issparse(dataset.features) else dataset.features
    first, second = np.triu_indices(base.shape[1], k=1)
    columns = [np.ones(len(base)), base, base**2, base[:, first] * base[:, second]]
    return dataclasses.replace(dataset, features=np.column_stack(columns))


def paper_splits(dataset: Dataset, count: int = 10, *, train: int = 500, validation: int = 150) -> list[Split]:
    """Return the splits of the published SVM experiments; the rows that are left over are for testing.

    The experiments shuffle one table in place, by the seeds 0, 1, ... one after another, each on the order that the
    last one left. The paper has ``paper_splits(quadratic_features(diabetes()))``.
    """
    if train < 1 or validation < 1 or train + validation > len(dataset):
        raise ValueError(
            f"train, validation: expected positive numbers of at most {len(dataset)} rows together, "
            f"got {train} and {validation}."
        )
    order, splits = np.arange(len(dataset)), []
    for seed in range(count):
        np.random.RandomState(seed).shuffle(order)  # the generator that was used
        parts = np.split(order, [train, train + validation])
        splits.append(Split(*(dataset[part] for part in parts)))
    return splits


def _floats(numbers: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected numbers, got {type(numbers).__name__}: {error}.") from error
