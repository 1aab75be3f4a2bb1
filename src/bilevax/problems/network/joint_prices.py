"""All prices improved together, while every pair stays on its route.

For fixed routes the utility is a smooth function of the prices of the open links, and that these routes stay shortest
are linear rows: none of a pair's other routes may become shorter. Steps are quadratic programs in a trust region; other
routes enter as they are met. Maxima tend to lie where some routes are equally long: such ridges are why one price at a
time gets stuck.
"""

import clarabel
import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from bilevax._support.programs import conic
from bilevax.problems.network.prices import Priced
from bilevax.problems.network.settings import JOINT


def improved(priced: Priced) -> Priced:
    """Return the network at a local maximum over the prices of its open links, routes and ridges kept or improved."""
    radius, rivals = JOINT.radius, Rivals()
    for _ in range(JOINT.steps):
        model = Model(priced)
        moved, promised = _step(model, rivals, radius)
        if promised <= JOINT.least_gain * (1 + abs(priced.utility)):
            break
        gained = moved.utility - priced.utility
        if gained > JOINT.enough * promised:
            priced, radius = moved, (JOINT.growth * radius if gained > 0.5 * promised else radius)
        else:
            radius *= JOINT.shrinking
            if radius < JOINT.least_radius:
                break
    return priced


class Model:
    """The utility around some prices as a function of the open links' prices, with every pair on its route."""

    def __init__(self, priced: Priced):
        network = priced.network
        self.priced = priced
        self.links = np.flatnonzero(np.isfinite(priced.prices))
        self.served = np.flatnonzero(np.isfinite(priced.length))
        self.routes = priced.routes(self.served)[:, self.links]
        gain = network.revenue[self.served] - network.demand[self.served] * priced.cost[self.served]
        share = expit(network.outside[self.served] - priced.length[self.served])
        slope, bend = share * (1 - share), share * (1 - share) * (1 - 2 * share)
        self.gradient = -(self.routes.T @ (gain * slope))
        self.curvature = self._convex(-gain * bend)

    def _convex(self, curvature: np.ndarray) -> sp.csc_matrix:
        """Return the curvature of minus the utility, with as much as it can bear of the terms that curve downwards."""
        bowl = lambda part: sp.csc_matrix(
            self.routes.T @ sp.diags(np.where(curvature > 0, curvature, part * curvature)) @ self.routes
        )
        parts = JOINT.parts if len(self.links) <= JOINT.most_factorised else ()
        return next((found for part in parts if _definite(found := bowl(part))), bowl(0.0))

    def at(self, step: np.ndarray) -> Priced:
        """Return the network after a step of the prices."""
        prices = np.maximum(self.priced.prices[self.links] + step, 0.0)
        return self.priced.at(self.links, prices)


class Rivals:
    """Other routes of pairs, which must not become shorter than those that the pairs take."""

    def __init__(self):
        self.pairs: list[int] = []
        self.routes: list[sp.csr_matrix] = []
        self._known: set[tuple[int, bytes]] = set()

    def add(self, pairs: np.ndarray, routes: sp.csr_matrix) -> bool:
        """Add routes, one row a pair; return whether any of them is new."""
        before = len(self._known)
        for pair, number in zip(pairs.tolist(), range(len(pairs)), strict=True):
            route = routes[[number]]
            route.sort_indices()
            if (pair, route.indices.tobytes()) not in self._known:
                self._known.add((pair, route.indices.tobytes()))
                self.pairs.append(pair)
                self.routes.append(route)
        return len(self._known) > before

    def rows(self, model: Model) -> tuple[sp.csr_matrix, np.ndarray]:
        """Return matrix and right-hand side of ``matrix step <= right``: routes that pairs take stay shortest."""
        priced, network = model.priced, model.priced.network
        closed = np.isinf(priced.prices)
        if not self.pairs:
            return sp.csr_matrix((0, len(model.links))), np.zeros(0)
        rivals, pairs = sp.vstack(self.routes, format="csr"), np.array(self.pairs)
        exists = (rivals @ closed == 0) & np.isfinite(priced.length[pairs])
        rivals, pairs = rivals[exists], pairs[exists]
        length = rivals @ np.where(closed, 0.0, network.time + priced.prices)
        own = model.routes[np.searchsorted(model.served, pairs)]
        return sp.csr_matrix(own - rivals[:, model.links]), np.maximum(length - priced.length[pairs], 0.0)


def _step(model: Model, rivals: Rivals, radius: float) -> tuple[Priced, float]:
    """Return the network after the best step within a radius, and what the model promises of it."""
    priced = model.priced
    step = np.zeros(len(model.links))
    for _ in range(JOINT.rounds):
        step = _program(model, *rivals.rows(model), radius)
        moved = model.at(step)
        length = model.routes @ (priced.network.time + moved.prices)[model.links]
        shorter = moved.length[model.served] < length - JOINT.tie * (1 + length)
        pairs = model.served[shorter]
        if not rivals.add(pairs, moved.routes(pairs)):
            break
    return model.at(step), float(model.gradient @ step - 0.5 * step @ (model.curvature @ step))


def _program(model: Model, rows: sp.csr_matrix, right: np.ndarray, radius: float) -> np.ndarray:
    size = len(model.links)
    prices = model.priced.prices[model.links]
    identity = sp.eye(size, format="csc")
    matrix = sp.vstack([rows, identity, -identity], format="csc")
    bounds = np.concatenate([right, np.full(size, radius), np.minimum(prices, radius)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = JOINT.accuracy
    curvature = sp.csc_matrix(sp.triu(model.curvature + JOINT.proximity * identity))
    answer = conic(
        curvature, -model.gradient, matrix, bounds, [clarabel.NonnegativeConeT(len(bounds))], settings=settings
    )
    step = np.array(answer.x)
    return step if np.isfinite(step).all() else np.zeros(size)


def _definite(matrix: sp.csc_matrix) -> bool:
    """Return whether a matrix has no eigenvalue below zero, rounding aside."""
    try:
        np.linalg.cholesky(matrix.toarray() + JOINT.proximity * np.eye(matrix.shape[0]))
    except np.linalg.LinAlgError:
        return False
    return True
