"""The paper's SVM: a hyperparameter a training row bounds its margin's violation, chosen by the loss on other rows."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, PyTree

from bilevax.model.coupling import LinearCoupling
from bilevax.model.operators import as_linear_map
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import NonNegative
from bilevax.problems.classification import Dataset


def svm(train: Dataset, validation: Dataset, *, bias_weight: float = 0.01, flat: bool = False) -> BilevelProblem:
    """Return the choice of the bounds c of the training rows' margin violations.

    x = c, one number a training row; y is the classifier of weights w and bias b.

        upper   sum over validation rows of exp(1 - label (w'z + b)) + |c|^2 / 2,   over c >= 0
        lower   |w|^2 / 2 + bias_weight b^2 / 2,   with label_i (w'z_i + b) >= 1 - c_i  on the training rows

    Where c >= 1 the lower level is feasible, by w = 0; ``numpy.full(len(train), 3.0)`` is a start. Splits of the same
    sizes share compiled code: all their numbers are data.

    Parameters
    ----------
    train, validation
        Rows with labels -1 and +1; features dense or scipy.sparse.
    bias_weight
        Of b in the lower objective; positive, for a strongly convex one.
    flat
        Whether y is one array (w, b) instead of ``{"weights": w, "bias": b}``.
    """
    for name, part in (("train", train), ("validation", validation)):
        if not isinstance(part, Dataset):
            raise ValueError(f"{name}: expected a Dataset, got {type(part).__name__}.")
    if not bias_weight > 0:
        raise ValueError(f"bias_weight: expected a positive number, got {bias_weight}.")
    size = train.features.shape[1]
    if validation.features.shape[1] != size:
        raise ValueError(
            f"validation: expected {size} features as in train, got {validation.features.shape[1]} of them."
        )
    return BilevelProblem(
        upper=_loss,
        lower=_size,
        coupling=LinearCoupling(A=signed_rows(train, flat), B=sp.eye(len(train)), lower=1.0),
        x_set=NonNegative(),
        data={"margins": as_linear_map(signed_rows(validation, flat), "validation"), "bias_weight": float(bias_weight)},
        y_like=np.zeros(size + 1) if flat else {"weights": np.zeros(size), "bias": np.zeros(())},
    )


def svm_predict(y: PyTree, features: Any) -> np.ndarray:
    """Return the labels -1 and +1 that a classifier, the y of an `svm` problem, gives to rows of features."""
    weights, bias = _parts(y)
    return np.where(features @ np.asarray(weights) + np.asarray(bias) >= 0, 1.0, -1.0)


def svm_accuracy(y: PyTree, dataset: Dataset) -> float:
    """Return the part of a data set's rows that a classifier, the y of an `svm` problem, labels rightly."""
    return float(np.mean(svm_predict(y, dataset.features) == dataset.labels))


def _loss(c: Float[Array, " rows"], y: PyTree, data: dict[str, Any]) -> Float[Array, ""]:
    vector = jnp.append(y["bias"], y["weights"]) if isinstance(y, dict) else y
    return jnp.sum(jnp.exp(1 - data["margins"].mv(vector))) + 0.5 * c @ c


def _size(c: Float[Array, " rows"], y: PyTree, data: dict[str, Any]) -> Float[Array, ""]:
    weights, bias = _parts(y)
    return 0.5 * weights @ weights + 0.5 * data["bias_weight"] * bias**2


def _parts(y: PyTree) -> tuple[Any, Any]:
    return (y["weights"], y["bias"]) if isinstance(y, dict) else (y[:-1], y[-1])


def signed_rows(dataset: Dataset, flat: bool) -> Any:
    """Return the matrix from the flattened y to the rows' margins; a dictionary is flattened in its keys' order."""
    ones = np.ones((len(dataset), 1))
    parts = [dataset.features, ones] if flat else [ones, dataset.features]
    if sp.issparse(dataset.features):
        return sp.diags(dataset.labels) @ sp.hstack(parts, format="csr")
    return dataset.labels[:, None] * np.hstack(parts)
