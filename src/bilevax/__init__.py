"""Bilevel optimisation with linearly constrained lower levels: certified answers, on JAX."""

from bilevax import datasets, problems, reformulation
from bilevax.certificate import Certificate, certify
from bilevax.comparison import Comparison, compare
from bilevax.coupling import AffineCoupling, LinearCoupling
from bilevax.driver import Progress, RunResult, run, solve
from bilevax.exact.lower_level import LowerSolution, solve_lower_level
from bilevax.multistart import Multistart, multistart
from bilevax.problem import BilevelProblem
from bilevax.sets import Ball, Box, Free, NonNegative, Polyhedron, Product, Simplex
from bilevax.solution import Solution, Status
from bilevax.solvers.bic_gaffa import BiCGAFFA
from bilevax.solvers.blocc import BLOCC
from bilevax.solvers.default import Default
from bilevax.solvers.gam import GAM
from bilevax.solvers.lv_hba import LVHBA
from bilevax.solvers.projected_penalty import ProjectedPenalty
from bilevax.solvers.sflcb import SFLCB

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
