"""Travellers on roads with given capacities, smoothed: nobody leaves a road quite empty, and none is ever quite full.

Flows and the prices of the capacity rows ``load <= x`` have a barrier: each reduced cost times its flow, and each price
times what is left of its capacity, is a given small number. Prices, flows and shares are then smooth functions of x,
and so is the operator's loss, with first and second derivatives in x.

A step of Newton's method has the matrix ``[D, A'; A, -E]`` with D and E diagonal and A the rows of conservation and
load. What is left of it once the flows are eliminated, ``A D^-1 A' + E``, is positive definite. Second derivatives need
more: how each flow answers to each price. A pair's flows only answer to prices on its own ways (`pair_blocks`).
"""

import dataclasses
import time
from typing import NamedTuple

import numpy as np
import qdldl
import scipy.linalg as sl
import scipy.sparse as sp

from bilevax._support import clock
from bilevax.problems.network.contraction import Contraction
from bilevax.problems.network.pair_blocks import PairBlocks
from bilevax.problems.network.settings import ROADS


class Smoothed(NamedTuple):
    """Travellers at capacities x with a barrier.

    Attributes
    ----------
    y
        Flows and, behind them, shares.
    reduced
        Of each flow, what its way costs more than the shortest one.
    rows
        The multipliers of conservation and, behind them, the prices.
    spare
        What is left of each capacity.
    """

    x: np.ndarray
    barrier: float
    y: np.ndarray
    reduced: np.ndarray
    rows: np.ndarray
    spare: np.ndarray


@dataclasses.dataclass(frozen=True)
class SmoothLoss:
    """The loss at smoothed travellers, with its gradient in x and the adjoint: what flows, shares and rows weigh.

    ``unit`` is what barriers of capacities are measured in.
    """

    at: Smoothed
    unit: float
    value: float
    gradient: np.ndarray
    adjoint_y: np.ndarray
    adjoint_rows: np.ndarray


class SmoothRoads:
    """The smoothed lower level of one contracted network, at many capacities.

    ``unit`` is a typical capacity, in which barriers of capacities are measured.
    """

    def __init__(self, small: Contraction, unit: float):
        numbers = small.numbers()
        self.pairs, self.links = len(numbers["demand"]), small.load.shape[0]
        self.flows = small.load.shape[1] - self.pairs
        self.time, self.outside, self.demand = numbers["flow_time"], numbers["outside"], numbers["demand"]
        self.cost, self.revenue, self.fixed = numbers["cost"], numbers["revenue"], numbers["fixed"]
        self.conserved = small.conservation.shape[0]
        self.A = sp.csr_matrix(sp.vstack([small.conservation, small.load]))
        self.transposed = sp.csr_matrix(self.A.T)
        self.pair = small.pair
        self.weight = self.demand[self.pair]  # of each flow and share
        self.flow_unit, self.unit = self.weight[: self.flows], unit
        self.blocks = PairBlocks(small.conservation, small.load, self.pair)
        self._normal = _NormalEquations(self.A, self.conserved)

    def first(self, x: np.ndarray) -> Smoothed:
        """Return something to start from, far from any answer."""
        half = ROADS.first
        y = np.concatenate([np.full(self.flows, half), np.full(self.pairs, 0.5)])
        rows = np.concatenate([np.zeros(self.conserved), np.full(self.links, half)])
        return Smoothed(x, 1.0, y, half * self.flow_unit, rows, half * x)

    def solve(self, x: np.ndarray, barrier: float, start: Smoothed) -> Smoothed | None:
        """Return the travellers at x nearly, for `loss` makes one step more; None where Newton's method fails."""
        point, length = start._replace(x=x, barrier=barrier), 1.0
        for _ in range(ROADS.newton_steps):
            clock.check()
            of_flows, of_spare = self._products(point)
            if self._miss(point) <= ROADS.near and _apart(of_flows, of_spare) <= ROADS.near_products:
                return point
            mean = max(of_flows.mean() if self.flows else 1.0, of_spare.mean())
            aim = max(1.0, (ROADS.centring if length > ROADS.short else 1.0) * mean)
            factor = self._factor(point)
            if factor is None:
                return None
            point, length = self._moved(point, aim, factor)
            if not np.isfinite(point.y).all():
                return None
        return None

    def loss(self, x: np.ndarray, barrier: float, start: Smoothed) -> SmoothLoss | None:
        """Return the loss at x with its gradient; None where Newton's method fails."""
        near = self.solve(x, barrier, start)
        factor = None if near is None else self._factor(near)
        if near is None or factor is None:
            return None
        along = np.concatenate([np.zeros(self.flows), -self.revenue])
        adjoint_y, adjoint_rows = factor.solve(along, np.zeros(len(near.rows)))
        point, _ = self._moved(near, 1.0, factor)
        value = float(self.cost @ x - self.revenue @ point.y[self.flows :]) + self.fixed
        return SmoothLoss(point, self.unit, value, self.cost + adjoint_rows[self.conserved :], adjoint_y, adjoint_rows)

    def hessian(self, point: SmoothLoss) -> np.ndarray:
        """Return the second derivative of the loss in x."""
        y, flows = point.at.y, self.flows
        answer = self.blocks.answer(self._compliance(point.at))
        price, spare = point.at.rows[self.conserved :], point.at.spare
        stiff = answer.of_loads + np.diag(spare / price)
        share = y[flows:]
        bent = np.concatenate(
            [-2 * point.at.reduced / y[:flows] ** 2, self.demand * (1 / (1 - share) ** 2 - 1 / share**2)]
        )
        form = answer.quadratic_form(bent * point.adjoint_y)
        form[np.diag_indices(self.links)] += 2 * point.adjoint_rows[self.conserved :] * spare / price**2
        factor = sl.cho_factor(stiff, check_finite=False)
        hessian = -sl.cho_solve(factor, sl.cho_solve(factor, form).T)
        return 0.5 * (hessian + hessian.T)

    def predicted(self, point: Smoothed, x: np.ndarray) -> Smoothed:
        """Return a start at x along the tangent, kept away from what is not allowed."""
        factor = self._factor(point)
        if factor is None:
            return point
        flows, conserved, rest = self.flows, self.conserved, 1 - ROADS.predicted_reach
        dy, d_rows = factor.solve(np.zeros(len(point.y)), np.concatenate([np.zeros(conserved), x - point.x]))
        flow, share, price = point.y[:flows], point.y[flows:], point.rows[conserved:]
        y = point.y + dy
        y[:flows] = np.maximum(y[:flows], rest * flow)
        y[flows:] = np.clip(y[flows:], rest * share, 1 - rest * (1 - share))
        rows = point.rows + d_rows
        rows[conserved:] = np.maximum(rows[conserved:], rest * price)
        reduced = point.barrier * self.flow_unit / y[:flows]
        return Smoothed(x, point.barrier, y, reduced, rows, point.barrier * self.unit / rows[conserved:])

    def _products(self, point: Smoothed) -> tuple[np.ndarray, np.ndarray]:
        """Return reduced costs times flows and prices times spare capacities, in units of the barrier."""
        of_flows = point.reduced * point.y[: self.flows] / (point.barrier * self.flow_unit)
        return of_flows, point.rows[self.conserved :] * point.spare / (point.barrier * self.unit)

    def _slope(self, point: Smoothed) -> np.ndarray:
        """Return the derivative of the Lagrangian in flows, without the reduced costs, and shares."""
        share = point.y[self.flows :]
        own = np.concatenate([self.time, self.demand * (np.log(share / (1 - share)) - self.outside)])
        return own + self.transposed @ point.rows

    def _miss(self, point: Smoothed) -> float:
        slope, rows = self._slope(point), self.A @ point.y
        slope[: self.flows] -= point.reduced
        over = rows[self.conserved :] + point.spare - point.x
        return max(
            float(np.abs(slope / self.weight).max()),
            float(np.abs(rows[: self.conserved]).max(initial=0.0)),
            float(np.abs(over).max() / self.unit),
        )

    def _compliance(self, point: Smoothed) -> np.ndarray:
        share = point.y[self.flows :]
        return np.concatenate([point.y[: self.flows] / point.reduced, share * (1 - share) / self.demand])

    def _factor(self, point: Smoothed) -> "_Factor | None":
        compliance, price = self._compliance(point), point.rows[self.conserved :]
        solver = self._normal.factorise(compliance, point.spare / price)
        return None if solver is None else _Factor(solver, self.A, self.transposed, compliance)

    def _moved(self, point: Smoothed, aim: float, factor: "_Factor") -> tuple[Smoothed, float]:
        """Return the point after a step of Newton's method, cut short at what is not allowed, and its length."""
        flows, conserved = self.flows, self.conserved
        y, reduced, spare, price = point.y, point.reduced, point.spare, point.rows[conserved:]
        flow, share = y[:flows], y[flows:]
        of_flows, of_spare = aim * point.barrier * self.flow_unit, aim * point.barrier * self.unit
        right = -self._slope(point)
        right[:flows] += of_flows / flow
        rows = -(self.A @ y)
        rows[conserved:] += point.x - of_spare / price
        dy, d_rows = factor.solve(right, rows)
        d_reduced = (of_flows - reduced * (flow + dy[:flows])) / flow
        d_price = d_rows[conserved:]
        d_spare = (of_spare - spare * (price + d_price)) / price
        length = min(
            _reach(flow, dy[:flows]),
            _reach(reduced, d_reduced),
            _reach(price, d_price),
            _reach(spare, d_spare),
            _reach(share, dy[flows:]),
            _reach(1 - share, -dy[flows:]),
        )
        moved = point._replace(
            y=y + length * dy,
            reduced=reduced + length * d_reduced,
            rows=point.rows + length * d_rows,
            spare=spare + length * d_spare,
        )
        return moved, length


@dataclasses.dataclass(frozen=True)
class _Factor:
    """Solves with ``[D, A'; A, -E]``."""

    solver: qdldl.Solver
    A: sp.csr_matrix
    transposed: sp.csr_matrix
    compliance: np.ndarray

    def solve(self, along_y: np.ndarray, along_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self.solver.solve(self.A @ (self.compliance * along_y) - along_rows)
        return self.compliance * (along_y - self.transposed @ rows), rows


class _NormalEquations:
    """Factors of ``A D^-1 A' + E``, whose entries are a fixed matrix times the diagonal of D^-1."""

    def __init__(self, A: sp.csr_matrix, conserved: int):
        columns, count = A.tocsc(), A.shape[0]
        sizes = np.diff(columns.indptr)
        first, second, column, product = [], [], [], []
        for size in np.unique(sizes[sizes > 0]):
            clock.check()
            chosen = np.flatnonzero(sizes == size)
            entry = columns.indptr[chosen][:, None] + np.arange(size)
            index, data = columns.indices[entry], columns.data[entry]
            first.append(np.repeat(index, size, axis=1).ravel())
            second.append(np.tile(index, (1, size)).ravel())
            product.append((np.repeat(data, size, axis=1) * np.tile(data, (1, size))).ravel())
            column.append(np.repeat(chosen, size * size))
        row, other, column, product = (np.concatenate(part) for part in (first, second, column, product))
        upper = row <= other
        row, other, column, product = row[upper], other[upper], column[upper], product[upper]
        clock.check()
        diagonal = np.arange(count)
        entry = other.astype(np.int64) * count + row  # SciPy counts in 32 bits, which 46,341 rows squared exceed
        place = np.unique(np.concatenate([entry, diagonal * (count + 1)]))
        self.matrix = sp.csc_matrix(
            (np.zeros(len(place)), place % count, np.searchsorted(place // count, np.arange(count + 1))),
            shape=(count, count),
        )
        clock.check()
        entries = np.searchsorted(place, entry)
        self.of_compliance = sp.csr_matrix((product, (entries, column)), shape=(len(place), A.shape[1]))
        self.of_give = np.searchsorted(place, diagonal[conserved:] * (count + 1))
        self._solver: qdldl.Solver | None = None
        self._took = 0.0  # seconds of the last factorisation, which cannot be interrupted

    def factorise(self, compliance: np.ndarray, give: np.ndarray) -> qdldl.Solver | None:
        """Return a factor, good until the next one is made; None where the matrix is not positive definite."""
        data = self.of_compliance @ compliance
        data[self.of_give] += give
        self.matrix.data = data
        clock.check(self._took)
        began = time.monotonic()
        try:
            if self._solver is None:
                self._solver = qdldl.Solver(self.matrix, upper=True)
            else:
                self._solver.update(self.matrix, upper=True)
        except RuntimeError:
            self._solver = None
        self._took = time.monotonic() - began
        return self._solver


def _apart(of_flows: np.ndarray, of_spare: np.ndarray) -> float:
    return max(float(np.abs(of_flows - 1).max(initial=0.0)), float(np.abs(of_spare - 1).max()))


def _reach(value: np.ndarray, step: np.ndarray) -> float:
    shrinking = float((-step / value).max(initial=0.0))
    return ROADS.reach / shrinking if shrinking > ROADS.reach else 1.0
