"""The same bilevel problem with fewer variables: what is always equal is one.

A pair's flows on two links are equal in all that conservation allows where every way over one of them leads over the
other: one after the other on a road, or both on all ways between the pair's ends, where they equal its share. Links
that carry the same of these flows have the same load, so only the least of their capacities matters, and whoever pays
for capacity builds the same on all of them. A link that nobody can use stays as it is.

Nothing else changes: both problems have the same shares, loads and utilities, and a direction in which one descends is
one in which the other does.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from jaxtyping import Array, Float
from scipy.sparse.csgraph import connected_components

from bilevax.certificate.certificate import Certificate
from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box, NonNegative, Product
from bilevax.problems.network.restriction import Restriction, loss, travel


@dataclasses.dataclass(frozen=True)
class Contraction:
    """A part of a network in fewer variables.

    Attributes
    ----------
    part
        What is contracted.
    column
        Of each of its flows, the variable that it equals: flows first, shares behind them. -1 for flows in a circle,
        which are 0.
    group
        Of each of its links, its capacity's variable; -1 where nobody can use the link.
    conservation, load
        The rows, as matrices on the flows and shares that are left.
    """

    part: Restriction
    column: np.ndarray
    group: np.ndarray
    conservation: sp.csr_matrix
    load: sp.csr_matrix

    @property
    def existing(self) -> np.ndarray:
        """What is built already of the capacities that count."""
        existing = self.part.network.existing
        return np.zeros(self.load.shape[0]) if existing is None else self.capacities(existing[self.part.links])

    @functools.cached_property
    def pair(self) -> np.ndarray:
        """The pair of each flow and share."""
        pairs = len(self.part.pairs)
        pair = np.append(np.zeros(self.conservation.shape[1] - pairs, int), np.arange(pairs))
        pair[self.column[self.column >= 0]] = self.part.flow_pair[self.column >= 0]
        return pair

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of both objectives."""
        network, links, pairs = self.part.network, self.part.links, self.part.pairs
        flows = self.conservation.shape[1] - len(pairs)
        used, of_flow = self.group >= 0, self.column >= 0
        time = network.demand[pairs[self.part.flow_pair]] * network.time[links[self.part.flow_link]]
        cost = network.cost[links]
        every = np.bincount(self.column[of_flow], time[of_flow], minlength=flows + len(pairs))
        demand, outside, revenue = (getattr(network, name)[pairs] for name in ("demand", "outside", "revenue"))
        return {
            "flow_time": every[:flows],
            # What every traveller of a pair spends on the way takes as much from the outside option's time.
            "outside": outside - every[flows:] / demand,
            "cost": self.summed(cost),
            "fixed": float(cost[~used] @ self._unused[~used]),
            "demand": demand,
            "revenue": revenue,
        }

    def problem(self, minimal_share: float) -> BilevelProblem:
        """Return the bilevel problem, with the couplings conservation and capacity, in this order."""
        groups, pairs = self.load.shape[0], len(self.part.pairs)
        coupling = [LinearCoupling(A=self.load, B=-sp.eye(groups), upper=0.0)]
        if self.conservation.shape[0]:
            coupling = [LinearCoupling(A=self.conservation, lower=0.0, upper=0.0), *coupling]
        return BilevelProblem(
            upper=_loss,
            lower=travel,
            coupling=coupling,
            x_set=NonNegative() if self.part.network.existing is None else Box(self.existing, np.inf),
            y_set=Product({"flow": Box(0.0, 1.0), "share": Box(minimal_share, 1 - minimal_share)}),
            data=self.numbers(),
            y_like={"flow": np.zeros(self.conservation.shape[1] - pairs), "share": np.zeros(pairs)},
        )

    def capacities(self, of_links: np.ndarray) -> np.ndarray:
        """Return the capacities that count of those of all links: of links with the same load the least."""
        least = np.full(self.load.shape[0], np.inf)
        np.minimum.at(least, self.group[self.group >= 0], of_links[self.group >= 0])
        return least

    def flows(self, y: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the variables that are left of flows and shares."""
        every = np.zeros(self.conservation.shape[1])
        every[self.column[self.column >= 0]] = y["flow"][self.column >= 0]
        return {"flow": every[: -len(y["share"])], "share": y["share"]}

    def restored(self, certificate: Certificate) -> Certificate:
        """Return the certificate of the contraction as one of what was contracted."""
        slope, descent = certificate.hypergradient, certificate.descent
        return dataclasses.replace(
            certificate,
            y=self.all_flows(certificate.y),
            multipliers=self._all_prices(np.asarray(certificate.multipliers[-1])),
            hypergradient=None if slope is None else self.split(np.asarray(slope)),
            descent=None if descent is None else descent._replace(x=self.links(np.asarray(descent.x))),
        )

    def links(self, capacity: np.ndarray) -> np.ndarray:
        """Return the capacities of all links."""
        return np.where(self.group >= 0, np.append(capacity, 0.0)[self.group], self._unused)

    @functools.cached_property
    def _unused(self) -> np.ndarray:
        """The capacities of links that nobody can use."""
        existing = self.part.network.existing
        return np.zeros(len(self.part.links)) if existing is None else existing[self.part.links]

    def split(self, of_groups: np.ndarray, unused: float | np.ndarray = 0.0) -> np.ndarray:
        """Return a number of each link: an equal part of that of its group."""
        count = np.bincount(self.group[self.group >= 0], minlength=len(of_groups))
        return np.where(self.group >= 0, np.append(of_groups / count, unused)[self.group], unused)

    def summed(self, of_links: np.ndarray) -> np.ndarray:
        """Return the sum over the links of each group of a number of each link."""
        used = self.group >= 0
        return np.bincount(self.group[used], of_links[used], minlength=self.load.shape[0])

    def all_flows(self, y: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the flows and shares that were contracted."""
        flow, share = np.asarray(y["flow"]), np.asarray(y["share"])
        return {"flow": np.concatenate([flow, share, [0.0]])[self.column], "share": share}

    def _all_prices(self, of_groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the multipliers of all rows: lengths of ways to the destination, times demand, and the links' prices.

        Only the sum of the prices of links with the same load is known; each gets the same part of it.
        """
        part, network = self.part, self.part.network
        price = self.split(of_groups)
        rows = part.conservation
        tail, head = np.asarray(rows.tail_row), np.asarray(rows.head_row)
        weight = network.time[part.links[part.flow_link]] + price[part.flow_link]
        length = shortest(tail, head, weight, rows.rows)
        demand = np.zeros(rows.rows)
        demand[tail] = network.demand[part.pairs[part.flow_pair]]
        return -demand * length[:-1], price


def shortest(tail: np.ndarray, head: np.ndarray, weight: np.ndarray, rows: int) -> np.ndarray:
    """Return the length of the shortest way from each row to the end, which is the row behind the last."""
    length = np.append(np.full(rows, np.inf), 0.0)
    while True:
        nearer = length.copy()
        np.minimum.at(nearer, tail, weight + length[head])
        if np.array_equal(nearer, length):
            return length
        length = nearer


def _loss(x: Float[Array, " links"], y: dict[str, Array], data: dict[str, Array]) -> Float[Array, ""]:
    return loss(x, y, data) + data["fixed"]


def contracted(part: Restriction) -> Contraction:
    """Return a part of a network in fewer variables."""
    rows, flows, pairs = part.conservation, len(part.flow_link), len(part.pairs)
    kind = _kinds(part)
    # One flow of each kind stays, or none where the kind is the pair's share. The nodes that the others join are one.
    first = np.full(kind.max(initial=-1) + 1, flows)
    np.minimum.at(first, kind[kind >= 0], np.flatnonzero(kind >= 0))
    inner = np.ones(flows, bool)
    inner[first] = False
    tail, head = np.asarray(rows.tail_row), np.asarray(rows.head_row)
    ends, nodes = np.where(head < rows.rows, head, rows.rows + part.flow_pair), rows.rows + pairs
    joined = sp.csr_matrix((np.ones(inner.sum()), (tail[inner], ends[inner])), shape=(nodes, nodes))
    count, node = connected_components(joined, directed=False)
    gathered = sp.csr_matrix((np.ones(rows.rows), (node[: rows.rows], np.arange(rows.rows))), shape=(count, rows.rows))
    kept = np.ones(count, bool)
    kept[node[rows.rows :]] = False  # a destination's row follows from the others
    balance = sp.csr_matrix((gathered @ rows.to_scipy())[kept])
    # A flow that is in no row runs in a circle, and is of no use.
    circling = np.diff(sp.csc_matrix(_without_zeros(balance)).indptr)[first] == 0
    position = np.where(circling, -1, np.cumsum(~circling) - 1)
    left = int((~circling).sum())
    column = np.where(kind >= 0, np.append(position, 0)[kind], left + part.flow_pair)
    conservation = _without_zeros(balance[:, np.concatenate([first[~circling], flows + np.arange(pairs)])])
    useful = column >= 0
    demand = part.network.demand[part.pairs[part.flow_pair]]
    entries = demand[useful], (part.flow_link[useful], column[useful])
    load = sp.csr_matrix(entries, shape=(len(part.links), left + pairs))
    group, of_group = _groups(part, load)
    return Contraction(part, column, group, conservation, load[of_group])


def _kinds(part: Restriction) -> np.ndarray:
    """Return of each flow its kind, the same for flows that are always equal; -1 for flows that equal their share.

    Flows are compared in two random solutions of the conservation rows for shares of 1. Equal they are always, or,
    short of rounding, with probability 0.
    """
    flows = len(part.flow_link)
    matrix = sp.csc_matrix(part.conservation.to_scipy())
    of_flows, random = matrix[:, :flows], np.random.default_rng(0).standard_normal((flows, 2))
    missing = -matrix[:, flows:] @ np.ones((len(part.pairs), 2)) - of_flows @ random
    normal = spl.splu(sp.csc_matrix(of_flows @ of_flows.T), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    sample = random + of_flows.T @ normal.solve(missing)
    order = np.lexsort((sample[:, 0], part.flow_pair))
    apart = np.abs(np.diff(sample[order], axis=0)).max(axis=1) > _EQUAL
    new = np.append(True, apart | (np.diff(part.flow_pair[order]) > 0))
    kind = np.empty(flows, int)
    kind[order] = np.cumsum(new) - 1
    kind[np.abs(sample - 1).max(axis=1) <= _EQUAL] = -1
    known = np.unique(kind[kind >= 0])
    return np.where(kind >= 0, np.searchsorted(known, kind), -1)


_EQUAL = 1e-9  # flows of the order of one that differ by no more than this


def _groups(part: Restriction, load: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return of each link its group, -1 where it is in none, and of each group one of its links."""
    existing = part.network.existing
    least = np.zeros(len(part.links)) if existing is None else existing[part.links]
    load.sum_duplicates()
    number: dict[tuple[bytes, float], int] = {}
    group, of_group = np.full(len(part.links), -1), []
    for link in np.flatnonzero(np.diff(load.indptr)):
        columns = load.indices[load.indptr[link] : load.indptr[link + 1]]
        key = columns.tobytes(), float(least[link])
        if key not in number:
            number[key] = len(number)
            of_group.append(link)
        group[link] = number[key]
    return group, np.array(of_group, int)


def _without_zeros(matrix: sp.csr_matrix) -> sp.csr_matrix:
    matrix = matrix.copy()
    matrix.eliminate_zeros()
    return matrix
