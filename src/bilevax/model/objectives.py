"""What f and g of a problem are, found out once for each problem and the shapes of its variables."""

import jax

from bilevax._support import clock, trees
from bilevax._support.memory import Frozen, remembered
from bilevax._support.precision import float64
from bilevax.model.analysis import FunctionProperties, analyse, analyse_objective, on_flat_vectors
from bilevax.model.compressed_rows import by_columns
from bilevax.model.derived import representative
from bilevax.model.patterns import DENSE_COLUMNS
from bilevax.model.problem import BilevelProblem, Level
from bilevax.model.quadratic import JointQuadratic, Quadratic, gradient_numbers, holds_full_matrices, joint_quadratic


def properties_of(problem: BilevelProblem, level: Level, x_like: Frozen, y_like: Frozen) -> FunctionProperties:
    """Return what f or g of a problem is."""
    return _properties_of(representative(problem, level), level, x_like, y_like)


@remembered
def _properties_of(problem: BilevelProblem, level: Level, x_like: Frozen, y_like: Frozen) -> FunctionProperties:
    return analyse_objective(problem, level, x_like.tree, y_like.tree)


def upper_convex_jointly(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> bool:
    """Return whether f of a problem is proven to be convex in x and y together."""
    return _upper_convex_jointly(representative(problem, "upper"), x_like, y_like)


@remembered
def _upper_convex_jointly(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> bool:
    return analyse_objective(problem, "upper", x_like.tree, y_like.tree, jointly=True).convexity == "proven"


def quadratic_of(problem: BilevelProblem, level: Level, x_like: Frozen, y_like: Frozen) -> JointQuadratic | None:
    """Return f or g of a problem by its numbers, in the user's units; None if it is no quadratic.

    None, too, where there are many variables, unless its own matrices are about as large as these numbers; and for
    objectives whose numbers change from problem to problem of a family.
    """
    known = representative(problem, level)
    same = getattr(known, level) is getattr(problem, level)
    return _quadratic_of(known, level, x_like, y_like) if same else None


@remembered
def _quadratic_of(problem: BilevelProblem, level: Level, x_like: Frozen, y_like: Frozen) -> JointQuadratic | None:
    clock.check()  # tried again at each use until it is done in time
    n_x, n_y = trees.size(x_like.tree), trees.size(y_like.tree)
    properties = properties_of(problem, level, x_like, y_like)
    if properties.degree is None or properties.degree > 2:
        return None
    if n_x + n_y > DENSE_COLUMNS and not holds_full_matrices(properties.program):
        return None
    objective = lambda: on_flat_vectors(problem, level, x_like.tree, y_like.tree)
    return joint_quadratic(objective, properties.program, n_x, n_y)


def affine_gradient_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> Quadratic | None:
    """Return g by its numbers where only its gradient in y is affine, as with a cube of x alone; None as there."""
    known = representative(problem, "lower")
    return _affine_gradient_of(known, x_like, y_like) if known.lower is problem.lower else None


@remembered
def _affine_gradient_of(problem: BilevelProblem, x_like: Frozen, y_like: Frozen) -> Quadratic | None:
    n_x, n_y = trees.size(x_like.tree), trees.size(y_like.tree)
    properties = properties_of(problem, "lower", x_like, y_like)
    if n_x + n_y > DENSE_COLUMNS or not properties.quadratic or properties.hessian_depends_on_x:
        return None
    gradient = jax.grad(on_flat_vectors(problem, "lower", x_like.tree, y_like.tree), argnums=1)
    with float64():
        degree = analyse(lambda x, y: gradient(x, y).sum(), n_x, n_y).degree
        numbers = gradient_numbers(gradient, n_x, n_y) if degree is not None and degree <= 1 else None
    if numbers is None:
        return None
    constant, slopes = numbers
    return Quadratic(constant, by_columns(slopes[n_x:].T), by_columns(slopes[:n_x].T))
