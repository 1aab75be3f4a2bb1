"""`Diary`: what a search on the host has come to, phase by phase, so that another run can go on from there.

A search is written as if nothing could stop it, in phases that each depend on nothing but the start, the results of
earlier phases and what long-lived objects have learned on the way. Run again with the same start and a diary, it takes
the results of finished phases from there, and goes on in the first one that is missing: to the same answer, bit for
bit, since that phase begins with the very numbers it began with before.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

Shown = TypeVar("Shown")
Result = TypeVar("Result")
Learner = TypeVar("Learner")


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
        self._learners: dict[str, tuple[Any, tuple[str, ...]]] = {}

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

    def learner(self, make: Callable[[], Learner], *attributes: str) -> Learner:
        """Return a new object, some of whose attributes later phases change: they belong to the diary."""
        name = str(len(self._learners))
        if name not in self._learned:
            self._begin()
        made = make()
        self._learners[name] = made, attributes
        return made

    def contents(self) -> dict[str, Any]:
        """Return all that another diary needs to go on."""
        learned = {
            name: {attribute: getattr(learner, attribute) for attribute in attributes}
            for name, (learner, attributes) in self._learners.items()
        }
        return {"results": dict(self._results), "learned": self._learned or learned}

    def _begin(self) -> None:
        """Before anything is computed anew: bring back what had been learned, whatever the way here did to it."""
        for name, learned in self._learned.items():
            for attribute, value in learned.items():
                setattr(self._learners[name][0], attribute, value)
        self._learned = {}

    def _write(self, name: str, result: Any) -> None:
        self._results[name] = result
        if self._keep is not None:
            self._keep(self.contents)
