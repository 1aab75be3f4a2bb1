"""`BilevelSVC`: a linear SVM for scikit-learn that chooses its own hyperparameters, one or hundreds."""

import warnings
from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold, train_test_split
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, column_or_1d, validate_data
except ImportError as error:
    raise ImportError("bilevax.sklearn needs scikit-learn: pip install 'bilevax[sklearn]'") from error

from bilevax.certificate.certificate import Certificate
from bilevax.driver.solution import Solution
from bilevax.driver.solve import solve
from bilevax.exact.lower_level import solve_lower_level
from bilevax.model.problem import BilevelProblem
from bilevax.problems.classification import Dataset
from bilevax.problems.svm import svm
from bilevax.problems.svm_penalties import START, svm_penalties

__all__ = ["BilevelSVC"]

# A start for which the lower level is feasible, whatever the data: the margins may be violated by more than 1.
_LOOSE_BOUND = 3.0


class BilevelSVC(ClassifierMixin, BaseEstimator):
    """Linear SVM of two classes that chooses its hyperparameters by rows that did not train, and proves its choice.

    With ``hyperparameters="shared"`` (or ``"features"``, or groups of features) the weights of all features (of each
    feature, of each group) pay a penalty. The rows given to ``fit`` are parted into folds; each fold judges a
    classifier that the others train by the squared hinge loss, and the penalties minimise the mean loss of all
    judgements, as a smooth problem instead of a grid (``bilevax.problems.svm_penalties``). The classifier is then
    trained on all rows.

    With ``hyperparameters="rows"``, the problem of the SFLCB paper, every training row has a bound c_i on how far its
    margin may be violated: the classifier (w, b) minimises ``|w|^2 / 2 + bias_weight b^2 / 2`` with margins of at least
    ``1 - c_i``; the bounds c minimise the exponential loss on a validation part plus ``|c|^2 / 2``
    (`bilevax.problems.svm`). The validation part never trains.

    Features should be of similar size: put a ``StandardScaler`` before it in a pipeline.

    Parameters
    ----------
    hyperparameters
        ``"shared"``, ``"features"``, ``"rows"``, or an integer for every feature: the number of its group, from 0.
    folds
        How many parts judge, one after the other; fewer where a class has fewer rows. Not for ``"rows"``.
    validation
        Which rows judge, once, instead of drawn ones: positions (or a mask) of the rows given to ``fit``, or a tuple
        ``(X, y)`` of other rows; then all the rows given to ``fit`` train.
    validation_fraction
        For ``"rows"``: the part of the rows, drawn class by class, on which the bounds are judged.
    bias_weight
        Weight of the intercept in the lower level; positive.
    rtol, max_steps, time_limit
        As in `bilevax.solve`: relative stationarity that the certificate has to confirm, and limits.
    random_state
        Seed or generator of what is drawn.

    Attributes
    ----------
    coef_, intercept_
        The classifier, of shapes ``(1, n_features)`` and ``(1,)``; positive decisions mean ``classes_[1]``.
    classes_
        The two labels.
    certificate_
        What is proven about the hyperparameters, a `bilevax.Certificate`.
    solution_
        The whole answer, a `bilevax.Solution`; ``solution_.x`` are the logarithms of the penalties, or the bounds of
        the training rows.
    n_features_in_, feature_names_in_
        Number of features, and their names where ``X`` has some.
    n_iter_
        Steps taken.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> model = make_pipeline(StandardScaler(), BilevelSVC(random_state=0))
    >>> model.fit(*load_breast_cancer(return_X_y=True))  # doctest: +SKIP
    """

    classes_: np.ndarray
    coef_: np.ndarray
    intercept_: np.ndarray
    certificate_: Certificate
    solution_: Solution
    n_iter_: int

    def __init__(
        self,
        hyperparameters: Any = "shared",
        folds: int = 5,
        validation: Any = None,
        validation_fraction: float = 0.25,
        bias_weight: float = 0.01,
        rtol: float = 1e-6,
        max_steps: int | None = None,
        time_limit: float | None = None,
        random_state: Any = None,
    ):
        self.hyperparameters = hyperparameters
        self.folds = folds
        self.validation = validation
        self.validation_fraction = validation_fraction
        self.bias_weight = bias_weight
        self.rtol = rtol
        self.max_steps = max_steps
        self.time_limit = time_limit
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "BilevelSVC":
        """Choose the bounds and the classifier.

        Parameters
        ----------
        X
            Rows of features, dense or scipy.sparse.
        y
            A label a row, of two kinds.

        Warns
        -----
        ConvergenceWarning
            With the numbers, where the certificate does not confirm the answer.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        y = column_or_1d(y, warn=True)
        self.classes_ = _two_classes(y)
        classifier = self._by_rows(X, y) if _named(self.hyperparameters, "rows") else self._by_penalties(X, y)
        self.certificate_ = self.solution_.certificate
        self.coef_, self.intercept_ = classifier[:-1].reshape(1, -1), classifier[-1:]
        self.n_iter_ = self.solution_.stats["steps"]
        if not self.solution_.success:
            warnings.warn(
                f"BilevelSVC: the answer is not certified. {self.solution_.message}", ConvergenceWarning, stacklevel=2
            )
        return self

    def _by_rows(self, X: Any, y: np.ndarray) -> np.ndarray:
        train, validation = self._parts(X, y)
        problem = svm(train, validation, bias_weight=self.bias_weight, flat=True)
        return np.asarray(self._solved(problem, np.full(len(train), _LOOSE_BOUND)).y)

    def _by_penalties(self, X: Any, y: np.ndarray) -> np.ndarray:
        """Choose the penalties by parts of the rows that judge, and train with them on all that may train."""
        group = _groups(self.hyperparameters, X.shape[1])
        rows, mine = Dataset(X, self._signs(y)), len(y)
        if isinstance(self.validation, tuple):
            rows = rows.joined(self._other_rows(self.validation))
            judged = [np.arange(mine, len(rows))]
        elif self.validation is not None:
            judged = [self._positions_that_leave_both(rows.labels)]
        else:
            judged = self._drawn_folds(y)
        penalties = lambda some, parts: svm_penalties(some, parts, group, bias_weight=self.bias_weight)
        found = self._solved(penalties(rows, judged), np.full(group.max() + 1, START))
        # All rows train, in the place of every fold: the shapes, and so what is compiled, stay the same.
        # The classifiers of the folds are near the one of all rows.
        near = np.broadcast_to(np.asarray(found.y).mean(axis=0), np.shape(found.y))
        whole = penalties(rows[:mine], [np.zeros(0, int)] * len(judged))
        return np.asarray(solve_lower_level(whole, found.x, start=near).y)[0]

    def _solved(self, problem: BilevelProblem, start: np.ndarray) -> Solution:
        limits = {"rtol": self.rtol, "max_steps": self.max_steps, "time_limit": self.time_limit}
        self.solution_ = solve(problem, start, progress=False, **limits)
        return self.solution_

    def _drawn_folds(self, y: np.ndarray) -> list[np.ndarray]:
        if isinstance(self.folds, bool) or not isinstance(self.folds, int | np.integer) or self.folds < 2:
            raise ValueError(f"folds: expected a whole number >= 2, got {self.folds!r}.")
        fewest = int(np.unique(y, return_counts=True)[1].min())
        if fewest < 2:
            raise ValueError("y: expected at least two rows of each class, for one of them judges, got one.")
        drawn = StratifiedKFold(min(self.folds, fewest), shuffle=True, random_state=self.random_state)
        return [judged for _, judged in drawn.split(np.zeros(len(y)), y)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Return ``w'z + b`` for each row: positive for ``classes_[1]``."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return X @ self.coef_[0] + self.intercept_[0]

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of each row."""
        decisions = self.decision_function(X)
        return self.classes_[(decisions > 0).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def _parts(self, X: Any, y: np.ndarray) -> tuple[Dataset, Dataset]:
        """Return the training part and the validation part."""
        everything = Dataset(X, self._signs(y))
        if isinstance(self.validation, tuple):
            return everything, self._other_rows(self.validation)
        judged = self._draw(y) if self.validation is None else self._positions_that_leave_both(everything.labels)
        return everything[np.setdiff1d(np.arange(len(y)), judged)], everything[judged]

    def _positions_that_leave_both(self, labels: np.ndarray) -> np.ndarray:
        judged = _positions(self.validation, len(labels))
        train = np.delete(labels, judged)
        if len(np.unique(train)) < 2:
            raise ValueError(
                f"validation: expected rows of both classes to be left to train on, got {len(train)} of at most one."
            )
        return judged

    def _draw(self, y: np.ndarray) -> np.ndarray:
        fraction = self.validation_fraction
        if not 0 < fraction < 1:
            raise ValueError(f"validation_fraction: expected a number between 0 and 1, got {fraction}.")
        _, judged = train_test_split(np.arange(len(y)), test_size=fraction, stratify=y, random_state=self.random_state)
        return judged

    def _other_rows(self, given: tuple) -> Dataset:
        if len(given) != 2:
            raise ValueError(f"validation: expected a tuple (X, y), got one of {len(given)} entries.")
        X, y = check_X_y(*given, accept_sparse="csr", dtype=np.float64)
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"validation: expected the labels {self.classes_}, got {unknown[:5]} besides.")
        return Dataset(X, self._signs(y))

    def _signs(self, y: np.ndarray) -> np.ndarray:
        return np.where(y == self.classes_[1], 1.0, -1.0)


def _named(given: Any, name: str) -> bool:
    return isinstance(given, str) and given == name


def _groups(given: Any, features: int) -> np.ndarray:
    """Return the number of the penalty of each feature."""
    if _named(given, "shared"):
        return np.zeros(features, int)
    if _named(given, "features"):
        return np.arange(features)
    groups = np.asarray(given)
    if groups.shape != (features,) or not np.issubdtype(groups.dtype, np.integer) or groups.min(initial=0) < 0:
        raise ValueError(
            f'hyperparameters: expected "shared", "features", "rows" or a whole number >= 0 for each of the {features} '
            f"features, got {given!r}."
        )
    return np.unique(groups, return_inverse=True)[1]


def _two_classes(y: np.ndarray) -> np.ndarray:
    check_classification_targets(y)
    classes, kind = np.unique(y), type_of_target(y)
    if kind != "binary":
        raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
    if len(classes) != 2:
        raise ValueError(f"y: expected labels of two classes, got one class: {classes}.")
    return classes


def _positions(rows: Any, count: int) -> np.ndarray:
    """Return the positions that a mask or an array of positions stands for."""
    rows = check_array(rows, ensure_2d=False, dtype=None, input_name="validation")
    if rows.dtype == bool and rows.shape == (count,):
        rows = np.flatnonzero(rows)
    if (
        rows.ndim != 1
        or not np.issubdtype(rows.dtype, np.integer)
        or rows.min(initial=0) < -count
        or rows.max(initial=0) >= count
    ):
        raise ValueError(
            f"validation: expected a tuple (X, y), or a mask or positions of the {count} rows, "
            f"got an array of dtype {rows.dtype} and shape {rows.shape}."
        )
    if rows.size == 0:
        raise ValueError("validation: expected at least one row, got none.")
    return np.unique(rows % count)
