"""A problem on flat vectors, for exact solvers on the host: rows as sparse matrices, derivatives as needed.

Compiled functions (`kernels`) and the sparsity of second derivatives (`patterns`) are put together here, the latter
learned on the way. `FlatProblem.in_units` is the same problem in other units; `equilibrated` chooses the natural ones,
in which search and certificate work.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.heap import give_back
from bilevax._support.memory import Frozen
from bilevax.model.analysis import FunctionProperties
from bilevax.model.compressed_rows import on_top, scaled
from bilevax.model.constants import lower_constants, upper_constants
from bilevax.model.kernels import Kernels, compiled, evaluation, in_chunks, padded
from bilevax.model.objectives import properties_of, quadratic_of, upper_convex_jointly
from bilevax.model.patterns import DENSE_COLUMNS, Learned, Pattern
from bilevax.model.problem import BilevelProblem, Level, Variable, placed_objectives
from bilevax.model.quadratic import JointQuadratic, LowerDerivatives, Quadratic
from bilevax.model.rows import Rows, row_shapes_of, rows_of, sets_of
from bilevax.model.scales import RowGroups, Scales, asked_by_rows, natural_scales
from bilevax.model.set_rows import SetRows
from bilevax.model.straight import straightened
from bilevax.model.units import numbers_in, of_units


class FlatProblem:
    """The functions, rows and sets of a problem on flat float64 vectors, in units of its own.

    Flat vectors are in the units of ``scales`` (the user's own at first), trees always in the user's: `x_flat`,
    `y_flat`, `x_tree`, `y_tree` and the like lead from one to the other.
    """

    def __init__(self, problem: BilevelProblem, x_like: PyTree, y_like: PyTree):
        self.x_like = jax.tree.map(_float64_shape, x_like)
        self.y_like = jax.tree.map(_float64_shape, y_like)
        self.shapes = Frozen(self.x_like), Frozen(self.y_like)  # what is remembered of a problem is asked for by these
        self.problem = straightened(problem, *self.shapes)
        self.n_x, self.n_y = trees.size(self.x_like), trees.size(self.y_like)
        self.patterns: dict[Any, Pattern] = {}
        self._last_blocks: tuple[tuple[sp.csc_matrix, ...], sp.csc_matrix] | None = None
        self.of_user: dict[str, Any] = {}  # what is found out once, in the user's units
        self.scales = Scales.ones(self.n_x, self.n_y, trees.size(self.row_shapes))
        self.in_these_units = numbers_in(self.problem, *self.shapes, self.scales)  # rows, sets and the like

    def in_units(self, scales: Scales) -> "FlatProblem":
        """Return the same problem in other units, ``scales`` being relative to the user's."""
        other = copy.copy(self)
        other.scales, other.patterns = scales, {}
        other.in_these_units = numbers_in(self.problem, *self.shapes, scales)
        return other

    @property
    def _objectives(self) -> tuple[Any, Any, PyTree]:
        return placed_objectives(self.problem)

    @functools.cached_property
    def _numbers(self) -> PyTree:
        """All arrays of the objectives and the data: the first argument of the compiled functions."""
        return eqx.filter(self._objectives, eqx.is_array)

    @functools.cached_property
    def _kernels(self) -> Kernels:
        """The compiled functions, without rows and sets: problems that differ only there share them."""
        structure = eqx.filter(self._objectives, eqx.is_array, inverse=True)
        return compiled(Frozen(structure), *self.shapes)

    @property
    def state(self) -> Learned:
        """What evaluations have found out about second derivatives: used again while it holds."""
        return Learned(self.patterns)

    @state.setter
    def state(self, state: Learned) -> None:
        self.patterns = state.patterns

    @of_units
    def rows(self) -> Rows:
        """All couplings stacked, in the order in which they were given."""
        rows, scales = rows_of(self.problem, *self.shapes), self.scales
        return Rows(
            scaled(rows.B, scales.rows, scales.x),
            scaled(rows.A, scales.rows, scales.y),
            scales.rows * rows.lower,
            scales.rows * rows.upper,
        )

    @property
    def row_shapes(self) -> tuple[PyTree, ...]:
        """The shapes of the rows' values, one entry a coupling."""
        return row_shapes_of(self.problem, *self.shapes)

    @of_units
    def x_rows(self) -> SetRows:
        """The set X as rows."""
        return sets_of(self.problem, *self.shapes)[0].in_units(self.scales.x)

    @of_units
    def y_rows(self) -> SetRows:
        """The set Y as rows."""
        return sets_of(self.problem, *self.shapes)[1].in_units(self.scales.y)

    @of_units
    def row_groups(self) -> RowGroups:
        """All rows, parallel ones together."""
        return RowGroups(self)

    @of_units
    def asked_by_rows(self) -> list:
        """What the rows and sets ask of natural units."""
        return asked_by_rows(self, self.row_groups)

    @of_units
    def rows_in_y(self) -> sp.csr_matrix:
        """The rows' part in y, those of Y last."""
        return on_top([self.rows.A, self.y_rows.matrix])

    @of_units
    def quadratics(self) -> dict[Level, JointQuadratic | None]:
        """The objectives by their numbers, where they are quadratics in few x and y together: nothing is compiled."""

        def of(level: Level) -> JointQuadratic | None:
            found = quadratic_of(self.problem, level, *self.shapes)
            return None if found is None else found.in_units(self.scales, self.unit(level))

        return {"upper": of("upper"), "lower": of("lower")}

    @of_units
    def lower_quadratic(self) -> Quadratic | None:
        """The numbers of g where it is a quadratic in x and y together, so that JAX need not be asked again."""
        if (whole := self.quadratics["lower"]) is not None:
            return Quadratic(whole.linear[self.n_x :], whole.part("y", "y"), whole.part("y", "x"))
        return lower_constants(self)

    @of_units
    def upper_constants(self) -> sp.csc_matrix | None:
        """The second derivative of f in (x, y), where it is the same everywhere."""
        quadratic = self.quadratics["upper"]
        return upper_constants(self) if quadratic is None else quadratic.hessian

    def row_tree(self, flat: np.ndarray) -> tuple[PyTree, ...]:
        """Return flat row values in the user's units and the structure of the couplings."""
        return trees.unflatten(flat / self.scales.rows, self.row_shapes)

    def multiplier_tree(self, flat: np.ndarray) -> tuple[PyTree, ...]:
        """Return the rows' flat multipliers in the user's units and the structure of the couplings."""
        return trees.unflatten(flat * self.scales.rows / self.scales.lower, self.row_shapes)

    def x_tree(self, flat: np.ndarray) -> PyTree:
        """Return a flat x in the user's units and structure."""
        return trees.unflatten(flat * self.scales.x, self.x_like)

    def y_tree(self, flat: np.ndarray) -> PyTree:
        """Return a flat y in the user's units and structure."""
        return trees.unflatten(flat * self.scales.y, self.y_like)

    def x_flat(self, tree: PyTree) -> np.ndarray:
        """Return an x of the user's as a flat vector."""
        return trees.flatten_host(tree) / self.scales.x

    def y_flat(self, tree: PyTree) -> np.ndarray:
        """Return a y of the user's as a flat vector."""
        return trees.flatten_host(tree) / self.scales.y

    def unit(self, level: Level) -> float:
        """Return by what f or g of the user was multiplied."""
        return self.scales.upper if level == "upper" else self.scales.lower

    def gradient_tree(self, flat: np.ndarray) -> PyTree:
        """Return the gradient in x of something in f's units, in the user's units and structure."""
        return trees.unflatten(flat / (self.scales.upper * self.scales.x), self.x_like)

    def penalty(self, delta: float) -> float:
        """Return the weight of f against g that the user's ``delta`` amounts to."""
        return delta * self.scales.lower / self.scales.upper

    def value(self, level: Level, x: np.ndarray, y: np.ndarray) -> float:
        """Return f or g at (x, y)."""
        if (quadratic := self.quadratics[level]) is not None:
            return float(quadratic.function(x, y))
        if self.n_x + self.n_y <= DENSE_COLUMNS:  # the program that is compiled for the gradients anyway
            return self.value_and_gradients(level, x, y)[0]
        with evaluation():
            return self.unit(level) * float(self._kernels.value[level](self._numbers, *self._user(x, y)))

    @property
    def functions(self) -> tuple[Callable[[Level, PyTree], Callable[[Any, Any], Any]], PyTree]:
        """F and g of flat vectors in the user's units, to be traced: ``function(level, numbers)``, and the numbers."""
        return self._kernels.function, self._numbers

    def _user(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a point in the user's units."""
        return x * self.scales.x, y * self.scales.y

    def gradients(self, level: Level, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of f or g in x and in y."""
        if (quadratic := self.quadratics[level]) is not None:
            return quadratic.gradients(x, y)
        return self.value_and_gradients(level, x, y)[1:]

    def value_and_gradients(self, level: Level, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return f or g at (x, y) and its gradients in x and in y."""
        if (quadratic := self.quadratics[level]) is not None:
            return float(quadratic.function(x, y)), *quadratic.gradients(x, y)
        with evaluation():
            value, (along_x, along_y) = self._kernels.gradients[level](self._numbers, *self._user(x, y))
        unit, scales = self.unit(level), self.scales
        return unit * float(value), unit * scales.x * np.asarray(along_x), unit * scales.y * np.asarray(along_y)

    def hessian(self, level: Level, of: Variable, by: Variable, x: np.ndarray, y: np.ndarray) -> sp.csc_matrix:
        """Return the second derivative of f or g, rows for the variable ``of`` and columns for ``by``, as sparse."""
        if (quadratic := self.quadratics[level]) is not None:
            return quadratic.part(of, by)
        if level == "lower" and of == "y" and (constants := self.lower_quadratic) is not None:
            return constants.hessian if by == "y" else constants.mixed
        transposed = self.products(level, by, of, x, y)
        return self._pattern(level, of, by).evaluate(self.products(level, of, by, x, y), transposed=transposed)

    def lower_at_each(self, points_x: np.ndarray, points_y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return g, its gradient and its second derivative in y at several points, one a row of each array."""
        unit, scale = self.scales.lower, self.scales.y
        with evaluation():
            found = in_chunks(self._kernels.lower_at_each, self._numbers, *self._user(points_x, points_y))
        value, gradient, hessian = found
        return unit * value, unit * scale * gradient, unit * scale[:, None] * scale * hessian

    def lower_derivatives(self, x: np.ndarray, y: np.ndarray, proven: bool = True) -> LowerDerivatives:
        """Return what `gradients` and `hessian` tell of g at (x, y): in one evaluation where g is quadratic.

        If they need not be ``proven``, second derivatives that never changed so far are taken to be the same here.
        """
        if (quadratic := self.lower_quadratic) is not None:
            return LowerDerivatives(quadratic.gradient_at(x, y), quadratic.hessian, quadratic.mixed)
        of_y, of_x = self._pattern("lower", "y", "y"), self._pattern("lower", "y", "x")
        if not (proven or of_y.last is None or of_x.last is None or of_y.varies or of_x.varies):
            return LowerDerivatives(self.gradients("lower", x, y)[1], of_y.last, of_x.last)
        probes, seeds, scales = (of_y.probe(), of_x.probe()), of_y.few_seeds(), self.scales
        along = np.vstack([probes[0], seeds]) * scales.y, probes[1] * scales.x
        with evaluation():
            found = self._kernels.lower(self._numbers, *self._user(x, y), *along)
        gradient, *images = (scales.lower * scales.y * np.asarray(part) for part in found)
        seeded = images[0][1:] if len(seeds) else None
        return LowerDerivatives(
            gradient,
            of_y.evaluate(self.products("lower", "y", "y", x, y), (probes[0], images[0][0]), seeded=seeded),
            of_x.evaluate(
                self.products("lower", "y", "x", x, y), (probes[1], images[1]), self.products("lower", "x", "y", x, y)
            ),
        )

    def upper_hessian(self, x: np.ndarray, y: np.ndarray) -> sp.csc_matrix:
        """Return the second derivative of f in (x, y) as one sparse matrix."""
        if self.upper_constants is not None:
            return self.upper_constants
        if self.n_x > DENSE_COLUMNS >= self.n_y:  # by its blocks, or all entries would be probed for the few in y
            of_x, of_y = (self.hessian("upper", of, of, x, y) for of in ("x", "y"))
            crossed = self.hessian("upper", "x", "y", x, y)
            return self._joined(of_x, crossed, of_y)
        return self._pattern("upper").evaluate(lambda directions: self.upper_curvature(x, y, directions))

    def upper_curvature(self, x: np.ndarray, y: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the second derivative of f in (x, y) times each direction, one a row."""
        both, there = np.append(self.scales.x, self.scales.y), (self._numbers, *self._user(x, y))
        with evaluation():
            images = padded(self._kernels.upper_curvature, *there, directions=directions * both)
        return self.scales.upper * both * images

    def _joined(self, of_x: sp.csc_matrix, crossed: sp.csc_matrix, of_y: sp.csc_matrix) -> sp.csc_matrix:
        """Return the whole second derivative of f, the last one where no block has changed."""
        blocks = of_x, crossed, of_y
        last = self._last_blocks
        if last is None or any(new is not old for new, old in zip(blocks, last[0], strict=True)):
            self._last_blocks = last = blocks, sp.block_array([[of_x, crossed], [crossed.T, of_y]], format="csc")
        return last[1]

    def _pattern(self, *key: str) -> Pattern:
        """Return the pattern of a level's second derivative by two variables, or of one in (x, y)."""
        if key not in self.patterns:
            size = {"x": self.n_x, "y": self.n_y}
            of, by = (size[variable] for variable in key[1:]) if len(key) == 3 else 2 * (self.n_x + self.n_y,)
            self.patterns[key] = Pattern((of, by))
        return self.patterns[key]

    def products(self, level: Level, of: Variable, by: Variable, x: np.ndarray, y: np.ndarray) -> Callable:
        """Return the second derivative of f or g as a function: directions, one a row, to their products."""
        if (quadratic := self.quadratics[level]) is not None:
            return lambda directions: directions @ quadratic.block(of, by).T
        scale = {"x": self.scales.x, "y": self.scales.y}

        def products(directions: np.ndarray) -> np.ndarray:
            kernel = self._kernels.products[level, of, by]
            with evaluation():
                images = padded(kernel, self._numbers, *self._user(x, y), directions=directions * scale[by])
            return self.unit(level) * scale[of] * images

        return products

    def properties(self, level: Level) -> FunctionProperties:
        """Return what f or g is, found out on its jaxpr, in the user's units: smooth, convex in y, quadratic."""
        return properties_of(self.problem, level, *self.shapes)

    @functools.cached_property
    def upper_is_convex(self) -> bool:
        """Whether f is proven to be convex in x and y together."""
        return upper_convex_jointly(self.problem, *self.shapes)

    @functools.cached_property
    def lower_is_quadratic(self) -> bool:
        """Whether g is a quadratic in y, whatever x."""
        return self.properties("lower").quadratic

    def has_diagonal_hessian(self, level: Level, x: np.ndarray, y: np.ndarray) -> bool:
        """Return whether f or g is separable in y, by three products: cheap at any size."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, self.n_y))
        images = self.products(level, "y", "y", x, y)(np.vstack([np.ones(self.n_y), signs]))
        return bool(np.all(np.abs(images[1:] - signs * images[0]) <= 1e-10 * (1 + np.abs(images[0]))))

    def curvature(self, x: np.ndarray, y: np.ndarray, adjoint: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the second derivative in (x, y) of ``f + adjoint' grad_y g`` times each direction, one a row."""
        if (quadratic := self.quadratics["upper"]) is not None and self.lower_quadratic is not None:
            return directions @ quadratic.curvature
        if self.lagrangian_varies:  # as many products as there are directions are all that is needed
            return self._curvature(x, y, adjoint, directions)
        self.lagrangian_hessian(x, y, adjoint)
        return (self._pattern("lagrangian").operator @ directions.T).T

    @property
    def lagrangian_varies(self) -> bool:
        """Whether `lagrangian_hessian` has to be computed in full wherever it is asked for."""
        pattern = self._pattern("lagrangian")
        return pattern.dense and pattern.varies

    def lagrangian_hessian(self, x: np.ndarray, y: np.ndarray, adjoint: np.ndarray) -> sp.csc_matrix:
        """Return the second derivative in (x, y) of ``f + adjoint' grad_y g`` as one sparse matrix."""
        pattern = self._pattern("lagrangian")
        if pattern.last is None:  # all there is where g is quadratic
            pattern.last = self.upper_hessian(x, y)
        if self.lower_quadratic is not None and self.upper_constants is not None:
            return pattern.last
        return pattern.evaluate(lambda directions: self._curvature(x, y, adjoint, directions))

    def _curvature(self, x: np.ndarray, y: np.ndarray, adjoint: np.ndarray, directions: np.ndarray) -> np.ndarray:
        if self.lower_quadratic is not None:
            return self.upper_curvature(x, y, directions)
        scales = self.scales
        both = np.concatenate([scales.x, scales.y])
        # The kernel adds f and the derivative of g along the adjoint in the user's units: f's unit goes in front.
        along = adjoint * scales.y * (scales.lower / scales.upper)
        there = self._numbers, *self._user(x, y), along
        with evaluation():
            images = padded(self._kernels.curvature, *there, directions=directions * both)
        return scales.upper * both * images


def equilibrated(flat: FlatProblem, x: PyTree, y: PyTree = None) -> FlatProblem:
    """Return a problem in its natural units, as seen from a point of the user's, y moved well inside its bounds.

    Near a bound the second derivatives of an entropy tell how near, not what the units are. With rows that are not
    affine a problem stays in the user's units: its tangent problems have natural ones.
    """
    if flat.problem.curved:
        return flat
    point = flat.x_flat(x)
    other = flat.y_rows.well_inside(np.zeros(flat.n_y) if y is None else flat.y_flat(y))
    scales = natural_scales(flat, point, other)
    give_back(flat.n_x + flat.n_y)
    return flat.in_units(scales)


def _float64_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), np.float64)
