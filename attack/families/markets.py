"""Markets: a generator bids a price and a quantity and is paid the price, a multiplier of the lower level."""

from typing import Any

import numpy as np

from attack.families import family
from attack.judge.market import Market
from attack.model import Box, Case, Expect, Problem, Rows, free


def _loss(xp: Any, x: Any, y: Any, data: dict[str, Any]) -> Any:
    """The leader's profit, negative, with a mild wish to stay near some bid; y ends with the multipliers."""
    profit = (-y[-2] - data["own"]) * y[0]
    return 0.5 * xp.sum(data["weight"] * (x - data["wish"]) ** 2) - profit


def _cost(xp: Any, x: Any, y: Any, data: dict[str, Any]) -> Any:
    made = y[:-2]
    return x[0] * made[0] + xp.sum(data["costs"] * made + 0.5 * data["rising"] * made**2)


def _market(random: np.random.Generator, rising: bool, point: bool = False) -> Case:
    count = int(random.integers(2, 5))
    costs = np.r_[0.0, np.sort(random.uniform(0.5, 3.0, count - 1))]
    curved = random.uniform(0.2, 1.0, count) * rising
    capacity = random.uniform(0.4, 1.2, count)
    demand = float(random.uniform(0.3, 0.9) * capacity[1:].sum())
    data = {
        "own": random.uniform(0.0, 0.5),
        "weight": random.uniform(0.05, 0.3, 2),
        "wish": random.uniform(0.0, [3.0, 1.0]),
        "costs": costs,
        "rising": curved,
    }
    rows = Rows(
        A=np.vstack([np.r_[np.ones(count), 0.0, 0.0], np.r_[1.0, np.zeros(count + 1)]]),
        B=np.array([[0.0, 0.0], [0.0, -1.0]]),
        low=np.array([demand, -np.inf]),
        high=np.array([demand, 0.0]),
    )
    y_set = Box(np.r_[np.zeros(count), free(2).lower], np.r_[2.0, capacity[1:], free(2).upper])
    x_set = Box(np.array([0.0, 0.05]), np.array([4.0, 1.2]))
    follower = Market(costs, curved, capacity, demand, lambda x, y: float(_loss(np, x, y, data)))
    start = random.uniform(x_set.lower, x_set.upper)
    problem = Problem(_loss, _cost, data, x_set, y_set, start, follower, rows, multipliers=2)
    expect = Expect.EITHER if point else Expect.SOLUTION
    return Case(problem, expect, point=start if point else None)


@family("prices")
def prices(random: np.random.Generator) -> Case:
    """Costs that rise: unique dispatches; where all are at a limit the price is not unique."""
    return _market(random, rising=True)


@family("prices-linear")
def linear_prices(random: np.random.Generator) -> Case:
    """Linear costs: dispatches and prices jump, and at a jump the leader chooses among both."""
    return _market(random, rising=False)


@family("prices-wrong-point")
def wrong_point(random: np.random.Generator) -> Case:
    """Any bid: seldom the best, and never to be confirmed if it is not."""
    return _market(random, rising=random.random() < 0.5, point=True)
