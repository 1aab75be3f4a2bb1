"""How the flows of each pair answer to prices: small dense matrices, those of pairs of about the same size together."""

import dataclasses

import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.problems.network.settings import ROADS


@dataclasses.dataclass(frozen=True)
class _Group:
    """Pairs of about the same size, filled up with variables, rows and links that are none.

    Attributes
    ----------
    columns, links
        The variables and links of each pair, as positions; one beyond the last where there is none.
    conservation, load
        Their rows: (pairs, rows, columns).
    missing
        1 on the diagonal for rows that are none.
    place
        Where a matrix of links by links of each pair belongs in that of all links.
    """

    columns: np.ndarray
    links: np.ndarray
    conservation: np.ndarray
    load: np.ndarray
    missing: np.ndarray
    place: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answer:
    """What flows and shares do when prices rise, for each group of pairs: ``(pairs, links, columns)``.

    ``of_loads`` is how much the loads fall, links by links.
    """

    blocks: "PairBlocks"
    parts: list[np.ndarray]
    of_loads: np.ndarray

    def quadratic_form(self, weights: np.ndarray) -> np.ndarray:
        """Return the sum over flows and shares of weight times answer times answer, links by links."""
        every = np.append(weights, 0.0)
        squares = [
            (part * every[group.columns][:, None, :]) @ part.transpose(0, 2, 1)
            for group, part in zip(self.blocks.groups, self.parts, strict=True)
        ]
        return self.blocks.gathered(squares)


class PairBlocks:
    """The rows of a network pair by pair; ``pair`` tells of each column to which it belongs."""

    def __init__(self, conservation: sp.csr_matrix, load: sp.csr_matrix, pair: np.ndarray):
        self.links, self.columns = load.shape
        pairs = int(pair.max()) + 1
        of_column = _Numbering(pair, np.arange(self.columns), pairs)
        rows, loads = conservation.tocoo(), load.tocoo()
        of_row, of_link = _Numbering(pair[rows.col], rows.row, pairs), _Numbering(pair[loads.col], loads.row, pairs)
        order = np.argsort(of_column.count, kind="stable")
        size, self.groups, begin = of_column.count[order], [], 0
        while begin < pairs:
            most = max(size[begin] + ROADS.like_size, ROADS.like_part * size[begin])
            end = int(np.searchsorted(size, most, side="right"))
            clock.check()
            chosen = order[begin:end]
            shape = [int(part.count[chosen].max()) for part in (of_row, of_link, of_column)]
            group = np.full(pairs, -1)
            group[chosen] = np.arange(end - begin)
            columns = _filled(group, of_column, shape[2], self.columns)
            links = _filled(group, of_link, shape[1], self.links)
            conserving, loading = (
                _matrices(group, entries, pair[entries.col], numbering, of_column, (end - begin, count, shape[2]))
                for entries, numbering, count in ((rows, of_row, shape[0]), (loads, of_link, shape[1]))
            )
            clock.check()
            missing = (np.arange(shape[0]) >= of_row.count[chosen][:, None]).astype(float)
            place = links[:, :, None] * (self.links + 1) + links[:, None, :]
            self.groups.append(_Group(columns, links, conserving, loading, missing, place.ravel()))
            begin = end

    def answer(self, compliance: np.ndarray) -> Answer:
        """Return the answers for the compliance of each flow and share alone, that is without conservation."""
        every, parts, squares = np.append(compliance, 0.0), [], []
        for group in self.groups:
            clock.check()
            own = every[group.columns][:, None, :]
            part, rows = group.load * own, group.conservation * own
            if group.conservation.shape[1]:
                kept = group.conservation.transpose(0, 2, 1)
                stiff = rows @ kept
                diagonal = np.arange(stiff.shape[1])
                stiff[:, diagonal, diagonal] += group.missing
                unit = 1 / np.sqrt(stiff[:, diagonal, diagonal])
                stiff *= unit[:, :, None] * unit[:, None, :]
                part = part - ((part @ kept) * unit[:, None, :]) @ np.linalg.solve(stiff, unit[:, :, None] * rows)
            parts.append(part)
            squares.append(part @ group.load.transpose(0, 2, 1))
        return Answer(self, parts, self.gathered(squares))

    def gathered(self, squares: list[np.ndarray]) -> np.ndarray:
        """Return the sum of the pairs' matrices of links by links, as one of all links."""
        size = self.links + 1
        total = np.zeros(size * size)
        for group, square in zip(self.groups, squares, strict=True):
            total += np.bincount(group.place, square.ravel(), minlength=size * size)
        return np.ascontiguousarray(total.reshape(size, size)[:-1, :-1])


class _Numbering:
    """Numbers from 0 on, within each pair, of the different things that belong to it."""

    def __init__(self, pair: np.ndarray, thing: np.ndarray, pairs: int):
        self._things = int(thing.max(initial=0)) + 1
        self._known = np.unique(pair * self._things + thing)
        self.pair, self.thing = self._known // self._things, self._known % self._things
        self._first = np.searchsorted(self.pair, np.arange(pairs + 1))
        self.count = np.diff(self._first)

    def of(self, pair: np.ndarray, thing: np.ndarray) -> np.ndarray:
        """Return the numbers of things that belong to pairs."""
        return np.searchsorted(self._known, pair * self._things + thing) - self._first[pair]

    @property
    def number(self) -> np.ndarray:
        """The number of each thing."""
        return np.arange(len(self.pair)) - self._first[self.pair]


def _filled(group: np.ndarray, numbering: _Numbering, count: int, none: int) -> np.ndarray:
    """Return the things of each pair in the group, one row a pair."""
    table, inside = np.full((int(group.max()) + 1, count), none), group[numbering.pair] >= 0
    table[group[numbering.pair[inside]], numbering.number[inside]] = numbering.thing[inside]
    return table


def _matrices(
    group: np.ndarray,
    entries: sp.coo_matrix,
    pair: np.ndarray,
    of_row: _Numbering,
    of_column: _Numbering,
    shape: tuple[int, int, int],
) -> np.ndarray:
    """Return the entries that belong to pairs in the group as one matrix a pair; ``pair`` is that of each entry."""
    clock.check()  # of a large network each of these takes a second
    matrices, inside = np.zeros(shape), group[pair] >= 0
    at, row, column = pair[inside], entries.row[inside], entries.col[inside]
    matrices[group[at], of_row.of(at, row), of_column.of(at, column)] = entries.data[inside]
    return matrices
