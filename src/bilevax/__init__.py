"""Bilevel optimisation with convex lower levels: certified answers, on JAX.

Names are loaded when they are first used: who only writes a problem down does not wait for the solvers.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilevax import datasets, problems
    from bilevax.certificate.certificate import Certificate
    from bilevax.certificate.certify import certify
    from bilevax.certificate.status import Status
    from bilevax.driver.comparison import Comparison, compare
    from bilevax.driver.compiled import RunResult, run
    from bilevax.driver.multistart import Multistart, multistart
    from bilevax.driver.proof import Proof
    from bilevax.driver.prove import prove
    from bilevax.driver.solution import Solution
    from bilevax.driver.solve import solve
    from bilevax.driver.watch import Progress
    from bilevax.exact.lower_level import LowerSolution, solve_lower_level
    from bilevax.model.coupling import AffineCoupling, ConvexCoupling, LinearCoupling
    from bilevax.model.problem import BilevelProblem
    from bilevax.model.sets import Ball, Box, Free, NonNegative, Polyhedron, Product, Simplex
    from bilevax.paper import reformulation
    from bilevax.proof.status import ProofStatus
    from bilevax.solvers.baselines.bic_gaffa import BiCGAFFA
    from bilevax.solvers.baselines.blocc import BLOCC
    from bilevax.solvers.baselines.gam import GAM
    from bilevax.solvers.baselines.lv_hba import LVHBA
    from bilevax.solvers.baselines.projected_penalty import ProjectedPenalty
    from bilevax.solvers.default import Default
    from bilevax.solvers.sflcb import SFLCB

_MODULES = {
    "datasets": "bilevax.datasets",
    "plot": "bilevax.app.plot",  # needs matplotlib
    "problems": "bilevax.problems",
    "reformulation": "bilevax.paper.reformulation",
}
_HOMES = {
    "bilevax.certificate.certificate": ("Certificate",),
    "bilevax.certificate.certify": ("certify",),
    "bilevax.certificate.status": ("Status",),
    "bilevax.driver.comparison": ("Comparison", "compare"),
    "bilevax.driver.compiled": ("RunResult", "run"),
    "bilevax.driver.multistart": ("Multistart", "multistart"),
    "bilevax.driver.proof": ("Proof",),
    "bilevax.driver.prove": ("prove",),
    "bilevax.driver.solution": ("Solution",),
    "bilevax.driver.solve": ("solve",),
    "bilevax.driver.watch": ("Progress",),
    "bilevax.exact.lower_level": ("LowerSolution", "solve_lower_level"),
    "bilevax.model.coupling": ("AffineCoupling", "ConvexCoupling", "LinearCoupling"),
    "bilevax.model.problem": ("BilevelProblem",),
    "bilevax.model.sets": ("Ball", "Box", "Free", "NonNegative", "Polyhedron", "Product", "Simplex"),
    "bilevax.proof.status": ("ProofStatus",),
    "bilevax.solvers.baselines.bic_gaffa": ("BiCGAFFA",),
    "bilevax.solvers.baselines.blocc": ("BLOCC",),
    "bilevax.solvers.baselines.gam": ("GAM",),
    "bilevax.solvers.baselines.lv_hba": ("LVHBA",),
    "bilevax.solvers.baselines.projected_penalty": ("ProjectedPenalty",),
    "bilevax.solvers.default": ("Default",),
    "bilevax.solvers.sflcb": ("SFLCB",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found = importlib.metadata.version("bilevax")
    elif name in _MODULES:
        found = importlib.import_module(_MODULES[name])
    elif name in _HOME_OF:
        found = getattr(importlib.import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'bilevax' has no attribute {name!r}")
    globals()[name] = found  # next time it is there
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOME_OF, "__version__"})


__all__ = [
    "BLOCC",
    "GAM",
    "LVHBA",
    "SFLCB",
    "AffineCoupling",
    "Ball",
    "BiCGAFFA",
    "BilevelProblem",
    "Box",
    "Certificate",
    "Comparison",
    "ConvexCoupling",
    "Default",
    "Free",
    "LinearCoupling",
    "LowerSolution",
    "Multistart",
    "NonNegative",
    "Polyhedron",
    "Product",
    "Progress",
    "ProjectedPenalty",
    "Proof",
    "ProofStatus",
    "RunResult",
    "Simplex",
    "Solution",
    "Status",
    "certify",
    "compare",
    "datasets",
    "multistart",
    "problems",
    "prove",
    "reformulation",
    "run",
    "solve",
    "solve_lower_level",
]
