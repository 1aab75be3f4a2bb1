import re

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bilevax.sklearn import BilevelSVC


@pytest.fixture(scope="module")
def rows():
    """Classes that overlap: a tenth of the labels is wrong."""
    return make_classification(n_samples=80, n_features=4, n_informative=3, n_redundant=0, flip_y=0.2, random_state=3)


@pytest.fixture(scope="module")
def judged():
    return np.arange(0, 80, 4)


@pytest.fixture(scope="module")
def fitted(rows, judged):
    return BilevelSVC(validation=judged).fit(*rows)


@pytest.mark.slow
@parametrize_with_checks([BilevelSVC(random_state=0)])
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def test_the_classifier_is_the_one_its_bounds_lead_to(rows, judged, fitted):
    X, y = rows
    train = np.setdiff1d(np.arange(len(y)), judged)
    margins = np.where(y[train] == 1, 1.0, -1.0)[:, None] * np.column_stack([X[train], np.ones(len(train))])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 0.01])
    by_scipy = minimize(
        lambda v: 0.5 * v @ (weights * v),
        np.zeros(5),
        jac=lambda v: weights * v,
        constraints={"type": "ineq", "fun": lambda v: margins @ v - 1 + fitted.solution_.x, "jac": lambda v: margins},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert fitted.solution_.success
    np.testing.assert_allclose(np.r_[fitted.coef_[0], fitted.intercept_], by_scipy.x, atol=1e-5)


def test_no_bounds_are_better(rows, judged, fitted):
    """Dropping the lower level's optimality leaves a convex problem: a bound from below, which the answer attains."""
    X, y = rows
    signed = np.where(y == 1, 1.0, -1.0)[:, None] * np.column_stack([X, np.ones(len(y))])
    train = np.setdiff1d(np.arange(len(y)), judged)
    best = minimize(
        lambda v: np.exp(1 - signed[judged] @ v).sum() + 0.5 * (np.maximum(0, 1 - signed[train] @ v) ** 2).sum(),
        np.zeros(5),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    assert fitted.certificate_.value >= best.fun - 1e-7 * best.fun
    assert fitted.certificate_.value == pytest.approx(best.fun, rel=1e-6)


def test_what_a_fit_leaves_behind(rows, fitted):
    X, _ = rows
    assert fitted.coef_.shape == (1, 4)
    assert fitted.intercept_.shape == (1,)
    assert fitted.n_features_in_ == 4
    assert fitted.n_iter_ >= 1
    assert fitted.certificate_ is fitted.solution_.certificate
    assert fitted.solution_.x.shape == (60,)
    np.testing.assert_allclose(fitted.decision_function(X), X @ fitted.coef_[0] + fitted.intercept_)


@pytest.mark.slow
def test_positions_masks_and_given_rows_say_the_same(rows, judged, fitted):
    X, y = rows
    mask = np.isin(np.arange(len(y)), judged)
    for validation, part in ((mask, slice(None)), (judged - 80, slice(None)), ((X[mask], y[mask]), ~mask)):
        other = BilevelSVC(validation=validation).fit(X[part], y[part])
        np.testing.assert_allclose(other.coef_, fitted.coef_, atol=1e-9)


def test_sparse_rows_and_named_classes_change_nothing(rows, judged, fitted):
    X, y = rows
    names = np.array(["no", "yes"], dtype=object)[y]
    other = BilevelSVC(validation=judged).fit(sp.csr_array(X), names)
    np.testing.assert_allclose(other.coef_, fitted.coef_, atol=1e-6)
    assert list(other.classes_) == ["no", "yes"]
    assert np.array_equal(other.predict(sp.csc_matrix(X)) == "yes", fitted.predict(X) == 1)


def test_the_drawn_part_has_the_classes_in_proportion(rows):
    X, y = rows
    few = np.r_[np.flatnonzero(y == 0)[:24], np.flatnonzero(y == 1)[:8]]
    model = BilevelSVC(random_state=0).fit(X[few], y[few])
    train, validation = model._parts(X[few], y[few])
    assert [int((part.labels == 1).sum()) for part in (train, validation)] == [6, 2]
    assert [len(train), len(validation)] == [24, 8]


def test_the_seed_decides(rows):
    first, again, other = (BilevelSVC(random_state=seed).fit(*rows) for seed in (0, 0, 1))
    assert np.array_equal(first.coef_, again.coef_)
    assert not np.allclose(first.coef_, other.coef_)


@pytest.mark.slow
def test_in_a_pipeline_under_cross_validation():
    X, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), BilevelSVC(random_state=0))
    scores = cross_val_score(clone(model), X[::6], y[::6], cv=2, error_score="raise")
    assert scores.min() > 0.9


def test_a_fit_that_is_not_certified_warns_with_the_numbers(rows):
    with pytest.warns(ConvergenceWarning, match=r"not certified.*max_steps.*value [\d.]+, stationarity [\d.]+"):
        model = BilevelSVC(max_steps=0, random_state=0).fit(*rows)
    assert not model.solution_.success
    assert np.isfinite(model.decision_function(rows[0])).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"validation_fraction": 1.5}, "validation_fraction: expected a number between 0 and 1, got 1.5"),
        ({"validation": [0.5, 1.5]}, "positions of the 80 rows, got an array of dtype float64 and shape (2,)"),
        ({"validation": [80]}, "positions of the 80 rows"),
        ({"validation": np.zeros(80, bool)}, "validation: expected at least one row"),
        ({"validation": np.arange(80)}, "left to train on, got 0"),
        ({"validation": (1, 2, 3)}, "expected a tuple (X, y), got one of 3 entries"),
        ({"validation": (np.ones((2, 4)), [0, 7])}, "expected the labels [0 1], got [7] besides"),
        ({"validation": (np.ones((2, 3)), [0, 1])}, "validation: expected 4 features as in train, got 3"),
        ({"bias_weight": 0.0}, "bias_weight: expected a positive number, got 0.0"),
        ({"rtol": -1.0}, "rtol: expected a number >= 0, got -1.0"),
        ({"max_steps": 1.5}, "max_steps: expected a whole number >= 0, got 1.5"),
        ({"time_limit": 0.0}, "time_limit: expected a number of seconds > 0, got 0.0"),
    ],
)
def test_mistakes_are_named(rows, parameters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BilevelSVC(**parameters).fit(*rows)


def test_three_classes_and_one_are_refused(rows):
    X, _ = rows
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        BilevelSVC().fit(X, np.arange(80) % 3)
    with pytest.raises(ValueError, match="two classes, got one class"):
        BilevelSVC().fit(X, np.ones(80))
