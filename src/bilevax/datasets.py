"""Data sets: those of the paper and road networks, which are in the package, and files of one's own.

Nothing is downloaded. ``bilevax/data/README.md`` tells where each comes from and what its licence is.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bilevax._support import parsing
from bilevax.problems.classification import Dataset, Split, paper_splits, quadratic_features
from bilevax.problems.network.design import NetworkDesign

__all__ = [
    "Dataset",
    "Split",
    "diabetes",
    "fourclass",
    "from_bunch",
    "libsvm",
    "network",
    "paper_splits",
    "quadratic_features",
    "roads",
]

_INSIDE = Path(__file__).parent / "data"
_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


def network(name: str, *, detour: float | None = None) -> NetworkDesign:
    """Return a network of the published experiments.

    Parameters
    ----------
    name
        ``"paper3"`` and ``"paper9"``, those of the SFLCB paper with 3 and 9 nodes, or ``"seville"``, the 24 nodes of
        the BLOCC paper.
    detour
        See `bilevax.problems.NetworkDesign`.

    Examples
    --------
    >>> import bilevax as bx
    >>> len(bx.datasets.network("paper9").tail)
    30
    """
    return NetworkDesign.from_json(_inside("networks", name), detour=detour)


def roads(name: str, *, detour: float | None = None, **rates: float) -> NetworkDesign:
    """Return the design problem of a road network of the TNTP collection.

    Parameters
    ----------
    name
        ``"SiouxFalls"``, ``"Eastern-Massachusetts"``, ``"Berlin-Friedrichshain"`` or ``"Braess-Example"``; for
        academic research only. A beginning that tells which is enough.
    detour, rates
        Of `bilevax.problems.NetworkDesign.from_tntp`.

    Examples
    --------
    >>> import bilevax as bx
    >>> len(bx.datasets.roads("SiouxFalls", detour=1.2).tail)
    76
    """
    folder = _inside("roads", name)
    files = [folder / f"{part}.tntp" for part in ("net", "trips", "node")]
    return NetworkDesign.from_tntp(*(path for path in files if path.is_file()), detour=detour, **rates)


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

    They are the copy that the published experiments use, in its order: LIBSVM's file ``diabetes_scale``, but for nine
    entries. ``path`` is another file to read in its place.
    """
    path = _INSIDE / "classification" / "diabetes_scale" if path is None else path
    return dataclasses.replace(libsvm(path), name="diabetes")


def fourclass(path: str | Path | None = None) -> Dataset:
    """Return the fourclass data: 862 rows, 2 features scaled to [-1, 1].

    They are read from ``path``, or from LIBSVM's file ``fourclass_scale`` in the folder ``BILEVAX_DATA``.

    Raises
    ------
    FileNotFoundError
        Saying where the data were looked for, and where they are to be had.
    """
    if path is None:
        folder = os.environ.get("BILEVAX_DATA")
        places = [Path(folder) / "libsvm" / "fourclass_scale", Path(folder) / "fourclass_scale"] if folder else []
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            looked = " and ".join(map(str, places)) or "no folder, for BILEVAX_DATA is not set"
            raise FileNotFoundError(
                f"fourclass_scale: expected the file at a path you give or in the folder BILEVAX_DATA; looked at "
                f"{looked}. Get it from {_LIBSVM_PAGE}."
            )
    return dataclasses.replace(libsvm(path), name="fourclass")


def _inside(kind: str, name: str) -> Path:
    """Return the file or folder of the package's data whose name begins so, whatever its case, hyphens and spaces."""
    plain = lambda text: re.sub(r"[\W_]", "", text).lower()
    there = sorted((_INSIDE / kind).iterdir())
    found = [path for path in there if plain(path.stem).startswith(plain(name))] if plain(name) else []
    if len(found) != 1:
        raise ValueError(f"name: expected one of {', '.join(path.stem for path in there)}, got {name!r}.")
    return found[0]


def _as_signs(labels: np.ndarray, where: str) -> np.ndarray:
    classes = np.unique(labels)
    if len(classes) != 2:
        raise ValueError(f"{where}: expected labels of two classes, got {len(classes)}: {classes[:5]}.")
    return np.where(labels == classes[1], 1.0, -1.0)
