"""Subtrees of a proof, searched elsewhere: the same bounds, however many search and whoever is the fastest.

A round hands out the most promising open nodes, some to each worker, with what is known by then: the best value, and
the effects of deciding pairs. A worker searches below its nodes until nothing is open there, or for so many nodes, and
what it found is put together in the order in which it was handed out. Only rounds share what was found, and what they
hand out does not depend on the workers; what was lost with a worker is searched here.
"""

import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from bilevax._support import clock
from bilevax._support.clock import OutOfTime, deadline
from bilevax._support.elsewhere import as_they_come, pickled, unpickled
from bilevax._support.precision import float64
from bilevax._support.threads import blas_threads
from bilevax.proof.blocks import Forest
from bilevax.proof.settings import PROOF
from bilevax.proof.tree import Effects, Found, Node, Tree


class Subtrees(NamedTuple):
    """What a worker is told: which tree they are of, the nodes at their roots, the best value so far, the effects."""

    tree: int
    roots: list[Node]
    upper: float
    effects: Effects


def search_elsewhere(whole: Tree | Forest, executor: Any) -> Iterator[None]:
    """Go on with a search that has begun, by the workers of an executor; a look is possible as results come."""
    payload = pickled([tree.parts for tree in whole.trees])
    while hands := _handed_out(whole.trees):
        yield from _round(whole.trees, hands, executor, payload)
    whole.finish()
    yield


def _handed_out(trees: list[Tree]) -> list[Subtrees]:
    """Return what a round hands out: the best open nodes of each tree, dealt like cards."""
    hands: dict[tuple[int, int], Subtrees] = {}
    most = PROOF.hands * PROOF.roots_in_hand
    for turn in range(most):
        lent = [(number, root) for number, tree in enumerate(trees) if (root := tree.lend()) is not None]
        for number, root in lent:
            tree = trees[number]
            hand = hands.setdefault((number, turn % PROOF.hands), Subtrees(number, [], tree.upper, tree.effects.copy()))
            hand.roots.append(root)
        if not lent or (turn + 1) * len(lent) >= most:
            break
    return list(hands.values())


def _round(trees: list[Tree], hands: list[Subtrees], executor: Any, payload: bytes) -> Iterator[None]:
    """Have subtrees searched, and take back what was found: of those that are not back in time, their open roots."""
    found: dict[int, Found] = {}
    late = time.monotonic() + clock.remaining() + PROOF.patience
    task = lambda number: (payload, hands[number], clock.remaining())
    try:
        for number, result in as_they_come(executor, _searched, range(len(hands)), task, late):
            if isinstance(result, BaseException):
                warnings.warn(f"subtrees were lost with their worker, and are searched here: {result!r}", stacklevel=5)
                result = _searched(*task(number))
            found[number] = result
            yield
        clock.check()
    finally:
        for number, hand in enumerate(hands):
            trees[hand.tree].take_back(hand.roots, hand.effects, found.get(number))


def _searched(payload: bytes, hand: Subtrees, left: float) -> Found:
    """Search some subtrees, in this process."""
    program, *others = unpickled(payload)[hand.tree]
    with float64(), deadline(time.monotonic() + left), blas_threads(len(program.cost)):
        tree = Tree(program, *others)
        tree.begin_at(hand.roots, hand.upper, hand.effects.copy())
        try:
            for _ in tree.go_on():
                if tree.nodes >= PROOF.nodes_of_hand:
                    break
        except OutOfTime:
            pass
    return tree.found
