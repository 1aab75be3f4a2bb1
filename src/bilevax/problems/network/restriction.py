"""The bilevel problem of a part of a network: some of its links, some of its pairs, and the flows between them.

`whole` is all of it, with a floor under the shares. `pruned` is what is left of a design where links are built and
pairs are served: there shares lie strictly between 0 and 1 by their entropy, and need no floor. A pair that no built
route joins has the share 0, whatever the others do.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float
from scipy.special import expit

from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box, NonNegative, Product
from bilevax.problems.network.data import Network
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.routes import Graph
from bilevax.problems.network.rows import Conservation, Load
from bilevax.problems.network.settings import PRUNING


@dataclasses.dataclass(frozen=True)
class Restriction:
    """Some links, pairs and flows of a network, each as positions in the lists of the whole.

    Attributes
    ----------
    flow_link, flow_pair
        Of each flow, its link and its pair, as positions in ``links`` and ``pairs``.
    """

    network: Network
    links: np.ndarray
    pairs: np.ndarray
    flow_link: np.ndarray
    flow_pair: np.ndarray

    @functools.cached_property
    def conservation(self) -> Conservation:
        """What leaves the nodes minus what enters them."""
        network, link = self.network, self.links[self.flow_link]
        return Conservation(
            network.tail[link], network.head[link], self.flow_pair, network.origin[self.pairs], len(network.nodes)
        )

    def problem(self, minimal_share: float = 0.0) -> BilevelProblem:
        """Return the bilevel problem, with the couplings conservation and capacity, in this order."""
        network = self.network
        link, pair = self.links[self.flow_link], self.pairs[self.flow_pair]
        links, pairs = len(self.links), len(self.pairs)
        existing = None if network.existing is None else network.existing[self.links]
        load = Load(network.demand[pair], self.flow_link, links, pairs)
        return BilevelProblem(
            upper=loss,
            lower=travel,
            coupling=[
                LinearCoupling(A=self.conservation, lower=0.0, upper=0.0),
                LinearCoupling(A=load, B=-sp.eye(links), upper=0.0),
            ],
            x_set=NonNegative() if existing is None else Box(existing, np.inf),
            y_set=Product({"flow": Box(0.0, 1.0), "share": Box(minimal_share, 1 - minimal_share)}),
            data={
                "flow_time": network.demand[pair] * network.time[link],
                "cost": network.cost[self.links],
                **{name: getattr(network, name)[self.pairs] for name in ("demand", "outside", "revenue")},
            },
            y_like={"flow": np.zeros(len(link)), "share": np.zeros(pairs)},
        )

    def travelled(self, priced: Priced) -> dict[str, np.ndarray]:
        """Return the flows and shares that prices lead to, every pair on one route."""
        network = self.network
        share = expit(network.outside[self.pairs] - priced.length[self.pairs])
        used = priced.routes(self.pairs)[:, self.links]
        return {
            "flow": np.asarray(used[self.flow_pair, self.flow_link]).ravel() * share[self.flow_pair],
            "share": share,
        }

    def in_whole(self, x: np.ndarray) -> np.ndarray:
        """Return capacities of all links: 0 where a link is no part of the restriction."""
        return _placed(x, self.links, len(self.network.tail))

    def y_in_whole(self, y: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return flows and shares of the whole network: 0 where they are no part of the restriction."""
        link, pair = self.network.flows
        key = lambda link, pair: link * len(self.network.origin) + pair
        position = np.searchsorted(key(link, pair), key(self.links[self.flow_link], self.pairs[self.flow_pair]))
        return {
            "flow": _placed(np.asarray(y["flow"]), position, len(link)),
            "share": _placed(np.asarray(y["share"]), self.pairs, len(self.network.origin)),
        }

    def rows_in_whole(self, rows: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return multipliers of the whole network's rows: 0 where they are no part of the restriction."""
        of_whole = whole(self.network)._pairs_and_nodes
        position = np.searchsorted(of_whole, self._pairs_and_nodes)
        return _placed(np.asarray(rows[0]), position, len(of_whole)), self.in_whole(np.asarray(rows[1]))

    @property
    def _pairs_and_nodes(self) -> np.ndarray:
        """The pair and the node of each row of conservation, as one number of the whole network, in order."""
        tail = self.network.tail[self.links[self.flow_link]]
        return np.unique(self.pairs[self.flow_pair] * len(self.network.nodes) + tail)


def whole(network: Network) -> Restriction:
    """Return all of a network."""
    link, pair = network.flows
    return Restriction(network, np.arange(len(network.tail)), np.arange(len(network.origin)), link, pair)


def pruned(network: Network, links: np.ndarray, length: np.ndarray | None = None) -> Restriction:
    """Return what matters of a network of which only some links are built.

    Parameters
    ----------
    links
        The built links, in order.
    length
        The length, time and prices together, of each pair's routes, where it is known (infinite for pairs that are not
        served). Prices are never negative, so no pair uses a link if even without prices all ways over it take longer:
        such flows are left out.
    """
    assert network.passable is not None
    assert network.detour is None
    graph = Graph(len(network.nodes), network.tail[links], network.head[links], network.time[links], network.passable)
    pairs = np.flatnonzero(np.isfinite(graph.times(network.origin, network.destination)))
    origin, destination = network.origin[pairs], network.destination[pairs]
    longest = None if length is None else length[pairs] + PRUNING.margin
    usable = graph.usable(origin, destination, longest)
    link, pair = np.nonzero(usable.T)
    return Restriction(network, links, pairs, link, pair)


def _placed(values: np.ndarray, positions: np.ndarray, size: int) -> np.ndarray:
    placed = np.zeros(size)
    placed[positions] = values
    return placed


def loss(x: Float[Array, " links"], y: dict[str, Array], data: dict[str, Array]) -> Float[Array, ""]:
    """Return minus the utility."""
    return data["cost"] @ x - data["revenue"] @ y["share"]


def travel(x: Float[Array, " links"], y: dict[str, Array], data: dict[str, Array]) -> Float[Array, ""]:
    """Return what the travellers minimise."""
    share, rest = y["share"], 1 - y["share"]
    choice = data["outside"] * rest + share * (jnp.log(share) - 1) + rest * (jnp.log(rest) - 1)
    return data["flow_time"] @ y["flow"] + data["demand"] @ choice
