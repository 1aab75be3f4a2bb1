"""What the commands share: timing after compilation, targets beside what was measured, tables and JSON."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

#: Seconds from which on a solve is not repeated: what compiling added to it does not count any more.
LONG = 20.0

#: "cpu" counts the seconds of this process on all cores: for machines that others keep busy.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_chosen = ["wall"]


def choose_clock(name: str) -> None:
    """Measure all times from now on by this clock."""
    _chosen[0] = name


@dataclass(frozen=True)
class Target:
    """A number and what it has to be: at least or at most ``wanted``. None: not measured, no target set."""

    name: str
    measured: float | None
    relation: str
    wanted: float | None

    @property
    def met(self) -> bool | None:
        if self.measured is None or self.wanted is None:
            return None
        return bool(self.measured >= self.wanted if self.relation == ">=" else self.measured <= self.wanted)


@dataclass
class Report:
    """A command's table, its targets, and remarks; rows are printed as they come, since some take minutes."""

    columns: Sequence[str]
    quiet: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        if not self.rows and not self.quiet:
            print(_line(self.columns), flush=True)
        self.rows.append(row)
        if not self.quiet:
            print(_line([row.get(column) for column in self.columns]), flush=True)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows if row.get(name) is not None]

    def target(self, name: str, measured: Any, relation: str, wanted: float | None) -> None:
        self.targets.append(Target(name, None if measured is None else float(measured), relation, wanted))

    def finish(self) -> None:
        if self.quiet:
            targets = [vars(target) | {"met": target.met} for target in self.targets]
            print(
                json.dumps({"rows": self.rows, "targets": targets, "remarks": self.remarks}, indent=2, default=_plain)
            )
            return
        print()
        for remark in self.remarks:
            print(remark)
        print(f"{'target':58}{'measured':>12}{'wanted':>14}  met")
        for target in self.targets:
            wanted = "none set" if target.wanted is None else f"{target.relation} {_text(target.wanted)}"
            verdict = "not measured" if target.measured is None else {True: "yes", False: "NO", None: ""}[target.met]
            print(f"{target.name:58}{_text(target.measured):>12}{wanted:>14}  {verdict}")


def timed(solve: Callable[[], T], turns: int = 1) -> tuple[T, float]:
    """Return the answer and the seconds after compilation: the fastest of ``turns`` solves that follow a first one."""
    answer, best = clocked(solve)
    if best > LONG:
        return answer, best
    best = np.inf
    for _ in range(turns):
        answer, seconds = clocked(solve)
        best = min(best, seconds)
    return answer, best


def clocked(solve: Callable[[], T]) -> tuple[T, float]:
    """Return the answer and the seconds it took."""
    now = CLOCKS[_chosen[0]]
    began = now()
    answer = solve()
    return answer, now() - began


def median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _line(cells: Sequence[Any]) -> str:
    return f"{_text(cells[0]):34.33}" + "".join(f"{_text(cell):>13.12}" for cell in cells[1:])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.5g}"
    return str(value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
