"""The numbers that steer exact convex programs: they change how much work an answer takes, not when it counts.

What decides about an answer is in `tolerances`. Sizes and tolerances are relative unless stated otherwise.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DenseLimits:
    """Up to which size dense linear algebra is used."""

    # Variables up to which rows and optimality systems are arrays.
    systems: int = 150
    # Variables of a block up to which eigenvalues are decided by a dense factorisation.
    eigenvalues: int = 500
    # Variables free of strongly active bounds up to which uniqueness is decided on a null space.
    null_space: int = 500
    # Rows up to which a diagonal Hessian is eliminated, which leaves a dense Schur complement.
    schur: int = 500
    # Variables up to which multipliers are made basic by nonnegative least squares.
    basic_multipliers: int = 1000
    # Rows and variables up to which the smallest relaxation is found by the simplex method.
    simplex: int = 40_000
    # Share of nonzero entries from which a sparse matrix is treated as a full one.
    full: float = 0.1
    # Operations times the cube of the size that QR with pivoting takes, counted as those of other factorisations: it
    # has fewer, but they take longer.
    pivoting: float = 6.0


@dataclass(frozen=True)
class CurvatureSettings:
    """How variables are scaled by their curvature."""

    # The curvature that stands for an infinite one, as that of y^1.5 at 0.
    rigid: float = 1e200
    # Curvatures up to this, relative to the median one or to 1, are flat: they do not scale their variable.
    flat: float = 1e-10
    # Curvature up to this, relative to the largest, is what rounding of y leaves of none at all.
    rounding: float = 1e-24


@dataclass(frozen=True)
class DomainSettings:
    """How borders of an objective's domain are found, and how closely they may be approached."""

    # The largest part of the distance to a border that a Newton program may go.
    longest_share: float = 0.9
    # Steps that use up more than this part of the distance to a border are bent.
    bent_share: float = 0.5
    # The smallest distance to a border: second and third derivatives are still numbers there.
    least_distance: float = 1e-100
    # Looking for borders begins this far inside the bounds, or this part of their width if that is less.
    inset: float = 0.1
    # Where the gradient is compared, in parts of the way from the bound: these have to fall by equal factors.
    approach: tuple[float, float, float] = (1e-6, 1e-8, 1e-10)
    # The gradient is infinite if the growth over the second part is this share of that over the first,
    growth: float = 0.5
    # and more than this part of the gradient itself.
    growth_rounding: float = 1e-10
    # Variables up to which each is tested alone where several have borders; of more, random groups are.
    single_variables: int = 100
    # How many random groups.
    groups: int = 16
    # Sizes of the random points that are tried where no point inside the domain is known, and how many of each.
    random_sizes: tuple[float, ...] = (1.0, 0.1, 10.0)
    random_points: int = 20


@dataclass(frozen=True)
class ProgramSettings:
    """How Clarabel solves the quadratic program of a Newton step."""

    # Attempts, each with Clarabel's tolerance and a proximal weight: the next one where the last was not solved.
    attempts: tuple[tuple[float, float], ...] = ((1e-11, 0.0), (1e-9, 1e-9), (1e-8, 1e-7))
    # Clarabel's iterations in one attempt.
    max_iterations: int = 100
    # Curvature from which variables are scaled by it even where the objective is defined everywhere.
    steep: float = 1e100
    # The objective is divided by its gradient, but at least by this part of its curvature.
    least_scale: float = 1e-6
    # An attempt that stalls at a point that violates rows by more than this is not repeated: it looks infeasible.
    stalled_infeasibility: float = 1e-7
    # Weight of the distance from the start in the search for an interior point.
    interior_weight: float = 1e-6


@dataclass(frozen=True)
class NewtonSettings:
    """How `minimise` iterates."""

    # Newton steps.
    max_iterations: int = 100
    # After every so many steps it is asked whether there is a minimiser at all.
    existence_every: int = 20
    # A start counts as feasible if its infeasibility is at most this many times the tolerance.
    feasible_start: float = 10.0
    # A start counts as solved if its error is at most this part of the tolerance.
    settled: float = 0.1
    # Complementarity above this is not yet rounding: the active rows may be wrong, so another start is tried,
    sharp: float = 1e-14
    # unless all residuals and the smaller of each multiplier and slack are at most this: many terms make more rounding.
    sharp_error: float = 1e-12
    # The last attempt widens the feasible set of the Newton programs by this many feasibility tolerances.
    widening: float = 10.0
    # A step beyond this many times the size of the start may follow a ray of descent.
    far: float = 1e7
    # The proximal weight of a step: its first value, its growth after a failure, its decay after a success, its limit.
    proximal_first: float = 1e-6
    proximal_growth: float = 100.0
    proximal_decay: float = 0.01
    proximal_limit: float = 1.0
    # A residual has improved if it is below this part of the best one.
    improvement: float = 0.5
    # A decrease of the objective by more than this, relative, is progress, too.
    gain: float = 1e-10
    # Steps in a row without progress before the iteration ends.
    max_stalled: int = 4
    # Step lengths from an infeasible point, and from a feasible one before it is halved.
    infeasible_lengths: tuple[float, ...] = (1.0, 0.9, 0.5, 0.25, 0.1)
    # 0.9 before 0.5: a step cut only by the border of the domain should still go most of the way there.
    feasible_lengths: tuple[float, ...] = (1.0, 0.9, *(0.5**power for power in range(1, 40)))
    # By how much, relative, rounding may increase the objective along a step.
    value_rounding: float = 1e-10
    # The slope at the end of a step may be this part of the descent at its beginning.
    overshoot: float = 0.5


@dataclass(frozen=True)
class SimplexSettings:
    """Linear programs by the simplex method (HiGHS)."""

    # The feasibility tolerance, primal and dual: the smallest that HiGHS accepts.
    accuracy: float = 1e-10
    # Multipliers above this, relative to the largest cost, can be told from zero.
    visible_multiplier: float = 1e-7
    # How often costs that are too small for a program to see are left to another one.
    max_ties: int = 4
    # Costs up to this, relative to the largest, are rounding.
    cost_rounding: float = 1e-15
    # What a multiplier costs against a gradient of the Lagrangian that is left, where a vertex of them is looked for.
    sparing: float = 1e-3
    # Slacks below this are none.
    least_slack: float = 1e-17

    @property
    def options(self) -> dict[str, float]:
        """The options of ``scipy.optimize.linprog``."""
        return {"primal_feasibility_tolerance": self.accuracy, "dual_feasibility_tolerance": self.accuracy}


@dataclass(frozen=True)
class ActiveSetSettings:
    """How the active rows are guessed, held and corrected."""

    # Rows with a relative slack up to this are guessed to be active.
    guess_width: float = 1e-6
    # Rows with a relative slack up to this are active at a polished point.
    active_width: float = 1e-9
    # Violations and multipliers of the wrong sign up to this do not correct a guess.
    rounding: float = 1e-12
    # An error at which there is nothing left to gain.
    exact: float = 1e-14
    # An error up to this part of the tolerance ends the search for a better guess.
    good_enough: float = 1e-3
    # A residual up to which all guesses are tried in large problems; further away most are wrong.
    near: float = 1e-3
    # A first guess with a residual up to this part of the tolerance counts even if the error grows: see `polish`.
    acceptable: float = 0.2
    # Newton steps on one guess: in small problems, in large ones, and where the objective has a domain.
    max_steps_small: int = 30
    max_steps_large: int = 10
    max_steps_domain: int = 200
    # Steps in a row that do not halve the error, in small and in large problems.
    max_stalled_small: int = 4
    max_stalled_large: int = 0
    # How often a step is halved until the objective is finite at its end.
    max_halvings: int = 20
    # The largest exponent by which distances to a border of the domain shrink in a cautious step: about twentyfold.
    cautious_exponent: float = 3.0
    # A bent step is accepted if it leaves at most this part of the error.
    bent_progress: float = 0.9
    # Two steps have the same direction if they differ by at most this, relative to the later one.
    same_direction: float = 0.1
    # Ratios of successive steps in the same direction that tell of a flat minimum.
    flat_ratios: tuple[float, float] = (0.3, 0.99)
    # Violated rows that are added to a guess one by one if they depend on those held; more are added together.
    max_exchanges: int = 10


@dataclass(frozen=True)
class RankSettings:
    """From which size on a pivot, a residual or a condition number counts as zero, for rows of length 1."""

    # Pivots of a QR factorisation of rows up to this are zero.
    pivot: float = 1e-11
    # What is left of a row outside the span of others, and the coefficients of such a combination, up to this are zero.
    remainder: float = 1e-10
    # The same of a system that is not refined.
    finest: float = 1e-14
    # Reciprocal condition numbers up to which systems, and triangles of least squares, are singular.
    singular_system: float = 1e-12
    singular_triangle: float = 1e-10
    # The cut-off of least squares on singular systems.
    cutoff: float = 1e-13
    # In nonnegative least squares: weights, relative to the largest, and slopes, relative to the right-hand side.
    zero_weight: float = 1e-12
    zero_slope: float = 1e-11
    # What is added to the diagonal of sparse systems, and how often refinement takes it out again.
    regularisation: float = 1e-8
    max_refinements: int = 20
    # The part of the largest entry of its column from which on an entry of their diagonal is the pivot.
    diagonal_pivot: float = 0.01


DENSE = DenseLimits()
CURVATURE = CurvatureSettings()
DOMAIN = DomainSettings()
PROGRAM = ProgramSettings()
NEWTON = NewtonSettings()
SIMPLEX = SimplexSettings()
ACTIVE_SET = ActiveSetSettings()
RANK = RankSettings()
