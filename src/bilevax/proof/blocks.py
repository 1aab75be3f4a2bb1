"""A program that falls apart: blocks of variables that no row, pair or term of f connects, each with its own tree.

One tree for all would have to combine the sides of one block with those of every other; the least value of a sum over
blocks is the sum of their least values.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from bilevax.proof.incumbents import Incumbent
from bilevax.proof.least_distance import reduce
from bilevax.proof.program import ComplementarityProgram
from bilevax.proof.tree import Allowed, Evaluate, Searched, Tree


def block_variables(program: ComplementarityProgram) -> list[np.ndarray]:
    """Return the variables of each block."""
    rows, size = program.matrix != 0, len(program.cost)
    pairs = rows[program.pair_row] | rows[program.pair_force]
    # The nodes of the graph are the variables, then rows and pairs, each connected to its variables.
    links = sp.csr_matrix(np.vstack([program.hessian != 0, rows, pairs]))
    graph = sp.csr_matrix((links.data, links.indices, links.indptr), shape=(links.shape[0], links.shape[0]))
    block = sp.csgraph.connected_components(graph, directed=False)[1][:size]
    return [np.flatnonzero(block == k) for k in np.unique(block)]


def block_program(program: ComplementarityProgram, variables: np.ndarray, first: bool) -> ComplementarityProgram:
    """Return a block by itself; the ``first`` one has the constant, and the rows without variables."""
    inside = np.zeros(len(program.cost), bool)
    inside[variables] = True
    entries = program.matrix != 0
    rows = np.flatnonzero(entries[:, inside].any(axis=1) | (first & ~entries.any(axis=1)))
    number = np.full(len(entries), -1)
    number[rows] = np.arange(len(rows))
    pairs = number[program.pair_force] >= 0
    return dataclasses.replace(
        program,
        hessian=program.hessian[np.ix_(variables, variables)],
        cost=program.cost[variables],
        constant=program.constant if first else 0.0,
        matrix=program.matrix[np.ix_(rows, variables)],
        lower=program.lower[rows],
        upper=program.upper[rows],
        pair_row=number[program.pair_row[pairs]],
        pair_side=program.pair_side[pairs],
        pair_force=number[program.pair_force[pairs]],
    )


class Forest(Searched):
    """The trees of all blocks, to be used as a `Tree` of the whole."""

    def __init__(self, program: ComplementarityProgram, blocks: list[np.ndarray], evaluate: Evaluate, allowed: Allowed):
        super().__init__(evaluate, allowed)
        self._size, self._blocks = len(program.cost), blocks
        share = lambda value: allowed(value) / len(blocks)
        self.trees = []
        for k, variables in enumerate(blocks):
            block = block_program(program, variables, k == 0)
            self.trees.append(Tree(block, reduce(block), _values(block), share))

    @property
    def nodes(self) -> int:
        """How many there are in all trees."""
        return sum(tree.nodes for tree in self.trees)

    @property
    def lower_bound(self) -> float:
        """What no point of the problem is below."""
        bounds = [tree.lower_bound for tree in self.trees]
        return -np.inf if -np.inf in bounds else min(sum(bounds), self.upper)

    def search(self) -> Iterator[None]:
        """Search all trees one after the other, their roots first, and put their best points together."""
        searches = [tree.search() for tree in self.trees]
        for search in searches:
            next(search, None)
        for search in searches:
            for _ in search:
                yield
        self.finish()
        yield

    def finish(self) -> None:
        """Put the best points of all trees together."""
        if all(tree.best is not None for tree in self.trees):
            z = np.zeros(self._size)
            for tree, variables in zip(self.trees, self._blocks, strict=True):
                assert tree.best is not None
                z[variables] = tree.best.x
            self.offer(self.evaluate(z))


def _values(block: ComplementarityProgram) -> Evaluate:
    """Return what takes a point of a block at its word: only all together are a point that can be evaluated."""
    none = np.zeros(0)

    def value(z: np.ndarray) -> Incumbent:
        return Incumbent(float(0.5 * z @ block.hessian @ z + block.cost @ z + block.constant), z, none, none)

    return value
