"""Step sizes and start points with a proof: the two convergence theorems of SFLCB (Shen et al. 2025).

"coupled" is the theorem for ``h = B x + A y - b`` with A of full row rank, "uncoupled" the one for ``h = A y - b``
with any A. Both say that the potential V (`bilevax.paper.reformulation.potential`) decreases at every step by a stated
amount. The price of a proof is size: eta_x is usually below 1e-30, so that in float64 x stands still. These step
sizes are for checking the theory, not for solving problems.

Where the paper's text and its proofs disagree, the code follows the proofs. The differences, marked below as [n]:

1. L_K (coupled) is printed with ``max{sigma(A')^2, sigma(B)^2, sigma(A') sigma(B)}``, but K is smooth jointly in
   (x, y', z') only with ``sigma(A')^2 + sigma(B)^2``: for A = B = rho1 = rho2 = 1 the Hessian's norm exceeds 2.2,
   the printed constant is 2.
2. eta_u and eta_v divide by sigma_max(A)^2; the step that needs them bounds |A'(y' - y'*)|, which takes
   sigma_max(A')^2 = 1 + sigma_max(A)^2. With small A the printed values are too large without bound.
3. The bound ``rho1 <= (mu_g - delta l_f1) / sigma_max(A)^2`` allows rho1 for which the printed mu_y, which has
   l_delta = mu_g / 2 in place of delta l_f1, is not positive. Needed: rho1 < (mu_g - l_delta) / sigma_max(A)^2.
4. Lemma "sigma yb zb": sigma_zb and sigma_yb need sigma_max(B), not sigma_max(A): the rows move by B x. Its
   sigma_vb and sigma_ub forget that x also moves the gradient: 1 + sigma_yb has to replace sigma_yb.
5. Lemma "uv error bounds": sigma_uy and sigma_u2 concern ``delta f + g`` and need L_g, not l_g1.
6. grad_x K depends on u and v with the constant sigma_max(B), where the proof writes L_K: the larger of both.
7. eta_x contains sigma_uz, which is defined nowhere: sigma_vz.
8. The coupled descent lemma states eta_u/4 |h(x, y) - s_y|^2 and eta_v/4 |h(x, z) - s_z|^2; its proof ends with
   eta_u/4 - 15 eta_x L_K^2 sigma_u1^2 >= 3/16 eta_u, and eta_v/4 - 3 eta_x L_K^2 sigma_v1^2 >= 19/80 eta_v.

Slips that change no number here: the inequality for K(t) - K(t+1) has the wrong direction in z' where a slack is
clipped (together with that for d it adds up); the gradient of d in z' misses a minus and rho2; T = O(eps^2) has to be
O(eps^-2); multipliers are defined with a minimum over Y(x), where it has to be over all y; alpha_0 = h(x_0, y_0) may
be positive and has to be clipped; [u]_J = (alpha_{t+1} - alpha_t) / eta_y forgets rho1 times the residual.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.precision import float64
from bilevax.exact.lower import solve_flat
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import BilevelProblem, Level, place, validate
from bilevax.model.sets import Free
from bilevax.solvers.sflcb import SFLCB, SFLCBState

Setting = Literal["coupled", "uncoupled"]

# More bases than this are not enumerated for theta_bar: one or two seconds.
_MAX_BASES = 100_000
# A singular value below this fraction of the largest counts as zero.
_RANK_TOLERANCE = 1e-10


@dataclasses.dataclass(frozen=True)
class TheoryConstants:
    """What the theorems assume to be known of a problem.

    Attributes
    ----------
    mu_g
        Strong convexity of g in y: the smallest eigenvalue of its Hessian in y.
    l_g1, l_f1
        Lipschitz constants of the gradients of g and f, jointly in (x, y).
    sigma_max_a, sigma_min_a
        Largest and smallest singular value of A over its rows; the smallest is 0 unless A has full row rank.
    sigma_max_b
        Largest singular value of B.
    theta_bar
        The constant of the dual error bound (Lemma "linear"), see `theta_bar`; None when it is not known.
    l_f0
        Lipschitz constant of f, jointly in (x, y). No step size needs it; the bounds on Phi - Phi_delta do.
    """

    mu_g: float
    l_g1: float
    l_f1: float
    sigma_max_a: float
    sigma_min_a: float
    sigma_max_b: float
    theta_bar: float | None = None
    l_f0: float | None = None


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """The parameters of SFLCB under one of the theorems, with the constants that lead to them.

    Attributes
    ----------
    setting
        Which theorem.
    delta, rho1, rho2, eta_x, eta_y, eta_z, eta_u, eta_v
        The parameters of `SFLCB`.
    l_phi, l_k, l_d, l_q
        Smoothness of phi_delta, K, d and q.
    mu_y, mu_z
        Strong convexity of K in y' = (y, s_y), and strong concavity in z' = (z, s_z).
    sigma_y, sigma_z
        Dual error bounds: ``|y'*(x, u) - y'*(x)| <= sigma_y |h(x, y'*(x, u)) - s|``, and the same with z.
    sigma_uy, sigma_u1, sigma_u2, sigma_vz, sigma_v1, sigma_v2
        Coefficients of the bounds on ``|u_{t+1} - u*(x_t)|`` and ``|v_{t+1} - v*(x_t)|``; 0 in the uncoupled setting,
        whose proof does without them.
    """

    setting: Setting
    delta: float
    rho1: float
    rho2: float
    eta_x: float
    eta_y: float
    eta_z: float
    eta_u: float
    eta_v: float
    l_phi: float
    l_k: float
    l_d: float
    l_q: float
    mu_y: float
    mu_z: float
    sigma_y: float
    sigma_z: float
    sigma_uy: float = 0.0
    sigma_u1: float = 0.0
    sigma_u2: float = 0.0
    sigma_vz: float = 0.0
    sigma_v1: float = 0.0
    sigma_v2: float = 0.0

    def parameters(self) -> dict[str, float]:
        """Return the arguments of `SFLCB`."""
        names = ("delta", "rho1", "rho2", "eta_x", "eta_y", "eta_z", "eta_u", "eta_v")
        return {name: getattr(self, name) for name in names}


def estimate_constants(
    problem: BilevelProblem,
    x0: PyTree,
    y0: PyTree = None,
    *,
    samples: int = 16,
    radius: float = 1.0,
    seed: int = 0,
    theta_bar: float | None = None,
) -> TheoryConstants:
    """Measure the constants of the theorems around a start.

    A and B are taken as they are. The curvature constants are extremes over the Hessians at the start and at random
    points around it, projected onto X and Y: exact for quadratics, otherwise estimates from the optimistic side.

    Parameters
    ----------
    problem, x0
        The problem and the start.
    y0
        The lower level's start; y*(x0), solved exactly, when absent.
    samples, radius, seed
        How many points beside the start, the standard deviation of each coordinate, and the random seed.
    theta_bar
        The constant of the dual error bound, where it is known; otherwise it is enumerated (see `theta_bar`).

    Raises
    ------
    ValueError
        If theta_bar is not given and cannot be enumerated.
    """
    with float64():
        x, y_like, y = validate(problem, x0, y0)
    flat = FlatProblem(problem, x, y_like)
    theta_bar = _theta_bar(flat) if theta_bar is None else theta_bar  # first, because it may refuse
    center_x = trees.flatten_host(x)
    center_y = solve_flat(flat, center_x).y if y is None else trees.flatten_host(y)
    points = list(_points_around(flat, center_x, center_y, samples, radius, seed))
    lower = [_joint_hessian(flat, "lower", *point) for point in points]
    upper = [_joint_hessian(flat, "upper", *point) for point in points]
    curvature = [scipy.linalg.eigvalsh(hessian[flat.n_x :, flat.n_x :])[0] for hessian in lower]
    singular_a = scipy.linalg.svdvals(flat.rows.A.toarray()) if flat.rows.A.shape[0] else np.zeros(0)
    full_rank = len(singular_a) == flat.rows.A.shape[0] and np.all(
        singular_a > _RANK_TOLERANCE * singular_a.max(initial=0)
    )
    return TheoryConstants(
        mu_g=float(min(curvature)),
        l_g1=max(map(_spectral_norm, lower)),
        l_f1=max(map(_spectral_norm, upper)),
        sigma_max_a=float(singular_a.max(initial=0.0)),
        sigma_min_a=float(singular_a.min(initial=np.inf)) if full_rank and len(singular_a) else 0.0,
        sigma_max_b=_spectral_norm(flat.rows.B.toarray()),
        theta_bar=theta_bar,
        l_f0=max(float(np.linalg.norm(np.concatenate(flat.gradients("upper", *point)))) for point in points),
    )


def step_sizes(
    constants: TheoryConstants,
    delta: float,
    rho1: float | None = None,
    rho2: float | None = None,
    setting: Setting = "coupled",
) -> StepSizes:
    """Return the parameters that a theorem asks for; the module's notes say where they differ from the printed ones.

    Parameters
    ----------
    constants
        What is known of the problem.
    delta
        The penalty, at most mu_g / (2 l_f1).
    rho1, rho2
        The augmentation; half of the largest values allowed when absent.
    setting
        "coupled" (A of full row rank) or "uncoupled" (B = 0).

    Raises
    ------
    ValueError
        If a condition of the theorem does not hold; it says which, with the numbers.
    """
    _check_conditions(constants, delta, setting)
    mu_g, l_g1, a = constants.mu_g, constants.l_g1, constants.sigma_max_a
    b = constants.sigma_max_b if setting == "coupled" else 0.0
    l_delta = mu_g / 2
    l_g, l_phi = l_delta + l_g1, l_delta + 2 * l_g1
    rho1 = _augmentation("rho1", rho1, (mu_g - l_delta) / a**2)  # [3]
    rho2 = _augmentation("rho2", rho2, mu_g / a**2)
    mu_y, mu_z = min(mu_g - l_delta - rho1 * a**2, rho1 / 2), min(mu_g - rho2 * a**2, rho2 / 2)
    extended = 1 + a**2  # sigma_max(A')^2, where A' = (A, -I)
    l_k = l_phi + max(rho1, rho2) * (extended + b**2)  # [1]
    sigma_yx, sigma_zx = l_k / mu_y, l_k / mu_z
    assert constants.theta_bar is not None
    hoffman = math.sqrt(2) * (constants.theta_bar * l_k**2 + 1)
    sigma_y, sigma_z = hoffman / mu_y, hoffman / mu_z
    if setting == "coupled":
        sigma_yb = b * sigma_y + sigma_yx  # [4]
        sigma_ub = l_g * (1 + sigma_yb) / constants.sigma_min_a  # [4]
        l_d, l_q = l_k * (1 + sigma_yx), l_k * (1 + sigma_zx + sigma_yb) + b * sigma_ub
    else:
        sigma_ys = 2 * l_k / mu_g
        l_d, l_q = max(l_phi * (1 + sigma_yx), l_k), l_phi * (1 + sigma_zx + sigma_ys)
    eta_y, eta_z = 1 / (4 * l_k), 2 / (l_k + 4 * l_d)
    share = 256 if setting == "coupled" else 32
    eta_u, eta_v = eta_y * mu_y**2 / (share * extended), eta_z * mu_z**2 / (share * extended)  # [2]
    sizes = StepSizes(
        setting=setting,
        delta=float(delta),
        rho1=rho1,
        rho2=rho2,
        eta_x=math.nan,
        eta_y=eta_y,
        eta_z=eta_z,
        eta_u=eta_u,
        eta_v=eta_v,
        l_phi=l_phi,
        l_k=l_k,
        l_d=l_d,
        l_q=l_q,
        mu_y=mu_y,
        mu_z=mu_z,
        sigma_y=sigma_y,
        sigma_z=sigma_z,
    )
    if setting == "uncoupled":
        eta_x = min(
            eta_y * mu_y**2 / (512 * l_phi**2),
            eta_z * mu_z**2 / (96 * l_phi**2),
            eta_u / (64 * sigma_y**2 * l_phi**2),
            eta_v / (4 * sigma_z**2 * l_phi**2),
            2 / (l_k + 4 * l_d + 8 * l_q),
        )
        return dataclasses.replace(sizes, eta_x=eta_x)
    sigma_uy = (1 / eta_y + 2 / (mu_y * eta_y) * l_g) / constants.sigma_min_a  # [5]
    sigma_vz = (1 / eta_z + 2 / (mu_z * eta_z) * l_g1) / constants.sigma_min_a
    sigma_u1, sigma_v1 = rho1, rho2
    sigma_u2, sigma_v2 = sigma_y * l_g / constants.sigma_min_a, sigma_z * l_g1 / constants.sigma_min_a  # [5]
    slope = max(l_k, b)  # [6]
    eta_x = min(
        eta_y * mu_y**2 / (640 * slope**2),
        eta_z * mu_z**2 / (640 * slope**2),
        eta_u / (240 * (sigma_y**2 + sigma_u2**2 + sigma_u1**2) * slope**2),
        eta_v / (240 * (sigma_z**2 + sigma_v2**2 + sigma_v1**2) * slope**2),
        2 / (l_k + 4 * l_d + 8 * l_q),
        1 / (1920 * eta_y * slope**2 * sigma_uy**2),
        1 / (1920 * eta_z * slope**2 * sigma_vz**2),  # [7]
    )
    return dataclasses.replace(
        sizes,
        eta_x=eta_x,
        sigma_uy=sigma_uy,
        sigma_u1=sigma_u1,
        sigma_u2=sigma_u2,
        sigma_vz=sigma_vz,
        sigma_v1=sigma_v1,
        sigma_v2=sigma_v2,
    )


def step_sizes_for(
    problem: BilevelProblem,
    x0: PyTree,
    *,
    delta: float | None = None,
    constants: TheoryConstants | None = None,
    setting: Setting | None = None,
    y0: PyTree = None,
) -> StepSizes:
    """Return the step sizes of the theorem that fits a problem, estimating what is not given.

    Parameters
    ----------
    problem, x0, y0
        The problem and the start around which constants are estimated.
    delta
        The penalty; the smaller of 0.1 and the largest allowed, mu_g / (2 l_f1), when absent.
    constants
        What is known of the problem; see `estimate_constants` for the rest.
    setting
        Which theorem; "uncoupled" where B = 0, when absent.

    Raises
    ------
    ValueError
        If a condition of the theorem does not hold; it says which, with the numbers.

    Warns
    -----
    UserWarning
        If X, or in the coupled setting Y, is not the whole space: the proofs do not cover their projections.
    """
    if constants is None:
        constants = estimate_constants(problem, x0, y0)
    if setting is None:
        setting = "uncoupled" if constants.sigma_max_b == 0 else "coupled"
    if delta is None:
        delta = min(0.1, _largest_delta(constants))
    sizes = step_sizes(constants, delta, setting=setting)
    # In the uncoupled setting Y is only another polyhedron in Lemma "linear", which theta_bar takes into account.
    sets = {"X": problem.x_set} if setting == "uncoupled" else {"X": problem.x_set, "Y": problem.y_set}
    bounded = [f"{name} is a {type(part).__name__}" for name, part in sets.items() if not isinstance(part, Free)]
    if bounded:
        warnings.warn(
            f"The {setting} theorem of SFLCB takes {' and '.join(sets)} to be the whole space, but "
            f"{' and '.join(bounded)}: these step sizes carry no proof.",
            stacklevel=3,
        )
    return sizes


def warm_start_coupled(
    problem: BilevelProblem,
    solver: SFLCB,
    x0: PyTree,
    y0: PyTree = None,
    *,
    constants: TheoryConstants | None = None,
    accuracy: float | None = None,
    max_steps: int = 100_000,
) -> SFLCBState:
    """Return the start of the coupled corollary: y, z near y*(x0) and u, v near its multipliers.

    Proximal gradient ascent on the dual of the lower level at x0, with the inner minimisation over y by projected
    gradient steps: linear convergence where A has full row rank and Y is the whole space. It then stops when the
    error bounds prove ``|z - y*(x0)| <= accuracy`` and ``|v - v*(x0)| <= accuracy``.

    Parameters
    ----------
    problem, solver, x0, y0
        The problem, the solver to start (its delta is the default accuracy), and where to begin.
    constants
        What is known of the problem; estimated when absent.
    accuracy
        The distance to reach; the corollary's own, delta, when absent.
    max_steps
        Limit of dual steps.

    Returns
    -------
    SFLCBState
        For ``bilevax.solve(..., warm_start=state)``.
    """
    with float64():
        x, y_like, y = validate(problem, x0, y0)
        if constants is None:
            constants = estimate_constants(problem, x, y, theta_bar=math.nan)  # theta_bar plays no part here
        _check_full_row_rank(constants)
        accuracy = float(solver.delta if accuracy is None else accuracy)
        mu_g, l_g1, a = constants.mu_g, constants.l_g1, constants.sigma_max_a
        # The dual is concave with curvature between sigma_min(A)^2 / l_g1 and sigma_max(A)^2 / mu_g. A step of
        # length eta that moves v by r proves |v - v*| <= 2 r / (curvature eta), and then
        # |z(v) - z*| <= sigma_max(A) / mu_g |v - v*|.
        curvature, eta = constants.sigma_min_a**2 / l_g1, mu_g / a**2
        accuracy_v = accuracy * min(1.0, mu_g / (2 * a))
        accuracy_z = min(accuracy / 2, accuracy_v * curvature / (4 * a))
        placed = place(problem, np.float64)
        x = placed.x_set.project(x)
        z = placed.y_set.project(trees.zeros(y_like) if y is None else y)
        moves = (accuracy_z * mu_g / (2 * l_g1), accuracy_v * curvature * eta / 4)
        z, v, moved = _dual_ascent(placed, x, z, 1 / l_g1, eta, moves, max_steps)
        if not moved <= moves[1]:
            _warn_short("warm_start_coupled", max_steps, float(moved), moves[1])
        slack = _clipped(placed, placed.rows(x, z))
        return jax.tree.map(np.asarray, SFLCBState(x, z, z, slack, slack, v, v))


def warm_start_uncoupled(
    problem: BilevelProblem,
    solver: SFLCB,
    x0: PyTree,
    y0: PyTree = None,
    *,
    tolerance: float | None = None,
    max_steps: int = 1_000_000,
) -> SFLCBState:
    """Return the start of the uncoupled corollary: SFLCB itself with x frozen at x0.

    It stops when these are at most the tolerance, in the Euclidean norm: the residuals ``h(x0, y) - s_y`` and
    ``h(x0, z) - s_z``, the move of (y, s_y) divided by eta_y, and that of (z, s_z) divided by eta_z.

    Parameters
    ----------
    problem, solver, x0, y0
        The problem, the solver whose steps are taken, and where to begin.
    tolerance
        The solver's delta when absent, which puts y, z, u and v at distances O(delta) where LICQ holds at x0.
    max_steps
        Limit of steps.

    Returns
    -------
    SFLCBState
        For ``bilevax.solve(..., warm_start=state)``.
    """
    with float64():
        x, y_like, y = validate(problem, x0, y0)
        tolerance = float(solver.delta if tolerance is None else tolerance)
        placed = place(problem, np.float64)
        x = placed.x_set.project(x)
        start = solver.init(placed, x, placed.y_set.project(trees.zeros(y_like) if y is None else y))
        state, residual = _frozen_run(placed, solver, start, tolerance, max_steps)
        if not residual <= tolerance:
            _warn_short("warm_start_uncoupled", max_steps, float(residual), tolerance)
        return jax.tree.map(np.asarray, state)


def theta_bar(problem: BilevelProblem, x: PyTree, y: PyTree = None) -> float:
    """Return the constant of the dual error bound (Lemma "linear"), by enumeration.

    It is the largest ``sigma_max^2 / sigma_min^4`` over the sets of independent rows of

        M = [ A'^T  C^T ]
            [ 0     I   ]

    where A' = (A, -I) acts on (y, s), and C stacks the bounds on s and the rows of Y. A further independent row can
    only raise sigma_max and lower sigma_min, so the largest is attained at a basis of the rows, and only bases are
    visited. Equality rows have no slack variable: their column of -I is absent.

    Raises
    ------
    ValueError
        If Y is not a polyhedron, or if there are too many bases (the number is in the message).
    """
    with float64():
        x, y_like, _ = validate(problem, x, y)
    return _theta_bar(FlatProblem(problem, x, y_like))


def _theta_bar(flat: FlatProblem) -> float:
    matrix = _error_bound_matrix(flat)
    rank = int(np.linalg.matrix_rank(matrix)) if matrix.size else 0
    if rank == 0:
        return 0.0
    count = math.comb(len(matrix), rank)
    if count > _MAX_BASES:
        raise ValueError(
            f"theta_bar: expected a number, because it is too long to enumerate here: {count} candidate bases of "
            f"{rank} out of {len(matrix)} rows (at most {_MAX_BASES}). Give estimate_constants(..., theta_bar=...)."
        )
    largest, cutoff = 0.0, _RANK_TOLERANCE * np.linalg.norm(matrix, 2)
    bases = itertools.combinations(range(len(matrix)), rank)
    while chunk := list(itertools.islice(bases, 4096)):
        values = np.linalg.svd(matrix[np.array(chunk)], compute_uv=False)
        values = values[values[:, -1] > cutoff]
        largest = max(largest, float(np.max(values[:, 0] ** 2 / values[:, -1] ** 4, initial=0.0)))
    return largest


def _error_bound_matrix(flat: FlatProblem) -> np.ndarray:
    """Return the matrix M of `theta_bar`."""
    rows, simple = flat.rows, flat.y_rows
    if simple.balls:
        raise ValueError(
            "theta_bar: expected a polyhedron Y, got a ball: the dual error bound holds for polyhedra only."
        )
    moving = rows.lower != rows.upper
    extended = np.hstack([rows.A.toarray(), -np.eye(len(moving))[:, moving]])
    bounds = sp.block_diag([simple.matrix, sp.eye(int(moving.sum()))]).toarray()
    lower = np.concatenate([simple.lower, rows.lower[moving]])
    upper = np.concatenate([simple.upper, rows.upper[moving]])
    one_sided = np.vstack([bounds[np.isfinite(upper)], -bounds[np.isfinite(lower)]])
    return np.block([[extended.T, one_sided.T], [np.zeros((len(one_sided), len(extended))), np.eye(len(one_sided))]])


def _check_conditions(constants: TheoryConstants, delta: float, setting: Setting) -> None:
    if setting not in ("coupled", "uncoupled"):
        raise ValueError(f'setting: expected "coupled" or "uncoupled", got {setting!r}.')
    if not constants.mu_g > 0:
        raise ValueError(f"mu_g: expected g strongly convex in y, got the smallest curvature {constants.mu_g:.6g}.")
    if not constants.sigma_max_a > 0:
        raise ValueError("A: expected rows that involve y, got none: without them the theorems say nothing.")
    if not 0 < delta <= _largest_delta(constants):
        raise ValueError(
            f"delta: expected 0 < delta <= mu_g / (2 l_f1) = {_largest_delta(constants):.6g} "
            f"(mu_g = {constants.mu_g:.6g}, l_f1 = {constants.l_f1:.6g}), got {delta:.6g}."
        )
    if setting == "coupled":
        _check_full_row_rank(constants)
    elif constants.sigma_max_b > 0:
        raise ValueError(
            f"setting: expected rows without x (B = 0) for the uncoupled theorem, got sigma_max(B) = "
            f"{constants.sigma_max_b:.6g}."
        )
    if constants.theta_bar is None:
        raise ValueError("theta_bar: expected a number >= 0, got None; see bilevax.paper.theory.theta_bar.")


def _check_full_row_rank(constants: TheoryConstants) -> None:
    if not constants.sigma_min_a > 0:
        raise ValueError(
            f"A: expected full row rank, which the theorem for coupled rows needs, got sigma_min(A) = "
            f"{constants.sigma_min_a:.6g} with sigma_max(A) = {constants.sigma_max_a:.6g}."
        )


def _largest_delta(constants: TheoryConstants) -> float:
    return constants.mu_g / (2 * constants.l_f1) if constants.l_f1 > 0 else math.inf


def _augmentation(name: str, value: float | None, bound: float) -> float:
    value = bound / 2 if value is None else float(value)
    if not 0 < value < bound:
        raise ValueError(f"{name}: expected 0 < {name} < {bound:.6g}, got {value:.6g}.")
    return value


def _points_around(
    flat: FlatProblem, x: np.ndarray, y: np.ndarray, samples: int, radius: float, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the point, then random ones around it, in X and Y."""
    random = np.random.default_rng(seed)
    with float64():
        placed = place(flat.problem, np.float64)
        for index in range(samples + 1):
            spread = radius if index else 0.0
            near = [jnp.asarray(v + spread * random.standard_normal(len(v))) for v in (x, y)]
            yield (
                trees.flatten_host(placed.x_set.project(trees.unflatten(near[0], flat.x_like))),
                trees.flatten_host(placed.y_set.project(trees.unflatten(near[1], flat.y_like))),
            )


def _joint_hessian(flat: FlatProblem, level: Level, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    block = lambda of, by: flat.hessian(level, of, by, x, y).toarray()
    mixed = block("x", "y")
    return np.block([[block("x", "x"), mixed], [mixed.T, block("y", "y")]])


def _spectral_norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


def _clipped(problem: BilevelProblem, rows: Any) -> Any:
    return jax.tree.map(jnp.clip, rows, *problem.row_bounds(rows))


def _norm(tree: Any) -> Any:
    return jnp.sqrt(trees.dot(tree, tree))


def _warn_short(name: str, steps: int, reached: float, wanted: float) -> None:
    warnings.warn(f"{name}: stopped after {steps} steps at {reached:.3g}, short of {wanted:.3g}.", stacklevel=3)


@eqx.filter_jit
def _dual_ascent(
    problem: BilevelProblem, x: PyTree, z: PyTree, step_z: Any, eta: Any, moves: tuple[Any, Any], max_steps: Any
) -> tuple[PyTree, Any, Any]:
    """Return (z, v, |move of v|) of proximal gradient ascent on the dual, until z and v move less than ``moves``."""

    def minimise_inner(z: PyTree, v: Any) -> PyTree:
        lagrangian = lambda z: problem.lower_value(x, z) + trees.dot(v, problem.rows(x, z))

        def step(carry: Any) -> Any:
            z, _, count = carry
            new = problem.y_set.project(trees.add_scaled(z, -step_z, jax.grad(lagrangian)(z)))
            return new, _norm(trees.subtract(new, z)), count + 1

        unfinished = lambda carry: (carry[1] > moves[0]) & (carry[2] < max_steps)
        return jax.lax.while_loop(unfinished, step, (z, jnp.full_like(step_z, jnp.inf), 0))[0]

    def step(carry: Any) -> Any:
        _, _, z, v, _, count = carry
        z = minimise_inner(z, v)
        ahead = trees.add_scaled(v, eta, problem.rows(x, z))
        # The prox of the support function of [lower, upper], which gives every kind of row its sign.
        prox = lambda w, low, high: jnp.maximum(w - eta * high, 0.0) + jnp.minimum(w - eta * low, 0.0)
        new = jax.tree.map(prox, ahead, *problem.row_bounds(ahead))
        return z, v, z, new, _norm(trees.subtract(new, v)), count + 1

    zero = jax.tree.map(jnp.zeros_like, problem.rows(x, z))
    unfinished = lambda carry: (carry[4] > moves[1]) & (carry[5] < max_steps)
    start = (z, zero, z, zero, jnp.full_like(eta, jnp.inf), 0)
    # The pair whose move was measured is kept beside the pair to go on from.
    z, v, _, _, moved, _ = jax.lax.while_loop(unfinished, step, start)
    return z, v, moved


@eqx.filter_jit
def _frozen_run(
    problem: BilevelProblem, solver: SFLCB, start: SFLCBState, tolerance: Any, max_steps: Any
) -> tuple[SFLCBState, Any]:
    """Return (state, residual) of SFLCB with x held, when the residual reaches the tolerance."""

    def step(carry: Any) -> Any:
        old, _, count = carry
        new = solver.step(problem, old)._replace(x=old.x)
        moved = trees.subtract(new, old)
        residuals = [
            _norm((moved.y, moved.s_y)) / solver.eta_y,
            _norm((moved.z, moved.s_z)) / solver.eta_z,
            _norm(moved.u) / solver.eta_u,  # u moves by eta_u times the residual of the rows
            _norm(moved.v) / solver.eta_v,
        ]
        return new, jnp.stack(residuals).max(), count + 1

    unfinished = lambda carry: (carry[1] > tolerance) & (carry[2] < max_steps)
    state, residual, _ = jax.lax.while_loop(unfinished, step, (start, jnp.asarray(jnp.inf), 0))
    return state, residual
