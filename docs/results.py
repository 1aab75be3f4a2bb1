"""Write the tables of the documents from the files of `bilevax reproduce all`, which are kept in ``docs/figures``.

python docs/results.py

A document names what belongs into it, ``<!-- results: toy -->``; what stands between that and ``<!-- end -->`` is
written here: nobody copies a number, and no table is older than the files. `make figures` makes those anew, and
`make bench ARGS=--write` the ones about speed.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "figures"
DOCUMENTS = [HERE / name for name in ("experiments.md", "results.md", "sklearn.md", "speed.md")]

_BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Format = Callable[[Any], str]
Column = tuple[str, str, Format]


def number(digits: int) -> Format:
    """Return a format of this many significant digits; what does not exist is left out."""
    return lambda value: "" if value is None else f"{value:.{digits}g}"


def fixed(digits: int, factor: float = 1.0, unit: str = "") -> Format:
    """Return a format of this many digits after the point."""
    return lambda value: "" if value is None else f"{factor * value:,.{digits}f}{unit}"


def words(value: Any) -> str:
    """Return yes and no for truth, and other things as they are."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else "" if value is None else str(value)


PERCENT = fixed(1, 100, " %")
SECONDS = fixed(1)

# What of a figure's table is shown: the heading, the name in the file, and how it is written.
COLUMNS: dict[str, list[Column]] = {
    "toy": [
        ("", "method", words),
        ("starts", "starts", words),
        ("within 1e-7 of a local minimum", "at_a_minimum", words),
        ("farthest from one", "farthest_from_one", number(2)),
        ("certified", "certified", words),
    ],
    "svm": [
        ("", "method", words),
        (r"true $\Phi$", "phi", fixed(4)),
        (r"least possible $\Phi$", "optimum", fixed(4)),
        ("test accuracy, trained exactly", "accuracy", PERCENT),
        ("test accuracy of its own iterate", "reported_accuracy", PERCENT),
        ("certified", "certified", words),
        ("s", "seconds", SECONDS),
    ],
    "methods": [
        ("", "method", words),
        (r"true $\Phi$", "phi", fixed(2)),
        ("lower level infeasible", "infeasible", words),
        ("test accuracy of its own iterate", "reported_accuracy", PERCENT),
        ("certified", "certified", words),
        ("steps", "steps", fixed(0)),
        ("s", "seconds", SECONDS),
    ],
    "networks": [
        ("nodes", "nodes", words),
        ("", "method", words),
        ("reported, $f(x, z)$ as published", "reported_z", number(5)),
        ("reported, $f(x, y)$", "reported", number(5)),
        ("true utility", "utility", number(7)),
        ("certified", "certified", words),
        ("s", "seconds", SECONDS),
    ],
    "delta": [
        ("", "method", words),
        (r"$\delta$", "delta", number(3)),
        ("reported, $f(x, z)$", "reported_z", number(4)),
        ("true utility", "utility", number(7)),
        ("standard deviation", "deviation", number(2)),
    ],
    "seville": [
        ("utility of the file's start", "utility_at_start", number(6)),
        ("utility", "utility", number(8)),
        ("certified", "certified", words),
        ("stationarity", "stationarity", number(2)),
        ("links built", "links_built", words),
        ("of", "links", words),
        ("pairs served", "pairs_served", words),
        ("best unbuilt link, a unit", "best_unbuilt", number(3)),
        ("s", "seconds", SECONDS),
    ],
    "roads": [
        ("town", "town", words),
        ("detour", "detour", words),
        ("links", "links", words),
        ("pairs", "pairs", words),
        ("flows", "flows", words),
        ("utility at the start", "utility_at_start", number(6)),
        ("utility", "utility", number(8)),
        ("stationarity", "stationarity", number(2)),
        ("", "status", words),
        ("CPU s", "cpu_seconds", fixed(0)),
    ],
}

# The same of the benchmarks' comparisons.
COMPARISONS: dict[str, list[Column]] = {
    "sizes": [
        ("problem", "case", words),
        ("certified", "certified", words),
        ("CPU s", "cpu_s", number(3)),
        ("exponent", "exponent", number(2)),
        ("MB", "peak_mb", fixed(0)),
        ("data, MB", "data_mb", number(3)),
        ("MB for a MB more of data", "growth", number(2)),
    ],
    "smooth": [
        ("problem", "problem", words),
        ("certified", "certified", words),
        ("value", "value", number(6)),
        ("s", "s", number(3)),
        ("the script's value", "value_script", number(6)),
        ("the script's s", "s_script", number(3)),
        ("ratio", "ratio", number(2)),
    ],
    "networks": [
        ("network", "network", words),
        ("starts", "starts", words),
        ("links", "links", words),
        ("pairs", "pairs", words),
        ("certified", "certified", words),
        ("utility", "utility", number(9)),
        ("stationarity", "stationarity", number(2)),
        ("s", "s", number(3)),
    ],
    "step": [
        ("problem", "case", words),
        ("C, us", "C us", number(4)),
        ("bilevax, us", "JAX us", number(4)),
        ("bilevax / C", "JAX/C", number(2)),
        ("NumPy / bilevax", "NumPy/JAX", number(2)),
    ],
    "torch": [
        ("problem", "case", words),
        ("bilevax, us", "JAX us", number(3)),
        ("PyTorch, us", "PyTorch us", number(3)),
        ("PyTorch / bilevax", "PyTorch/JAX", number(2)),
    ],
}


def figure(name: str) -> str:
    """Return a figure with its table, the sentences about it, and where they come from."""
    told = _read(name)
    lines = _rows(COLUMNS[name], told["table"])
    lines += ["", *(f"- {_sentence(sentence)}" for sentence in told["sentences"])]
    return "\n".join([*lines, "", f"![{name}](figures/{name}.png)", "", _made(told)])


def sklearn() -> str:
    """Return the classifiers beside the grid search."""
    told = _read("sklearn")
    heads = ["data", "", "accuracy", "certified", "s", "first s"]
    rows = [
        [
            f"{row['data']} ({row['rows']} × {row['features']})",
            row["model"],
            f"{100 * row['accuracy']:.1f} ± {100 * row['deviation']:.1f} %",
            "" if row["certified"] is None else f"{row['certified']} of {row['splits']}",
            f"{row['seconds']:.2f}",
            f"{row['first_seconds']:.2f}",
        ]
        for row in told["table"]
    ]
    lines = [*_table(heads, rows), "", *(f"- {sentence}" for sentence in told["sentences"])]
    return "\n".join([*lines, "", _made(told)])


def literature() -> str:
    """Return the problems of the literature, each with what became of it."""
    told = _read("literature")
    rows = [
        [
            row["problem"],
            "" if row["scope"] == "base" else "yes",
            number(7)(row["value"]),
            number(7)(row["best"]),
            "solved" if row["solved"] else row["status"].replace("_", " "),
            "yes" if row["proven"] else "",
            number(7)(row["lower_bound"]),
            f"{row['cpu_seconds']:.2f}",
            f"{row['proof_cpu_seconds']:.2f}" if row["proof_cpu_seconds"] > 1e-3 else "",
        ]
        for row in told["table"]
    ]
    heads = ["problem", "beyond the base scope", "value", "best known", "", "proven", "bound", "CPU s", "of the proof"]
    lines = [*(f"- {sentence}" for sentence in told["sentences"]), "", *_table(heads, rows)]
    return "\n".join([*lines, "", _made(told)])


def certified() -> str:
    """Return what the default found, all figures in one table."""
    toy, svm, networks, seville, roads = (_read(name) for name in ("toy", "svm", "networks", "seville", "roads"))
    of = lambda told: next(row for row in told["table"] if row["method"] == "default")
    designs = [row for row in networks["table"] if row["method"] == "default"]
    lines = [
        ["toy, local minima from random starts", "", f"{of(toy)['certified']} of {of(toy)['starts']}", ""],
        [
            r"SVM with 500 hyperparameters, mean $\Phi$ of the splits",
            f"{of(svm)['phi']:.4f}",
            f"{of(svm)['certified']} of {of(svm)['splits']}",
            SECONDS(of(svm)["seconds"]),
        ],
    ]
    lines += [
        [f"network of {row['nodes']} nodes, utility", number(8)(row["utility"]), words(row["certified"]),
         SECONDS(row["seconds"])]
        for row in designs
    ]  # fmt: skip
    lines += [
        [f"{name}, utility", number(8)(row["utility"]), words(row["certified"]), SECONDS(row["seconds"])]
        for name, row in [("Seville", seville["table"][0]), *((row["town"], row) for row in roads["table"])]
    ]
    return "\n".join([*_table(["", "value", "certified", "s"], lines), "", _made(toy, svm, networks, seville, roads)])


def comparison(name: str) -> str:
    """Return what one of the benchmarks measured."""
    told = _read("speed")[name]
    lines = [*_rows(COMPARISONS[name], told["rows"]), "", *(f"- {remark}" for remark in told["remarks"])]
    about = f"load {told['load']:g} at the start; `{told['command']}`, {told['clock']} time"
    return "\n".join([*lines, "", f"*{_stamp(told)}, {about}.*"])


def targets() -> str:
    """Return all that the benchmarks are to reach, beside what was measured."""
    rows = [
        [name, target["name"], number(4)(target["measured"]), f"{target['relation']} {target['wanted']:g}",
         words(target["met"])]
        for name, told in _read("speed").items()
        for target in told.get("targets", ())
        if target["wanted"] is not None
    ]  # fmt: skip
    return "\n".join(_table(["benchmark", "", "measured", "wanted", "met"], rows))


BLOCKS: dict[str, Callable[[], str]] = (
    {name: lambda name=name: figure(name) for name in COLUMNS}
    | {f"speed_{name}": lambda name=name: comparison(name) for name in COMPARISONS}
    | {"speed_targets": targets, "certified": certified, "literature": literature, "sklearn": sklearn}
)


def filled(text: str) -> str:
    """Return a document with its tables as the files have them."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", text)


def main() -> None:
    """Write all documents."""
    for path in DOCUMENTS:
        path.write_text(filled(path.read_text()))


def _read(name: str) -> dict[str, Any]:
    return json.loads((FIGURES / f"{name}.json").read_text())


def _rows(columns: list[Column], rows: list[dict[str, Any]]) -> list[str]:
    return _table([head for head, *_ in columns], [[write(row.get(key)) for _, key, write in columns] for row in rows])


def _table(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    line = lambda cells: f"| {' | '.join(cells)} |"
    return [line(heads), "|" + "---|" * len(heads), *(line(row) for row in rows)]


def _sentence(text: str) -> str:
    return re.sub(r"\bPhi\b", r"$\\Phi$", text)


def _made(*sources: dict[str, Any]) -> str:
    """Return when, of which commits and where the figures of a table were made."""
    return f"*{'; '.join(dict.fromkeys(_stamp(told['made']) for told in sources))}.*"


def _stamp(made: dict[str, Any]) -> str:
    return f"{made['date']}, commit {made['commit']}, {made['machine']}"


if __name__ == "__main__":
    main()
