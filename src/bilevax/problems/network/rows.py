"""The rows of network design as structure: indices instead of matrices, sums over segments, gathers for the adjoints.

Both maps act on the flattened ``{"flow", "share"}``: the flows of all usable (link, pair) combinations, link by link,
and then the pairs' shares.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from bilevax.model.operators import LinearMap


class Conservation(LinearMap):
    """What leaves a node minus what enters it, for each pair and node that its routes touch, except its destination.

    At the origin the pair's share enters. The destination's row would follow from the others.
    """

    tail_row: Int[Array, " flows"]
    head_row: Int[Array, " flows"]  # the number of rows where the head is the destination
    origin_row: Int[Array, " pairs"]
    rows: int = eqx.field(static=True)

    def __init__(self, tail: np.ndarray, head: np.ndarray, pair: np.ndarray, origin: np.ndarray, nodes: int):
        """Number the rows; ``tail``, ``head`` and ``pair`` are those of the flows, ``origin`` that of the pairs."""
        # A node that is left by some usable link is no destination, and every other node on a route is left by one.
        used = np.unique(pair * nodes + tail)
        row = lambda owner, node: np.searchsorted(used, owner * nodes + node).astype(np.int32)
        known = np.isin(pair * nodes + head, used)
        self.rows = len(used)
        self.tail_row = row(pair, tail)
        self.head_row = np.where(known, row(pair, head), self.rows).astype(np.int32)  # type: ignore[assignment]
        self.origin_row = row(np.arange(len(origin)), origin)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.tail_row.shape[0] + self.origin_row.shape[0]

    def mv(self, vector: Float[Array, " columns"]) -> Float[Array, " rows"]:
        flow, share = jnp.split(vector, [self.tail_row.shape[0]])
        balance = jax.ops.segment_sum(flow, self.tail_row, self.rows + 1)
        balance = balance - jax.ops.segment_sum(flow, self.head_row, self.rows + 1)
        return balance.at[self.origin_row].subtract(share)[: self.rows]

    def rmv(self, vector: Float[Array, " rows"]) -> Float[Array, " columns"]:
        padded = jnp.append(vector, 0.0)
        return jnp.concatenate([padded[self.tail_row] - padded[self.head_row], -vector[self.origin_row]])

    def to_scipy(self) -> sp.csr_matrix:
        flows, pairs = self.tail_row.shape[0], self.origin_row.shape[0]
        rows = np.concatenate([self.tail_row, self.head_row, self.origin_row])
        columns = np.concatenate([np.arange(flows), np.arange(flows), flows + np.arange(pairs)])
        values = np.repeat([1.0, -1.0, -1.0], [flows, flows, pairs])
        inside = rows < self.rows
        return sp.csr_matrix((values[inside], (rows[inside], columns[inside])), shape=self.shape)


class Load(LinearMap):
    """The demand that travels over each link: the sum of its pairs' flows, each times the pair's demand."""

    demand: Float[Array, " flows"]
    link: Int[Array, " flows"]
    of_link: Int[Array, "links most"]  # the flows over a link, padded by the number of flows
    pairs: int = eqx.field(static=True)

    def __init__(self, demand: np.ndarray, link: np.ndarray, links: int, pairs: int):
        """Take the flows' demand and link, in the order of the links."""
        self.demand, self.link, self.pairs = demand, link.astype(np.int32), pairs  # type: ignore[assignment]
        count = np.bincount(link, minlength=links)
        within = np.arange(count.max(initial=0))
        first = np.cumsum(count) - count
        table = np.where(within < count[:, None], first[:, None] + within, len(link))
        self.of_link = table.astype(np.int32)  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, int]:
        return self.of_link.shape[0], self.link.shape[0] + self.pairs

    def mv(self, vector: Float[Array, " columns"]) -> Float[Array, " rows"]:
        # A gather of whole links is several times faster here than a sum over segments: they are few and long.
        weighted = jnp.append(self.demand * vector[: self.link.shape[0]], 0.0)
        return jnp.sum(weighted[self.of_link], axis=1)

    def rmv(self, vector: Float[Array, " rows"]) -> Float[Array, " columns"]:
        return jnp.concatenate([self.demand * vector[self.link], jnp.zeros(self.pairs, vector.dtype)])

    def to_scipy(self) -> sp.csr_matrix:
        flows = self.link.shape[0]
        triplets = np.asarray(self.demand, np.float64), (np.asarray(self.link), np.arange(flows))
        return sp.csr_matrix(triplets, shape=self.shape)
