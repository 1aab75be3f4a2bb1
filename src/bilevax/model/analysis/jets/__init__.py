"""Operations of a `Program` in NumPy: values at points, or jets along lines, many at once.

A value that depends on variables has two axes in front of its own: components and batch. There is one component, the
value, or five: value v, first and second derivative v', v'' along the line, and the magnitudes |v'|, |v''| of the terms
that were added up to find them, against which rounding is judged. A value that depends on no variable, and is not
needed otherwise, has no axes in front. What is true or false, or whole, has one component.
"""

from bilevax.model.analysis.jets.components import Unsupported, line_jet
from bilevax.model.analysis.jets.operations import KNOWN, apply
from bilevax.model.analysis.jets.rearranging import LINEAR, may_vary, rearrange

__all__ = ["KNOWN", "LINEAR", "Unsupported", "apply", "line_jet", "may_vary", "rearrange"]
