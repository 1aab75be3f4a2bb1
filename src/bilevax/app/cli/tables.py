"""Answers and certificates as tables of the terminal."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bilevax._support.trees import summarise, without_dust
from bilevax.app import report
from bilevax.certificate.certificate import Certificate
from bilevax.driver.solution import Solution


def solution_tables(solution: Solution, rtol: float) -> list[Any]:
    """Return the verdict on a solution, its numbers and its certificate."""
    facts = {"Φ(x)": f"{solution.value:.10g}", "x": summarise(solution.x), "y": summarise(solution.y)}
    return [
        verdict(solution.success, "success", "no success", solution.message),
        facts_table(facts | {key: report.short(value, 4) for key, value in solution.stats.items()}),
        certificate_table(solution.certificate, rtol),
    ]


def verdict(good: bool, yes: str, no: str, message: str = "") -> Text:
    """Return a tick or a cross with its word, and a message behind it."""
    mark = Text(f"✓ {yes}", style="bold green") if good else Text(f"✗ {no}", style="bold red")
    return mark.append(f"  {message}", style="not bold default") if message else mark


def certificate_table(certificate: Certificate, rtol: float) -> Table:
    """Return a certificate line by line: what was measured, and whether it is what was asked for."""
    table = _table("certificate", "", "value", "asked for")
    for index, check in enumerate(report.checks(certificate, rtol)):
        mark = Text("") if check.passed is None else verdict(check.passed, "holds", "fails")
        table.add_row(Text(check.name), mark, Text(report.short(check.value, 3 if index else 10)), Text(check.limit))
    return table


def answers_table(solutions: Mapping[str, Solution]) -> Table:
    """Return several solutions, a line each."""
    table = _table("problem", "", "Φ(x)", "stationarity", "lower level", "steps", "seconds")
    for name, solution in solutions.items():
        certificate = solution.certificate
        lower = (certificate.lower_infeasibility, certificate.lower_stationarity, certificate.lower_complementarity)
        table.add_row(
            Text(name),
            verdict(solution.success, "certified", str(solution.status)),
            f"{solution.value:.10g}",
            report.short(certificate.stationarity),
            report.short(max(lower)),
            str(solution.stats["steps"]),
            f"{solution.stats['time']:.1f}",
        )
    return table


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Return facts by their names, a line each."""
    table = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        table.add_row(Text(key, style="bold"), Text(str(value)))
    return table


def columns_table(title: str, columns: Mapping[str, np.ndarray], limit: int) -> Table:
    """Return columns of numbers under their names, ``limit`` lines at most."""
    count = len(next(iter(columns.values())))
    more = f"; {count - limit} more not shown, --rows {count} shows all" if count > limit else ""
    table = _table(*(name.replace("_", " ") for name in columns), title=f"{title}: {count}{more}")
    shown = [without_dust(column) if column.dtype.kind == "f" else column for column in columns.values()]
    for row in list(zip(*shown, strict=True))[:limit]:
        table.add_row(*(Text(report.short(value, 4)) for value in row))
    return table


def _table(*names: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")  # a number cut short would be another number
    return table
