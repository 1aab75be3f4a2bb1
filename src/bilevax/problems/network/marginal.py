"""What unbuilt links and routes are worth, next to a design that is stationary on its built links.

Open unbuilt links by a little. Pairs that no built route joins value capacity without bound (the slope of their entropy
is infinite at share 0), so they take all that they can reach; the price of the new capacity rises until they just fill
it, which leaves each pair a share proportional to ``exp(outside - length)``, the tail of the logit. The built links
adapt: at a stationary design an operator neither gains nor loses by giving a built link's travellers as much capacity
as before, so what the new travellers need of it costs its construction, no more and no less. Per unit of a new link's
capacity the utility therefore changes by

    the mean over its new travellers of  (revenue per traveller - cost of capacity along their route),

with weights ``demand * exp(outside - length)``. It is the derivative along the best direction that opens the link,
built links widened as its travellers need. Opening it alone is worth as much where the utility is smooth in the built
capacities, and less on a kink.

A link that gives nobody a first route has a finite price: the highest at which some pair would use it instead of its
own route. That pair's capacity elsewhere is saved, so the link is worth the cost of the old route minus that of the new
one; or minus its own cost, where nobody would use it even if it were free.

Links that serve nobody alone may do so together. `pairs_of_links` looks at all of two; `candidate_routes` are
the unbuilt parts of the routes that pairs might want.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bilevax._support import clock
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.settings import PRICING


class Marginal(NamedTuple):
    """What a unit of capacity is worth, and why.

    Attributes
    ----------
    links
        What is opened: one link, or several at once, of which the first one is scarce.
    value
        The change of the utility per unit of the first link's capacity.
    test
        "new travellers", "other route" or "nobody": who would use it.
    """

    links: tuple[int, ...]
    value: float
    test: str


def of_link(priced: Priced, link: int) -> Marginal:
    """Return what one unbuilt link is worth."""
    network = priced.network
    length, cost = priced.over(link)
    new = np.isfinite(length) & ~np.isfinite(priced.length)
    if new.any():
        return Marginal((link,), _mean_profit(priced, new, length, cost), "new travellers")
    served = np.isfinite(length)
    if served.any():
        saved = priced.length[served] - length[served]  # the price up to which a pair would use the link
        tie = PRICING.tie * (1 + np.abs(priced.length[served]))
        first = saved >= saved.max() - tie
        if np.any(saved[first] >= -tie[first]):
            return Marginal((link,), float(np.max((priced.cost[served] - cost[served])[first])), "other route")
    return Marginal((link,), -float(network.cost[link]), "nobody")


def of_links(priced: Priced) -> list[Marginal]:
    """Return what each unbuilt link is worth."""
    return [of_link(priced, int(link)) for link in np.flatnonzero(np.isinf(priced.prices))]


def of_route(priced: Priced, links: tuple[int, ...]) -> Marginal | None:
    """Return what several unbuilt links at once are worth; None where that is nothing but the sum of its parts.

    One of them is scarce, the others cost their travellers as little as they can: as much as makes no served pair leave
    its route. Together those others must serve nobody new, for else they would be scarce, too.
    """
    for scarce in links:
        others = [link for link in links if link != scarce]
        opened = opened_for(priced, others)
        if opened is not None:
            found = of_link(opened, scarce)
            return Marginal((scarce, *others), found.value, found.test) if found.test != "nobody" else None
    return None


def pairs_of_links(priced: Priced) -> Iterator[Marginal]:
    """Yield what two unbuilt links at once are worth, where that differs from what each is worth alone.

    The second one serves nobody new alone. Its price may be anything from the least that `of_route` takes up; in
    between only prices where a pair changes its way can be better than the ends.
    """
    unbuilt = np.flatnonzero(np.isinf(priced.prices))
    for other in unbuilt:
        clock.check()
        opened = opened_for(priced, [int(other)])
        if opened is None or not opened.uses(int(other)):
            continue
        for scarce in unbuilt[unbuilt != other]:
            if opened.over_differs(priced, int(scarce)):
                for price in _prices_to_try(priced, opened, int(other), int(scarce)):
                    there = priced.at(int(other), price)
                    found = of_link(there, int(scarce))
                    if found.test != "nobody":
                        yield Marginal((int(scarce), int(other)), found.value, found.test)


def _prices_to_try(priced: Priced, opened: Priced, other: int, scarce: int) -> np.ndarray:
    """Return the least price of the other link, and those where a new traveller of the scarce one changes its way."""
    least = opened.prices[other]
    before, after = priced.over(scarce)[0], opened.over(scarce)[0]
    both = np.isfinite(before) & (before > after)
    return np.unique(np.concatenate([[least], least + before[both] - after[both]]))[: PRICING.most_prices]


def opened_for(priced: Priced, links: list[int]) -> Priced | None:
    """Return the network with links opened at the least prices for which all served pairs keep their routes.

    None where the links give some pair its first route.
    """
    opened = priced.at(links, 0.0)
    if np.any(np.isfinite(opened.length) & ~np.isfinite(priced.length)):
        return None
    served = np.isfinite(priced.length)
    if not np.any(opened.length[served] < priced.length[served] - PRICING.tie):
        return opened
    for link in links:
        length = priced.over(link)[0]
        reached = np.isfinite(length)
        saved = priced.length[reached] - length[reached]
        priced = priced.at(link, max(0.0, float(saved.max(initial=0.0))))
    return priced


def _mean_profit(priced: Priced, new: np.ndarray, length: np.ndarray, cost: np.ndarray) -> float:
    """Return the profit per traveller of pairs that compete for a little capacity."""
    network = priced.network
    ease = network.outside[new] - length[new]
    weight = network.demand[new] * np.exp(ease - ease.max())
    profit = network.revenue[new] / network.demand[new] - cost[new]
    return float(weight @ profit / weight.sum())


def candidate_routes(priced: Priced) -> list[tuple[int, ...]]:
    """Return sets of two or more unbuilt links: those on the cheapest and on the quickest route of each pair.

    Cheapest by the cost of construction, quickest by time and present prices; and with the fewest unbuilt links.
    """
    network, unbuilt = priced.network, np.isinf(priced.prices)
    time = np.where(unbuilt, 0.0, priced.prices) + network.time
    few = network.cost.sum() * unbuilt + network.cost
    found = set()
    for weight in (network.cost, time, few):
        free = priced.under(np.maximum(weight, 0.0) - network.time)
        routes = free.routes(np.arange(len(network.origin))).multiply(unbuilt).tocsr()
        routes.eliminate_zeros()
        routes.sort_indices()
        pieces = np.split(routes.indices, routes.indptr[1:-1])
        found |= {tuple(piece.tolist()) for piece in pieces if len(piece) >= 2}
    return sorted(found)
