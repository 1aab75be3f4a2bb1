"""`Ending`: how a run came out, before it is judged."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import PyTree

from bilevax.certificate.status import Status


def nothing_later() -> None:
    """Return None: there is no later point."""
    return


class Ending(NamedTuple):
    """How a run came out, whichever solver ran.

    A search that was stopped between exact points may have been on its way to a better one: ``later`` returns it, made
    exact, or None.
    """

    x: PyTree
    y: PyTree
    steps: int
    converged: bool
    failure: Status | None = None
    state: Any = None
    sweeps: int | None = None
    exact: bool = False
    later: Callable[[], tuple[PyTree, PyTree] | None] = nothing_later

    def after(self, earlier: "Ending") -> "Ending":
        """Return this ending with the work of an earlier search counted in that it went on from."""
        worked = self.sweeps is not None or earlier.sweeps is not None
        sweeps = (self.sweeps or 0) + (earlier.sweeps or 0) if worked else None
        return self._replace(steps=earlier.steps + self.steps, sweeps=sweeps)
