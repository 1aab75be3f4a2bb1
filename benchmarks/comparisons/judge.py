"""Phi(x) of an instance with a quadratic lower level, by Clarabel alone: it shares no code with bilevax."""

import functools
from typing import Any

import clarabel
import jax
import numpy as np
import scipy.sparse as sp

from comparisons.instance import Instance, Rows

# Rows are relaxed by this much, relative to their size: an optimum on the border of feasibility counts as feasible.
_BORDER = 1e-8
_SAME_VALUE = 1e-5
_ROUNDS = 20


class Judge:
    """Solves an instance's lower level at any x, exactly.

    Everything is brought to the order of one first: the largest entry of H, the rows' norms, and y by the length of the
    unconstrained minimiser at x0. Clarabel's tolerances and the guess of the active rows would depend on units else.
    """

    def __init__(self, instance: Instance):
        assert instance.quadratic is not None
        self.instance = instance
        H, C, c = instance.quadratic.H, instance.quadratic.C, instance.quadratic.c
        self._hessian = sp.csc_matrix(H)
        unit = float(abs(self._hessian).max())
        self._hessian = (self._hessian / unit).tocsc()
        free = np.linalg.solve(self._hessian.toarray(), (C @ instance.x0 + c) / unit)
        self._length = float(np.abs(free).max()) or 1.0
        self._C, self._c = C / (unit * self._length), c / (unit * self._length)
        box = Rows.bounds(*instance.y_bounds())
        lower = np.concatenate([instance.rows.lower, box.lower])
        upper = np.concatenate([instance.rows.upper, box.upper])
        A = sp.vstack([sp.csr_matrix(instance.rows.matrix[:, instance.n_x :]), box.matrix]).tocsr()
        B = sp.csr_matrix(instance.rows.matrix[:, : instance.n_x])
        B = sp.vstack([B, sp.csr_matrix((len(box.lower), instance.n_x))]).tocsr()
        equal = lower == upper
        above, below = np.isfinite(lower) & ~equal, np.isfinite(upper) & ~equal
        A = sp.vstack([A[equal], A[below], -A[above]]).tocsr()
        norms = np.sqrt(np.ravel(A.multiply(A).sum(axis=1)))
        scale = sp.diags(1 / np.where(norms > 0, norms, 1.0))
        self._A = (scale @ A).tocsr()
        self._B = scale @ sp.vstack([B[equal], B[below], -B[above]]) / self._length
        self._bound = scale @ np.concatenate([upper[equal], upper[below], -lower[above]]) / self._length
        self._equalities = int(equal.sum())

    def answer(self, x: np.ndarray) -> np.ndarray | None:
        """Return y*(x), or None where the lower level is infeasible."""
        pull = self._B @ x
        slack = _BORDER * (1 + np.abs(pull))
        slack[: self._equalities] = 0.0
        cones = [
            clarabel.ZeroConeT(self._equalities),
            clarabel.NonnegativeConeT(len(pull) - self._equalities),
        ]
        linear, right = self._C @ x + self._c, self._bound - pull + slack
        upper_half = sp.triu(self._hessian).tocsc()
        found = clarabel.DefaultSolver(upper_half, linear, self._A.tocsc(), right, cones, _settings()).solve()
        if found.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
            return None
        polished = self._on_rows(linear, right, np.array(found.z) > np.array(found.s))
        return self._length * (np.array(found.x) if polished is None else polished)

    def _on_rows(self, linear: np.ndarray, right: np.ndarray, active: np.ndarray) -> np.ndarray | None:
        """Return the minimiser with the active rows as equations, None where no set of them is found.

        Rows that it breaks join them, and rows that it pulls at leave: at a kink a guess from an interior point is off.
        """
        size = len(linear)
        for _ in range(_ROUNDS):
            active[: self._equalities] = True
            rows = self._A[active]
            system = sp.bmat([[self._hessian, rows.T], [rows, None]]).toarray()
            found = np.linalg.lstsq(system, np.concatenate([-linear, right[active]]), rcond=1e-13)[0]
            y, force = found[:size], np.zeros(len(right))
            force[active] = found[size:]
            broken, pulling = self._A @ y - right > _BORDER, force < -_BORDER
            broken[: self._equalities] = pulling[: self._equalities] = False
            if not np.any(broken | pulling):
                return y
            active = (active | broken) & ~pulling
        return None

    def value(self, x: np.ndarray) -> float:
        """Return Phi(x), infinite where the lower level is infeasible."""
        y = self.answer(x)
        return np.inf if y is None else float(np.squeeze(_compiled(self.instance.upper)(x, y, self.instance.data)))

    def agrees(self, x: Any, claimed: float, scale: float = 1.0) -> bool:
        """Return whether x is in its box, its lower level feasible, and Phi(x) what was claimed."""
        x = np.ravel(np.asarray(x, float))
        low, high = self.instance.x_bounds()
        outside = max(0.0, float(np.max(low - x)), float(np.max(x - high)))
        value = self.value(x)
        return outside <= 1e-7 and abs(value - claimed) <= _SAME_VALUE * (scale + abs(value))


@functools.cache
def _settings() -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    return settings


@functools.cache
def _compiled(objective: Any) -> Any:
    return jax.jit(objective)
