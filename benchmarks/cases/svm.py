"""The paper's SVM: one row a training sample, coupled through B = -identity; 500 x 46, and 20,000 x 201 at random."""

import ctypes

import jax.numpy as jnp
import lineax as lx
import numpy as np

import bilevax as bx
from bilevax.solvers.sflcb import SFLCBState
from cases.case import Case
from data import diabetes
from kernels import Steps, aligned, library, pointer


def small() -> Case:
    return svm("SVM, 500 x 46", *diabetes(), training=500, validation=150, target=2.0, steps=5000)


def large() -> Case:
    """Rows of 32 MB, more than a cache holds: what counts is how often a step passes over them."""
    random = np.random.default_rng(0)
    features = random.standard_normal((20_150, 200)) / np.sqrt(200)
    labels = np.where(features[:, 0] + 0.1 * random.standard_normal(len(features)) > 0, 1.0, -1.0)
    return svm("SVM, 20000 x 201", features, labels, training=20_000, validation=150, target=1.5, steps=100)


def svm(
    name: str, features: np.ndarray, labels: np.ndarray, *, training: int, validation: int, target: float, steps: int
) -> Case:
    signed = labels[:, None] * np.column_stack([features, np.ones(len(features))])
    A, V = -signed[:training], signed[training : training + validation]
    bias = A.shape[1] - 1
    width = -(-A.shape[1] // 4) * 4
    weight = np.ones(bias + 1)
    weight[bias] = 0.01
    problem = bx.BilevelProblem(
        upper=lambda c, y, data: jnp.sum(jnp.exp(1 - data["V"] @ y)) + 0.5 * c @ c,
        lower=lambda c, y, data: 0.5 * (data["weight"] * y) @ y,
        coupling=bx.LinearCoupling(A=A, B=lx.DiagonalLinearOperator(jnp.full(training, -1.0)), upper=-1.0),
        data={"V": V, "weight": weight},
    )
    solver = bx.SFLCB(0.01, 0.01, 0.01, 0.001, 0.001, 0.001, 0.001, 0.001)

    def numpy_step(state: SFLCBState) -> SFLCBState:
        c, y, z, (s_y,), (s_z,), (u,), (v,) = state
        residual_y, residual_z = A @ y - c - s_y, A @ z - c - s_z
        u = u + solver.eta_u * residual_y
        v = v + solver.eta_v * residual_z
        force_y, force_z = u + solver.rho1 * residual_y, v + solver.rho2 * residual_z
        loss = np.exp(1 - V @ y)
        return SFLCBState(
            x=c - solver.eta_x * (solver.delta * c - force_y + force_z),
            y=y - solver.eta_y * (weight * y - solver.delta * (loss @ V) + force_y @ A),
            z=z - solver.eta_z * (weight * z + force_z @ A),
            s_y=(np.minimum(s_y + solver.eta_y * force_y, -1.0),),
            s_z=(np.minimum(s_z + solver.eta_z * force_z, -1.0),),
            u=(u,),
            v=(v,),
        )

    def c_loop(state: SFLCBState):
        c, y, z, *rows = state
        columns = (0, width - bias - 1)
        matrices = [aligned(np.pad(matrix, [(0, -len(matrix) % 4), columns])) for matrix in (A, V)]
        padded = *matrices, aligned(np.pad(y, columns)), aligned(np.pad(z, columns))
        arrays = [pointer(leaf) for leaf in (*padded[:2], c, *padded[2:], *(part for (part,) in rows))]
        sizes = [ctypes.c_long(size) for size in (*map(len, matrices), bias)]

        kernel = getattr(library(), f"svm_{width}")

        def run(count: int) -> None:
            kernel(ctypes.c_long(count), Steps.of(solver), *sizes, *arrays)
            y[:], z[:] = padded[2][: bias + 1], padded[3][: bias + 1]

        return run

    x0, y0 = np.ones(training), np.zeros(bias + 1)
    return Case(name, problem, solver, x0, y0, numpy_step, c_loop, target, steps)
