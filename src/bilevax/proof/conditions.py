"""The lower level replaced by its first-order conditions, whatever smooth functions f, g and rows are made of.

Where all rows are affine in y, every minimiser satisfies the KKT conditions. Where one is not, it might not, unless a
constraint qualification is known. But it always satisfies those of Fritz John: some multipliers, not all zero, of g and
of the rows that are not affine in y balance; affine rows may join with any. Their sum being one, these multipliers are
bounded. So the conditions have all points of the bilevel problem among their solutions, and bounds are safe; a solution
that is no point of the problem (only where a lower level has no interior) leaves a gap, never a false bound.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevax._support.precision import float64
from bilevax.model.analysis import Program, analyse, on_flat_vectors, trace
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import Level
from bilevax.proof.bent_rows import BentRows, bent_rows, leader_forms, straight_rows
from bilevax.proof.building import Unsupported
from bilevax.proof.forms import Factorable, Form
from bilevax.proof.program import AffineRows, one_sided
from bilevax.proof.settings import PROOF
from bilevax.proof.translation import translated


@dataclasses.dataclass
class Conditions:
    """Minimise ``objective`` over the variables of ``program`` with ``lower <= form <= upper`` for all ``rows``.

    Of each pair of nonnegative forms, a slack and a multiplier, one is zero. ``x``, ``y`` and ``forces`` are variables;
    the latter are multipliers of the lower level's affine rows ``owner``, with a ``sign``.
    """

    program: Factorable
    x: np.ndarray
    y: np.ndarray
    objective: Any = 0.0
    rows: list[tuple[Any, float, float]] = dataclasses.field(default_factory=list)
    pairs: list[tuple[Any, Form]] = dataclasses.field(default_factory=list)
    forces: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, object))
    owner: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    sign: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


def conditions(flat: FlatProblem) -> Conditions:
    """Return the conditions of a problem in its natural units; raise `Unsupported` with a name for what is outside."""
    follower, bent = straight_rows(flat), bent_rows(flat)
    size = flat.n_x + flat.n_y + len(follower.lower) + len(bent.upper)
    if size > PROOF.most_by_scip:
        raise Unsupported(f"it has {size} variables and rows, more than {PROOF.most_by_scip}")
    _check_convexity(flat, bent)
    program = Factorable()
    x, y = (program.variables(*rows.intervals()) for rows in (flat.x_rows, flat.y_rows))
    found = Conditions(program, x, y)
    found.objective = _objective(flat, found)
    found.rows += leader_forms(flat, program, x, y)
    pull = _add_affine_rows(found, follower)
    _add_stationarity(flat, found, bent, pull)
    return found


def _check_convexity(flat: FlatProblem, bent: BentRows) -> None:
    properties = flat.properties("lower")
    if flat.lower_quadratic is not None:
        properties = properties.with_hessian(flat.lower_quadratic.hessian)
    if properties.convexity != "proven":
        raise Unsupported("g is not proven to be convex in y")
    bounds = {"x_bounds": flat.x_rows.intervals(), "y_bounds": flat.y_rows.intervals()}
    for k in range(len(bent.upper)):
        row = analyse(lambda x, y, k=k: bent.function(x, y)[k], flat.n_x, flat.n_y, **bounds)
        if row.convexity != "proven":
            raise Unsupported("a row of the lower level is not proven to be convex in y")


def in_natural_units(flat: FlatProblem, level: Level) -> Any:
    """Return f or g of flat vectors in the problem's own units, to be traced."""
    fn, unit, scales = on_flat_vectors(flat.problem, level, flat.x_like, flat.y_like), flat.unit(level), flat.scales
    return lambda x, y: unit * fn(x * scales.x, y * scales.y)


def _objective(flat: FlatProblem, found: Conditions) -> Any:
    quadratic = flat.quadratics["upper"]
    if quadratic is None:
        traced = Program(trace(in_natural_units(flat, "upper"), flat.n_x, flat.n_y))
        return translated(traced, found.x, found.y, found.program).item()
    terms: dict[tuple[int, ...], float] = {(): float(quadratic.function(np.zeros(flat.n_x), np.zeros(flat.n_y)))}
    terms |= {(int(k),): float(quadratic.linear[k]) for k in np.flatnonzero(quadratic.linear)}
    for i, j in np.argwhere(np.triu(quadratic.curvature)):
        terms[int(i), int(j)] = float(quadratic.curvature[i, j]) * (0.5 if i == j else 1.0)
    return found.program.form(terms)


def _add_affine_rows(found: Conditions, follower: AffineRows) -> np.ndarray:
    """Add the affine rows with a multiplier for each side; return what the multipliers add to the gradient of g."""
    owner, sign, equalities = one_sided(follower)
    low = np.where(np.arange(len(owner)) < equalities, -np.inf, 0.0)
    forces = found.program.variables(low, np.full(len(owner), np.inf))
    images = found.program.affine(follower.of_x, found.x) + found.program.affine(follower.of_y, found.y)
    for k, (row, side) in enumerate(zip(owner, sign, strict=True)):
        bound = float(follower.upper[row] if side > 0 else follower.lower[row])
        if k < equalities:
            found.rows.append((images[row], bound, bound))
        else:
            found.pairs.append((float(side) * (bound - images[row]), forces[k]))
    found.forces, found.owner, found.sign = forces, owner, sign
    return found.program.affine((follower.of_y[owner] * sign[:, None]).T, forces)


def _add_stationarity(flat: FlatProblem, found: Conditions, bent: BentRows, pull: np.ndarray) -> None:
    """Add that g is stationary: its gradient and those of bent rows with their multipliers balance the pull."""
    program, straight = found.program, flat.lower_quadratic
    if straight is not None and not len(bent.upper):
        gradient = program.affine(straight.mixed.toarray(), found.x) + program.affine(
            straight.hessian.toarray(), found.y
        )
        found.rows += [(form, 0.0, 0.0) for form in gradient + straight.gradient + pull]
        return
    slacks = bent.upper - translated(Program(trace(bent.function, flat.n_x, flat.n_y)), found.x, found.y, program)
    weight = program.variables(np.zeros(1), np.ones(1)) if bent.curved.any() else np.zeros(0, object)
    multipliers = program.variables(np.zeros(len(slacks)), np.where(bent.curved, 1.0, np.inf))
    gradient = _lagrangian_gradient(flat, bent, len(weight) > 0)
    v = np.concatenate([found.y, weight, multipliers])
    _check_domain(flat, gradient, len(v))
    traced = Program(trace(gradient, flat.n_x, len(v)))
    found.rows += [(form, 0.0, 0.0) for form in translated(traced, found.x, v, program) + pull]
    found.pairs += list(zip(slacks, multipliers, strict=True))
    if len(weight):
        found.rows.append((weight[0] + multipliers[bent.curved].sum(), 1.0, 1.0))


def _lagrangian_gradient(flat: FlatProblem, bent: BentRows, weighted: bool) -> Any:
    """Return the gradient in y as a function of x and of y with the multipliers of g, if it has one, and bent rows."""
    lower, n_y = in_natural_units(flat, "lower"), flat.n_y

    def lagrangian(y: Any, x: Any, multipliers: Any) -> Any:
        of_g = multipliers[0] * lower(x, y) if weighted else lower(x, y)
        return of_g + multipliers[int(weighted) :] @ bent.function(x, y)

    return lambda x, v: jax.grad(lagrangian)(v[:n_y], x, v[n_y:])


def _check_domain(flat: FlatProblem, gradient: Any, size: int) -> None:
    """Raise `Unsupported` where the gradient in y may not be defined at a minimiser: no condition holds there."""
    rest = size - flat.n_y
    low, high = flat.y_rows.intervals()
    bounds = np.concatenate([low, np.zeros(rest)]), np.concatenate([high, np.full(rest, np.inf)])
    with float64():
        found = analyse(
            lambda x, v: jnp.sum(gradient(x, v)),
            flat.n_x,
            size,
            x_bounds=flat.x_rows.intervals(),
            y_bounds=bounds,
        )
    if any(row.on_y and not row.implied for row in found.domain):
        raise Unsupported("the gradient of g, or of a row, is not known to be defined wherever y may be")
