"""The search for a design from one start: prices one by one, then together, kicks, and again."""

from collections.abc import Callable

import numpy as np

from bilevax.problems.network import joint_prices, price_search
from bilevax.problems.network.marginal import Marginal, opened_for
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.settings import SEARCH


def climb(priced: Priced, random: np.random.Generator, report: Callable[[Priced], None]) -> Priced:
    """Return the best design that kicks and ascents lead to; ``report`` is told every improvement."""
    best = settled(price_search.ascend(priced, random, SEARCH.sweeps, report), random, report)
    report(best)
    links = len(priced.prices)
    patience = max(SEARCH.fewest_kicks, min(SEARCH.patience, links // 2, SEARCH.kicked_links // links))
    in_vain = 0
    while in_vain < patience:
        trial = price_search.ascend(price_search.kicked(best, random), random, SEARCH.sweeps_after_kick)
        # A ridge is followed only from where it may lead further than what is known.
        if trial.utility > best.utility - SEARCH.worth_following * (1 + abs(best.utility)):
            trial = settled(trial, random)
        gained = trial.utility > best.utility + SEARCH.sweep_gain * (1 + abs(best.utility))
        in_vain = 0 if gained else in_vain + 1
        if gained:
            best = trial
            report(best)
    return best


def settled(priced: Priced, random: np.random.Generator, report: Callable[[Priced], None] = lambda _: None) -> Priced:
    """Improve all prices together and one by one until neither gains; close what earns nothing."""
    for _ in range(SEARCH.rounds):
        before = priced.utility
        priced = price_search.tidied(joint_prices.improved(price_search.tidied(priced)))
        report(priced)
        priced = price_search.ascend(priced, random, 1)
        if priced.utility - before <= SEARCH.least_gain * (1 + abs(before)):
            break
    return price_search.tidied(joint_prices.improved(price_search.tidied(priced)))


def reopened(priced: Priced, paying: Marginal) -> Priced:
    """Return the network with unbuilt links that pay opened at their best price; itself if no price gains."""
    scarce, *others = paying.links
    opened = opened_for(priced, others)
    if opened is None:
        return priced
    price, utility = price_search.best_price(opened, scarce)
    return opened.at(scarce, price) if utility > priced.utility else priced
