"""Second derivatives that are the same everywhere, found out once in the user's units; other units only scale them."""

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from bilevax.model.compressed_rows import scaled
from bilevax.model.objectives import affine_gradient_of
from bilevax.model.patterns import Pattern
from bilevax.model.quadratic import Quadratic
from bilevax.model.scales import Scales

if TYPE_CHECKING:
    from bilevax.model.flat import FlatProblem
    from bilevax.model.problem import Level

# Variables up to which constants are looked for: to probe a full matrix is then a matter of seconds.
_MOST_VARIABLES = 6000


def lower_constants(flat: "FlatProblem") -> Quadratic | None:
    """Return the numbers of g in the units of ``flat``; None where its gradient in y is not affine, or it is large."""
    if (affine := affine_gradient_of(flat.problem, *flat.shapes)) is not None:
        return affine.in_units(flat.scales)
    if not _suits(flat, "lower"):
        return None
    if "lower" not in flat.of_user:
        user, x, y = _in_user_units(flat)
        of_y, of_x = (Pattern((flat.n_y, size), strict=True) for size in (flat.n_y, flat.n_x))
        second = of_y.evaluate(user.products("lower", "y", "y", x, y))
        transposed = user.products("lower", "x", "y", x, y)
        mixed = of_x.evaluate(user.products("lower", "y", "x", x, y), transposed=transposed)
        flat.of_user["lower"] = Quadratic(user.gradients("lower", x, y)[1], second, mixed)
    return flat.of_user["lower"].in_units(flat.scales)


def upper_constants(flat: "FlatProblem") -> sp.csc_matrix | None:
    """Return the second derivative of f in (x, y) likewise."""
    if not _suits(flat, "upper"):
        return None
    if "upper" not in flat.of_user:
        user, x, y = _in_user_units(flat)
        size = flat.n_x + flat.n_y
        pattern = Pattern((size, size), strict=True)
        flat.of_user["upper"] = pattern.evaluate(lambda directions: user.upper_curvature(x, y, directions))
    both = np.concatenate([flat.scales.x, flat.scales.y])
    return scaled(flat.of_user["upper"], flat.scales.upper * both, both)


def _suits(flat: "FlatProblem", level: "Level") -> bool:
    degree = flat.properties(level).degree
    return degree is not None and degree <= 2 and flat.n_x + flat.n_y <= _MOST_VARIABLES


def _in_user_units(flat: "FlatProblem") -> tuple["FlatProblem", np.ndarray, np.ndarray]:
    user = flat.in_units(Scales.ones(flat.n_x, flat.n_y, len(flat.scales.rows)))
    return user, np.zeros(flat.n_x), np.zeros(flat.n_y)
