"""Data sets: what is read, what is refused, and the paper's splits by their certified optima."""

import types
import zipfile
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hatchling.builders.wheel import WheelBuilder
from scipy.optimize import minimize

from bilevax import datasets
from bilevax.datasets import Dataset
from shared_data import INSIDE, data_file

# Global optima of the SVM problem on the paper's ten splits of the diabetes data, from the data folder's own account.
OPTIMA = (417.3201, 391.2525, 429.1404, 438.2940, 385.8223, 406.6983, 393.2591, 388.3652, 384.7303, 405.9452)


def convex_bound(split: datasets.Split) -> float:
    """Return the least of the upper objective when the lower level's optimality is dropped: a convex problem."""
    margins = [part.labels[:, None] * np.c_[part.features, np.ones(len(part))] for part in split[:2]]

    def value(y):
        short, loss = np.maximum(0, 1 - margins[0] @ y), np.exp(1 - margins[1] @ y)
        return loss.sum() + 0.5 * short @ short, -loss @ margins[1] - short @ margins[0]

    start = np.zeros(margins[0].shape[1])
    return float(minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 5000}).fun)


def test_the_files_are_read_as_described():
    diabetes, fourclass = datasets.diabetes(), datasets.fourclass(data_file("libsvm", "fourclass_scale"))
    assert diabetes.features.shape == (768, 8)
    assert fourclass.features.shape == (862, 2)
    assert (np.sum(diabetes.labels == 1), np.sum(diabetes.labels == -1)) == (500, 268)
    assert (np.sum(fourclass.labels == 1), np.sum(fourclass.labels == -1)) == (307, 555)
    assert (diabetes.name, fourclass.name) == ("diabetes", "fourclass")
    features, labels = diabetes
    assert features is diabetes.features
    assert labels is diabetes.labels
    np.testing.assert_array_equal(
        diabetes.features[0], [-0.294118, 0.487437, 0.180328, -0.292929, -1, 0.00149028, -0.53117, -0.0333333]
    )


@pytest.mark.parametrize("name", ["diabetes_scale", "fourclass_scale", "heart_scale", "australian"])
def test_agrees_with_scikit_learn(name):
    reader = pytest.importorskip("sklearn.datasets")
    path = data_file("libsvm", name)
    features, labels = reader.load_svmlight_file(str(path))
    for sparse in (False, True):
        read = datasets.libsvm(path, sparse=sparse)
        assert sp.issparse(read.features) == sparse
        np.testing.assert_array_equal(sp.csr_matrix(read.features).toarray(), features.toarray())
        np.testing.assert_array_equal(read.labels, labels)


def test_the_papers_splits_have_the_papers_optima():
    splits = datasets.paper_splits(datasets.quadratic_features(datasets.diabetes()))
    assert [tuple(map(len, split)) for split in splits] == [(500, 150, 118)] * 10
    assert splits[0].train.features.shape == (500, 45)
    np.testing.assert_allclose([convex_bound(split) for split in splits], OPTIMA, atol=6e-5)


def test_the_networks_of_the_package():
    sizes = {"paper3": (3, 6, 6), "paper9": (9, 30, 72), "seville": (24, 88, 552)}
    for name, size in sizes.items():
        network = datasets.network(name)
        assert (len(network.nodes), len(network.tail), len(network.origin)) == size
    np.testing.assert_array_equal(datasets.network("paper3").revenue, [2, 6, 2, 1, 6, 1])
    assert datasets.network("paper9", detour=1.5).detour == 1.5
    with pytest.raises(ValueError, match="expected one of paper3, paper9, seville, got 'paper'"):
        datasets.network("paper")


def test_the_roads_of_the_package():
    berlin = datasets.roads("Berlin-Friedrichshain", detour=1.05, fare=2.0)
    assert (len(berlin.nodes), len(berlin.tail), len(berlin.origin)) == (224, 523, 506)
    assert berlin.detour == 1.05
    np.testing.assert_allclose(berlin.revenue, 2.0 * berlin.demand)
    for name in ("Sioux Falls", "siouxfalls", "sioux"):
        assert len(datasets.roads(name).tail) == 76
    with pytest.raises(ValueError, match=r"expected one of Berlin-Friedrichshain, .*, got ''"):
        datasets.roads("")


def test_the_wheel_holds_the_data(tmp_path):
    """What is in the package is in the wheel: hatchling leaves out what git ignores."""
    (wheel,) = WheelBuilder(str(INSIDE.parents[2])).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"bilevax/data/{path.relative_to(INSIDE).as_posix()}" for path in INSIDE.rglob("*") if path.is_file()}
    assert len(wanted) >= 15
    assert wanted <= names


def test_missing_files_say_where_they_are_to_be_had(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVAX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"fourclass_scale: .*BILEVAX_DATA is not set.*https://"):
        datasets.fourclass()
    monkeypatch.setenv("BILEVAX_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "libsvm" / "fourclass_scale")):
        datasets.fourclass()
    with pytest.raises(FileNotFoundError, match="expected a file in the LIBSVM format"):
        datasets.libsvm(tmp_path / "absent")


def test_libsvm_maps_two_classes_and_leaves_gaps_zero(tmp_path):
    path = tmp_path / "small"
    path.write_text("2 1:0.5 3:-1 # a comment\n\n1 2:4e-1\n")
    read = datasets.libsvm(path)
    np.testing.assert_array_equal(read.features, [[0.5, 0, -1], [0, 0.4, 0]])
    np.testing.assert_array_equal(read.labels, [1, -1])
    assert datasets.libsvm(path, n_features=5).features.shape == (2, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("+1 1:0.5\n-1 2:x\n", r"bad, line 2: expected index:value, got 'x'"),
        ("+1 1:0.5\n-1 2\n", r"bad, line 2: expected index:value .*, got '2'"),
        ("one 1:0.5\n", r"bad, line 1: expected a label, got 'one'"),
        ("+1 2:0.5 2:1\n", r"bad, line 1: expected index:value with an index above 2, got '2:1'"),
        ("+1 0:0.5\n", r"bad, line 1: expected index:value with an index above 0, got '0:0.5'"),
        ("+1 1:1\n+1 1:2\n", r"bad: expected labels of two classes, got 1"),
        ("1 1:1\n2 1:2\n3 1:2\n", r"bad: expected labels of two classes, got 3"),
        ("\n", r"bad: expected lines .*, found none"),
    ],
)
def test_malformed_lines_are_named(tmp_path, text, message):
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        datasets.libsvm(path)


def test_a_bunch_of_two_classes():
    loaders = pytest.importorskip("sklearn.datasets")
    bunch = loaders.load_breast_cancer()
    read = datasets.from_bunch(bunch, "breast cancer")
    np.testing.assert_array_equal(read.features, bunch.data)
    np.testing.assert_array_equal(read.labels, 2 * bunch.target - 1)
    words = types.SimpleNamespace(data=[[1.0], [2.0]], target=["no", "yes"])
    np.testing.assert_array_equal(datasets.from_bunch(words).labels, [-1, 1])
    with pytest.raises(ValueError, match="expected labels of two classes, got 3"):
        datasets.from_bunch(loaders.load_iris())
    with pytest.raises(ValueError, match="found no target"):
        datasets.from_bunch(types.SimpleNamespace(data=[[1.0]]))


def test_quadratic_features():
    labels: Any = [1.0]
    plain = Dataset([[2.0, 3.0, 5.0]], labels, "three")
    wide = datasets.quadratic_features(plain)
    np.testing.assert_array_equal(wide.features, [[1, 2, 3, 5, 4, 9, 25, 6, 10, 15]])
    assert wide.name == "three"


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([1.0, 2.0], [1.0, -1.0], "expected a matrix"),
        ([[1.0], [2.0]], [1.0], "expected one a row, 2 in all"),
        ([[1.0], [2.0]], [1.0, 0.0], r"expected -1 and \+1"),
        ([[1.0], [np.nan]], [1.0, -1.0], "got NaN"),
        ([["a"]], [1.0], "features: expected numbers"),
    ],
)
def test_wrong_data_are_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        Dataset(features, labels)


def test_splits_need_enough_rows():
    with pytest.raises(ValueError, match="at most 2 rows together, got 500 and 150"):
        datasets.paper_splits(Dataset(np.array([[1.0], [2.0]]), np.array([1.0, -1.0])))
