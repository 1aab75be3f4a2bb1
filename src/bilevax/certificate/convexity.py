"""Whether g is convex in y: proven by rules or by a constant Hessian, else tested across the feasible set at x."""

from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.programs import linprog
from bilevax.certificate.settings import CONVEXITY_TEST
from bilevax.certificate.tolerances import TOLERANCES
from bilevax.exact.lower import constraints_at
from bilevax.model.analysis import prove_by_hessian
from bilevax.model.derived import derived
from bilevax.model.flat import FlatProblem
from bilevax.model.straight import WeightedRows

Evidence = Literal["proven", "tested", "refuted", "unknown"]


class LowerConvexity(NamedTuple):
    """The evidence that g is convex in y, and the y (in the user's units) at which it is refuted, or None."""

    evidence: Evidence
    point: np.ndarray | None = None


def lower_convexity(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> LowerConvexity:
    """Return whether g(x, .) is convex on the feasible set, and how that is known."""
    facts = flat.properties("lower")
    if facts.convexity == "proven":
        return LowerConvexity("proven")
    tangent = _tangent(flat)
    if facts.quadratic and (tangent is not None or facts.convexity == "unknown"):
        # At this x the Hessian is the same for all y; only directions along the equality rows count.
        hessian = flat.hessian("lower", "y", "y", x, y)
        reduced = hessian if tangent is None else tangent.T @ (hessian @ tangent)
        verdict = prove_by_hessian(reduced)[0]
        if verdict != "unknown":
            return LowerConvexity(verdict, y * flat.scales.y if verdict == "refuted" else None)
    if facts.convexity == "refuted" and facts.counterexample is not None:
        return LowerConvexity("refuted", facts.counterexample.y)
    along = None if tangent is None else flat.scales.y[:, None] * tangent
    test = facts.refute_convexity(x * flat.scales.x, _across(flat, x, y) * flat.scales.y, tangent=along)
    if test.counterexample is not None:
        return LowerConvexity("refuted", test.counterexample.y)
    return LowerConvexity("tested" if test.tested else "unknown")


def weaker(one: Evidence, other: Evidence) -> Evidence:
    """Return the weaker evidence of two."""
    order: tuple[Evidence, ...] = ("refuted", "unknown", "tested", "proven")
    return order[min(order.index(one), order.index(other))]


def rows_convexity(user: FlatProblem, tangent: FlatProblem, x: PyTree, y: np.ndarray) -> LowerConvexity:
    """Return whether the rows that are not affine are convex in y on the feasible set of a tangent problem.

    Few rows are looked at one by one, many in random sums with positive weights.
    """
    evidence: Evidence = "proven"
    random = np.random.default_rng(0)
    for part in user.problem.coupling:
        if part.affine:
            continue
        count = trees.size(part.shapes(user.x_like, user.y_like, user.problem.data))
        few = count <= CONVEXITY_TEST.rows
        weights = np.eye(count) if few else random.exponential(size=(CONVEXITY_TEST.rows, count))
        for weight in weights:
            found = _alone(user, tangent, WeightedRows(part, weight), x, y)
            if found.point is not None:
                return found
            evidence = weaker(evidence, found.evidence)
    return LowerConvexity(evidence)


def own_convexity(user: FlatProblem, tangent: FlatProblem, x: PyTree, y: np.ndarray) -> LowerConvexity:
    """Return whether g alone is convex in y on the feasible set of a tangent problem."""
    return _alone(user, tangent, user.problem.lower, x, y)


def _alone(user: FlatProblem, tangent: FlatProblem, objective: Any, x: PyTree, y: np.ndarray) -> LowerConvexity:
    alone = FlatProblem(derived(tangent.problem, lower=objective), user.x_like, user.y_like)
    return lower_convexity(alone, alone.x_flat(x), y)


def _tangent(flat: FlatProblem) -> np.ndarray | None:
    """Return a basis of the directions along all equality rows, as columns; None without such rows or with many y."""
    rows = constraints_at(flat, np.zeros(flat.n_x))
    equal = sp.csr_matrix(rows.matrix)[rows.lower == rows.upper]
    if equal.shape[0] == 0 or flat.n_y > CONVEXITY_TEST.most_variables:
        return None
    return scipy.linalg.null_space(equal.toarray(), rcond=TOLERANCES.tangent_rank)


def _across(flat: FlatProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return points across the feasible set at x: y, corners in random directions, and points between them."""
    rows, random = constraints_at(flat, x), np.random.default_rng(0)
    corners = [y]
    finite = np.isfinite(rows.upper), np.isfinite(rows.lower)
    if flat.n_y <= CONVEXITY_TEST.most_variables:
        matrix = sp.vstack([rows.matrix[finite[0]], -rows.matrix[finite[1]]])
        side = np.concatenate([rows.upper[finite[0]], -rows.lower[finite[1]]])
        for direction in random.standard_normal((CONVEXITY_TEST.directions, flat.n_y)):
            for cost in (direction, -direction):
                box = np.column_stack([y - CONVEXITY_TEST.reach, y + CONVEXITY_TEST.reach])
                found = linprog(cost, matrix, side, bounds=box, method="highs")
                if found.status == 0:
                    corners.append(found.x)
    points = np.array(corners)
    for ball in rows.balls:
        offset = points[:, ball.index] - ball.center
        length = np.maximum(np.linalg.norm(offset, axis=1, keepdims=True), ball.radius)
        points[:, ball.index] = ball.center + offset * ball.radius / length
    weights = random.dirichlet(np.ones(len(points)), size=CONVEXITY_TEST.points_between * len(points))
    return np.vstack([points, weights @ points])
