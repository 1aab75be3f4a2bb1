"""A contracted network without the flows that cannot matter next to a point, and what it tells of all of it.

Where some flow is on no way that could be a shortest one, whichever prices the answer at x allows, it is zero in a
whole neighbourhood of x: Phi of what is left is Phi there, and a certificate of what is left is one of the network.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bilevax.certificate.certificate import Certificate
from bilevax.certificate.status import Status
from bilevax.driver.solution import Solution, to_go_on_from
from bilevax.problems.network.contraction import Contraction, contracted
from bilevax.problems.network.settings import NARROWING
from bilevax.problems.network.travellers import residuals
from bilevax.problems.network.ways import Ways


class Design(NamedTuple):
    """Capacities, flows and shares, prices and value of a contracted network."""

    x: np.ndarray
    y: dict[str, np.ndarray]
    price: np.ndarray
    value: float


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """Some flows of a contracted network, those that are ``kept``, contracted once more as ``part``."""

    small: Contraction
    kept: np.ndarray

    @functools.cached_property
    def _own(self) -> np.ndarray:
        """Which of the network's flows are left; those that equal their pair's share all are."""
        kept = np.append(self.kept, np.ones(len(self.small.part.pairs), bool))
        return (self.small.column >= 0) & kept[self.small.column]

    @functools.cached_property
    def part(self) -> Contraction:
        """What is left."""
        whole, own = self.small.part, self._own
        return contracted(dataclasses.replace(whole, flow_link=whole.flow_link[own], flow_pair=whole.flow_pair[own]))

    def start(self, design: Design) -> Solution:
        """Return a design as something to go on from with what is left."""
        every = self.small.all_flows(design.y)
        flows = self.part.flows({"flow": every["flow"][self._own], "share": every["share"]})
        ways = Ways(self.part, self.part.summed(self.small.split(design.price)))
        return to_go_on_from(self.part.capacities(self.small.links(design.x)), flows, design.value, ways.multipliers())

    def in_network(self, x: np.ndarray, y: dict[str, np.ndarray], price: np.ndarray, value: float) -> Design:
        """Return what was found with what is left as a design of the network."""
        every, own = self.part.all_flows(y), np.zeros(len(self._own))
        own[self._own] = every["flow"]
        flows = self.small.flows({"flow": own, "share": every["share"]})
        return Design(self._capacities(x), flows, self._sums(np.maximum(price, 0.0)), value)

    def design(self, found: Solution) -> Design:
        """Return an answer of what is left as a design of the network."""
        return self.in_network(np.asarray(found.x), found.y, np.asarray(found.multipliers[-1]), found.value)

    def in_all(self, found: Solution, missed: bool, minimal_share: float, rtol: float) -> Solution:
        """Return an answer of what is left as one of the network, and no success if flows were ``missed``."""
        if self.kept.all():
            return found
        design = self.design(found)
        certificate = self._certificate(found.certificate, design, minimal_share)
        certificate = dataclasses.replace(certificate, complete=certificate.complete and not missed)
        changes: dict[str, Any] = {}
        if found.success and not certificate.confirms(rtol):
            status = Status.TIME_LIMIT if missed else Status.STALLED
            message = f"{status.value} Not confirmed for all flows: {certificate.objection(rtol)}."
            changes = {"status": status, "success": False, "message": message}
        return dataclasses.replace(
            found,
            x=design.x,
            y=certificate.y,
            multipliers=certificate.multipliers,
            certificate=certificate,
            **changes,
        )

    def missed(self, found: Solution) -> np.ndarray:
        """Return which flows that were left out might be used next to an answer, under some prices that it allows."""
        if self.kept.all():
            return np.zeros(len(self.kept), bool)
        now, least = Ways(self.small, self.design(found).price), Ways(self.small, self._least_prices(found))
        longer = least.over_flows - now.lengths[self.small.pair[: len(self.kept)]]
        return ~self.kept & ~(longer > NARROWING.clear)

    def _certificate(self, certificate: Certificate, design: Design, minimal_share: float) -> Certificate:
        """Return what is proven of the network: y is an answer as far as all of its rows and flows say."""
        ways, left_out = Ways(self.small, design.price), np.count_nonzero(~self.kept)
        stationarity, infeasibility, complementarity = residuals(ways, design.x, design.y, minimal_share)
        slope, descent, unused = certificate.hypergradient, certificate.descent, self.small.part.network.cost
        return dataclasses.replace(
            certificate,
            y=design.y,
            multipliers=ways.multipliers(),
            lower_stationarity=max(certificate.lower_stationarity, stationarity),
            lower_infeasibility=max(certificate.lower_infeasibility, infeasibility),
            lower_complementarity=max(certificate.lower_complementarity, complementarity),
            stationarity_test=f"{certificate.stationarity_test}, {left_out} flows being zero all around",
            hypergradient=None if slope is None else self._sums(np.asarray(slope), unused[self.small.part.links]),
            descent=None if descent is None else descent._replace(x=self._capacities(np.asarray(descent.x))),
        )

    def _capacities(self, x: np.ndarray) -> np.ndarray:
        """Return the capacities of the network, given those that are left."""
        return self.small.capacities(self.part.links(x))

    def _sums(self, of_part: np.ndarray, unused: float | np.ndarray = 0.0) -> np.ndarray:
        """Return prices or slopes of the network's capacities, given those that are left."""
        return self.small.summed(self.part.split(of_part, unused))

    def _least_prices(self, found: Solution) -> np.ndarray:
        """Return prices that are not above any prices that an answer allows: 0 where these are not unique."""
        part, certificate, x = self.part, found.certificate, np.asarray(found.x)
        price = np.asarray(certificate.multipliers[-1])
        y = np.concatenate([np.asarray(certificate.y[name]) for name in ("flow", "share")])
        full = np.flatnonzero((price > 0) | (part.load @ y >= x - NARROWING.full * (1 + x)))
        free = np.append(y[: -len(part.part.pairs)] > NARROWING.used, np.ones(len(part.part.pairs), bool))
        # Prices differ by what adds nothing to the length of any way that is used.
        rows = sp.csr_matrix(sp.vstack([part.conservation, part.load[full]]))[:, free]
        random = np.random.default_rng(0).standard_normal(rows.shape[0])
        eye, none = sp.eye(rows.shape[0]), -NARROWING.soft * sp.eye(rows.shape[1])
        right = np.concatenate([random, np.zeros(rows.shape[1])])
        change = spl.splu(sp.csc_matrix(sp.bmat([[eye, rows], [rows.T, none]]))).solve(right)[: len(random)]
        unique = np.ones(len(price), bool)
        unique[full] = np.abs(change[part.conservation.shape[0] :]) <= NARROWING.unique
        # Nor is it known how much of a price is that of which link, if what was left out can tell them apart.
        of_part, of_small = (each[self.part.group >= 0] for each in (self.part.group, self.small.group))
        parts = sp.csr_matrix((np.ones(len(of_part)), (of_part, of_small)), (len(price), self.small.load.shape[0]))
        alone = np.diff(parts.indptr) == 1
        return self._sums(np.where(unique & alone, np.maximum(price, 0.0), 0.0))
