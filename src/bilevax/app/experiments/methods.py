"""The paper's comparison on the SVM: five published methods and the default, same problem, same start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevax.app import plot
from bilevax.app.experiments.report import TIME, Report, is_certified, parameters, say
from bilevax.app.experiments.svm import judged, start_of
from bilevax.app.experiments.trajectory import Visit, first_state, follow_search, follow_steps, marks
from bilevax.datasets import diabetes, paper_splits, quadratic_features
from bilevax.driver.solution import Solution
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.exact.lower_level import solve_lower_level
from bilevax.model.problem import BilevelProblem
from bilevax.problems.svm import svm
from bilevax.solvers.baselines.bic_gaffa import BiCGAFFA
from bilevax.solvers.baselines.blocc import BLOCC
from bilevax.solvers.baselines.gam import GAM
from bilevax.solvers.baselines.lv_hba import LVHBA
from bilevax.solvers.sflcb import SFLCB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Steps of each method: a step of BLOCC is 400 of SFLCB's, one of LV-HBA a projection onto the coupled set.
STEPS = {"SFLCB": 10_000, "BLOCC": 1000, "BiC-GAFFA": 10_000, "LV-HBA": 100, "GAM": 50}
_COLOURS = {
    "SFLCB": plot.VERMILION,
    "BLOCC": plot.GREEN,
    "BiC-GAFFA": plot.PURPLE,
    "LV-HBA": plot.SKY,
    "GAM": plot.ORANGE,
    "default": plot.BLUE,
}


def run(splits: int = 10, share: float = 1.0, records: int = 12) -> Report:
    """Run the figure; ``share`` of the full numbers of steps."""
    dataset = quadratic_features(diabetes())
    steps = {name: max(1, round(share * count)) for name, count in STEPS.items()}
    rows: list[dict[str, Any]] = []
    for index, split in enumerate(paper_splits(dataset, splits)):
        problem, bounds = svm(split.train, split.validation), start_of(index, len(split.train))
        exact = Hyperobjective(problem, bounds)
        for method in _COLOURS:
            say(f"methods: split {index + 1} of {splits}, {method}")
            solution, visits = _run(problem, bounds, method, steps, records)
            of_run = {"split": index, "method": method, "certified": False}
            rows += [of_run | judged(visit, exact, split.test) for visit in visits if _finite(visit)]
            rows[-1]["certified"] = is_certified(problem, rows[-1]["x"]) if solution is None else solution.success
    settings = {
        "data": f"{dataset.name}, {len(dataset)} rows, the published splits of the seeds 0 to {splits - 1}",
        "start": "c uniform in [1, 5], seeded by the split, y and multipliers exact there, for all methods",
        "steps": steps,
        "parameters": {name: parameters(preset) for name, preset in _presets().items()},
    }
    table = [_summary(rows, method, splits) for method in _COLOURS]
    return Report("methods", settings, rows, _draw(rows), table, _sentences(table))


def _presets() -> dict[str, Any]:
    return {
        "SFLCB": SFLCB.paper_svm(),
        "BLOCC": BLOCC.paper_svm(),
        "BiC-GAFFA": BiCGAFFA.paper_svm(),
        "LV-HBA": LVHBA.paper_svm(),
        "GAM": GAM.paper_svm(),
    }


def _run(
    problem: BilevelProblem, bounds: np.ndarray, method: str, steps: dict[str, int], records: int
) -> tuple[Solution | None, Iterator[Visit] | list[Visit]]:
    """Return the answer, None of a method that certifies none, and the points on the way to it."""
    if method == "default":
        return follow_search(problem, bounds, records)
    solver = _presets()[method]
    if method == "GAM":
        return follow_search(problem, bounds, records, solver, max_steps=steps[method])
    lower = solve_lower_level(problem, bounds)
    state = first_state(problem, solver, bounds, lower.y, (lower.multipliers,) if method == "SFLCB" else None)
    return None, follow_steps(problem, solver, state, marks(steps[method], records))


def _finite(visit: Visit) -> bool:
    """Return whether a run has not diverged yet: there is nothing to judge beyond."""
    return bool(np.isfinite(np.asarray(visit.x)).all() and np.abs(np.asarray(visit.x)).max() < 1e6)


def _of(rows: list[dict[str, Any]], method: str, split: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["method"] == method and row["split"] == split]


def _summary(rows: list[dict[str, Any]], method: str, splits: int) -> dict[str, Any]:
    last = [_of(rows, method, split)[-1] for split in range(splits)]
    phi = np.array([row["phi"] for row in last])
    feasible = np.isfinite(phi)
    mean = lambda key: float(np.mean([row[key] for row in last]))
    return {
        "method": method,
        "phi": float(phi[feasible].mean()) if feasible.any() else np.nan,
        "infeasible": int((~feasible).sum()),
        "reported": mean("reported"),
        "reported_accuracy": mean("reported_accuracy"),
        "accuracy": float(np.mean([row["accuracy"] for row in last if np.isfinite(row["accuracy"])] or [np.nan])),
        "certified": sum(bool(row["certified"]) for row in last),
        "steps": int(mean("step")),
        TIME: mean(TIME),
    }


def _sentences(table: list[dict[str, Any]]) -> list[str]:
    best = next(row for row in table if row["method"] == "default")
    sentences = []
    for row in table:
        own = f"{row['method']} shows a test accuracy of {100 * row['reported_accuracy']:.1f} % with its own iterate; "
        if np.isnan(row["phi"]):
            true = "with its hyperparameters the lower level is infeasible in every split."
        else:
            times = row["phi"] / best["phi"]
            true = f"its hyperparameters have a true Phi of {row['phi']:.1f}, {times:.2f} times the default's"
            true += f", infeasible in {row['infeasible']} splits." if row["infeasible"] else "."
        sentences.append(own + true)
    return sentences


def _draw(rows: list[dict[str, Any]]) -> "Figure":
    figure, (accuracy, phi) = plot.panels(2)
    splits = 1 + max(row["split"] for row in rows)
    for method, colour in _COLOURS.items():
        runs = [_of(rows, method, split) for split in range(splits)]
        times = np.geomspace(1e-2, max(row[TIME] for run in runs for row in run), 60)
        for ax, key, factor in ((accuracy, "reported_accuracy", 100), (phi, "phi", 1)):
            values = np.array([_at(run, key, times) for run in runs])
            seen = np.isfinite(values).any(axis=0)
            if seen.any():
                plot.band(ax, times[seen], factor * values[:, seen], color=colour, label=method)
    accuracy.set(ylabel="test accuracy, own iterate (%)", title=f"Diabetes, {splits} splits")
    phi.set(ylabel="Φ(c), exact", yscale="log", title="True hyperobjective; no line: infeasible")
    for ax in (accuracy, phi):
        ax.set(xscale="log", xlabel="time (s)")
    plot.legend_below(figure)
    return figure


def _at(run: list[dict[str, Any]], key: str, times: np.ndarray) -> np.ndarray:
    """Return a run's values as they stood at these times."""
    before = np.searchsorted([row[TIME] for row in run], times, side="right") - 1
    values = np.array([row[key] for row in run])
    return np.where(before >= 0, values[np.maximum(before, 0)], np.nan)
