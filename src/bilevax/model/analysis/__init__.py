"""What f and g are, found out on their jaxprs: smooth or not and why, convex in y or not, and where defined."""

from bilevax.model.analysis.convexity import (
    Convexity,
    ConvexityTest,
    Counterexample,
    prove_by_hessian,
    refute_convexity,
)
from bilevax.model.analysis.domain import DomainRow
from bilevax.model.analysis.kinks import Kink
from bilevax.model.analysis.program import Program
from bilevax.model.analysis.properties import (
    FunctionProperties,
    Smoothness,
    analyse,
    analyse_objective,
    on_flat_vectors,
)
from bilevax.model.analysis.tracing import trace

__all__ = [
    "Convexity",
    "ConvexityTest",
    "Counterexample",
    "DomainRow",
    "FunctionProperties",
    "Kink",
    "Program",
    "Smoothness",
    "analyse",
    "analyse_objective",
    "on_flat_vectors",
    "prove_by_hessian",
    "refute_convexity",
    "trace",
]
