"""The paper's toy problem from 200 starts at once: one variable at each level, transcendental objectives."""

import ctypes

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.solvers.sflcb import SFLCBState
from cases.case import Case
from kernels import Steps, library, pointer


def toy(starts: int = 200) -> Case:
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.exp(2 - y) / (2 + jnp.cos(6 * x)) + 0.5 * jnp.log((4 * x - 2) ** 2 + 1),
        lower=lambda x, y: (y - 2 * x) ** 2,
        coupling=bx.LinearCoupling(A=1.0, B=-1.0, upper=0.0),
        x_set=bx.Box(0.0, 3.0),
    )
    solver = bx.SFLCB(delta=0.1)
    x0 = np.linspace(0.0, 3.0, starts)

    def numpy_step(state: SFLCBState) -> SFLCBState:
        x, y, z, (s_y,), (s_z,), (u,), (v,) = state
        rows_x, rows_y, rows_z = x[:, None], y[:, None], z[:, None]
        residual_y, residual_z = rows_y - rows_x - s_y, rows_z - rows_x - s_z
        u = u + solver.eta_u * residual_y
        v = v + solver.eta_v * residual_z
        force_y, force_z = u + solver.rho1 * residual_y, v + solver.rho2 * residual_z
        inverse = 1 / (2 + np.cos(6 * x))
        bump, shifted = np.exp(2 - y) * inverse, 4 * x - 2
        upper_x = 6 * np.sin(6 * x) * bump * inverse + 4 * shifted / (shifted**2 + 1)
        lower_y, lower_z = 2 * (y - 2 * x), 2 * (z - 2 * x)
        grad_x = solver.delta * upper_x - 2 * (lower_y - lower_z) - (force_y - force_z)[:, 0]
        return SFLCBState(
            x=np.clip(x - solver.eta_x * grad_x, 0.0, 3.0),
            y=y - solver.eta_y * (lower_y - solver.delta * bump + force_y[:, 0]),
            z=z - solver.eta_z * (lower_z + force_z[:, 0]),
            s_y=(np.minimum(s_y + solver.eta_y * force_y, 0.0),),
            s_z=(np.minimum(s_z + solver.eta_z * force_z, 0.0),),
            u=(u,),
            v=(v,),
        )

    def c_loop(state: SFLCBState):
        arrays = [pointer(leaf) for leaf in (*state[:3], *(part for (part,) in state[3:]))]
        steps, size = Steps.of(solver), ctypes.c_long(starts)
        return lambda count: library().toy(ctypes.c_long(count), steps, size, *arrays)

    return Case("toy, 200 starts", problem, solver, x0, x0, numpy_step, c_loop, target=8.5, steps=5000, batched=True)
