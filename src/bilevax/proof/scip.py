"""What curves down, or is no quadratic: `Conditions` given to SCIP (the extra ``global``), pairs as sets with one zero.

SCIP branches on products and functions, too, and needs no bounds on multipliers. Its lower bound is not recomputed
here: it holds up to SCIP's own tolerances. Points are evaluated exactly, as everywhere.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bilevax._support import clock
from bilevax.proof.conditions import Conditions
from bilevax.proof.points import Points
from bilevax.proof.scip_model import place, stated
from bilevax.proof.settings import PROOF

_FEASIBLE = 1e-9  # SCIP's tolerance of rows, a thousandth of its default


class Found(NamedTuple):
    """SCIP's lower bound, its nodes, whether it stopped at the deadline, and what it says where it failed."""

    lower: float
    nodes: int
    late: bool
    failure: str = ""


def available() -> bool:
    """Return whether SCIP is installed."""
    return importlib.util.find_spec("pyscipopt") is not None


def scip_bounds(given: Conditions, points: Points, gap: float) -> Found:
    """Return what SCIP finds below the cutoff of the best of the ``points`` that are known."""
    from pyscipopt import Model
    from pyscipopt.scip import PY_SCIP_HEURTIMING

    model = Model()
    model.hideOutput()
    model.setParam("limits/gap", 0.5 * gap)
    model.setParam("limits/absgap", 0.5 * gap * PROOF.smallest_value)
    model.setParam("numerics/feastol", _FEASIBLE)
    if np.isfinite(clock.remaining()):
        model.setParam("limits/time", max(PROOF.scip_share * clock.remaining(), 1e-3))
    if np.isfinite(points.cutoff):
        model.setObjlimit(points.cutoff)
    z = stated(model, given)
    read = lambda solution: [
        np.array([model.getSolVal(solution, z[place(form)]) for form in part])
        for part in (given.x, given.y, given.forces)
    ]
    after_nodes = PY_SCIP_HEURTIMING.AFTERLPNODE
    model.includeHeur(_looking(points, read), "exact", "evaluates relaxed points", "e", timingmask=after_nodes)
    try:
        model.optimize()
    except Exception as error:  # PySCIPOpt raises nothing more special, such as for a linear program it cannot solve
        return Found(-np.inf, 0, False, str(error))
    for solution in model.getSols()[: PROOF.scip_points]:  # the best first
        points.try_out(*read(solution))
    bound = points.cutoff if model.getStatus() == "infeasible" else model.getDualbound()
    lower = -np.inf if bound <= -model.infinity() else float(bound)
    return Found(lower, int(model.getNNodes()), model.getStatus() == "timelimit")


def _looking(points: Points, read: Callable[[Any], list[np.ndarray]]) -> Any:
    """Return what looks at the points of SCIP's relaxations: they are often near a point of the problem.

    SCIP's own points have to satisfy all equations to its tolerance, which it finds hard where they are not linear.
    """
    from pyscipopt import Heur
    from pyscipopt.scip import PY_SCIP_RESULT

    class Looking(Heur):
        def heurexec(self, heurtiming: Any, nodeinfeasible: bool) -> dict[str, Any]:
            before = points.cutoff
            if not nodeinfeasible and points.worth_a_look():
                points.try_out(*read(None))  # the relaxation's
            if points.cutoff < before:
                self.model.setObjlimit(points.cutoff)
            return {"result": PY_SCIP_RESULT.DIDNOTFIND}

    return Looking()
