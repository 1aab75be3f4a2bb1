"""A global optimum at once: on small problems of the right class branching takes less than a local search."""

from typing import NamedTuple

from jaxtyping import PyTree

from bilevax._support.clock import deadline, in_time
from bilevax._support.threads import blas_threads
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.certify import certify_flat
from bilevax.driver.ending import Ending
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem, equilibrated
from bilevax.proof.bounds import Bounds
from bilevax.proof.search import global_bounds, is_small
from bilevax.proof.settings import PROOF
from bilevax.proof.status import ProofStatus


class AtOnce(NamedTuple):
    """A global optimum: how the search for it ended, its certificate, and what proves it."""

    ending: Ending
    certificate: Certificate
    bounds: Bounds


def proven_at_once(flat: FlatProblem, x: PyTree, watch: Watch) -> AtOnce | None:
    """Return a proven global optimum that its certificate confirms; None where a few nodes do not lead to one."""
    with deadline(watch.ends), blas_threads(flat.n_y):
        found = in_time(lambda: _found(flat, x))
    if found is None:
        return None
    natural, bounds = found
    best = bounds.best
    if bounds.status is not ProofStatus.PROVEN or best is None:
        return None
    x, y = natural.x_tree(best.x), natural.y_tree(best.y)
    with deadline(watch.last_call):
        certificate = certify_flat(flat, x, y, earlier=(natural.scales, best.phi))
    if not certificate.confirms(watch.limits.rtol):
        return None
    watch.record(bounds.nodes, {"phase": "proof", "upper": certificate.value})
    return AtOnce(Ending(x, y, bounds.nodes, converged=True), certificate, bounds)


def _found(flat: FlatProblem, x: PyTree) -> tuple[FlatProblem, Bounds] | None:
    if not is_small(flat):
        return None
    natural = equilibrated(flat, x)
    return natural, global_bounds(natural, None, PROOF.gap_at_once, most_nodes=PROOF.nodes_at_once)
