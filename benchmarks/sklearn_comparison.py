"""`BilevelSVC` against `LinearSVC` with a grid search over C: accuracy on rows that neither has seen, and time.

Seconds are the process's own, so that others on the machine do not count; those of the first fit include compilation.

python benchmarks/sklearn_comparison.py [--splits 5] [--json]
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from bilevax.datasets import libsvm
from bilevax.sklearn import BilevelSVC

# The files of LIBSVM are not in the package, but for one: they come from BILEVAX_DATA, or from beside the checkout.
FOLDER = Path(os.environ.get("BILEVAX_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "libsvm"
DATA = {"diabetes": "diabetes_scale", "heart": "heart_scale", "australian": "australian"}
GRID = {"linearsvc__C": np.logspace(-4, 3, 15)}


def models(seed: int) -> dict[str, Any]:
    """Both models, each behind the same scaling."""
    return {
        "BilevelSVC": make_pipeline(StandardScaler(), BilevelSVC(random_state=seed)),
        "LinearSVC": GridSearchCV(make_pipeline(StandardScaler(), LinearSVC(random_state=seed)), GRID, cv=5),
    }


def fits(splits: int) -> Iterator[dict[str, Any]]:
    """Fit every model on every split: three quarters of the rows train, the rest judge."""
    for name, file in DATA.items():
        rows = libsvm(FOLDER / file)
        for seed in range(splits):
            X_fit, X_test, y_fit, y_test = train_test_split(
                rows.features, rows.labels, test_size=0.25, stratify=rows.labels, random_state=seed
            )
            for label, model in models(seed).items():
                began = time.process_time()
                model.fit(X_fit, y_fit)
                record = {"data": name, "split": seed, "model": label, "seconds": time.process_time() - began}
                record["accuracy"] = model.score(X_test, y_test)
                if label == "BilevelSVC":
                    record["certified"] = model[-1].solution_.success
                    record["value"] = model[-1].certificate_.value
                yield record


def table(records: list[dict[str, Any]]) -> str:
    """One row a data set: means and standard deviations over the splits, the median time and that of the first fit."""
    lines = [
        "| data | BilevelSVC accuracy | LinearSVC + grid | difference | certified | BilevelSVC s (first) | grid s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in DATA:
        ours, theirs = (
            [r for r in records if r["data"] == name and r["model"] == model] for model in ("BilevelSVC", "LinearSVC")
        )
        accuracy, other = (np.array([100 * r["accuracy"] for r in part]) for part in (ours, theirs))
        seconds, grid = ([r["seconds"] for r in part] for part in (ours, theirs))
        gap = accuracy - other
        lines.append(
            f"| {name} | {accuracy.mean():.1f} ± {accuracy.std():.1f} % | {other.mean():.1f} ± {other.std():.1f} % "
            f"| {gap.mean():+.1f} ± {gap.std():.1f} | {sum(r['certified'] for r in ours)} of {len(ours)} "
            f"| {np.median(seconds):.2f} ({seconds[0]:.2f}) | {np.median(grid):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5, help="random train/test splits of each data set")
    parser.add_argument("--json", action="store_true", help="print every fit instead of the table")
    arguments = parser.parse_args()
    records = list(fits(arguments.splits))
    print("\n".join(map(json.dumps, records)) if arguments.json else table(records))


if __name__ == "__main__":
    main()
