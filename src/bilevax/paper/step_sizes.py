"""Step sizes with a proof: the two convergence theorems of SFLCB (Shen et al. 2025).

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
import math
import warnings
from typing import Literal

from jaxtyping import PyTree

from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Free
from bilevax.paper.constants import TheoryConstants, check_full_row_rank, estimate_constants

Setting = Literal["coupled", "uncoupled"]


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
    sizes = _all_but_eta_x(constants, delta, rho1, rho2, setting)
    return _coupled(sizes, constants) if setting == "coupled" else _uncoupled(sizes)


def _all_but_eta_x(
    constants: TheoryConstants, delta: float, rho1: float | None, rho2: float | None, setting: Setting
) -> StepSizes:
    """Return what both theorems ask for alike; eta_x is NaN."""
    mu_g, l_g1, a = constants.mu_g, constants.l_g1, constants.sigma_max_a
    b = constants.sigma_max_b if setting == "coupled" else 0.0
    l_delta = mu_g / 2
    l_phi = l_delta + 2 * l_g1
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
        sigma_ub = _l_g(constants) * (1 + sigma_yb) / constants.sigma_min_a  # [4]
        l_d, l_q = l_k * (1 + sigma_yx), l_k * (1 + sigma_zx + sigma_yb) + b * sigma_ub
    else:
        sigma_ys = 2 * l_k / mu_g
        l_d, l_q = max(l_phi * (1 + sigma_yx), l_k), l_phi * (1 + sigma_zx + sigma_ys)
    eta_y, eta_z = 1 / (4 * l_k), 2 / (l_k + 4 * l_d)
    share = 256 if setting == "coupled" else 32
    return StepSizes(
        setting=setting,
        delta=float(delta),
        rho1=rho1,
        rho2=rho2,
        eta_x=math.nan,
        eta_y=eta_y,
        eta_z=eta_z,
        eta_u=eta_y * mu_y**2 / (share * extended),  # [2]
        eta_v=eta_z * mu_z**2 / (share * extended),  # [2]
        l_phi=l_phi,
        l_k=l_k,
        l_d=l_d,
        l_q=l_q,
        mu_y=mu_y,
        mu_z=mu_z,
        sigma_y=sigma_y,
        sigma_z=sigma_z,
    )


def _l_g(constants: TheoryConstants) -> float:
    """Return the smoothness of ``delta f + g``."""
    return constants.mu_g / 2 + constants.l_g1


def _uncoupled(sizes: StepSizes) -> StepSizes:
    """Return the sizes with the eta_x of the uncoupled theorem."""
    l_phi = sizes.l_phi
    eta_x = min(
        sizes.eta_y * sizes.mu_y**2 / (512 * l_phi**2),
        sizes.eta_z * sizes.mu_z**2 / (96 * l_phi**2),
        sizes.eta_u / (64 * sizes.sigma_y**2 * l_phi**2),
        sizes.eta_v / (4 * sizes.sigma_z**2 * l_phi**2),
        2 / (sizes.l_k + 4 * sizes.l_d + 8 * sizes.l_q),
    )
    return dataclasses.replace(sizes, eta_x=eta_x)


def _coupled(sizes: StepSizes, constants: TheoryConstants) -> StepSizes:
    """Return the sizes with the eta_x of the coupled theorem, and the bounds on multipliers that lead to it."""
    mu_y, mu_z, eta_y, eta_z = sizes.mu_y, sizes.mu_z, sizes.eta_y, sizes.eta_z
    sigma_y, sigma_z, l_g, l_g1 = sizes.sigma_y, sizes.sigma_z, _l_g(constants), constants.l_g1
    sigma_uy = (1 / eta_y + 2 / (mu_y * eta_y) * l_g) / constants.sigma_min_a  # [5]
    sigma_vz = (1 / eta_z + 2 / (mu_z * eta_z) * l_g1) / constants.sigma_min_a
    sigma_u1, sigma_v1 = sizes.rho1, sizes.rho2
    sigma_u2, sigma_v2 = sigma_y * l_g / constants.sigma_min_a, sigma_z * l_g1 / constants.sigma_min_a  # [5]
    slope = max(sizes.l_k, constants.sigma_max_b)  # [6]
    eta_x = min(
        eta_y * mu_y**2 / (640 * slope**2),
        eta_z * mu_z**2 / (640 * slope**2),
        sizes.eta_u / (240 * (sigma_y**2 + sigma_u2**2 + sigma_u1**2) * slope**2),
        sizes.eta_v / (240 * (sigma_z**2 + sigma_v2**2 + sigma_v1**2) * slope**2),
        2 / (sizes.l_k + 4 * sizes.l_d + 8 * sizes.l_q),
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
        What is known of the problem; see `bilevax.paper.constants.estimate_constants` for the rest.
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
        check_full_row_rank(constants)
    elif constants.sigma_max_b > 0:
        raise ValueError(
            f"setting: expected rows without x (B = 0) for the uncoupled theorem, got sigma_max(B) = "
            f"{constants.sigma_max_b:.6g}."
        )
    if constants.theta_bar is None:
        raise ValueError("theta_bar: expected a number >= 0, got None; see bilevax.paper.constants.theta_bar.")


def _largest_delta(constants: TheoryConstants) -> float:
    return constants.mu_g / (2 * constants.l_f1) if constants.l_f1 > 0 else math.inf


def _augmentation(name: str, value: float | None, bound: float) -> float:
    value = bound / 2 if value is None else float(value)
    if not 0 < value < bound:
        raise ValueError(f"{name}: expected 0 < {name} < {bound:.6g}, got {value:.6g}.")
    return value
