"""The numbers that limit the work of a certificate. What decides about its verdict is in `tolerances`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CertificateSettings:
    """How a certificate is put together."""

    # Lower-level variables, or rows, beyond which a start for y is used at once. With fewer it is used only where the
    # solve fails without it, so that the same is proven whatever the start,
    start_counts: int = 2000
    # or, beyond these, where the minimiser is the only one.
    start_helps: int = 500


@dataclasses.dataclass(frozen=True)
class ChallengeSettings:
    """At how many points around x, and in which directions, Phi is evaluated in search of a smaller value."""

    # Entries of x that are moved one by one, chosen at random where there are more.
    coordinates: int = 8
    # Entries of x up to which each is moved to several distances.
    few_coordinates: int = 3
    # Random directions.
    random_directions: int = 3
    # Pieces of Phi whose steepest descent is followed.
    pieces: int = 4
    # The weight of the equation that weights add up to 1, in the least squares for the shortest convex combination.
    sum_weight: float = 1e3
    # Points are evaluated up to this much work, counted in variables and rows, but at least so many.
    work: int = 40_000
    fewest_points: int = 4
    # Entries up to which the rows of X are an array.
    dense_entries: int = 100_000
    # Rounds of adding violated rows, in a projection onto X.
    projection_rounds: int = 3


@dataclasses.dataclass(frozen=True)
class StationaritySettings:
    """How the tests of stationarity are computed."""

    # Variables of the lower level beyond which each test takes seconds: fewer margins and directions are tried.
    many_variables: int = 2000
    # Active rows from which on the strong test is first tried with w = 0, how often its rows are changed, how often its
    # systems are refined, and the iterations for its radius.
    many_rows: int = 200
    radius_iterations: int = 100
    relaxed_rounds: int = 20
    refinements: int = 4
    # Weakly active rows up to which the pieces are listed even where the strong test has answered.
    few_weak_rows: int = 6
    # Programs of the strong test, one for each branch, and the work for all of them, in unknowns and nonzeros.
    branches: int = 100
    branch_work: int = 200_000
    # Pieces that are listed; of more a sample is taken, by so many random directions.
    pieces: int = 1024
    samples: int = 256
    # Rows that are active on some pieces only, up to which pieces are listed or sampled.
    optional_rows: int = 100
    # What is added to the diagonal of the compliance matrix in sampling pieces, relative to its mean.
    sample_regularisation: float = 1e-12
    # Entries of x along which multiplier vectors differ, up to which each is tried as a direction.
    multiplier_directions: int = 40
    # Sets of rows up to which all vertices of the multiplier vectors are looked for.
    vertices: int = 500
    # Random directions that are tried besides, with few and with many variables.
    random_directions: int = 64
    random_directions_many: int = 8
    # What is added to the diagonal of a sparse least-norm system; the first with which it has a factor counts, and
    # refinement takes it out again.
    regularisations: tuple[float, ...] = (1e-8, 1e-7, 1e-6)
    # Accuracy and iterations of Clarabel in least-norm programs.
    conic_accuracy: float = 1e-11
    conic_iterations: int = 200


@dataclasses.dataclass(frozen=True)
class ConvexityTestSettings:
    """Where the convexity of g is tested, if it is not proven."""

    # Natural units around y within which an unbounded feasible set is looked at.
    reach: float = 10.0
    # Random directions in which, both ways, corners of the feasible set are looked for.
    directions: int = 4
    # Variables up to which corners are found by linear programs.
    most_variables: int = 500
    # Points between the corners, for each of them.
    points_between: int = 4
    # Rows of a convex coupling up to which they are looked at one by one, and sums of them beyond.
    rows: int = 12


CERTIFICATE = CertificateSettings()
CHALLENGE = ChallengeSettings()
STATIONARITY = StationaritySettings()
CONVEXITY_TEST = ConvexityTestSettings()
