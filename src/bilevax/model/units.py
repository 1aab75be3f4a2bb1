"""What a problem is in certain units, computed once: its rows, sets and second derivatives.

Of a small problem it is kept as long as the problem lives, for the units asked for last: search, proof, certificate and
the next solve see the same numbers. That of a large one is as large as its data, and goes with its flat problem.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bilevax._support import trees
from bilevax._support.memory import Frozen, remembered
from bilevax.model.patterns import DENSE_COLUMNS
from bilevax.model.rows import row_shapes_of, sets_of
from bilevax.model.scales import Scales

if TYPE_CHECKING:
    from bilevax.model.flat import FlatProblem
    from bilevax.model.problem import BilevelProblem

Found = TypeVar("Found")

_MOST_ENTRIES = 20_000  # of all rows, zeros included, for which numbers are kept
_MOST_UNITS = 3  # of the units that were asked for last: the user's own and natural ones among them


class of_units(Generic[Found]):
    """A property of a flat problem in its units, computed when it is first asked for."""

    def __init__(self, find: "Callable[[FlatProblem], Found]"):
        self._find, self._name, self.__doc__ = find, find.__name__, find.__doc__

    @overload
    def __get__(self, flat: None, owner: Any) -> "of_units[Found]": ...
    @overload
    def __get__(self, flat: "FlatProblem", owner: Any) -> Found: ...
    def __get__(self, flat: "FlatProblem | None", owner: Any) -> "of_units[Found] | Found":
        if flat is None:
            return self
        numbers = flat.in_these_units
        if self._name not in numbers:
            numbers[self._name] = self._find(flat)
        return numbers[self._name]


def numbers_in(problem: "BilevelProblem", x_like: Frozen, y_like: Frozen, scales: Scales) -> dict[str, Any]:
    """Return where the numbers of a problem in these units are kept, by their names."""
    columns = trees.size(x_like.tree) + trees.size(y_like.tree)
    if columns > DENSE_COLUMNS:
        return {}
    of_sets = sum(part.matrix.shape[0] for part in sets_of(problem, x_like, y_like))
    if columns * (trees.size(row_shapes_of(problem, x_like, y_like)) + of_sets) > _MOST_ENTRIES:
        return {}
    kept = _kept(problem, x_like, y_like)
    found = kept.setdefault(scales.key, {})
    while len(kept) > _MOST_UNITS:
        kept.pop(next(iter(kept)))
    return found


@remembered
def _kept(problem: "BilevelProblem", x_like: Frozen, y_like: Frozen) -> dict[Any, dict[str, Any]]:
    return {}
