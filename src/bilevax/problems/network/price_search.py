"""Search over prices: one link's price at a time, opened and closed included, then a kick and again.

With all prices but one fixed, each pair takes the link up to the price at which its way around the link is as short.
Between these prices the utility is smooth, so its maximum over one price is found by evaluating all of them: a link
that does not pay is closed (an infinite price), one that would pay is opened at its best price, however far from the
present design that is.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import expit

from bilevax._support import clock
from bilevax.problems.network.data import Network
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.settings import SEARCH


def best_price(priced: Priced, link: int) -> tuple[float, float]:
    """Return the best price of one link, the others fixed, and the utility there; an infinite one closes it."""
    network, without = priced.network, priced.without(link)
    length, cost = priced.over(link)
    reached = np.isfinite(length)
    limit = without.length[reached] - length[reached]  # pairs use the link up to this price
    near, limit = np.flatnonzero(reached)[limit >= 0], limit[limit >= 0]
    closed = without.utility
    if len(near) == 0:
        return np.inf, closed
    gain = network.revenue[near] - network.demand[near] * cost[near]
    ease, otherwise = network.outside[near] - length[near], without.profit[near]
    tie = SEARCH.tie * (1 + length[near])

    def change(price: np.ndarray) -> np.ndarray:
        price = price[:, None]
        more = expit(ease - price) * gain - otherwise
        return np.sum(np.where(price < limit - tie, more, np.where(price > limit + tie, 0.0, np.maximum(more, 0.0))), 1)

    prices = _prices_to_look_at(priced.prices[link], limit, float(ease.max()))
    values = change(prices)
    best = int(values.argmax())
    price, value = prices[best], values[best]
    if closed + value < priced.utility - SEARCH.worth_refining * (1 + abs(priced.utility)):
        return (price, closed + value) if value > 0 else (np.inf, closed)
    low, high = prices[max(best - 1, 0)], prices[min(best + 1, len(prices) - 1)]
    for _ in range(SEARCH.refinements):
        prices = low + (high - low) * _FRACTIONS
        values = change(prices)
        best = int(values.argmax())
        if values[best] > value:
            price, value = prices[best], values[best]
        low, high = prices[max(best - 1, 0)], prices[min(best + 1, len(prices) - 1)]
    return (float(price), float(closed + value)) if value > 0 else (np.inf, closed)


_FRACTIONS = np.linspace(0.0, 1.0, SEARCH.refined)


def _prices_to_look_at(price: float, limit: np.ndarray, ease: float) -> np.ndarray:
    """Return the price at hand, those at which a pair changes its way, and a grid, in order."""
    highest = max(0.0, ease - np.log(SEARCH.least_share))
    corners = np.sort(limit[limit < highest])
    if len(corners) > SEARCH.corners:
        corners = corners[np.linspace(0, len(corners) - 1, SEARCH.corners).astype(int)]
    grid = highest * np.linspace(0.0, 1.0, SEARCH.grid)
    return np.sort(np.concatenate([grid, corners, [price] if np.isfinite(price) else []]))


def ascend(
    priced: Priced, random: np.random.Generator, sweeps: int, report: Callable[[Priced], None] = lambda _: None
) -> Priced:
    """Improve one price after another, in random order, until a sweep over all links gains nothing.

    ``report`` is told the end of every sweep.
    """
    for _ in range(sweeps):
        before = priced.utility
        for link in random.permutation(len(priced.prices)):
            clock.check()
            price, utility = best_price(priced, link)
            least = SEARCH.least_gain * (1 + abs(priced.utility))
            if utility > priced.utility + least:
                priced = priced.at(link, price)
        report(priced)
        if priced.utility - before <= SEARCH.sweep_gain * (1 + abs(before)):
            break
    return priced


def tidied(priced: Priced) -> Priced:
    """Close the links that nobody uses, and those that earn next to nothing."""
    priced = priced.under(np.where(priced.load > 0, priced.prices, np.inf))
    for link in np.flatnonzero(np.isfinite(priced.prices)).tolist():
        closed = priced.without(link)
        if closed.utility >= priced.utility - SEARCH.negligible * (1 + abs(priced.utility)):
            priced = closed
    return priced


def starting_prices(network: Network, number: int, random: np.random.Generator) -> np.ndarray:
    """Return prices to start from: all links open, or a random part of them, at random prices."""
    prices = random.exponential(SEARCH.typical_price, len(network.tail))
    return prices if number % 2 == 0 else np.where(random.random(len(prices)) < SEARCH.open_part, prices, np.inf)


def kicked(priced: Priced, random: np.random.Generator) -> Priced:
    """Change the prices of a few links at random, some of them to infinity."""
    links = len(priced.prices)
    most = min(max(SEARCH.fewest_kicked, int(SEARCH.kicked_part * links)), SEARCH.most_kicked)
    chosen = random.choice(links, min(links, int(random.integers(1, most + 1))), replace=False)
    prices = random.exponential(SEARCH.typical_price, len(chosen))
    prices[random.random(len(chosen)) < SEARCH.closed_part] = np.inf
    return priced.at(chosen, prices)
