"""GAM: descent along the least element of the gradients that meet near x, with exact lower levels."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from bilevax._support import trees
from bilevax._support.division import positive
from bilevax._support.precision import float64
from bilevax._support.threads import blas_threads
from bilevax.convex.minimise import minimise
from bilevax.convex.problem import Constraints, ConvexSolution, Objective, Outcome
from bilevax.exact.active_rows import Margin, active_rows, unit_rows
from bilevax.exact.kink import eliminate
from bilevax.exact.lower import solve_flat
from bilevax.exact.sensitivity import derivatives, normals_of_x
from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import HostSolver, ProblemRefused, Snapshot
from bilevax.solvers.diary import Diary
from bilevax.solvers.parameters import FRACTION, POSITIVE, assign


@dataclasses.dataclass(frozen=True)
class GAMSettings:
    """Numbers that the method's paper leaves open."""

    # Weakly active rows up to which every assignment is tried; of more rows as many assignments are drawn.
    all_assignments: int = 10
    # The step length at which a line search has failed.
    shortest_step: float = 1e-10
    # Rows are dependent, on a piece, if the eigenvalues of their compliance differ by more than this factor.
    dependent: float = 1e-12
    # The stopping test asks for this part of rtol.
    stop_share: float = 0.1


GAM_SETTINGS = GAMSettings()


class _Point(NamedTuple):
    """A point with its exact lower level and the value of Phi."""

    x: np.ndarray
    lower: ConvexSolution
    value: float


class GAM(HostSolver):
    """Gradient approximation method (Xu and Zhu, AAAI 2023). Not first-order: it needs Hessians and exact lower levels.

    For g twice differentiable and strongly convex in y, independent active rows, and a lower level that is feasible
    around every x it meets. At x it solves the lower level exactly, and takes the gradient of Phi for each assignment
    of the weakly active rows (slack and multiplier within eps, relative) to active or inactive: all of them for up to
    10 such rows, 1024 drawn ones for more. With d the element of least norm in the convex hull of these gradients plus
    the normals of X near x, it stops if

        |d| <= 0.1 rtol (1 + the largest of the gradients' norms)   and   eps <= rtol,

    shrinks eps and nu and stays if ``|d| <= nu``, and otherwise moves to ``P_X(x - t d)``: t = alpha, or with the line
    search the first of alpha, alpha / 2, alpha / 4, ... with ``Phi(x_new) <= Phi(x) - armijo |x_new - x|^2 / t``.
    Where a run ends before it stops, the answer is the point of least Phi.

    Parameters
    ----------
    alpha
        The step size, or where the line search begins.
    eps
        Within which a row counts as weakly active (epsilon_0).
    nu
        The norm below which eps and nu shrink (nu_0).
    shrink
        By how much they shrink (theta).
    line_search
        Whether to search along the line (Armijo), as the method does; its published SVM experiment takes a fixed step.
    armijo
        The fraction of the predicted decrease that the line search asks for.
    """

    alpha: Any
    eps: Any
    nu: Any
    shrink: Any
    armijo: Any
    line_search: bool

    default_max_steps: ClassVar[int] = 2000

    def __init__(
        self,
        alpha: float = 1.0,
        eps: float = 0.005,
        nu: float = 0.1,
        shrink: float = 0.5,
        line_search: bool = True,
        armijo: float = 1e-4,
    ):
        assign(self, POSITIVE, alpha=alpha, eps=eps, nu=nu)
        assign(self, FRACTION, shrink=shrink, armijo=armijo)
        if not isinstance(line_search, bool):
            raise ValueError(f"GAM: expected True or False for line_search, got {line_search!r}.")
        self.line_search = line_search

    @classmethod
    def paper_svm(cls) -> "GAM":
        """Return the parameters of the SFLCB paper's SVM experiment."""
        return cls(alpha=0.05, eps=0.005, line_search=False)

    def search(
        self,
        flat: FlatProblem,
        x0: np.ndarray,
        y0: np.ndarray | None,
        rtol: float,
        multipliers: np.ndarray | None = None,
        diary: Diary | None = None,
    ) -> Iterator[Snapshot]:
        with blas_threads(max(flat.n_x, flat.n_y)):
            yield from self._descend(flat, _project(flat, x0), y0, rtol)

    def _descend(self, flat: FlatProblem, x: np.ndarray, y: np.ndarray | None, rtol: float) -> Iterator[Snapshot]:
        point = _evaluate(flat, x, y)
        if point is None:
            yield Snapshot(x, np.zeros(flat.n_y) if y is None else y, "start", np.inf, final=True)
            return
        yield _snapshot(point, "start")
        eps, nu = float(self.eps), float(self.nu)
        for count in itertools.count():
            gradients = _gradients(flat, point, eps)
            if len(gradients) == 0:
                if count == 0:
                    raise ProblemRefused(
                        "GAM: expected g strongly convex in y, at least along the active rows, got a singular system "
                        "at x0. Use the default, which accepts any convex g."
                    )
                break
            direction = _least_element(flat, point.x, gradients, eps)
            largest = np.linalg.norm(gradients, axis=1).max()
            size, small = np.linalg.norm(direction), GAM_SETTINGS.stop_share * rtol * (1 + largest)
            if size <= small and eps <= rtol:
                yield _snapshot(point, "answer")._replace(final=True, converged=True)
                return
            moved = None
            if size > max(nu, small):
                moved = self._move(flat, point, direction)
                if moved is None and (not self.line_search or eps <= rtol):
                    break  # infeasible after a fixed step, or no decrease however short the step
            if moved is None:
                eps, nu = max(self.shrink * eps, min(eps, rtol)), self.shrink * nu
                yield _snapshot(point, "shrink")
            else:
                point = moved
                yield _snapshot(point, "descent")
        yield _snapshot(point, "stalled")

    def _move(self, flat: FlatProblem, point: _Point, direction: np.ndarray) -> _Point | None:
        """Return the next point, or None where the line search finds none or the lower level is infeasible there."""
        length = float(self.alpha)
        while length >= GAM_SETTINGS.shortest_step:
            x = _project(flat, point.x - length * direction)
            moved = _evaluate(flat, x, point.lower.y)
            if not self.line_search:
                return moved
            wanted = self.armijo * float((x - point.x) @ (x - point.x)) / length
            if moved is not None and moved.value <= point.value - wanted:
                return moved
            length /= 2
        return None


def _evaluate(flat: FlatProblem, x: np.ndarray, y: np.ndarray | None) -> _Point | None:
    lower = solve_flat(flat, x, y)
    return _Point(x, lower, flat.value("upper", x, lower.y)) if lower.outcome is Outcome.OPTIMAL else None


def _snapshot(point: _Point, phase: str) -> Snapshot:
    return Snapshot(point.x, point.lower.y, phase, point.value)


def _project(flat: FlatProblem, x: np.ndarray) -> np.ndarray:
    with float64():
        return trees.flatten_host(flat.problem.x_set.project(flat.x_tree(x)))


def _gradients(flat: FlatProblem, point: _Point, eps: float) -> np.ndarray:
    """Return the gradient of Phi for each assignment of the weakly active rows, one a row of the result.

    Assignments whose rows are dependent have no gradient and are left out.
    """
    rows = unit_rows(flat, point.x, point.lower)
    active = active_rows(flat, point.x, point.lower, rows, Margin(eps, eps))
    kink = eliminate(derivatives(flat, point.x, point.lower), active, active.weak)
    if kink is None:
        return np.zeros((0, flat.n_x))
    found = []
    for chosen in _assignments(int(active.weak.sum())):
        own = kink.compliance[np.ix_(chosen, chosen)]
        spectrum = np.linalg.eigvalsh((own + own.T) / 2)
        if len(own) and spectrum[0] <= GAM_SETTINGS.dependent * positive(spectrum[-1]):
            continue
        found.append(kink.gradient + kink.slope[chosen].T @ np.linalg.solve(own, kink.response[chosen]))
    return np.array(found)


def _assignments(count: int) -> Iterator[np.ndarray]:
    """Yield the rows held active in each assignment: all assignments of a few rows, a draw from those of many."""
    most = GAM_SETTINGS.all_assignments
    if count <= most:
        choices = np.array(list(itertools.product([False, True], repeat=count)), bool).reshape(2**count, count)
    else:
        choices = np.random.default_rng(0).random((2**most, count)) < 0.5
        choices[0], choices[1] = False, True
    return map(np.flatnonzero, choices)


def _least_element(flat: FlatProblem, x: np.ndarray, gradients: np.ndarray, eps: float) -> np.ndarray:
    """Return the element of least norm in the hull of the gradients plus the normals of X within eps."""
    normals, free, _ = normals_of_x(flat, x, eps)
    number, cone = len(gradients), normals.shape[0]
    if number + cone == 1:
        return gradients[0]
    scale = 1 + np.abs(gradients).max()
    generators = np.vstack([gradients / scale, normals.toarray()])
    products = sp.csc_matrix(generators @ generators.T)
    objective = Objective(
        value=lambda w: 0.5 * float(w @ products @ w), gradient=lambda w: products @ w, hessian=lambda w: products
    )
    signed = np.concatenate([np.ones(number, bool), ~free])
    identity = sp.eye(number + cone, format="csr")[signed]
    total = sp.csr_matrix(np.concatenate([np.ones(number), np.zeros(cone)]))
    count = identity.shape[0]
    constraints = Constraints(
        sp.vstack([total, identity], format="csr"), np.r_[1.0, np.zeros(count)], np.r_[1.0, np.full(count, np.inf)]
    )
    start = np.concatenate([np.full(number, 1 / number), np.zeros(cone)])
    return scale * generators.T @ minimise(objective, constraints, start).y
