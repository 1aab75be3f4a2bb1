"""The families of problems: the toy, random quadratics, the paper's SVM."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax import datasets, problems
from bilevax.datasets import Dataset
from bilevax.model.operators import Diagonal, Sparse
from bilevax.model.problem import place
from known import linear_rows
from shared_data import data_file
from test_datasets import OPTIMA, convex_bound


def rows(count: int, seed: int = 0, size: int = 3) -> Dataset:
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, size))
    noisy = features @ np.arange(1, size + 1) + 0.5 + random.standard_normal(count)
    return Dataset(features, np.where(noisy > 0, 1.0, -1.0), "random")


def test_the_families_are_called_by_their_names():
    assert isinstance(problems.toy(), bx.BilevelProblem)
    found = problems.quadratic(2, 3, 2, upper="nonconvex", seed=4)
    assert isinstance(found.problem, bx.BilevelProblem)
    assert found.constants.mu_g == 1.0
    assert tuple(found) == (found.problem, found.constants)
    assert problems.textbook.names()
    with pytest.raises(ValueError, match="n_y: expected at least 1, got 0"):
        problems.quadratic(n_y=0)


# --- the SVM


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_svm_is_what_the_paper_says(flat, sparse):
    train, validation = rows(20), rows(10, seed=1)
    given = [Dataset(sp.csr_matrix(part.features), part.labels) if sparse else part for part in (train, validation)]
    problem = problems.svm(*given, bias_weight=0.03, flat=flat)
    assert isinstance(linear_rows(problem).B, Diagonal)
    assert isinstance(linear_rows(problem).A, Sparse) == sparse
    random = np.random.default_rng(2)
    c, w, b = random.random(20), random.standard_normal(3), 0.7
    y = np.append(w, b) if flat else {"weights": w, "bias": np.array(b)}
    margins = [part.labels * (part.features @ w + b) for part in (train, validation)]
    with jax.enable_x64(True):
        placed = place(problem, np.float64)
        loss = np.exp(1 - margins[1]).sum() + 0.5 * c @ c
        assert placed.upper_value(c, y) == pytest.approx(loss, rel=1e-12)
        assert placed.lower_value(c, y) == pytest.approx(0.5 * w @ w + 0.5 * 0.03 * b**2, rel=1e-12)
        (values,) = placed.rows(c, y)
        (lower,), (upper,) = placed.row_bounds((values,))
    np.testing.assert_allclose(values, margins[0] + c, rtol=1e-12)
    np.testing.assert_array_equal(lower, 1.0)
    np.testing.assert_array_equal(upper, np.inf)


def test_svm_layouts_have_one_answer():
    train, validation = rows(20), rows(10, seed=1)
    forms = [problems.svm(train, validation, flat=flat) for flat in (False, True)]
    tree, flat = (bx.certify(problem, np.full(20, 0.8)) for problem in forms)
    assert tree.value == pytest.approx(flat.value, rel=1e-9)
    np.testing.assert_allclose(np.append(tree.y["weights"], tree.y["bias"]), flat.y, atol=1e-8)


def test_another_split_compiles_nothing(compilations):
    bx.certify(problems.svm(rows(20), rows(10, seed=1)), np.full(20, 2.0))
    with compilations() as count:
        bx.certify(problems.svm(rows(20, seed=2), rows(10, seed=3), bias_weight=0.02), np.full(20, 2.0))
    assert count[0] == 0


@pytest.mark.slow
def test_svm_solves_the_papers_first_split():
    split = datasets.paper_splits(datasets.quadratic_features(datasets.diabetes()), 1)[0]
    solution = bx.solve(problems.svm(split.train, split.validation), np.full(500, 3.0))
    assert solution.success, solution.message
    assert solution.value == pytest.approx(OPTIMA[0], abs=1e-4)
    # 64 % of the rows have the more frequent label; a classifier has to do better.
    assert 0.7 < problems.svm_accuracy(solution.y, split.test) < 0.9


@pytest.mark.slow
def test_svm_solves_fourclass():
    split = datasets.paper_splits(datasets.fourclass(data_file("libsvm", "fourclass_scale")), 1)[0]
    solution = bx.solve(problems.svm(split.train, split.validation), np.full(500, 3.0))
    assert solution.success, solution.message
    assert solution.value == pytest.approx(convex_bound(split), abs=1e-4)


def test_predictions():
    dataset = Dataset(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]), np.array([1.0, -1.0, -1.0]))
    for y in ({"weights": np.array([1.0, -1.0]), "bias": 0.5}, np.array([1.0, -1.0, 0.5])):
        for features in (dataset.features, sp.csr_matrix(dataset.features)):
            np.testing.assert_array_equal(problems.svm_predict(y, features), [1.0, -1.0, 1.0])
        assert problems.svm_accuracy(y, dataset) == pytest.approx(2 / 3)


def test_wrong_svms_are_refused():
    with pytest.raises(ValueError, match="validation: expected 3 features as in train, got 2"):
        problems.svm(rows(5), rows(4, size=2))
    with pytest.raises(ValueError, match="bias_weight: expected a positive number, got 0"):
        problems.svm(rows(5), rows(4), bias_weight=0)
    with pytest.raises(ValueError, match="train: expected a Dataset, got ndarray"):
        problems.svm(np.zeros((2, 2)), rows(4))  # pyright: ignore[reportArgumentType]
