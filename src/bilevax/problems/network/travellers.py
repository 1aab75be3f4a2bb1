"""How far flows, shares and prices are from an answer of all travellers of a contracted network.

By the measure of `bilevax.convex`, from the network's own numbers: neither the search nor the functions of its problem
have a part in it.
"""

import numpy as np
import scipy.sparse as sp

from bilevax.convex.optimality import Local, measure, scaled_rows
from bilevax.convex.problem import Constraints, Objective
from bilevax.problems.network.ways import Ways


def residuals(ways: Ways, x: np.ndarray, y: dict[str, np.ndarray], minimal_share: float) -> tuple[float, float, float]:
    """Return stationarity, infeasibility and complementarity at capacities x, relative, as a `Certificate` has them.

    Multipliers of conservation are the lengths of shortest ways. A flow's bound has one where its ways are longer by
    more than the flow, and a share's where it lies on it.
    """
    small, numbers = ways.small, ways.small.numbers()
    time, demand, outside = (numbers[name] for name in ("flow_time", "demand", "outside"))
    point, flows = np.concatenate([y["flow"], y["share"]]), len(time)

    def value(y: np.ndarray) -> float:
        share, rest = y[flows:], 1 - y[flows:]
        choice = outside * rest + share * (np.log(share) - 1) + rest * (np.log(rest) - 1)
        return float(time @ y[:flows] + demand @ choice)

    def gradient(y: np.ndarray) -> np.ndarray:
        share = y[flows:]
        return np.concatenate([time, demand * (np.log(share / (1 - share)) - outside)])

    def hessian(y: np.ndarray) -> sp.csc_matrix:
        share = y[flows:]
        return sp.csc_matrix(sp.diags(np.concatenate([np.zeros(flows), demand / (share * (1 - share))])))

    at = Local(Objective(value, gradient, hessian), point)
    low = np.concatenate([np.zeros(flows), np.full(len(demand), minimal_share)])
    coupled = sp.vstack([small.conservation, small.load])
    multipliers = np.concatenate(ways.multipliers())
    reduced = at.gradient + coupled.T @ multipliers
    of_bounds = np.where(
        np.abs(reduced) / demand[small.pair] > np.where(reduced > 0, point - low, 1 - low - point), -reduced, 0.0
    )
    conserved = np.zeros(small.conservation.shape[0])
    rows, _ = scaled_rows(
        Constraints(
            sp.csr_matrix(sp.vstack([coupled, sp.eye(len(point))])),
            np.concatenate([conserved, np.full(len(x), -np.inf), low]),
            np.concatenate([conserved, x, 1 - low]),
        ),
        0.0,
    )
    every = np.concatenate([multipliers, of_bounds])
    found = measure(at, rows, every[rows.kept] * rows.norms, np.zeros(0)).residuals
    stationarity, infeasibility, complementarity = (part if np.isfinite(part) else np.inf for part in found)
    return stationarity, infeasibility, complementarity
