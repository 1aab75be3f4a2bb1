"""Bilevel optimisation with linearly constrained lower levels: certified answers, on JAX."""

import importlib
from typing import Any

from bilevax import datasets, problems
from bilevax.certificate.certificate import Certificate, certify
from bilevax.certificate.status import Status
from bilevax.driver.comparison import Comparison, compare
from bilevax.driver.compiled import RunResult, run
from bilevax.driver.multistart import Multistart, multistart
from bilevax.driver.solution import Solution
from bilevax.driver.solve import solve
from bilevax.driver.watch import Progress
from bilevax.exact.lower_level import LowerSolution, solve_lower_level
from bilevax.model.coupling import AffineCoupling, LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Ball, Box, Free, NonNegative, Polyhedron, Product, Simplex
from bilevax.paper import reformulation
from bilevax.solvers.baselines.bic_gaffa import BiCGAFFA
from bilevax.solvers.baselines.blocc import BLOCC
from bilevax.solvers.baselines.gam import GAM
from bilevax.solvers.baselines.lv_hba import LVHBA
from bilevax.solvers.baselines.projected_penalty import ProjectedPenalty
from bilevax.solvers.default import Default
from bilevax.solvers.sflcb import SFLCB

_LAZY = {"plot": "bilevax.app.plot"}  # needs matplotlib


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(_LAZY[name])
    raise AttributeError(f"module 'bilevax' has no attribute {name!r}")


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
    "RunResult",
    "Simplex",
    "Solution",
    "Status",
    "certify",
    "compare",
    "datasets",
    "multistart",
    "problems",
    "reformulation",
    "run",
    "solve",
    "solve_lower_level",
]
