"""The rows and the sets of a problem as sparse matrices on flat vectors, found out once."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.memory import Frozen, remembered
from bilevax._support.precision import float64
from bilevax.model.compressed_rows import on_top
from bilevax.model.coupling import AffineCoupling, Coupling
from bilevax.model.problem import BilevelProblem, place
from bilevax.model.set_rows import SetRows


class Rows(NamedTuple):
    """The coupling on flat vectors: ``lower <= B x + A y + offset <= upper``, bounds already without the offset."""

    B: sp.csr_matrix
    A: sp.csr_matrix
    lower: np.ndarray
    upper: np.ndarray


@remembered
def row_shapes_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> tuple[PyTree, ...]:
    """Return the shapes of the rows' values, one entry a coupling."""
    with float64():
        coupling, data = _placed(problem)
        return tuple(part.shapes(x_like.tree, y_like.tree, data) for part in coupling)


@remembered
def sets_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> tuple[SetRows, SetRows]:
    """Return the sets X and Y as rows."""
    return problem.x_set.rows(x_like.tree), problem.y_set.rows(y_like.tree)


@remembered
def rows_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> Rows:
    """Return all couplings of a problem stacked, in the order in which they were given."""
    x, y, shapes = x_like.tree, y_like.tree, row_shapes_of(problem, x_like, y_like)
    with float64():
        coupling, data = _placed(problem)
        parts = _matrices(coupling, shapes, x, y, data)
        lower, upper = (trees.flatten_host(side) for side in problem.row_bounds(shapes))
    if not parts:
        return Rows(sp.csr_matrix((0, trees.size(x))), sp.csr_matrix((0, trees.size(y))), lower, upper)
    offset = np.concatenate([part[2] for part in parts])
    stack = lambda index: on_top([part[index] for part in parts])
    return Rows(stack(0), stack(1), lower - offset, upper - offset)


def _placed(problem: BilevelProblem) -> tuple[tuple[Coupling, ...], PyTree]:
    """Return the couplings and the data, on the device where JAX is asked: the numbers of matrices are read here."""
    if any(isinstance(part, AffineCoupling) for part in problem.coupling):
        return place((problem.coupling, problem.data), np.float64)
    return problem.coupling, problem.data


def _matrices(coupling: tuple[Coupling, ...], shapes: tuple[PyTree, ...], x: PyTree, y: PyTree, data: PyTree) -> list:
    """Return (B, A, offset) of each coupling; functions are probed all at once, since each probe is compiled."""
    functions = [index for index, part in enumerate(coupling) if isinstance(part, AffineCoupling)]
    if len(functions) < 2:
        return [part.matrices(x, y, data) for part in coupling]

    def all_values(x: PyTree, y: PyTree, *data: PyTree) -> Any:
        return tuple(coupling[index].value(x, y, data[0] if data else None) for index in functions)

    b, a, offset = AffineCoupling(all_values).matrices(x, y, data)
    ends = np.cumsum([trees.size(shapes[index]) for index in functions])
    cut = {index: slice(begin, end) for index, begin, end in zip(functions, [0, *ends[:-1]], ends, strict=True)}
    return [
        (b[cut[index]], a[cut[index]], offset[cut[index]]) if index in cut else part.matrices(x, y, data)
        for index, part in enumerate(coupling)
    ]
