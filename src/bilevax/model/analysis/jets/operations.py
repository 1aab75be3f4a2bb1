"""`apply`: which rule is for which operation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bilevax.model.analysis.jets.combining import COMBINING
from bilevax.model.analysis.jets.components import Unsupported
from bilevax.model.analysis.jets.elementwise import ELEMENTWISE
from bilevax.model.analysis.jets.functions import STEPS, UNARY, chain_rule
from bilevax.model.analysis.jets.rearranging import REARRANGED, may_vary, same_components


def apply(op: Any, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Sequence[bool]):
    """Return the results of an operation, as a list.

    Parameters
    ----------
    op
        With ``name`` and ``params`` of a JAX primitive.
    operands
        Their values; those that vary with the two axes in front.
    shapes
        Of the operands, without those axes.
    varies
        Which operands have those axes.

    Raises
    ------
    Unsupported
        For an operation, or a form of it, that is not known here.
    """
    try:
        return _apply(op, operands, shapes, varies)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Unsupported(op.name) from error


def _apply(op: Any, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]], varies: Sequence[bool]):
    name, params = op.name, op.params
    if name in UNARY:
        return [chain_rule(operands[0], lambda v: UNARY[name](v, params))]
    if name in STEPS:
        return [STEPS[name](operands[0][:1])]
    if name in ELEMENTWISE:
        rank = max(map(len, shapes))
        aligned = [a.reshape((*a.shape, *(1,) * (rank - len(s)))) for a, s in zip(operands, shapes, strict=True)]
        return [ELEMENTWISE[name](aligned, varies)]
    if name in REARRANGED:
        for index, free in enumerate(varies):
            if free and not may_vary(op, index):
                raise Unsupported(f"{name} at a place that varies")
        return [REARRANGED[name](params, same_components(operands, varies, op), shapes)]
    if name in COMBINING:
        return COMBINING[name](params, operands, shapes, varies)
    raise Unsupported(name)


#: The operations that are known here.
KNOWN = frozenset().union(UNARY, STEPS, ELEMENTWISE, REARRANGED, COMBINING)
