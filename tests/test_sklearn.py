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
    return BilevelSVC("rows", validation=judged).fit(*rows)


@pytest.mark.slow
@parametrize_with_checks([BilevelSVC(folds=2, random_state=0)])
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


@pytest.fixture(scope="module")
def few(rows):
    """So few rows that a penalty helps."""
    return rows[0][:24], rows[1][:24]


@pytest.fixture(scope="module")
def by_folds(few):
    return BilevelSVC(folds=2, random_state=0).fit(*few)


def hinge(margins):
    return (0.2 * np.logaddexp(0.0, (1 - margins) / 0.2)) ** 2


def trained(X, y, penalties):
    """Return the classifier of penalties by SciPy."""
    signed = np.where(y == 1, 1.0, -1.0)[:, None] * np.column_stack([X, np.ones(len(y))])
    weights = np.r_[np.broadcast_to(penalties, X.shape[1]), 0.01]
    loss = lambda v: hinge(signed @ v).mean() + 0.5 * weights @ v**2
    return minimize(loss, np.zeros(X.shape[1] + 1), method="BFGS", options={"gtol": 1e-9}).x


def test_penalties_lead_to_the_classifier(few, by_folds):
    assert by_folds.solution_.success
    X, y = few
    by_scipy = trained(X, y, np.exp(by_folds.solution_.x))
    np.testing.assert_allclose(np.r_[by_folds.coef_[0], by_folds.intercept_], by_scipy, atol=1e-5)


def test_no_shared_penalty_is_better(few, by_folds):
    X, y = few
    folds = by_folds._drawn_folds(y)

    def judged(penalty):
        losses = []
        for part in folds:
            train = np.setdiff1d(np.arange(len(y)), part)
            classifier = trained(X[train], y[train], penalty)
            losses.append(hinge(np.where(y[part] == 1, 1.0, -1.0) * (X[part] @ classifier[:-1] + classifier[-1])))
        return np.concatenate(losses).mean()

    assert judged(np.exp(by_folds.solution_.x)) == pytest.approx(by_folds.certificate_.value, abs=1e-7)
    assert by_folds.certificate_.value <= min(judged(penalty) for penalty in np.logspace(-4, 1, 11)) + 1e-9


def test_fits_of_similar_sizes_share_what_is_compiled(few, by_folds, compilations):
    X, y = few
    with compilations() as count:
        fewer = BilevelSVC(folds=2, random_state=0).fit(sp.csr_array(X[:21]), y[:21])
    assert fewer.solution_.success
    assert count[0] == 0


@pytest.mark.slow
def test_features_and_groups_have_penalties_of_their_own(few):
    X, y = few
    every, groups = (BilevelSVC(kind, folds=2, random_state=0).fit(X, y) for kind in ("features", [0, 1, 1, 0]))
    assert (every.solution_.x.shape, groups.solution_.x.shape) == ((4,), (2,))
    assert every.certificate_.value < groups.certificate_.value
    penalties = np.exp(groups.solution_.x[[0, 1, 1, 0]])
    np.testing.assert_allclose(np.r_[groups.coef_[0], groups.intercept_], trained(X, y, penalties), atol=1e-5)


@pytest.mark.slow
def test_given_rows_judge_the_penalties_and_do_not_train(rows, judged):
    X, y = rows
    mask = np.isin(np.arange(len(y)), judged)
    inside = BilevelSVC(validation=judged).fit(X, y)
    outside = BilevelSVC(validation=(X[mask], y[mask])).fit(sp.csr_array(X[~mask]), y[~mask])
    np.testing.assert_allclose(inside.solution_.x, outside.solution_.x, atol=1e-5)
    np.testing.assert_allclose(
        outside.coef_[0], trained(X[~mask], y[~mask], np.exp(outside.solution_.x))[:-1], atol=1e-5
    )
    np.testing.assert_allclose(inside.coef_[0], trained(X, y, np.exp(inside.solution_.x))[:-1], atol=1e-5)


def test_what_a_fit_leaves_behind(rows, fitted):
    X, _ = rows
    assert fitted.coef_.shape == (1, 4)
    assert fitted.intercept_.shape == (1,)
    assert fitted.n_features_in_ == 4
    assert fitted.n_iter_ >= 1
    assert fitted.certificate_ is fitted.solution_.certificate
    assert fitted.solution_.x.shape == (60,)
    np.testing.assert_allclose(fitted.decision_function(X), X @ fitted.coef_[0] + fitted.intercept_)


def test_positions_masks_and_given_rows_say_the_same(rows, judged):
    X, y = rows
    mask = np.isin(np.arange(len(y)), judged)
    for validation, part in ((mask, slice(None)), (judged - 80, slice(None)), ((X[mask], y[mask]), ~mask)):
        model = BilevelSVC("rows", validation=validation)
        model.classes_ = np.array([0, 1])
        train, validates = model._parts(X[part], y[part])
        for found, expected in ((train, ~mask), (validates, mask)):
            np.testing.assert_array_equal(found.features, X[expected])
            np.testing.assert_array_equal(found.labels, np.where(y[expected] == 1, 1.0, -1.0))


def test_sparse_rows_and_named_classes_change_nothing(rows, judged, fitted):
    X, y = rows
    names = np.array(["no", "yes"], dtype=object)[y]
    other = BilevelSVC("rows", validation=judged).fit(sp.csr_array(X), names)
    np.testing.assert_allclose(other.coef_, fitted.coef_, atol=1e-6)
    assert list(other.classes_) == ["no", "yes"]
    assert np.array_equal(other.predict(sp.csc_matrix(X)) == "yes", fitted.predict(X) == 1)


def test_the_drawn_part_has_the_classes_in_proportion(rows):
    X, y = rows
    few = np.r_[np.flatnonzero(y == 0)[:24], np.flatnonzero(y == 1)[:8]]
    model = BilevelSVC("rows", random_state=0).fit(X[few], y[few])
    train, validation = model._parts(X[few], y[few])
    assert [int((part.labels == 1).sum()) for part in (train, validation)] == [6, 2]
    assert [len(train), len(validation)] == [24, 8]


def test_the_seed_decides(rows):
    """What is drawn is all that a seed can change."""
    _, y = rows
    for draw in (BilevelSVC._draw, lambda model, y: np.concatenate(model._drawn_folds(y))):
        first, again, other = (draw(BilevelSVC(random_state=seed), y) for seed in (0, 0, 1))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


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
        (
            {"hyperparameters": "rows", "validation_fraction": 1.5},
            "validation_fraction: expected a number between 0 and 1, got 1.5",
        ),
        ({"validation": [0.5, 1.5]}, "positions of the 80 rows, got an array of dtype float64 and shape (2,)"),
        ({"validation": [80]}, "positions of the 80 rows"),
        ({"validation": np.zeros(80, bool)}, "validation: expected at least one row"),
        ({"validation": np.arange(80)}, "left to train on, got 0"),
        ({"validation": (1, 2, 3)}, "expected a tuple (X, y), got one of 3 entries"),
        ({"validation": (np.ones((2, 4)), [0, 7])}, "expected the labels [0 1], got [7] besides"),
        (
            {"hyperparameters": "rows", "validation": (np.ones((2, 3)), [0, 1])},
            "validation: expected 4 features as in train, got 3",
        ),
        ({"validation": (np.ones((2, 3)), [0, 1])}, "expected 4 features as in the other rows, got 3"),
        ({"hyperparameters": "all"}, 'expected "shared", "features", "rows" or a whole number'),
        ({"hyperparameters": [0, 1]}, "for each of the 4 features, got [0, 1]"),
        ({"folds": 1}, "folds: expected a whole number >= 2, got 1"),
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
