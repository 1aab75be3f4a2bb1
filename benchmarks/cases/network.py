"""Network design with every row as structure: conservation by node and OD pair, capacity by link."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import Array
from jax.custom_derivatives import linear_call

import bilevax as bx
from bilevax.problems import NetworkDesign
from bilevax.solvers.sflcb import SFLCBState
from cases.case import Case
from kernels import Steps, library, pointer

_SHARE_MARGIN = 1e-6
# The arrays of the kernel's network, in its order.
_ENDS = ("tail", "head", "origin", "destination")
_NUMBERS = ("time", "cost", "demand", "outside", "revenue")


def network(name: str, net: NetworkDesign, target: float, steps: int) -> Case:
    links, pairs, nodes = len(net.tail), len(net.origin), len(net.nodes)
    supply = np.zeros((nodes, pairs))
    supply[net.origin, np.arange(pairs)] += 1.0
    supply[net.destination, np.arange(pairs)] -= 1.0
    arrays = {key: getattr(net, key).astype(np.int32) for key in _ENDS} | {key: getattr(net, key) for key in _NUMBERS}

    # As in the kernel: both directions of the incidence and the derivative of the entropy are written down. JAX's own
    # adjoint of the trips' term would be a sum over all nodes, that of the entropy takes two logarithms and a division.
    def balance(data: dict[str, Array], point: tuple[Array, Array]) -> Array:
        flow, share = point
        left = (-data["supply"] * share).at[data["tail"]].add(flow, mode="promise_in_bounds")
        return left.at[data["head"]].subtract(flow, mode="promise_in_bounds")

    def pulls(data: dict[str, Array], force: Array) -> tuple[Array, Array]:
        of_node = lambda *index: force.at[index].get(mode="promise_in_bounds")
        pair = jnp.arange(pairs)
        return (
            of_node(data["tail"]) - of_node(data["head"]),
            of_node(data["destination"], pair) - of_node(data["origin"], pair),
        )

    def rows(x: Array, y: dict[str, Array], data: dict[str, Array]) -> dict[str, Array]:
        conservation = linear_call(balance, pulls, data, (y["flow"], y["share"]))
        return {"capacity": y["flow"] @ data["demand"] - x, "conservation": conservation}

    def upper(x: Array, y: dict[str, Array], data: dict[str, Array]) -> Array:
        return data["cost"] @ x - data["revenue"] @ y["share"]

    def lower(x: Array, y: dict[str, Array], data: dict[str, Array]) -> Array:
        choice = data["outside"] * (1 - y["share"]) + _entropy(y["share"])
        return data["time"] @ (y["flow"] @ data["demand"]) + data["demand"] @ choice

    problem = bx.BilevelProblem(
        upper,
        lower,
        bx.AffineCoupling(
            rows,
            lower={"capacity": -np.inf, "conservation": 0.0},
            upper={"capacity": 0.0, "conservation": 0.0},
        ),
        x_set=bx.NonNegative(),
        y_set=bx.Product({"flow": bx.Box(0.0, 1.0), "share": bx.Box(_SHARE_MARGIN, 1 - _SHARE_MARGIN)}),
        data=arrays | {"supply": supply},
    )
    solver = bx.SFLCB(0.1, 1.0, 1.0, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3)
    ends = np.concatenate([net.tail, net.head]), np.tile(np.arange(links), 2)
    incidence = sp.csr_matrix((np.repeat([1.0, -1.0], links), ends), shape=(nodes, links))
    incidence_transposed = incidence.T.tocsr()

    def numpy_system(x, y, slack, multiplier, eta, eta_multiplier, rho, delta):
        flow, share, pair = y["flow"], y["share"], np.arange(pairs)
        conservation = incidence @ flow
        conservation[net.origin, pair] -= share
        conservation[net.destination, pair] += share
        load = flow @ net.demand - x - slack["capacity"]
        new = {
            "capacity": multiplier["capacity"] + eta_multiplier * load,
            "conservation": multiplier["conservation"] + eta_multiplier * conservation,
        }
        pull, force = new["capacity"] + rho * load, new["conservation"] + rho * conservation
        grad_flow = np.outer(net.time + pull, net.demand) + incidence_transposed @ force
        grad_share = net.demand * (np.log(share / (1 - share)) - net.outside) - delta * net.revenue
        grad_share += force[net.destination, pair] - force[net.origin, pair]
        y = {
            "flow": np.clip(flow - eta * grad_flow, 0.0, 1.0),
            "share": np.clip(share - eta * grad_share, _SHARE_MARGIN, 1 - _SHARE_MARGIN),
        }
        slack = slack | {"capacity": np.minimum(slack["capacity"] + eta * pull, 0.0)}
        return y, slack, new, pull

    def numpy_step(state: SFLCBState) -> SFLCBState:
        x, y, z, (s_y,), (s_z,), (u,), (v,) = state
        p = solver
        y, s_y, u, pull_y = numpy_system(x, y, s_y, u, p.eta_y, p.eta_u, p.rho1, p.delta)
        z, s_z, v, pull_z = numpy_system(x, z, s_z, v, p.eta_z, p.eta_v, p.rho2, 0.0)
        x = np.maximum(x - p.eta_x * (p.delta * net.cost - pull_y + pull_z), 0.0)
        return SFLCBState(x, y, z, (s_y,), (s_z,), (u,), (v,))

    def c_loop(state: SFLCBState):
        x, y, z, (s_y,), (s_z,), (u,), (v,) = state
        work = np.empty(2 * links + nodes * pairs)
        system = lambda point, slack, multiplier: _System(
            *map(
                pointer,
                (point["flow"], point["share"], slack["capacity"], multiplier["capacity"], multiplier["conservation"]),
            )
        )
        shape = _Network(nodes, links, pairs, *map(pointer, arrays.values()))
        arguments = Steps.of(solver), shape, pointer(x), system(y, s_y, u), system(z, s_z, v), pointer(work)

        def run(count: int, keep_alive: np.ndarray = work) -> None:
            library().network(ctypes.c_long(count), *arguments)

        return run

    x0, y0 = np.ones(links), {"flow": np.full((links, pairs), 0.1), "share": np.full(pairs, 0.5)}
    return Case(name, problem, solver, x0, y0, numpy_step, c_loop, target, steps)


@jax.custom_jvp
def _entropy(share: Array) -> Array:
    return share * (jnp.log(share) - 1) + (1 - share) * (jnp.log(1 - share) - 1)


@_entropy.defjvp
def _entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (share,), (tangent,) = primals, tangents
    return _entropy(share), jnp.log(share / (1 - share)) * tangent


class _Network(ctypes.Structure):
    _fields_ = [
        *((key, ctypes.c_long) for key in ("nodes", "links", "pairs")),
        *((key, ctypes.c_void_p) for key in (*_ENDS, *_NUMBERS)),
    ]


class _System(ctypes.Structure):
    _fields_ = [
        (key, ctypes.c_void_p) for key in ("flow", "share", "slack", "capacity_multiplier", "conservation_multiplier")
    ]
