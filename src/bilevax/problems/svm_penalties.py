"""Penalties of an SVM's weights, shared by all or by groups of features, chosen by cross-validation."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float

from bilevax.model.operators import as_linear_map
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box
from bilevax.problems.classification import Dataset
from bilevax.problems.svm import signed_rows

#: The squared hinge of a margin, rounded over about this width: it has all derivatives.
ROUNDING = 0.2
#: Logarithms of penalties, and one to start from.
LEAST, START, MOST = -10.0, -4.0, 4.0
# Fewer rows than this are filled up, and sparse rows with at most so many entries, zeros included, stored in full.
_FEWEST_ROWS, _SMALL = 64, 100_000


def svm_penalties(
    rows: Dataset, judged: Sequence[np.ndarray], group: np.ndarray, *, bias_weight: float = 0.01
) -> BilevelProblem:
    """Return the choice of the logarithms x of penalties by the loss on rows that did not train.

    y holds a classifier (w, b) for every part of the rows that judges; all other rows train it.

        upper   mean over all judging rows of  hinge(label (w'z + b))
        lower   sum over the classifiers of  mean over its training rows of hinge(label (w'z + b))
                + sum over features of exp(x[group]) w^2 / 2 + bias_weight b^2 / 2

    where ``hinge(m)`` is ``max(0, 1 - m)^2``, rounded where it begins. Data of similar sizes share compiled code: the
    rows are filled up with some that neither train nor judge.

    Parameters
    ----------
    rows
        All rows, with labels -1 and +1.
    judged
        The positions of the rows that judge, a classifier each. An empty part makes a classifier of all rows.
    group
        For every feature the number of its penalty; all 0 for one penalty.
    bias_weight
        Of b in the lower objective; positive.
    """
    if not bias_weight > 0:
        raise ValueError(f"bias_weight: expected a positive number, got {bias_weight}.")
    margins = _filled_up(signed_rows(rows, flat=True))
    trains, judges = (np.zeros((len(judged), margins.shape[0])) for _ in range(2))
    trains[:, : len(rows)] = 1.0
    for number, part in enumerate(judged):
        trains[number, part], judges[number, part] = 0.0, 1.0
    return BilevelProblem(
        upper=_judging_loss,
        lower=_training_loss,
        x_set=Box(LEAST, MOST),
        data={
            "margins": as_linear_map(margins, "rows"),
            "trains": trains / trains.sum(axis=1, keepdims=True),
            "judges": judges / max(judges.sum(), 1.0),
            "group": np.asarray(group, np.int32),
            "bias_weight": float(bias_weight),
        },
        y_like=np.zeros((len(judged), rows.features.shape[1] + 1)),
    )


def _filled_up(rows: Any) -> Any:
    """Return the rows and as many rows of zeros as make their number one of a few: four for every power of two."""
    count, width = rows.shape
    quarter = 2 ** max(int(np.ceil(np.log2(count))) - 3, 0)
    missing = max(-(-count // quarter) * quarter, _FEWEST_ROWS) - count
    if sp.issparse(rows) and (count + missing) * width > _SMALL:
        return sp.vstack([rows, sp.csr_matrix((missing, width))], format="csr")
    return np.pad(rows.toarray() if sp.issparse(rows) else rows, ((0, missing), (0, 0)))


def _hinge(margin: Float[Array, "..."]) -> Float[Array, "..."]:
    return (ROUNDING * jax.nn.softplus((1 - margin) / ROUNDING)) ** 2


def _judging_loss(x: Array, y: Float[Array, "parts size"], data: dict[str, Any]) -> Float[Array, ""]:
    return jnp.sum(data["judges"] * _hinge(jax.vmap(data["margins"].mv)(y)))


def _training_loss(x: Array, y: Float[Array, "parts size"], data: dict[str, Any]) -> Float[Array, ""]:
    loss = jnp.sum(data["trains"] * _hinge(jax.vmap(data["margins"].mv)(y)))
    penalty = jnp.append(jnp.exp(x)[data["group"]], data["bias_weight"])
    return loss + 0.5 * jnp.sum(penalty * y**2)
