"""The numbers that steer the search for a network's design; what decides about success is in ``PRICING``."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """How prices are searched."""

    # Lengths that differ by this, relative, are equal.
    tie: float = 1e-12
    # Prices at which the largest share is below this are not looked at.
    least_share: float = 1e-5
    # Prices of one link that are looked at besides those where a pair changes its way, and the most of the latter.
    grid: int = 24
    corners: int = 300
    # Rounds of refinement around the best price, and prices in each, unless it loses more than this, relative.
    worth_refining: float = 0.01
    refinements: int = 3
    refined: int = 9
    # A price is changed for a gain above this, relative to 1 + the utility, and sweeps end below the second.
    least_gain: float = 1e-10
    sweep_gain: float = 1e-6
    # A link is closed where that loses less than this, relative to 1 + the utility.
    negligible: float = 1e-7
    # Sweeps over all links: from a start, and after a kick.
    sweeps: int = 4
    sweeps_after_kick: int = 6
    # The mean of random prices, and the part of the links that is open in a random start.
    typical_price: float = 1.5
    open_part: float = 0.4
    # Of a kick: the largest part of the links, at least and at most so many, and the part of those that is closed.
    kicked_part: float = 0.5
    fewest_kicked: int = 3
    most_kicked: int = 50
    closed_part: float = 0.3
    # Kicks in a row without a gain, after which a search ends: half as many as links, within these two, and on large
    # networks fewer, the third number divided by the links.
    patience: int = 25
    fewest_kicks: int = 5
    kicked_links: int = 5000
    # After a kick, prices are improved together where the utility is at most this much below the best, relative.
    worth_following: float = 0.1
    # Rounds of improving prices together and one by one.
    rounds: int = 10


SEARCH = SearchSettings()


@dataclasses.dataclass(frozen=True)
class JointSettings:
    """How all prices are improved together."""

    # Steps, and programs in each, as further routes are met.
    steps: int = 60
    rounds: int = 30
    # The trust region: its first and its least radius, how it grows and shrinks, and the part of what a program
    # promised that must be gained.
    radius: float = 1.0
    least_radius: float = 1e-9
    growth: float = 2.0
    shrinking: float = 0.25
    enough: float = 0.1
    # Steps end where less is promised, relative to 1 + the utility.
    least_gain: float = 1e-14
    # Routes that are shorter by this, relative, count as shorter.
    tie: float = 1e-11
    # Accuracy of the programs, and what is added to the diagonal of their curvature.
    accuracy: float = 1e-11
    proximity: float = 1e-9
    # How much of the downward curvature is tried in the programs, which have to be convex: the first that is, counts.
    # Above so many prices none is.
    parts: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    most_factorised: int = 1500


JOINT = JointSettings()


@dataclasses.dataclass(frozen=True)
class PruningSettings:
    """What is left out of the problem of a design."""

    # A flow is left out where the way takes this much longer than the pair's routes with their prices.
    margin: float = 0.1
    # Shares stay this far from 0 and 1 in exact lower levels, which is less than any share that counts.
    guard: float = 1e-12


PRUNING = PruningSettings()


@dataclasses.dataclass(frozen=True)
class PricingSettings:
    """When an unbuilt link or route pays. This decides about success."""

    # Lengths that differ by this, relative, are equal.
    tie: float = 1e-9
    # A link pays where a unit of it is worth more than this part of a typical cost.
    pays: float = 1e-6
    # Prices of a second link that are looked at.
    most_prices: int = 20
    # Unbuilt links up to which all pairs of them are looked at.
    most_pairs: int = 200


PRICING = PricingSettings()


@dataclasses.dataclass(frozen=True)
class SolvingSettings:
    """How designs are judged."""

    # The best so many designs of the starts are judged, until one is proven.
    most_judged: int = 5
    # Rounds of going on where something pays or a better point was found, each for a gain above this, relative.
    rounds: int = 8
    gain: float = 1e-9
    # A share this near to 0 or 1 makes a certificate incomplete, for the guard might bind.
    least_share: float = 1e-10
    # Lengths and prices that differ by this, relative, are the same.
    same_length: float = 1e-6
    # On roads, time that is set aside for the design where a search is stopped, relative to what the start's took.
    set_aside: float = 2.0


SOLVING = SolvingSettings()


@dataclasses.dataclass(frozen=True)
class RoadSettings:
    """The search on existing roads, with smoothed travellers."""

    # The first barrier, what is left of it from stage to stage, and the number of stages.
    barrier: float = 0.1
    tightening: float = 0.5
    stages: int = 21
    # A design is evaluated with this barrier or less; on the way there this is left of it at a time.
    last_barrier: float = 1e-8
    dropping: float = 0.1
    # Steps of a stage, and trials of one of them, each with a quarter of the radius. A step needs this part of what was
    # predicted; below the second part the radius shrinks, above the third it grows, if it was what limited the step.
    steps: int = 8
    trials: int = 8
    enough: float = 1e-3
    poor: float = 0.25
    good: float = 0.5
    # A stage ends where a step promised less than this times the barrier, relative to 1 + the utility.
    worth: float = 0.03
    # The first radius, relative to the capacities.
    radius: float = 0.3
    # Rounds of a step's program in its box, what it may leave, relative, and when a bound is near, relative to the box.
    box_rounds: int = 60
    box_accuracy: float = 1e-8
    box_margin: float = 1e-3
    # Newton's method for the travellers: steps, the share of the way to what is not allowed that one may go, and the
    # same for a prediction along the tangent. A step aims at this part of the mean product of what has a barrier,
    # unless the one before it was short.
    newton_steps: int = 60
    reach: float = 0.995
    predicted_reach: float = 0.9
    centring: float = 0.1
    short: float = 0.3
    # What may be missing, relative, before the last step, and how far products may be from the barrier.
    near: float = 1e-4
    near_products: float = 1e-2
    # Flows, prices and spare capacities to start from.
    first: float = 0.3
    # Pairs with so many variables more, or so many times as many, are filled up to the same size.
    like_size: int = 3
    like_part: float = 1.4


ROADS = RoadSettings()


@dataclasses.dataclass(frozen=True)
class NarrowingSettings:
    """Which flows are left out next to a point, and when they come back. What is `clear` decides about success."""

    # A flow is left out at first where its ways are longer by this than the pair's shortest one.
    margin: float = 0.01
    # Nothing is left out of so few flows.
    few: int = 3000
    # Ways that are longer by no more than this are used: flows on them come back at once.
    noticed: float = 0.0
    # The drag of a descent that goes on with more flows, and the least one: with more, its last steps crawl.
    drag: float = 1e-4
    least_drag: float = 1e-8
    # Whether a flow cannot matter: its ways are longer by this under all prices of the answer.
    clear: float = 1e-3
    # Flows above this are used, and capacities with less than this to spare are full, relative.
    used: float = 1e-7
    full: float = 1e-6
    # A price is unique if its entry in a random change of the prices that nobody sees is at most this.
    unique: float = 1e-7
    # What is added to the diagonal of that system.
    soft: float = 1e-12
    # Rounds in which flows come back, the last of them with all of them.
    rounds: int = 8


NARROWING = NarrowingSettings()
