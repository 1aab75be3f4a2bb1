"""Transportation networks with 3, 9 and 24 nodes: the utility of the best certified design, and the time it takes."""

import argparse
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import bilevax as bx
from comparisons.instance import Instance, Rows
from comparisons.report import Report, clocked

# Shares stay this far from 0 and 1: a larger margin makes the lower level infeasible where little is built.
_MARGIN = 1e-6
_NAMES = {3: "paper3", 9: "paper9", 24: "seville"}
_UTILITY = {3: 1.7616, 9: 5.41}
_ROUNDING = 5e-5
_SEVILLE_TOLERANCE, _SEVILLE_SECONDS = 1e-3, 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, nargs="+", choices=list(_NAMES), default=list(_NAMES))
    parser.add_argument("--starts", type=int, default=16, help="random starts of the networks with 3 and 9 nodes")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a start, with 3 and 9 nodes")


def run(arguments: argparse.Namespace) -> Report:
    columns = ("network", "status", "certified", "utility", "stationarity", "infeasible", "s")
    report = Report(columns, arguments.json)
    for nodes in arguments.nodes:
        instance, start = _network(_NAMES[nodes])
        problem = instance.to_bilevax()
        seville = nodes == 24
        random = np.random.default_rng(0)
        starts = [start] if seville else [0.7 * random.random(instance.n_x) + 0.3 for _ in range(arguments.starts)]
        limits = {"time_limit": _SEVILLE_SECONDS if seville else arguments.time_limit}
        limits |= {"rtol": _SEVILLE_TOLERANCE} if seville else {}
        rows = [_row(f"{nodes} nodes, start {index}", problem, x0, limits) for index, x0 in enumerate(starts)]
        for row in rows:
            report.add(**row)
        certified = [row for row in rows if row["certified"]]
        best = max((row["utility"] for row in certified), default=None)
        seconds = [row["s"] for row in rows if row["s"] is not None]
        report.remarks.append(
            f"{nodes} nodes: {len(certified)} of {len(rows)} certified, best {'-' if best is None else f'{best:.6f}'}; "
            f"{sum(seconds):.1f} s in all, worst start {max(seconds, default=0.0):.1f} s"
        )
        if seville:
            report.target("24 nodes: certified to 1e-3, share", len(certified) / len(rows), ">=", 1)
            report.target("24 nodes: seconds", max(seconds, default=None), "<=", _SEVILLE_SECONDS)
        else:
            name = f"{nodes} nodes: best certified utility (0 where none)"
            report.target(name, 0.0 if best is None else best, ">=", _UTILITY[nodes] - (_ROUNDING if nodes == 3 else 0))
    return report


def _row(name: str, problem: bx.BilevelProblem, x0: np.ndarray, limits: dict[str, Any]) -> dict[str, Any]:
    try:
        found, seconds = clocked(lambda: bx.solve(problem, x0, **limits))
    except ValueError as refusal:  # larger than the solver takes
        return {"network": name, "status": "refused", "certified": False, "s": None, "message": str(refusal)}
    certificate = found.certificate
    return {
        "network": name,
        "status": str(found.status),
        "certified": found.success,
        "utility": -found.value,
        "stationarity": certificate.stationarity,
        "infeasible": certificate.lower_infeasibility,
        "s": seconds,
    }


def _network(name: str) -> tuple[Instance, np.ndarray]:
    """Return the design problem of a network, and the start its file names, if any.

    y holds the share of each origin-destination pair, then each pair's flow on every link, pair by pair.
    """
    content = json.loads((Path(bx.__file__).parent / "data" / "networks" / f"{name}.json").read_text())
    link = {key: np.array([row[key] for row in content["links"]]) for key in ("i", "j", "t", "c")}
    pair = {key: np.array([row[key] for row in content["od"]]) for key in ("o", "d", "w", "t_ext", "m")}
    links, pairs, nodes = len(link["i"]), len(pair["o"]), max(link["i"].max(), link["j"].max())
    node = np.arange(1, nodes + 1)[:, None]
    incidence = sp.csr_matrix((node == link["i"]).astype(float) - (node == link["j"]))
    ends = (node == pair["o"]).astype(float) - (node == pair["d"])
    # Conservation at the destination follows from the other nodes, and would only make the rows dependent.
    kept = (np.arange(1, nodes + 1)[None] != pair["d"][:, None]).ravel()
    supply = sp.block_diag([ends[:, [index]] for index in range(pairs)])
    conservation = sp.hstack([-supply, sp.kron(sp.eye(pairs), incidence)]).tocsr()[kept]
    capacity = sp.hstack([sp.csr_matrix((links, pairs)), sp.kron(pair["w"][None], sp.eye(links))])
    matrix = sp.bmat([[sp.csr_matrix((conservation.shape[0], links)), conservation], [-sp.eye(links), capacity]])
    balance = np.zeros(conservation.shape[0])
    size = pairs * (1 + links)
    margin = np.where(np.arange(size) < pairs, _MARGIN, 0.0)
    instance = Instance(
        name=name,
        upper=_cost,
        lower=_travel,
        data={"t": link["t"], "c": link["c"], "w": pair["w"], "t_ext": pair["t_ext"], "m": pair["m"]},
        rows=Rows(
            matrix.tocsr(),
            np.concatenate([balance, np.full(links, -np.inf)]),
            np.concatenate([balance, np.zeros(links)]),
        ),
        x0=np.ones(links),
        y0=np.full(size, 0.5),
        x_box=(np.zeros(links), np.full(links, np.inf)),
        y_box=(margin, 1 - margin),
    )
    return instance, np.array(content.get("x_start", np.ones(links)), float)


def _cost(x: Any, y: Any, data: Any) -> Any:
    """Return what is built minus what the shares earn: the utility, to be minimised."""
    return data["c"] @ x - data["m"] @ y[: data["m"].shape[0]]


def _travel(x: Any, y: Any, data: Any) -> Any:
    pairs = data["m"].shape[0]
    share, flow = y[:pairs], y[pairs:].reshape(pairs, -1)
    choice = data["t_ext"] * (1 - share) + share * (jnp.log(share) - 1) + (1 - share) * (jnp.log(1 - share) - 1)
    return data["w"] @ (flow @ data["t"] + choice)
