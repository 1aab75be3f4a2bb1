"""`NetworkDesign.solve` without a floor: search over prices, certificate of the built part, prices of the rest.

Starts are searched one after another. Then the designs that were found are judged, the best first: its pruned network
gets a certificate, and every unbuilt link and route is priced. What pays is opened, and the search goes on from there.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logit

from bilevax._support.clock import OutOfTime, deadline, in_time
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.certify import certify
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Limits, check_limits
from bilevax.driver.solution import Solution, to_go_on_from
from bilevax.driver.solve import solve
from bilevax.driver.watch import Watch
from bilevax.problems.network import marginal
from bilevax.problems.network.climbing import climb, reopened, settled
from bilevax.problems.network.contraction import Contraction, contracted
from bilevax.problems.network.data import Network
from bilevax.problems.network.empty import certificate_of_nothing
from bilevax.problems.network.marginal import Marginal
from bilevax.problems.network.price_search import starting_prices
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.restriction import Restriction, pruned
from bilevax.problems.network.settings import PRICING, PRUNING, SOLVING


class Judged(NamedTuple):
    """A design with its certificate and what the rest of the network is worth.

    Attributes
    ----------
    priced
        The network under the design's prices, those of its certificate where that has a lower level.
    part, certificate
        The built part and its certificate.
    small, of_small
        The built part in fewer variables, and its certificate there.
    best
        The unbuilt link or route that is worth most; None where everything is built, or there was no time.
    examined
        How many single links, pairs of links and longer routes were priced; None if there was no time for all of them.
    """

    priced: Priced
    part: Restriction
    certificate: Certificate
    small: Contraction
    of_small: Certificate
    best: Marginal | None
    examined: dict[str, int] | None

    def pays(self) -> bool:
        """Return whether some unbuilt link or route pays."""
        return self.best is not None and self.best.value > PRICING.pays * _typical_cost(self.priced.network)

    def succeeds(self, rtol: float) -> bool:
        """Return whether the design is stationary on its built links, and nothing unbuilt pays."""
        return self.certificate.confirms(rtol) and self.examined is not None and not self.pays()


def solve_by_prices(
    network: Network,
    x0: np.ndarray | None,
    starts: int,
    time_limit: float | None,
    progress: bool | None,
    rtol: float,
    key: int,
) -> Solution:
    """Return the best design that was found, judged; see `NetworkDesign.solve`."""
    began = time.monotonic()
    check_limits(rtol, 0.0, None, time_limit)
    watch = Watch(began, Limits(rtol, 0.0, starts + 1, time_limit), None, progress)
    found = _searched(network, x0, starts, key, watch)
    best: Judged | None = None
    for number, priced in enumerate(found[: SOLVING.most_judged]):
        if best is not None and time.monotonic() >= watch.ends:
            break
        with deadline(watch.ends if number else watch.last_call):
            judged = _pursued(priced, np.random.default_rng([key, number]), watch)
        # A better value without proof does not replace an answer with one.
        rank = lambda one: (one.succeeds(rtol), one.priced.utility)
        best = judged if best is None or rank(judged) > rank(best) else best
        if best.succeeds(rtol):
            break
    watch.close()
    assert best is not None
    return _solution(best, watch, starts, len(found))


def _searched(network: Network, x0: np.ndarray | None, starts: int, key: int, watch: Watch) -> list[Priced]:
    """Return the designs that the starts led to, distinct ones only, the best first."""
    found: list[Priced] = []
    try:
        with deadline(watch.ends):
            for number in range(starts):
                random = np.random.default_rng([key, number])
                prices = starting_prices(network, number, random)
                if x0 is not None and number == 0:
                    prices = np.where(np.asarray(x0) > 0, 0.0, np.inf)
                found.append(Priced(network, np.full(len(network.tail), np.inf)))
                report = _reporter(found, number, starts, watch)
                report(climb(Priced(network, prices), random, report))
    except OutOfTime:
        watch.ended = Status.TIME_LIMIT
    except KeyboardInterrupt:
        watch.ended = Status.INTERRUPTED
    distinct: list[Priced] = []
    for priced in sorted(found, key=lambda one: -one.utility):
        known = any(np.array_equal(np.isinf(priced.prices), np.isinf(other.prices)) for other in distinct)
        if not known:
            distinct.append(priced)
    return distinct


def _reporter(found: list[Priced], number: int, starts: int, watch: Watch) -> Callable[[Priced], None]:
    def report(priced: Priced) -> None:
        if priced.utility >= found[number].utility:
            found[number] = priced
        best = max(one.utility for one in found)
        numbers = {"phase": f"start {number + 1}/{starts}", "upper": -priced.utility, "best": -best}
        watch.look(number, None, None, numbers)

    return report


def _pursued(priced: Priced, random: np.random.Generator, watch: Watch) -> Judged:
    """Judge a design; where something pays, or the certificate knows better, go on from there."""
    judged = _judge(priced)
    for _ in range(SOLVING.rounds):
        if judged.succeeds(watch.limits.rtol) or time.monotonic() >= watch.ends:
            break
        better = in_time(lambda: _improved(judged, random))  # noqa: B023
        if better is None or not better.utility > judged.priced.utility + SOLVING.gain * (1 + abs(better.utility)):
            break
        watch.look(watch.limits.max_steps - 1, None, None, {"phase": "judging", "upper": -better.utility})
        judged = _judge(better)
    return judged


def _improved(judged: Judged, random: np.random.Generator) -> Priced:
    """Return a better design than one that is not proven, if there is one: opened where it pays, or solved further."""
    priced = judged.priced
    if judged.best is not None and judged.pays():
        return settled(reopened(priced, judged.best), random)
    small, warm = judged.small, _as_solution(judged)
    solution = solve(small.problem(PRUNING.guard), warm.x, warm_start=warm, progress=False)
    if not solution.certificate.proves_value:
        return priced
    return settled(_prices_of(judged.part, small.restored(solution.certificate)), random)


def _judge(priced: Priced) -> Judged:
    """Return the certificate of a design, and what the rest of its network is worth."""
    network, links = priced.network, np.flatnonzero(priced.load > 0)
    part = pruned(network, links, priced.length)
    small = contracted(part)
    if len(links) == 0:
        certificate = of_small = certificate_of_nothing(part)
    else:
        problem, capacities = small.problem(PRUNING.guard), small.capacities(priced.load[links])
        of_small = certify(problem, capacities, small.flows(part.travelled(priced)))
        certificate = small.restored(of_small)
        if certificate.proves_value:
            share = np.asarray(certificate.y["share"])
            if min(share.min(), 1 - share.max()) <= SOLVING.least_share:  # the guard might bind
                certificate = dataclasses.replace(certificate, complete=False)
    judged = Judged(priced, part, certificate, small, of_small, None, None)
    found = in_time(lambda: _priced_out(judged)) if certificate.proves_value else None
    return judged if found is None else judged._replace(best=found[0], examined=found[1])


def _priced_out(judged: Judged) -> tuple[Marginal | None, dict[str, int]] | None:
    """Return the unbuilt link or route that is worth most, and how many there were; None where prices are in doubt.

    The prices are those of the exact lower level; where they are not unique, those of the search count as well.
    """
    exact, found = _prices_of(judged.part, judged.certificate), judged.priced
    pairs, share = judged.part.pairs, np.asarray(judged.certificate.y["share"])
    length = judged.priced.network.outside[pairs] - logit(share)
    if np.any(np.abs(exact.length[pairs] - length) > SOLVING.same_length * (1 + np.abs(length))):
        return None
    if np.any(length > found.length[pairs] + 0.5 * PRUNING.margin):  # flows that were left out might be used
        return None
    same = np.abs(exact.prices[judged.part.links] - found.prices[judged.part.links]) <= SOLVING.same_length
    single, pairs, routes = [], [], []
    for priced in (exact,) if same.all() else (exact, found.under(np.where(found.load > 0, found.prices, np.inf))):
        single += marginal.of_links(priced)
        pairs += marginal.pairs_of_links(priced) if np.isinf(priced.prices).sum() <= PRICING.most_pairs else []
        routes += [marginal.of_route(priced, links) for links in marginal.candidate_routes(priced)]
    known = [one for one in (*single, *pairs, *routes) if one is not None]
    counts = {"links": len(single), "pairs of links": len(pairs), "routes": len(routes)}
    return max(known, key=lambda one: one.value, default=None), counts


def _prices_of(part: Restriction, certificate: Certificate) -> Priced:
    prices = np.full(len(part.network.tail), np.inf)
    prices[part.links] = np.maximum(np.asarray(certificate.multipliers[1]), 0.0)
    return Priced(part.network, prices)


def _as_solution(judged: Judged) -> Solution:
    certificate, capacities = judged.of_small, judged.small.capacities(judged.priced.load[judged.part.links])
    return to_go_on_from(capacities, certificate.y, certificate.value, certificate.multipliers)


def _solution(judged: Judged, watch: Watch, starts: int, designs: int) -> Solution:
    """Return the answer for the whole network."""
    rtol, part = watch.limits.rtol, judged.part
    of_part = judged.certificate
    certificate = dataclasses.replace(
        of_part,
        y=part.y_in_whole(of_part.y),
        multipliers=part.rows_in_whole(of_part.multipliers),
        hypergradient=None if of_part.hypergradient is None else part.in_whole(np.asarray(of_part.hypergradient)),
        stationarity_test=f"{of_part.stationarity_test}, on the {len(part.links)} built links",
        descent=None if of_part.descent is None else of_part.descent._replace(x=part.in_whole(of_part.descent.x)),
    )
    success = judged.succeeds(rtol)
    stopped = watch.ended or Status.STALLED
    status = Status.CONVERGED if success else (of_part.failure or stopped)
    best = None if judged.best is None else judged.best.value
    return Solution(
        x=part.in_whole(judged.priced.load[part.links]),
        y=certificate.y,
        value=certificate.value,
        multipliers=certificate.multipliers,
        status=status,
        success=success,
        message=f"{status.value}{_reason(judged, rtol)} ({_findings(judged)})",
        certificate=certificate,
        history=watch.history,
        stats={
            "solver": "prices",
            "steps": len(watch.records),
            "time": time.monotonic() - watch.began,
            "starts": starts,
            "designs": designs,
            "built": len(part.links),
            "served": len(part.pairs),
            "best_unbuilt": best,
            "priced": judged.examined,
        },
    )


def _reason(judged: Judged, rtol: float) -> str:
    if judged.succeeds(rtol):
        return ""
    objection = judged.certificate.objection(rtol)
    if objection is None and judged.examined is None:
        objection = "there was no time to price the unbuilt links, or the lower level's prices are in doubt"
    if objection is None:
        objection = "an unbuilt link or route pays"
    return f" Not confirmed: {objection}."


def _findings(judged: Judged) -> str:
    """Return what was proven, in words."""
    network, certificate = judged.priced.network, judged.certificate
    built = (
        f"value {certificate.value:.6g}, stationarity {certificate.stationarity:.2g} on {len(judged.part.links)} built "
        f"links ({certificate.stationarity_test})"
    )
    if judged.best is None:
        return built + "."
    name = lambda link: f"{network.nodes[network.tail[link]]} -> {network.nodes[network.head[link]]}"
    what = " with ".join(name(link) for link in judged.best.links)
    return f"{built}; of what is not built, {what} is worth most: {judged.best.value:.3g} a unit of capacity."


def _typical_cost(network: Network) -> float:
    return float(np.mean(network.cost)) or 1.0


def check_starts(starts: Any, x0: Any, links: int) -> None:
    """Raise ValueError for a number of starts that is none, or capacities of the wrong number."""
    if isinstance(starts, bool) or not isinstance(starts, int | np.integer) or starts < 1:
        raise ValueError(f"starts: expected a whole number >= 1, got {starts!r}.")
    if x0 is not None and np.shape(x0) != (links,):
        raise ValueError(f"x0: expected one capacity a link, shape ({links},), got {np.shape(x0)}.")
