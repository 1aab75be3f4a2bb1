"""From a bilevel problem to its `ComplementarityProgram`, where its class allows that; refused by name elsewhere."""

import numpy as np

from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.flat import FlatProblem
from bilevax.model.row_functions import upper_rows_of
from bilevax.proof.program import AffineRows, ComplementarityProgram, LowerGradient, complementarity_program
from bilevax.proof.settings import PROOF


class Unsupported(Exception):
    """The problem is outside of what can be proven; the message names what is."""


def build(flat: FlatProblem) -> ComplementarityProgram:
    """Return the program of a problem, in the units of ``flat``; raise `Unsupported` where there is none."""
    if flat.problem.curved:
        raise Unsupported("a row of the lower level is not affine")
    size = flat.n_x + flat.n_y + flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0]
    if size > PROOF.most_variables:
        raise Unsupported(f"it has {size} variables and rows, more than {PROOF.most_variables}")
    upper = flat.quadratics["upper"]
    if upper is None:
        raise Unsupported("f is not a quadratic in x and y together")
    constant = float(upper.function(np.zeros(flat.n_x), np.zeros(flat.n_y)))
    objective = upper.curvature, upper.linear, constant
    return complementarity_program(objective, lower_gradient(flat), follower_rows(flat), leader_rows(flat))


def lower_gradient(flat: FlatProblem) -> LowerGradient:
    """Return the gradient of g in y; raise `Unsupported` where it is not affine, or g not proven convex in y."""
    found = flat.lower_quadratic
    if found is None:
        raise Unsupported("the gradient of g in y is not affine in x and y")
    properties = flat.properties("lower").with_hessian(found.hessian)
    if properties.convexity != "proven":
        raise Unsupported("g is not proven to be convex in y")
    if flat.problem.choice == "pessimistic" and np.linalg.matrix_rank(found.hessian.toarray()) < flat.n_y:
        raise Unsupported("the choice among several minimisers of g is pessimistic")
    return LowerGradient(found.gradient, found.mixed.toarray(), found.hessian.toarray())


def follower_rows(flat: FlatProblem) -> AffineRows:
    """Return the rows of the lower level, those of Y among them."""
    if flat.y_rows.balls:
        raise Unsupported("the set Y is a ball")
    of_y = flat.y_rows.matrix.toarray()
    return AffineRows(
        np.vstack([flat.rows.B.toarray(), np.zeros((len(of_y), flat.n_x))]),
        np.vstack([flat.rows.A.toarray(), of_y]),
        np.concatenate([flat.rows.lower, flat.y_rows.lower]),
        np.concatenate([flat.rows.upper, flat.y_rows.upper]),
    )


def leader_rows(flat: FlatProblem) -> AffineRows:
    """Return the rows of X, and those that only the leader has to satisfy."""
    if flat.x_rows.balls:
        raise Unsupported("the set X is a ball")
    upper = upper_rows_of(flat.problem, *flat.shapes)
    if not upper.affine:
        raise Unsupported("an upper row is not affine")
    of_x, zero = flat.x_rows.matrix.toarray(), (np.zeros(flat.n_x), np.zeros(flat.n_y))
    rows = upper_rows_at(flat, *zero)  # affine: the same wherever they are looked at, but for their values
    return AffineRows(
        np.vstack([of_x, rows.x.toarray()]),
        np.vstack([np.zeros((len(of_x), flat.n_y)), rows.y.toarray()]),
        np.concatenate([flat.x_rows.lower, rows.lower - rows.value]),
        np.concatenate([flat.x_rows.upper, rows.upper - rows.value]),
    )
