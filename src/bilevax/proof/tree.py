"""Branch and bound on complementarity: of each pair, the row is active or its multiplier is zero. No big M."""

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from bilevax._support import clock
from bilevax.proof.incumbents import Incumbent
from bilevax.proof.least_distance import LeastDistance
from bilevax.proof.pairs import ACTIVE, FREE, OPEN, Pairs
from bilevax.proof.program import ComplementarityProgram
from bilevax.proof.relaxation import Relaxation, Relaxed
from bilevax.proof.settings import PROOF

Evaluate = Callable[[np.ndarray], Incumbent | None]
Allowed = Callable[[float], float]


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """Which side of each pair is decided, and what is known below."""

    sides: np.ndarray
    bound: float
    relaxed: Relaxed


@dataclasses.dataclass
class Effects:
    """What deciding a pair gained so far, relative to the square of how far it had to move: for each side."""

    total: np.ndarray
    count: np.ndarray

    @classmethod
    def none(cls, pairs: int) -> "Effects":
        """Return an empty record."""
        return cls(np.zeros((2, pairs)), np.zeros((2, pairs), int))

    def add(self, side: int, pair: int, distance: float, gain: float) -> None:
        """Remember a gain."""
        if np.isfinite(gain) and distance > 0:
            self.total[side, pair] += gain / distance**2
            self.count[side, pair] += 1

    def copy(self) -> "Effects":
        """Return the same as a record of its own."""
        return Effects(self.total.copy(), self.count.copy())

    def learn(self, earlier: "Effects", later: "Effects") -> None:
        """Add what ``earlier`` effects gained until they became the ``later`` ones."""
        self.total += later.total - earlier.total
        self.count += later.count - earlier.count

    def predict(self, distances: np.ndarray) -> np.ndarray:
        """Return the gains to expect; one row a side."""
        seen = self.count > 0
        usual = self.total.sum() / self.count.sum() if seen.any() else 0.5
        rate = np.where(seen, self.total / np.maximum(self.count, 1), usual)
        return np.maximum(rate, 0.0) * distances**2


class Found(NamedTuple):
    """What the search of a subtree came to: nodes that are open, the least bound of what was left, and what it found.

    ``best`` is None where nothing is better than what was known.
    """

    still_open: list[Node]
    closed: float
    nodes: int
    best: Incumbent | None
    effects: Effects


class Searched:
    """The best point of a search so far, and how good a bound has to be.

    Parameters
    ----------
    evaluate
        Returns what a point of the program is worth, evaluated exactly; None where it is no point of the problem.
    allowed
        Returns from a value how far below it a bound may be left.
    """

    def __init__(self, evaluate: Evaluate, allowed: Allowed):
        self.evaluate, self.allowed = evaluate, allowed
        self.best: Incumbent | None = None

    @property
    def upper(self) -> float:
        """The exact value of the best point so far."""
        return np.inf if self.best is None else self.best.value

    @property
    def cutoff(self) -> float:
        """Nodes with a bound from here on are of no interest."""
        return self.upper - self.allowed(self.upper) if np.isfinite(self.upper) else np.inf

    def offer(self, found: Incumbent | None) -> None:
        """Take a point as the incumbent if it is better."""
        if found is not None and found.value < self.upper:
            self.best = found


class Tree(Searched):
    """The search tree of a program and the same reduced: `lower_bound` is proven at any time."""

    def __init__(self, program: ComplementarityProgram, reduced: LeastDistance, evaluate: Evaluate, allowed: Allowed):
        super().__init__(evaluate, allowed)
        self.parts = program, reduced, evaluate, allowed
        self.reduced, self.pairs, self.relaxation = reduced, Pairs(program, reduced), Relaxation(reduced)
        self.effects = Effects.none(self.pairs.count)
        self.heap: list[tuple[float, int, Node]] = []
        self.lent: list[Node] = []  # whose subtrees are searched elsewhere
        self.closed = np.inf  # the least bound of what was left: leaves that could not be settled
        self.nodes = 0
        self._order, self._begun, self._known = itertools.count(), False, np.inf

    @property
    def trees(self) -> "list[Tree]":
        """The tree itself: it is a forest of one."""
        return [self]

    @property
    def upper(self) -> float:
        """The exact value of the best point so far, wherever it was found."""
        return min(super().upper, self._known)

    @property
    def lower_bound(self) -> float:
        """What no point of the problem is below."""
        if not self._begun:
            return -np.inf
        still_open = self.heap[0][0] if self.heap else np.inf
        return min(still_open, self.closed, self.upper, *(node.bound for node in self.lent))

    def search(self) -> Iterator[None]:
        """Branch until nothing is open; a look is possible after each node."""
        root = self._relax(self.pairs.first_sides(), -np.inf, np.zeros(len(self.reduced.rows)))
        self._push(root)
        self._begun = True
        yield from self.go_on()

    def begin_at(self, roots: list[Node], known: float, effects: Effects) -> None:
        """Begin with nodes of another tree, the best value and the effects that are known there."""
        self._known, self.effects, self._begun = known, effects, True
        self._push(*roots)

    def go_on(self) -> Iterator[None]:
        """Branch until nothing is open; a look is possible after each node."""
        while self.heap:
            yield
            clock.check()
            node = self._next()
            if node is None:
                break
            try:
                self._process(node)
            except BaseException:  # out of time, or interrupted: what is below this node stays open
                self._push(node)
                raise
        yield

    def finish(self) -> None:
        """Do nothing: all there is to find was found on the way."""

    def lend(self) -> Node | None:
        """Return the most promising open node for a search elsewhere, until it is taken back; None if there is none."""
        node = self._next()
        if node is not None:
            self.lent.append(node)
        return node

    def take_back(self, roots: list[Node], effects: Effects, found: Found | None) -> None:
        """Take nodes back that were lent with these effects: what was found below them, or as they were."""
        self.lent = [node for node in self.lent if not any(node is root for root in roots)]
        if found is None:
            self._push(*roots)
            return
        self.offer(found.best)
        self.nodes += found.nodes
        self.closed = min(self.closed, found.closed)
        self.effects.learn(effects, found.effects)
        self._push(*found.still_open)

    @property
    def found(self) -> Found:
        """What the search came to so far, as it travels."""
        best = None if self.best is None else dataclasses.replace(self.best, phi=None)
        return Found([node for _, _, node in sorted(self.heap)], self.closed, self.nodes, best, self.effects)

    def _next(self) -> Node | None:
        """Take the most promising open node; None where none is of interest."""
        if not self.heap:
            return None
        bound, _, node = heapq.heappop(self.heap)
        if bound < self.cutoff:
            return node
        self.closed, self.heap = min(self.closed, bound), []
        return None

    def _push(self, *nodes: Node) -> None:
        for node in nodes:
            if node.bound >= self.cutoff:
                self.closed = min(self.closed, node.bound)
            else:
                heapq.heappush(self.heap, (node.bound, next(self._order), node))

    def _relax(self, sides: np.ndarray, bound: float, guess: np.ndarray) -> Node:
        self.nodes += 1
        relaxed = self.relaxation.solve(*self.pairs.bounds(sides), guess)
        return Node(sides, max(bound, relaxed.bound), relaxed)

    def _process(self, node: Node) -> None:
        """Try for an incumbent, then branch."""
        if node.relaxed.s is None:
            self._branch_blindly(node)
            return
        slack, force = self.pairs.distances(node.relaxed.s, node.sides)
        off = np.minimum(slack, force)
        if off.max(initial=0.0) <= np.sqrt(PROOF.complementary) or self.nodes % PROOF.dives < 2:
            self._dive(node, slack, force)
            if node.bound >= self.cutoff:
                self._push(node)
                return
        if off.max(initial=0.0) <= PROOF.complementary * 1e-3:
            self.closed = min(self.closed, node.bound)  # nothing left to branch on, and not settled
            return
        self._branch(node, slack, force)

    def _branch_blindly(self, node: Node) -> None:
        free = np.flatnonzero(node.sides == FREE)
        if not len(free):
            self.closed = min(self.closed, node.bound)
            return
        for side in (ACTIVE, OPEN):
            self._push(self._relax(self.pairs.decide(node.sides, free[0], side), node.bound, node.relaxed.multipliers))

    def _dive(self, node: Node, slack: np.ndarray, force: np.ndarray) -> None:
        """Decide every pair for its nearer side, and take the best point there as the incumbent if it is better."""
        sides = np.where(node.sides == FREE, np.where(force > slack, ACTIVE, OPEN), node.sides).astype(np.int8)
        guess = self._relax(sides, -np.inf, node.relaxed.multipliers)
        if guess.relaxed.s is not None and guess.bound < self.upper:
            self.offer(self.evaluate(self.reduced.point(guess.relaxed.s)))

    def _branch(self, node: Node, slack: np.ndarray, force: np.ndarray) -> None:
        """Try the two sides of the most promising pairs and branch on the best of them."""
        distances = np.stack([slack, force])  # to ACTIVE, to OPEN
        predicted = self.effects.predict(distances)
        unit = PROOF.least_gain * (1 + (abs(node.bound) if np.isfinite(node.bound) else 0.0))
        score = np.prod(np.maximum(predicted, unit), axis=0) * (np.minimum(slack, force) > 1e-3 * PROOF.complementary)
        order = np.argsort(-score)[: PROOF.candidates]
        best: tuple[float, list[Node]] | None = None
        for pair in order[score[order] > 0]:
            if best is not None and self.effects.count[:, pair].min() >= PROOF.reliable and score[pair] <= best[0]:
                break
            children = self._children(node, pair, distances)
            gains = [_gain(node, child) for child in children]
            open_ones = [child for child in children if child.bound < self.cutoff]
            if len(open_ones) < 2:
                for child in children:
                    self._push(child)
                return
            value = float(np.prod(np.maximum(gains, unit)))
            if best is None or value > best[0]:
                best = value, children
            if self.effects.count[:, pair].min() > PROOF.reliable:
                break
        assert best is not None
        for child in best[1]:
            self._push(child)

    def _children(self, node: Node, pair: int, distances: np.ndarray) -> list[Node]:
        children = []
        for index, side in enumerate((ACTIVE, OPEN)):
            child = self._relax(self.pairs.decide(node.sides, pair, side), node.bound, node.relaxed.multipliers)
            self.effects.add(index, pair, distances[index, pair], _gain(node, child))
            children.append(child)
        return children


def _gain(node: Node, child: Node) -> float:
    """Return by how much a child's bound is better; where nothing was proven before, any bound is a gain of 1."""
    if np.isfinite(node.bound):
        return child.bound - node.bound
    return float(np.isfinite(child.bound))
