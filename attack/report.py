"""The table, and a line for every case that went wrong."""

from collections.abc import Iterable

from attack.runner import Result

OUTCOMES = ("wrong", "missed", "error", "unjudged")
_COLUMNS = ("tried", "success", *OUTCOMES, "seconds")
_MISSED_AT_MOST = 0.03


def table(results: Iterable[Result]) -> str:
    """Return the counts, a line a family, and the totals."""
    results = list(results)
    names = list(dict.fromkeys(result.family for result in results))
    width = max(map(len, [*names, "family", "total"]))
    lines = [f"{'family':<{width}}" + "".join(f"{name:>10}" for name in _COLUMNS)]
    for name in names:
        lines.append(_line(name, width, [result for result in results if result.family == name]))
    return "\n".join([*lines, _line("total", width, results)])


def _line(name: str, width: int, results: list[Result]) -> str:
    counts = [len(results), sum(result.success for result in results)]
    counts += [sum(result.outcome == outcome for result in results) for outcome in OUTCOMES]
    seconds = sum(result.seconds for result in results)
    return f"{name:<{width}}" + "".join(f"{count:>10}" for count in counts) + f"{seconds:>10.1f}"


def complaints(results: Iterable[Result], seed: int) -> list[str]:
    """Return a line for each wrong, missed, failed or unjudged case, with the command that repeats it."""
    found = [result for result in results if result.outcome in OUTCOMES]
    found.sort(key=lambda result: OUTCOMES.index(result.outcome))
    return [
        f"{result.outcome:<9} make attack FAMILY={result.family} SEED={seed} CASE={result.index}   # {result.words}"
        for result in found
    ]


def passed(results: list[Result]) -> bool:
    """Return whether nothing is wrong, and at most 3 % of what has a solution is missed, errors included."""
    count = lambda *outcomes: sum(result.outcome in outcomes for result in results)
    return not count("wrong") and count("missed", "error") <= _MISSED_AT_MOST * sum(each.solvable for each in results)
