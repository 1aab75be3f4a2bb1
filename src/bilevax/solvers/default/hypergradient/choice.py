"""Where descent on Phi by its gradient is tried first, and which linear algebra computes it."""

from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.hypergradient.compiled import CompiledPhi
from bilevax.solvers.default.hypergradient.descent import Phi
from bilevax.solvers.default.lower.rows import stack_rows
from bilevax.solvers.default.settings import HYPERGRADIENT


def phi_of(flat: FlatProblem) -> Phi | None:
    """Return Phi with its gradient; None where the other phases are the better way."""
    if flat.n_x < HYPERGRADIENT.fewest or flat.y_rows.balls:
        return None
    if all(quadratic is not None for quadratic in flat.quadratics.values()):
        return None  # the other phases compile nothing, and are done before this program would be compiled
    rows = stack_rows(flat, *flat.y_rows.intervals(), sparse=True)
    if flat.n_y + rows.count <= HYPERGRADIENT.most_compiled:
        return CompiledPhi(flat, rows)
    return None
