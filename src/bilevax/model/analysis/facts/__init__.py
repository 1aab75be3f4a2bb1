"""What is known of every value of a program: its sign, its degree as a polynomial, its curvature in y.

The rules are those of disciplined convex programming, on operations instead of formulas: x is a parameter, curvature is
that in y for fixed x. They prove, they never guess; what they do not know is of no known curvature.
"""

from bilevax.model.analysis.facts.curvature import AFFINE, CONCAVE, CONVEX
from bilevax.model.analysis.facts.fact import Fact
from bilevax.model.analysis.facts.slots import Facts

__all__ = ["AFFINE", "CONCAVE", "CONVEX", "Fact", "Facts"]
