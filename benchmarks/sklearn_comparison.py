"""`BilevelSVC` against `LinearSVC` with a grid search over C: accuracy on rows that neither has seen, and time.

Seconds are the process's own, so that others on the machine do not count; those of the first fit include compilation.

python benchmarks/sklearn_comparison.py [--splits 10] [--first 0] [--hyperparameters shared features rows] [--json FILE]
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from bilevax.app.experiments.provenance import made
from bilevax.datasets import diabetes, libsvm
from bilevax.sklearn import BilevelSVC

# Two files of LIBSVM are not in the package: they come from BILEVAX_DATA, or from beside the checkout.
FOLDER = Path(os.environ.get("BILEVAX_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "libsvm"
FILES = {"heart": "heart_scale", "australian": "australian"}
GRID = {"linearsvc__C": np.logspace(-4, 3, 15)}
OTHER = "LinearSVC + grid"


def data() -> Iterator[tuple[str, Any, np.ndarray]]:
    """Yield names, features and labels of two classes."""
    yield "diabetes", *diabetes()
    for name, file in FILES.items():
        yield name, *libsvm(FOLDER / file)
    yield "breast cancer", *load_breast_cancer(return_X_y=True)
    features, labels = load_wine(return_X_y=True)
    yield "wine, the second kind", features, labels == 1


def models(seed: int, hyperparameters: list[str]) -> dict[str, Any]:
    """Return the models, each behind the same scaling."""
    ours = {name: BilevelSVC(name, random_state=seed) for name in hyperparameters}
    return {name: make_pipeline(StandardScaler(), model) for name, model in ours.items()} | {
        OTHER: GridSearchCV(make_pipeline(StandardScaler(), LinearSVC(random_state=seed)), GRID, cv=5)
    }


def fits(seeds: range, hyperparameters: list[str]) -> Iterator[dict[str, Any]]:
    """Fit every model on every split: three quarters of the rows train, the rest judge."""
    for name, X, y in data():
        for seed in seeds:
            X_fit, X_test, y_fit, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
            for label, model in models(seed, hyperparameters).items():
                began = time.process_time()
                model.fit(X_fit, y_fit)
                record = {"data": name, "rows": X.shape[0], "features": X.shape[1], "split": seed, "model": label}
                record |= {"seconds": time.process_time() - began, "accuracy": float(model.score(X_test, y_test))}
                if label != OTHER:
                    record["certified"] = bool(model[-1].solution_.success)
                yield record


def summary(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each data set and model: mean accuracy and its deviation, the median time and the first."""
    lines = []
    for name, model in dict.fromkeys((record["data"], record["model"]) for record in records):
        mine = [record for record in records if (record["data"], record["model"]) == (name, model)]
        accuracy, seconds = ([record[key] for record in mine] for key in ("accuracy", "seconds"))
        lines.append(
            {key: mine[0][key] for key in ("data", "rows", "features", "model")}
            | {"accuracy": float(np.mean(accuracy)), "deviation": float(np.std(accuracy))}
            | {"seconds": float(np.median(seconds)), "first_seconds": seconds[0], "splits": len(mine)}
            | {"certified": None if model == OTHER else sum(record["certified"] for record in mine)}
        )
    return lines


def sentences(lines: list[dict[str, Any]]) -> list[str]:
    """Return how each choice of hyperparameters stands beside the grid search, over all data sets."""
    mean = lambda model, key: float(np.mean([line[key] for line in lines if line["model"] == model]))
    grid = mean(OTHER, "accuracy")
    return [
        f"{model}: mean accuracy {100 * mean(model, 'accuracy'):.2f} %, {OTHER} {100 * grid:.2f} %; "
        f"{mean(model, 'seconds') / mean(OTHER, 'seconds'):.1f} times its seconds (mean of the medians)."
        for model in dict.fromkeys(line["model"] for line in lines)
        if model != OTHER
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10, help="random train/test splits of each data set")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first split")
    parser.add_argument("--hyperparameters", nargs="+", default=["shared"], help="shared, features, rows")
    parser.add_argument("--json", type=Path, help="write the summary to this file, too")
    given = parser.parse_args()
    lines = summary(list(fits(range(given.first, given.first + given.splits), given.hyperparameters)))
    told = {"made": made(), "settings": {"splits": given.splits, "first": given.first}}
    told |= {"table": lines, "sentences": sentences(lines)}
    for line in lines:
        print(
            ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in line.items())
        )
    print("\n".join(told["sentences"]))
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
