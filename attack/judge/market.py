"""The judge's market: who makes how much and at which price, in closed form, by merit order."""

from collections.abc import Callable

import numpy as np


class Market:
    """Generators meet a demand at least cost; y ends with the multipliers: minus the price, and the leader's rent.

    Costs are ``costs y + rising y^2 / 2``; the leader is generator 0, whose cost is x[0], and who offers x[1].

    Parameters
    ----------
    costs, rising, capacity, demand
        Numbers of the market; the first cost and capacity are not used. Costs are linear where ``rising`` is zero, and
        then all of them are.
    value
        f at x and (y, multipliers): where several are optimal, the one with the least f counts.
    """

    def __init__(
        self,
        costs: np.ndarray,
        rising: np.ndarray,
        capacity: np.ndarray,
        demand: float,
        value: Callable[[np.ndarray, np.ndarray], float],
    ):
        self.costs, self.rising, self.capacity, self.demand, self.value = costs, rising, capacity, demand, value

    def respond(self, x: np.ndarray, slack: float) -> np.ndarray | None:
        costs, capacity = np.r_[x[0], self.costs[1:]], np.r_[x[1], self.capacity[1:]]
        if capacity.sum() < self.demand:
            return None
        found, curved = [], self.rising.any()
        for made in [self._balanced(costs, capacity)] if curved else self._dispatched(costs, capacity, slack):
            marginal = costs + self.rising * made
            low = marginal[made > slack].max()
            high = marginal[made < capacity - slack].min(initial=np.inf)
            for price in {low, max(low, high)} if np.isfinite(high) else {low}:
                found.append(np.r_[made, -price, max(price - marginal[0], 0.0)])
        return min(found, key=lambda y: self.value(x, y))

    def _dispatched(self, costs: np.ndarray, capacity: np.ndarray, slack: float) -> list[np.ndarray]:
        """Return the least-cost dispatches with the least and with the most of the leader."""
        answers = []
        for favour in (-1.0, 1.0):
            order = np.argsort(costs + favour * 2 * slack * (np.arange(len(costs)) == 0), kind="stable")
            made, left = np.zeros(len(costs)), self.demand
            for each in order:
                made[each] = min(left, capacity[each])
                left -= made[each]
            answers.append(made)
        return answers

    def _balanced(self, costs: np.ndarray, capacity: np.ndarray) -> np.ndarray:
        """Return the dispatch where costs rise: it is piecewise linear in the price, between known corners."""
        made = lambda price: np.clip((price - costs) / self.rising, 0.0, capacity)
        corners = np.sort(np.r_[costs, costs + self.rising * capacity])
        totals = np.array([made(price).sum() for price in corners])
        last = int(np.searchsorted(totals, self.demand))
        if last == 0:
            return made(corners[0])
        share = (self.demand - totals[last - 1]) / (totals[last] - totals[last - 1])
        return made(corners[last - 1] + share * (corners[last] - corners[last - 1]))
