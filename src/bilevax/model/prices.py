"""Upper objectives that know the lower level's multipliers (prices): the same problem with a larger lower level.

Let g be a quadratic, ``grad_y g = H y + M x + c``, with rows ``lower <= B x + A y <= upper`` (those of Y among them)
and bounds on y. The follower is replaced by one that chooses y and all multipliers at once: subject to the rows and to
those of the dual problem,

    r := H y + M x + c + A' multipliers,   r = 0, or r >= 0 at a lower bound of y, or r <= 0 at an upper one,

with every multiplier split into its parts of either sign, it minimises the sum of all products of a slack and its
multiplier. They are never negative, and their sum, the duality gap, is convex: the products of y and multipliers
cancel. By duality it vanishes at the minimisers of the lower level with their multipliers, and nowhere else. So
the larger problem is one of the usual kind: multipliers are part of its y, and where they are not unique it has ties.
"""

import dataclasses
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.memory import Frozen, remembered
from bilevax._support.precision import float64
from bilevax.model.coupling import AffineCoupling, ConvexCoupling, Coupling, LinearCoupling, RowForm
from bilevax.model.derived import derived
from bilevax.model.flat import FlatProblem
from bilevax.model.operators import LinearMap, as_linear_map
from bilevax.model.problem import BilevelProblem, validate
from bilevax.model.quadratic import Quadratic
from bilevax.model.sets import Box

Answer = TypeVar("Answer", bound=Any)

_FEW_ENTRIES = 100_000  # matrices with up to so many are dense: they compile faster


class Split(eqx.Module):
    """How the larger problem's y is made up: of the user's y and the parts of all multipliers."""

    multipliers: LinearMap  # from the larger y to the multipliers of the user's rows
    y_like: Frozen = eqx.field(static=True)
    row_shapes: Frozen = eqx.field(static=True)
    form: RowForm = eqx.field(static=True)

    def y(self, vector: Any) -> PyTree:
        """Return the user's y."""
        return trees.unflatten(vector[: trees.size(self.y_like.tree)], self.y_like.tree)

    def prices(self, vector: Any) -> PyTree:
        """Return the multipliers in the form in which the coupling was given."""
        return self.form.restore(trees.unflatten(self.multipliers.mv(vector), self.row_shapes.tree))


class PricedUpper(eqx.Module):
    """The user's f, called with the multipliers."""

    upper: Any
    split: Split

    def __call__(self, x: PyTree, vector: Any, *data: PyTree) -> Any:
        return self.upper(x, self.split.y(vector), self.split.prices(vector), *data)


class PricedRows(eqx.Module):
    """Rows of the user's y."""

    rows: Coupling
    split: Split

    def __call__(self, x: PyTree, vector: Any, *data: PyTree) -> Any:
        return self.rows.value(x, self.split.y(vector), data[0] if data else None)


class DualityGap(eqx.Module):
    """The quadratic ``v' (curvature v / 2 + mixed x + linear)`` of the larger y, v."""

    curvature: LinearMap
    mixed: LinearMap
    linear: np.ndarray

    def __call__(self, x: PyTree, vector: Any, *data: PyTree) -> Any:
        return vector @ (0.5 * self.curvature.mv(vector) + self.mixed.mv(trees.flatten(x)) + self.linear)


class Usual:
    """A problem of the usual kind that stands for the user's, here that itself, and the way back from its answers.

    Answers are dataclasses with ``y`` and ``multipliers``: of solutions, of certificates, of the lower level.
    """

    def __init__(self, problem: BilevelProblem):
        self.problem = problem

    def start(self, y: PyTree) -> PyTree:
        """Return a start y of the user's for the usual problem."""
        return y

    def y(self, y: PyTree) -> PyTree:
        """Return a y of the usual problem as the user's."""
        return y

    def answer(self, record: Answer, **changes: Any) -> Answer:
        """Return an answer of the usual problem as one of the user's, and with other changes."""
        return record


class Priced(Usual):
    """The usual problem that stands for one whose f knows the multipliers; its y is a flat vector with all of them."""

    def __init__(self, problem: BilevelProblem, split: Split):
        super().__init__(problem)
        self._split = split

    def start(self, y: PyTree) -> np.ndarray | None:
        if y is None:
            return None
        flat = trees.flatten_host(y)
        return np.pad(flat, (0, self._split.multipliers.shape[1] - len(flat)))  # no multipliers are known

    def y(self, y: PyTree) -> PyTree:
        return self._split.y(np.asarray(y))

    def answer(self, record: Answer, **changes: Any) -> Answer:
        prices = jax.tree.map(np.asarray, self._split.prices(np.asarray(record.y)))
        return dataclasses.replace(record, y=self.y(record.y), multipliers=prices, **changes)


def usual(problem: BilevelProblem, x: PyTree, y: PyTree = None) -> Usual:
    """Return the usual problem that is solved for a user's; with ``multipliers_in_upper`` that is another one.

    Parameters
    ----------
    problem
        The user's.
    x, y
        Points of its, or None for y: they tell shapes.

    Raises
    ------
    ValueError
        If f knows the multipliers and the problem is wrong, or there is no such other problem.
    """
    if not (isinstance(problem, BilevelProblem) and problem.multipliers_in_upper):
        return Usual(problem)
    with float64():
        point, y_like, _ = validate(problem, x, y)
        return _priced(problem, Frozen(trees.shapes(point)), Frozen(y_like))


class _Lower(NamedTuple):
    """The lower level by its numbers: rows of the coupling first, then those of Y; bounds on y apart."""

    g: Quadratic
    B: sp.csr_matrix
    A: sp.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    least: np.ndarray
    most: np.ndarray


@remembered
def _priced(user: BilevelProblem, x_like: Frozen, y_like: Frozen) -> Priced:
    """Return the usual problem for one with ``multipliers_in_upper``."""
    alone = derived(user, upper=user.lower, upper_rows=None, multipliers_in_upper=False)
    flat = FlatProblem(alone, x_like.tree, y_like.tree)
    level = _numbers(flat)
    low, high = np.isfinite(level.lower), np.isfinite(level.upper)
    equal = low & high & (level.lower == level.upper)
    both = np.isfinite(level.least) & np.isfinite(level.most) & (level.least < level.most)
    # Multipliers: those of equality rows, of upper sides, of lower sides, and of upper bounds where both are finite.
    pick = lambda mask: sp.eye(len(mask), format="csr")[mask]
    parts = sp.vstack([pick(equal), pick(high & ~equal), -pick(low & ~equal)], format="csr")
    sides = np.concatenate([level.upper[high & equal], level.upper[high & ~equal], -level.lower[low & ~equal]])
    split = Split(
        multipliers=_map(_padded(parts.T[: flat.rows.A.shape[0]], flat.n_y, int(both.sum()))),
        y_like=Frozen(flat.y_like),
        row_shapes=Frozen(flat.row_shapes),
        form=user.coupling_form,
    )
    wide = len(sides) + int(both.sum())
    problem = derived(
        user,
        multipliers_in_upper=False,
        upper=PricedUpper(user.upper, split),
        lower=_gap(level, parts, sides, pick(both)),
        coupling=(
            LinearCoupling(_form(_padded(level.A, 0, wide)), _form(level.B), level.lower, level.upper),
            _dual_rows(level, parts, pick(both)),
        ),
        upper_rows=user.upper_rows_form.restore(tuple(_inside(part, split, flat) for part in user.upper_rows)),
        y_set=Box(
            np.concatenate([level.least, np.where(np.arange(wide) < equal.sum(), -np.inf, 0.0)]),
            np.concatenate([level.most, np.full(wide, np.inf)]),
        ),
        y_like=np.zeros(flat.n_y + wide),
    )
    return Priced(problem, split)


def _numbers(flat: FlatProblem) -> _Lower:
    """Return the lower level by its numbers; raise ValueError where it has others."""
    name = "multipliers_in_upper"
    if flat.problem.curved:
        raise ValueError(f"{name}: expected rows that are affine, got a ConvexCoupling.")
    simple = flat.y_rows
    if simple.balls:
        raise ValueError(f"{name}: expected a Y of rows and bounds, got one with a Ball.")
    g = flat.lower_quadratic
    if g is None:
        raise ValueError(
            f"{name}: expected a lower objective that is linear or quadratic in x and y together, and not more "
            "variables than there can be numbers of it written down."
        )
    if flat.properties("lower").with_hessian(g.hessian).convexity != "proven":  # else duality says nothing
        raise ValueError(f"{name}: expected a lower objective that is convex in y, which is not proven of this one.")
    several = np.diff(simple.matrix.indptr) > 1
    return _Lower(
        g,
        sp.vstack([flat.rows.B, sp.csr_matrix((int(several.sum()), flat.n_x))], format="csr"),
        sp.vstack([flat.rows.A, simple.matrix[several]], format="csr"),
        np.concatenate([flat.rows.lower, simple.lower[several]]),
        np.concatenate([flat.rows.upper, simple.upper[several]]),
        *simple.intervals(),
    )


def _gap(level: _Lower, parts: sp.csr_matrix, sides: np.ndarray, both: sp.csr_matrix) -> DualityGap:
    """Return the sum of slacks times multipliers; that of r is its distance to a finite bound of y, the lower first."""
    ends = np.where(np.isfinite(level.least), level.least, np.where(np.isfinite(level.most), level.most, 0.0))
    g, count = level.g, both.shape[0]
    width = both @ np.where(np.isfinite(level.most), level.most, 0.0) - both @ ends
    curvature = sp.block_diag([2 * g.hessian, sp.csr_matrix((len(sides) + count,) * 2)], format="csr")
    mixed = sp.vstack([g.mixed, -(parts @ level.B), sp.csr_matrix((count, level.B.shape[1]))], format="csr")
    linear = np.concatenate([g.gradient - g.hessian @ ends, sides - parts @ (level.A @ ends), width])
    return DualityGap(_map(curvature), _map(mixed), linear)


def _dual_rows(level: _Lower, parts: sp.csr_matrix, both: sp.csr_matrix) -> LinearCoupling:
    """Return the rows of r: with both bounds the multiplier of the upper one is added to it."""
    below, above = np.isfinite(level.least), np.isfinite(level.most)
    free = below & above & (level.least == level.most)
    g = level.g
    matrix = sp.hstack([g.hessian, (parts @ level.A).T, both.T], format="csr")[~free]
    lower, upper = np.where(above & ~below, -np.inf, 0.0), np.where(below, np.inf, 0.0)
    return LinearCoupling(
        _form(matrix), _form(g.mixed.tocsr()[~free]), (lower - g.gradient)[~free], (upper - g.gradient)[~free]
    )


def _inside(part: Coupling, split: Split, flat: FlatProblem) -> Coupling:
    """Return an upper row as a function of the larger y."""
    rows = PricedRows(part, split)
    shapes = part.shapes(flat.x_like, flat.y_like, flat.problem.data)
    lower, upper = (jax.tree.map(np.asarray, side) for side in part.bounds(shapes))
    return AffineCoupling(rows, lower, upper) if part.affine else ConvexCoupling(rows, upper)


def _padded(matrix: sp.csr_matrix, before: int, after: int) -> sp.csr_matrix:
    empty = [sp.csr_matrix((matrix.shape[0], count)) for count in (before, after)]
    return sp.hstack([empty[0], matrix, empty[1]], format="csr")


def _form(matrix: sp.csr_matrix) -> Any:
    return matrix.toarray() if matrix.shape[0] * matrix.shape[1] <= _FEW_ENTRIES else matrix


def _map(matrix: sp.csr_matrix) -> LinearMap:
    return as_linear_map(_form(matrix), "multipliers_in_upper")
