"""The rows of both levels for `conditions`: affine ones by their numbers, the others as functions to be traced."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax._support import trees
from bilevax._support.division import SMALLEST_DIVISOR
from bilevax._support.memory import Frozen
from bilevax._support.precision import float64
from bilevax.exact.upper_rows import upper_rows_at
from bilevax.model.analysis import Program, trace
from bilevax.model.coupling import Coupling
from bilevax.model.derived import derived
from bilevax.model.flat import FlatProblem
from bilevax.model.objectives import properties_of
from bilevax.model.problem import place
from bilevax.model.row_functions import upper_rows_of
from bilevax.model.rows import rows_of
from bilevax.model.set_rows import SetRows
from bilevax.model.straight import weighted
from bilevax.proof.forms import Factorable
from bilevax.proof.program import AffineRows
from bilevax.proof.translation import translated


@dataclasses.dataclass(frozen=True)
class BentRows:
    """Rows ``function(x, y) <= upper`` of the lower level that are not affine in (x, y); ``curved``: nor in y alone."""

    function: Callable[[Any, Any], Any]
    upper: np.ndarray
    curved: np.ndarray


def straight_rows(flat: FlatProblem) -> AffineRows:
    """Return the affine rows of the lower level, those of Y among them, in the units of ``flat``."""
    scales, problem = flat.scales, flat.problem
    units = list(zip(problem.coupling, _split(scales.rows, flat.row_shapes), strict=True))
    couplings, unit = [part for part, _ in units if part.affine], [of for part, of in units if part.affine]
    rows, unit = rows_of(derived(problem, coupling=couplings), *_shapes(flat)), np.concatenate([*unit, []])
    of_x, of_y = rows.B.toarray() * scales.x, rows.A.toarray() * scales.y
    of_set = flat.y_rows.matrix.toarray()
    return AffineRows(
        np.vstack([unit[:, None] * of_x, np.zeros((len(of_set), flat.n_x))]),
        np.vstack([unit[:, None] * of_y, of_set]),
        np.concatenate([unit * rows.lower, flat.y_rows.lower]),
        np.concatenate([unit * rows.upper, flat.y_rows.upper]),
    )


def _split(values: np.ndarray, shapes: Sequence[Any]) -> list[np.ndarray]:
    """Return values by the couplings that they belong to."""
    return np.split(values, np.cumsum([trees.size(shape) for shape in shapes])[:-1]) if shapes else []


def _shapes(flat: FlatProblem) -> tuple[Frozen, Frozen]:
    return Frozen(flat.x_like), Frozen(flat.y_like)


def bent_rows(flat: FlatProblem) -> BentRows:
    """Return the other rows of the lower level, balls of Y among them, in the units of ``flat``."""
    like, units = _shapes(flat), _split(flat.scales.rows, flat.row_shapes)
    functions, uppers, curved = [], [], []
    for part, unit in zip(flat.problem.coupling, units, strict=True):
        if not part.affine:
            alone = derived(flat.problem, lower=weighted(part, flat.problem, *like))
            upper = trees.flatten_host(part.bounds(part.shapes(flat.x_like, flat.y_like, flat.problem.data))[1])
            functions.append(_in_units(flat, part, unit))
            uppers.append(unit * upper)
            curved.append(np.full(len(upper), not properties_of(alone, "lower", *like).affine))
    if flat.y_rows.balls:
        functions.append(lambda x, y: _squares(flat.y_rows, y))
        uppers.append(np.ones(len(flat.y_rows.balls)))
        curved.append(np.ones(len(flat.y_rows.balls), bool))
    if not functions:
        return BentRows(lambda x, y: jnp.zeros(0), np.zeros(0), np.zeros(0, bool))
    together = lambda x, y: jnp.concatenate([function(x, y) for function in functions])
    return BentRows(together, np.concatenate(uppers), np.concatenate(curved))


def _in_units(flat: FlatProblem, part: Coupling, unit: np.ndarray) -> Callable[[Any, Any], Any]:
    """Return rows as a function of flat vectors in the units of ``flat``."""
    with float64():
        placed, data = place((part, flat.problem.data), np.float64)
    x_like, y_like, scales = flat.x_like, flat.y_like, flat.scales

    def values(x: Any, y: Any) -> Any:
        point = trees.unflatten(x * scales.x, x_like), trees.unflatten(y * scales.y, y_like)
        return unit * trees.flatten(placed.value(*point, data))

    return values


def _squares(rows: SetRows, v: Any) -> Any:
    """Return for each ball of a set the squared distance from its centre, in radii."""
    return jnp.stack([jnp.sum(((v[ball.index] - ball.center) / ball.radius) ** 2) for ball in rows.balls])


def leader_forms(flat: FlatProblem, program: Factorable, x: np.ndarray, y: np.ndarray) -> list:
    """Return the rows of X and those of the leader as forms with bounds."""
    images = program.affine(flat.x_rows.matrix.toarray(), x)
    found = list(zip(images, flat.x_rows.lower, flat.x_rows.upper, strict=True))
    if flat.x_rows.balls:
        of_balls = Program(trace(lambda x, y: _squares(flat.x_rows, x), flat.n_x, flat.n_y))
        found += [(form, -np.inf, 1.0) for form in translated(of_balls, x, y, program)]
    inside = flat.y_rows.well_inside(np.zeros(flat.n_y))
    lengths = upper_rows_at(flat, np.zeros(flat.n_x), inside).length
    known = np.isfinite(lengths) & (lengths > SMALLEST_DIVISOR)
    units, rows = np.where(known, 1 / np.where(known, lengths, 1.0), 1.0), upper_rows_of(flat.problem, *_shapes(flat))
    forms = [
        _row_forms(flat, part, unit, program, x, y)
        for part, unit in zip(flat.problem.upper_rows, _split(units, rows.shapes), strict=True)
    ]
    return found + list(zip(np.concatenate([*forms, []]), units * rows.lower, units * rows.upper, strict=True))


def _row_forms(
    flat: FlatProblem, part: Coupling, unit: np.ndarray, program: Factorable, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    if not part.affine:
        return translated(Program(trace(_in_units(flat, part, unit), flat.n_x, flat.n_y)), x, y, program)
    with float64():
        placed, data = place((part, flat.problem.data), np.float64)
        of_x, of_y, offset = placed.matrices(flat.x_like, flat.y_like, data)
    of_x, of_y = (unit[:, None] * of_x.toarray() * flat.scales.x, unit[:, None] * of_y.toarray() * flat.scales.y)
    return program.affine(of_x, x) + program.affine(of_y, y) + unit * offset
