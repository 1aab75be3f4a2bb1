"""What steers the default method: one record for each of its parts. Nobody has to change them.

Numbers that merely tell rounding from zero in a formula stay with the formula.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Which linear algebra suits a problem, in numbers of variables or rows."""

    largest_dense: int = 6000  # matrices are dense up to here
    smallest_sparse: int = 1500  # from here on sparse, if their entries are few
    entries: float = 20.0  # a variable or row has in a matrix that counts as sparse
    full: float = 0.2  # share of entries from which on an array is the better form of a matrix
    thin: float = 0.05  # share of entries up to which the rows' compliance is a product of sparse matrices
    smallest_full: int = 150  # below, a matrix is no better as an array
    eigenvalues: int = 400  # up to here a nonconvex dense Hessian is made convex by its eigenvalues
    as_array: int = 1500  # up to here a sparse Hessian is made convex as an array
    directions: int = 400  # up to here the directions of y are the cheaper way to the second derivatives of a piece
    few_rows: int = 500  # up to here the compliance of rows is an array even where they are more than the variables
    entries_of_an_array: int = 1_000_000  # zeros included, up to which the rows' part in x is an array in any case
    few_variables: int = 1500  # of the lower level, up to which any number of rows is no reason against arrays
    unlifted: int = 400  # up to here a descent on a g that had to be lifted ends without the lift
    newton: int = 1000  # entries of x up to which second derivatives of the smoothed objective pay


@dataclasses.dataclass(frozen=True)
class Central:
    """Newton's method for the lower level on its central path."""

    newton_steps: int = 120
    halvings: int = 30  # of a step that leaves the domain of g
    reach: float = 0.995  # share of the way to the boundary that a step may go
    predicted_reach: float = 0.9  # the same for a start predicted along the tangent
    centring: float = 0.1  # share of the mean product that a step aims at, after a step that was not cut short
    short: float = 0.3  # a step cut to less is followed by one that centres
    corrections: int = 3  # of a step in the space of the constraints, each a solve with the same factor
    lifts: int = 3  # of such steps, if they are cut short: made in full, and what is negative then is made positive
    dual: float = 1e-9  # residuals that a central point may have, relative: of the gradient of the Lagrangian,
    primal: float = 1e-10  # of the constraints,
    products: float = 1e-3  # and of multiplier * slack against the barrier


@dataclasses.dataclass(frozen=True)
class Algebra:
    """Factorisations of the lower level's KKT matrix."""

    flat: float = 1e-9  # curvature of g below this share of the largest counts as none,
    lift: float = 1e-6  # and is replaced by this share of it
    rounding: float = 1e-14  # of the compliance's diagonal, added to it: dependent equalities leave it singular
    trace: float = 1e-10  # of the typical stiffness, added to sparse K: it is quasi-definite for merely convex g
    shifts: tuple[float, ...] = (1e-13, 1e-8)  # of sparse K's diagonal, taken out by refinement: one, else the other
    refinements: int = 30
    fine: float = 1e-13  # a residual, relative, below which solutions with sparse K are not refined further
    poor: float = 1e-9  # a residual from which on solutions with sparse K are refined


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """How much is smoothed, and how a stage is minimised."""

    stages: int = 6
    quadratic_stages: int = 5  # of large quadratics, whose exact descent is the cheaper way from there on
    sparse_stages: int = 7
    tightening: float = 0.1  # of barrier and softness, from stage to stage
    barrier: float = 10.0  # the first one, against multipliers and slacks of an exact start,
    softness: float = 1e-3  # and against the mean compliance
    sparse_barrier: float = 0.1  # the first one against typical multipliers and slacks,
    sparse_softness: float = 1e-3  # and against their ratio
    price: float = 2.0  # of violated rows, against the upper quartile of their marginal values
    growing: float = 3.0  # multipliers that grow by this, when the softness shrinks, tell of an infeasible lower level;
    dearer: float = 5.0  # the price then grows by this
    memory: int = 10  # pairs of the quasi-Newton method
    steps: int = 40  # of the quasi-Newton method in a stage
    fall: float = 0.05  # of the projected gradient, which ends a stage
    worth: float = 1e-10  # relative decrease of a step; less ends a stage
    newton_steps: int = 40  # of Newton's method in a stage,
    newton_patience: int = 60  # and in all: a stage that reaches them is the last
    newton_fall: float = 0.01  # of the projected gradient, which ends a stage of Newton's method
    shrinks: int = 8  # of the trust region of one Newton step
    vague: int = 3  # evaluations in a line search that may spend all the work they are allowed


@dataclasses.dataclass(frozen=True)
class Hypergradient:
    """Descent on Phi by its exact gradient, where Phi is likely to be smooth and its second derivatives are dear."""

    fewest: int = 50  # entries of x from which on it is tried: below, the other phases are quick, and look farther
    large: int = 200  # entries of y and constraints from which on it is tried with fewer x, if sparse and g quadratic
    most_compiled: int = 400  # entries of y and constraints of the lower level in a compiled program
    compiling: float = 6.0  # times what a gradient takes to compile: what that program takes
    newton_steps: int = 80  # of the lower level, changes of its active constraints included
    halvings: int = 40  # of a step of it
    violated: float = 1e-12  # violation, relative, from which on a constraint becomes active
    steps: int = 1000  # of the quasi-Newton method,
    wary_steps: int = 100  # and where there may be kinks: second derivatives then lead on
    arrived: float = 1e-3  # times rtol: a slope of Phi, relative, that ends it,
    near: float = 0.1  # and one that is good enough where it ends for other reasons
    patience: int = 20  # steps that together have to gain something:
    rounding: float = 1e-14  # of Phi, relative, where it is smooth,
    worth: float = 1e-6  # and where there may be kinks, between which steps become short
    farthest: float = 1e8  # times the size of x: beyond, Phi is taken to fall without end
    few: int = 10  # entries of x up to which a descent that a kink has ended looks for a lower Phi beyond it,
    looks: int = 3  # at most so often,
    distances: int = 8  # at so many distances, each half of the one before; the first is the size of x


@dataclasses.dataclass(frozen=True)
class Exact:
    """The exact lower level, and the descent on the pieces of Phi."""

    accurate: float = 1e-10  # KKT residual that an answer of the dense lower level needs,
    finest: float = 1e-14  # and from which on it cannot get better
    newton_steps: int = 60  # of the dense lower level
    cones: int = 30  # programs for a lower level with balls, where Newton's method fails
    cautious: float = 3.0  # distances to a border of g's domain shrink by at most exp(this) after a failure
    feasible: float = 1e-8  # violation that an exact point may have, relative
    biactive: float = 1e-7  # multipliers and slacks up to this, in their units, are zero
    torn: float = 1e-8  # slack and multiplier up to this, in their units, are not both there
    iterations: int = 100  # in a row that gain nothing
    far: float = 1e6  # times the size of the first value: an f that falls lower has no bound
    programs: int = 40  # at one point; a fifth of it once a step was found, if
    few_biactive: int = 12  # more constraints than these are biactive,
    sparse_programs: int = 4  # and no more than these if matrices are sparse
    crawl: int = 3  # steps in a row that gain next to nothing end a descent
    worth: float = 1e-5  # times rtol: a relative decrease that is more than next to nothing
    enough: float = 0.3  # of what all pieces that meet at a point promise: the step of one is tried at once
    good: float = 0.1  # share of the predicted decrease that a step is taken for at once,
    poor: float = 1e-3  # and that it needs to be taken at all,
    honest: float = 0.8  # and from which on the drag falls
    dense_resolution: float = 1e-14  # relative decrease of f that dense programs can tell,
    sparse_resolution: float = 1e-11  # and sparse ones
    least_radius: float = 1e-12  # of a dense trust region, relative to x
    first_drag: float = 1e-2  # proximal weight of sparse programs, on x and y,
    drag_on_multipliers: float = 1e-2  # and of that, on the multipliers
    least_drag: float = 1e-5
    most_drag: float = 1e3
    shifted: float = 1e-2  # how far, in natural units, an answer may move when the lift of g is taken away
    smallest_share: float = 1e-4  # of the larger part, that the smaller of x and y has in the drag


@dataclasses.dataclass(frozen=True)
class Restoration:
    """Bringing a point of a sparse problem back to its piece."""

    exact: float = 1e-9  # KKT residual that an exact point may have, relative
    finest: float = 1e-12  # and from which on it is not brought nearer
    steps: int = 10
    most_of_the_way: float = 0.8  # to a bound of y, for a step on whose way
    bent: float = 2.0  # the curvature of g changes by this factor
    rough: float = 1e-6  # the largest barrier, in natural units, from which active constraints can be read off
    inset: float = 1e-8  # of the typical slack: where the lower level needs an interior
    unbounded: float = 10.0  # times the multipliers at hand: others that large count as unbounded
    nearby: float = 1e-8  # how much the nearest of other multipliers is preferred


@dataclasses.dataclass(frozen=True)
class Relaxation:
    """The high-point relaxation."""

    steps: int = 60
    reach: float = 1e4  # times the point's own size: a step farther than that counts as unbounded
    trace: float = 1e-8  # of curvature, so that every step is bounded
    least_decrease: float = 1e-12  # of f, relative: less ends it
    attained: float = 1e-9  # how near Phi comes to the bound, relative, where it is attained
    few: int = 600  # variables up to which arrays are no loss even where they hold zeros
    most_entries: int = 1_000_000  # in sparse matrices: more are dearer than the whole search


@dataclasses.dataclass(frozen=True)
class Programs:
    """Quadratic programs and linear complementarity problems."""

    turns: int = 30  # rounds in which violated rows join a program
    proof: float = 1e-10  # KKT residual of a program solved by its rows
    finest: float = 1e-14  # and from which on it is not made smaller
    holds: float = 1e-7  # violation that the answer of a program may have, relative
    interior: float = 1e-11  # tolerance of interior points
    interior_steps: int = 60  # of the interior point on eliminated programs,
    near: float = 1e-6  # its residuals, relative, from which on active rows are taken for equations,
    near_gap: float = 1e-8  # and the mean of multiplier * slack,
    reach: float = 0.99  # and the share of the way to the boundary that its steps go
    most_for_qdldl: int = 30_000  # variables and rows of a sparse program up to which it factorises
    most_to_sharpen: int = 2500  # variables and active rows
    most_to_sharpen_on_balls: int = 1000
    sharpening: int = 8  # Newton steps on balls
    meetings: int = 6  # rounds in which rows become equations for the nearest point on rows
    met: float = 1e-9  # a row this close is an equation
    soft: float = 1e-11  # regularisation of that system, taken out by
    refinements: int = 10
    pivots: int = 40  # of the primal-dual active-set method
    zero: float = 1e-11  # values and multipliers of complementarity problems that count as zero, relative
    contradiction: float = 1e-8  # a gap that no multiplier closes, relative: the rows contradict each other
    box_rounds: int = 60  # of projected Newton steps in a box
    few_rows: int = 20  # that bind besides a box: their prices are found by Newton's method,
    prices: int = 30  # in so many steps
    smallest_box: int = 50  # variables of a step from which on such steps are tried before an interior point


SIZES = Sizes()
CENTRAL = Central()
ALGEBRA = Algebra()
SMOOTHING = Smoothing()
HYPERGRADIENT = Hypergradient()
EXACT = Exact()
RESTORATION = Restoration()
RELAXATION = Relaxation()
PROGRAMS = Programs()


@dataclasses.dataclass(frozen=True)
class UpperRowsSettings:
    """The rounds of the augmented Lagrangian for upper rows."""

    rounds: int = 40  # rounds in all
    first_price: float = 10.0  # the first price of a violation, in natural units of f and the rows
    high_price: float = 1e4  # the first price of a second attempt,
    highest_price: float = 1e12  # and where an attempt ends
    dearer: float = 10.0  # by what the price rises
    fall: float = 0.25  # a round leaves at most this part of what rows miss, or the price rises
    satisfied: float = 1e-8  # rows hold if they miss by at most this, relative to their values
    accuracy: float = 1e-2  # a round is solved to this part of what rows missed by before it,
    least_accuracy: float = 1e-3  # and to this at least
    far: float = 10.0  # a round with violations above this times 1 + that at the start was too cheap: it is repeated


UPPER_ROWS = UpperRowsSettings()


@dataclasses.dataclass(frozen=True)
class TangentSettings:
    """The steps from tangent problem to tangent problem, for rows that are not affine."""

    steps: int = 100  # in all
    first_radius: float = 1.0  # of the trust region, in natural units of x
    shrink: float = 0.25  # of the region after a step that failed
    grow: float = 2.0  # of the region after a good one
    good: float = 0.7  # share of the promise from which a step is good
    poor: float = 0.1  # share of the promise below which it failed
    least_radius: float = 1e-12
    memory: int = 6  # steps from which it is told where they lead
    worth: float = 1e-2  # promises up to this times rtol^2, relative to 1 + |f|, end the search
    same: float = 1e-13  # steps up to this are none, in natural units
    approaches: int = 5  # tangent problems solved on the way to an x at which the lower level has an answer
    newton_steps: int = 40  # of the lower level at one x
    first_multiplier: float = 1.0  # of every row: without any, a linear g on a ball has no minimiser on the tangents
    still: float = 1e-13  # what a Newton step may still change, relative,
    nearly: float = 1e-9  # and where it does not get any smaller


TANGENTS = TangentSettings()
