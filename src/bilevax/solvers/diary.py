"""`Diary`: what a search on the host has come to, phase by phase, so that another run can go on from there.

A search is written as if nothing could stop it, in phases that each depend on nothing but the start, the results of
earlier phases and what long-lived objects have learned on the way. Run again with the same start and a diary, it takes
the results of finished phases from there, and goes on in the first one that is missing: to the same answer, bit for
bit, since that phase begins with the very numbers it began with before.
"""

from collections.abc import Callable, Generator
from typing import Any, ClassVar, Protocol, TypeVar

Shown = TypeVar("Shown")
Result = TypeVar("Result")


class Learner(Protocol):
    """An object that learns on the way: ``state``, one record, is all of it, and brings it back when set."""

    @property
    def state(self) -> Any:
        """What was learned so far."""
        ...

    @state.setter
    def state(self, state: Any) -> None: ...


Made = TypeVar("Made", bound=Learner)


class Learning:
    """A learner by its attributes: those named in the record ``State`` may change, all others are set once.

    What begins with an underscore is a cache: it follows from the rest, bit for bit, and may be missing.
    """

    State: ClassVar[Any]  # a NamedTuple class

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in ("state", *self.State._fields) and hasattr(self, name):
            raise AttributeError(f"{type(self).__name__}.{name} is set already: what is learned belongs to its State.")
        super().__setattr__(name, value)

    @property
    def state(self) -> Any:
        """What was learned so far, one record."""
        return self.State(*(getattr(self, name) for name in self.State._fields))

    @state.setter
    def state(self, state: Any) -> None:
        for name, value in zip(self.State._fields, self.State(*state), strict=True):
            setattr(self, name, value)


class Diary:
    """Results of finished phases by name.

    Parameters
    ----------
    contents
        Of an earlier run's diary; empty when absent.
    keep
        Called after each new entry, with a function that returns the contents.
    """

    def __init__(
        self,
        contents: dict[str, dict[str, Any]] | None = None,
        keep: Callable[[Callable[[], dict[str, Any]]], None] | None = None,
    ):
        contents = {"results": {}, "learned": {}} if contents is None else contents
        self._results, self._keep = dict(contents["results"]), keep
        self._learned = contents["learned"]  # until it is brought back
        self._learners: dict[str, Learner] = {}

    @property
    def empty(self) -> bool:
        """Whether no phase is finished yet."""
        return not self._results

    def phase(self, name: str, work: Generator[Shown, None, Result]) -> Generator[Shown, None, Result]:
        """Run a phase that shows something on its way, or return what it came to before."""
        if name not in self._results:
            self._begin()
            self._write(name, (yield from work))
        return self._results[name]

    def once(self, name: str, work: Callable[[], Result]) -> Result:
        """Run a phase that shows nothing, or return what it came to before."""
        if name not in self._results:
            self._begin()
            self._write(name, work())
        return self._results[name]

    def learner(self, make: Callable[[], Made]) -> Made:
        """Return a new object, whose state later phases change: it belongs to the diary."""
        name = str(len(self._learners))
        if name not in self._learned:
            self._begin()
        made = make()
        self._learners[name] = made
        return made

    def contents(self) -> dict[str, Any]:
        """Return all that another diary needs to go on."""
        learned = {name: learner.state for name, learner in self._learners.items()}
        return {"results": dict(self._results), "learned": self._learned or learned}

    def _begin(self) -> None:
        """Before anything is computed anew: bring back what had been learned, whatever the way here did to it."""
        for name, learned in self._learned.items():
            self._learners[name].state = learned
        self._learned = {}

    def _write(self, name: str, result: Any) -> None:
        self._results[name] = result
        if self._keep is not None:
            self._keep(self.contents)
