"""`NetworkDesign.solve` where links exist already, or ways are restricted: all of the network, contracted.

Where everything exists, every pair is served whatever is built, and travellers can be smoothed: `road_search` finds the
basin, from each start, and `bilevax.solve` goes on from there: exact descent and certificate. Without roads to begin
with `bilevax.solve` does all of it.
"""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from bilevax._support.clock import OutOfTime, deadline, in_time
from bilevax._support.threads import blas_threads
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Limits, check_limits
from bilevax.driver.multistart import multistart
from bilevax.driver.solution import Solution
from bilevax.driver.solve import solve
from bilevax.driver.watch import Watch
from bilevax.model.problem import BilevelProblem
from bilevax.problems.network.contraction import Contraction, contracted
from bilevax.problems.network.data import Network
from bilevax.problems.network.narrowing import Design, Narrowed
from bilevax.problems.network.restriction import whole
from bilevax.problems.network.road_descent import Followed, descend
from bilevax.problems.network.road_search import evaluated, search
from bilevax.problems.network.settings import NARROWING, SOLVING
from bilevax.problems.network.smoothed import SmoothLoss

_LEAST_TIME = 1e-3  # seconds, where none are left


def solve_on_roads(
    network: Network,
    x0: np.ndarray,
    starts: int,
    time_limit: float | None,
    progress: bool | None,
    rtol: float,
    key: int,
    minimal_share: float,
) -> Solution:
    """Return the best answer for the contracted network, as one of the network; see `NetworkDesign.solve`."""
    check_limits(rtol, 0.0, None, time_limit)
    watch = Watch(time.monotonic(), Limits(rtol, 0.0, starts + 1, time_limit), None, progress)
    small = contracted(whole(network))
    problem, first = small.problem(minimal_share), small.capacities(x0)
    factors = np.random.default_rng(key).uniform(0.0, 2.0, (starts - 1, len(first)))
    points = np.vstack([first, np.maximum(small.existing, factors * first)])
    with blas_threads(len(first)):
        found = _searched(small, points, watch) if np.all(small.existing > 0) else []
    watch.close()
    best = _best(small, minimal_share, found, watch) if found else _from_scratch(problem, points, watch)
    if watch.ended is Status.INTERRUPTED and not best.success:  # by no callback of the user's
        told = best.message.replace(Status.CALLBACK.value, Status.INTERRUPTED.value)
        best = dataclasses.replace(best, status=Status.INTERRUPTED, message=told)
    certificate = small.restored(best.certificate)
    return dataclasses.replace(
        best,
        x=small.links(np.asarray(best.x)),
        y=certificate.y,
        multipliers=certificate.multipliers,
        certificate=certificate,
        stats=best.stats | {"time": time.monotonic() - watch.began},
    )


def _best(small: Contraction, minimal_share: float, found: list[SmoothLoss], watch: Watch) -> Solution:
    """Return the answer next to the best point, or next to the first one whose answer is proven."""
    best: Solution | None = None
    for point in found[: SOLVING.most_judged]:
        solution = _next_to(small, minimal_share, point, watch)
        best = solution if best is None or _rank(solution) > _rank(best) else best
        if best.success or watch.ended is not None or time.monotonic() >= watch.ends:
            break
    assert best is not None
    return best


def _next_to(small: Contraction, minimal_share: float, point: SmoothLoss, watch: Watch) -> Solution:
    """Return the answer next to a point, found without the flows that cannot matter there.

    Flows that might matter next to that answer come back, and the search goes on with them.
    """
    at, pairs = point.at, len(small.part.pairs)
    price = at.rows[small.conservation.shape[0] :]
    design = Design(at.x, {"flow": at.y[:-pairs], "share": at.y[-pairs:]}, price, point.value)
    flows = len(at.y) - pairs
    kept, steps = np.full(flows, flows <= NARROWING.few), 0
    while True:
        if not kept.all():
            design, kept, steps = _descended(small, design, kept, steps, minimal_share, watch)
        narrowed = Narrowed(small, kept)
        start = narrowed.start(design)
        found = solve(narrowed.part.problem(minimal_share), start.x, warm_start=start, **_asked(watch))
        missed, steps = narrowed.missed(found), steps + found.stats["steps"]
        answer = narrowed.in_all(found, bool(missed.any()), minimal_share, watch.limits.rtol)
        over = watch.ended is not None or time.monotonic() >= watch.ends
        if over or not (missed.any() and found.certificate.proves_value):
            return dataclasses.replace(answer, stats=answer.stats | {"steps": steps, "flows": int(kept.sum())})
        design = narrowed.design(found) if answer.certificate.proves_value else design
        kept = kept | missed


def _descended(
    small: Contraction, design: Design, kept: np.ndarray, steps: int, minimal_share: float, watch: Watch
) -> tuple[Design, np.ndarray, int]:
    """Return where an exact descent leads, the flows that it needs, and its steps; as far as there is time."""
    last = Followed(design, kept)
    try:
        with deadline(watch.ends):
            for found in descend(small, last, minimal_share, watch.limits.rtol):
                last = found
                steps += 1
                watch.look(0, None, None, {"phase": "exact descent", "upper": last.design.value})
    except OutOfTime:
        watch.ended = Status.TIME_LIMIT
    except KeyboardInterrupt:
        watch.ended = Status.INTERRUPTED
    return last.design, last.kept, steps


def _from_scratch(problem: BilevelProblem, points: np.ndarray, watch: Watch) -> Solution:
    asked = _asked(watch)
    if len(points) == 1:
        return solve(problem, points[0], **asked)
    return multistart(problem, points, rtol=asked["rtol"], time_limit=asked["time_limit"]).best


def _asked(watch: Watch) -> dict[str, Any]:
    """Return what is left of the limits; a run that was interrupted is only certified."""
    return {
        "rtol": watch.limits.rtol,
        "time_limit": None if watch.limits.time_limit is None else max(watch.ends - time.monotonic(), _LEAST_TIME),
        "progress": watch.show,
        "callback": (lambda _: True) if watch.ended is Status.INTERRUPTED else None,
    }


def _rank(solution: Solution) -> tuple[bool, float]:
    """Return what makes one answer better than another: a proof, then the value."""
    return solution.success, -np.nan_to_num(solution.value, nan=np.inf)


def _searched(small: Contraction, points: np.ndarray, watch: Watch) -> list[SmoothLoss]:
    """Return where the starts led, as far as there was time, the best first.

    Capacities in the middle of a search suit travellers that are still smoothed, and may be worse than the start. Where
    it is stopped there, they are evaluated without, in time that was set aside, and the start is one of the designs.
    """
    found: dict[int, SmoothLoss] = {}
    began, starts, last = time.monotonic(), list[SmoothLoss](), None
    try:
        with deadline(watch.ends):
            starts = [point for point in [evaluated(small, points[0])] if point is not None]
        aside = SOLVING.set_aside * (time.monotonic() - began)
        with deadline(watch.ends - aside):
            for number, x in enumerate(points):
                last = None
                for last in search(small, x):
                    numbers = {"phase": f"start {number + 1}/{len(points)}", "upper": last.value}
                    watch.look(number, None, None, numbers)
                if last is not None:
                    found[number] = last
    except OutOfTime:
        watch.ended = Status.TIME_LIMIT
    except KeyboardInterrupt:
        watch.ended = Status.INTERRUPTED
    if watch.ended is None:
        return _sorted(found.values())
    with deadline(watch.ends):
        unfinished = None if last is None else in_time(lambda: evaluated(small, last.at.x, last))
    return _sorted([*found.values(), *starts, *([] if unfinished is None else [unfinished])])


def _sorted(found: Iterable[SmoothLoss]) -> list[SmoothLoss]:
    return sorted(found, key=lambda point: point.value)
