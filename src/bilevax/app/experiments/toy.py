"""The toy example: where 200 random starts end on the curve of Phi, with SFLCB and with the default."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bilevax._support.precision import float64
from bilevax.app import plot
from bilevax.app.experiments.report import Report, is_certified, parameters, say
from bilevax.app.experiments.trajectory import first_state
from bilevax.driver.multistart import multistart
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.model.problem import place
from bilevax.problems.toy import LOCAL_MINIMA, toy
from bilevax.solvers.sflcb import SFLCB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
# The local minima are known to eight digits.
_AT_A_MINIMUM = 1e-7


def run(starts: int = 200, steps: int = 10_000) -> Report:
    """Run the figure: the published draw of the starts (x, y and the multipliers) and number of steps of SFLCB."""
    problem, solver = toy(), SFLCB()
    random = np.random.default_rng(SEED)
    x0 = random.uniform(0.0, 3.0, starts)
    say(f"toy: SFLCB, {starts} starts of {steps} steps")
    ends = _sflcb(x0, random.uniform(-5.0, 8.5, starts), random.uniform(0.0, 10.0, starts), solver, steps)
    say(f"toy: default, {starts} starts")
    answers = multistart(problem, x0)
    chosen = [answers.solutions[index] for index in answers.answer_of]
    phi = Hyperobjective(problem, 0.0)
    minima = np.array(LOCAL_MINIMA)
    nearest = lambda x: minima[np.abs(minima - x).argmin()]
    ended = [("SFLCB", x, phi(x).value, is_certified(problem, x)) for x in ends]
    ended += [("default", float(answer.x), answer.value, answer.success) for answer in chosen]
    rows = [
        {
            "method": method,
            "start": start,
            "end": float(x),
            "phi": value,
            "local_minimum": nearest(x),
            "distance": abs(x - nearest(x)),
            "certified": certified,
            "x": x,
        }
        for start, (method, x, value, certified) in zip([*x0, *x0], ended, strict=True)
    ]
    settings = {
        "seed": SEED,
        "starts": starts,
        "draw": "x uniform in [0, 3]; for SFLCB also y = z uniform in [-5, 8.5] and u = v uniform in [0, 10]",
        "sflcb": parameters(solver) | {"steps": steps},
        "local_minima": LOCAL_MINIMA,
    }
    table = [_summary(method, [row for row in rows if row["method"] == method]) for method in ("SFLCB", "default")]
    return Report("toy", settings, rows, _draw(phi, rows), table, _sentences(*table))


def _sflcb(x: np.ndarray, y: np.ndarray, multipliers: np.ndarray, solver: SFLCB, steps: int) -> np.ndarray:
    """Return where SFLCB ends from each start, all of them in one compiled program."""
    with float64():
        problem, method = place(toy(), np.float64), place(solver, np.float64)

        def end(x: Any, y: Any, multiplier: Any) -> Any:
            state = first_state(problem, method, x, y, (multiplier,))
            return jax.lax.fori_loop(0, steps, lambda _, now: method.step(problem, now), state).x

        return np.asarray(jax.jit(jax.vmap(end))(x, y, multipliers[:, None]))  # one row


def _summary(method: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    distance = np.array([row["distance"] for row in rows])
    return {
        "method": method,
        "starts": len(rows),
        "at_a_minimum": int((distance <= _AT_A_MINIMUM).sum()),
        "farthest_from_one": distance.max(),
        **{f"at_{x:.3f}": sum(row["local_minimum"] == x for row in rows) for x in LOCAL_MINIMA},
        "certified": sum(row["certified"] for row in rows),
    }


def _sentences(sflcb: dict[str, Any], default: dict[str, Any]) -> list[str]:
    agrees = sflcb["at_a_minimum"] == sflcb["starts"]
    ends = lambda line: (
        f"{line['at_a_minimum']} of {line['starts']} ends lie within {_AT_A_MINIMUM:g} of a local minimum of Phi, "
        f"the farthest {line['farthest_from_one']:.1g} away"
    )
    return [
        f"SFLCB: {ends(sflcb)}. The published figure and the exact evaluation {'agree' if agrees else 'DISAGREE'}.",
        f"Default: {ends(default)}; {default['certified']} are certified.",
    ]


def _draw(phi: Hyperobjective, rows: list[dict[str, Any]]) -> "Figure":
    figure, (curve, basins) = plot.panels(2)
    grid = np.linspace(0.0, 3.0, 300)
    curve.plot(grid, [phi(x).value for x in grid], color=plot.GREY, linewidth=1.2, zorder=1)
    basins.plot(grid, grid, color=plot.GREY, linewidth=0.8, linestyle=":", zorder=1)
    styles = {
        "SFLCB": {"marker": "o", "s": 34, "facecolors": "none", "edgecolors": plot.VERMILION},
        "default": {"marker": "x", "s": 26, "color": plot.BLUE},
    }
    for method, style in styles.items():
        mine = [row for row in rows if row["method"] == method]
        style |= {"linewidths": 1.2, "zorder": 2, "label": method}
        curve.scatter([row["end"] for row in mine], [row["phi"] for row in mine], **style)
        basins.scatter([row["start"] for row in mine], [row["end"] for row in mine], **style)
    curve.set(xlabel="x", ylabel="Φ(x), exact", title=f"Where {len(rows) // 2} starts end on Φ")
    basins.set(xlabel="start x", ylabel="end x", title="Which start ends where")
    for ax in (curve, basins):
        ax.legend()
    return figure
