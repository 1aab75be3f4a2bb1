"""The numbers that limit the work of an exact evaluation. What decides about its answer is in `tolerances`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExactSettings:
    """How the exact lower level and its derivatives are computed."""

    # Entries up to which a matrix of active rows is an array, zeros included, and up to which it is if most are zeros.
    dense_entries: int = 4_000_000
    few_entries: int = 250_000
    # Work (rows squared times columns) up to which dependent equalities are looked for.
    dependence_work: int = 1_000_000_000
    # Variables and rows up to which KKT systems are arrays; larger ones are if this share of the Hessian is nonzero.
    dense_kkt: int = 1500
    dense_share: float = 0.1
    # The cut-off of least squares for singular dense KKT systems.
    kkt_cutoff: float = 1e-12
    # What is added to the diagonal of sparse KKT systems, relative to the Hessian, and how refinement takes it out.
    kkt_regularisation: float = 1e-9
    max_refinements: int = 20
    # The cut-off of least squares on active rows; on large sparse ones what is added to the diagonal, and the rounds of
    # solves that take it out.
    rows_cutoff: float = 1e-10
    rows_regularisation: float = 1e-12
    rows_rounds: int = 3
    # The accuracy of an iterative least squares.
    rows_accuracy: float = 1e-13
    # The smallest singular value of large rows: what is added to the diagonal, and the rounds of inverse iteration.
    singular_regularisation: float = 1e-14
    singular_rounds: int = 3
    # Variables beyond which minimisers are not bracketed: the Hessian at y tells whether there are others.
    most_bracketed: int = 2000
    # Variables up to which they are in any case; between the two, unless the curvature of g alone tells what f is.
    few_bracketed: int = 500
    # Variables beyond which corners of the set of minimisers are not looked for, and random directions to do so in.
    most_corners: int = 5000
    corner_directions: int = 4
    # Points around y whose Hessians tell along which lines g may be constant, and how far out its values are compared,
    # against the size of y.
    line_points: int = 4
    line_distances: tuple[float, ...] = (1.0, 30.0, 1000.0)
    # Variables and rows up to which the lower level's responses are worth their dense matrices.
    dense_response: int = 300
    # Entries of all rows up to which they are where the Hessian is full anyway.
    full_response: int = 60_000_000
    # How many such responses, for different active rows, are kept around a point, and how often active rows are changed
    # on the way to one.
    most_pieces: int = 8
    most_changes: int = 8
    # Where g is no quadratic, Newton's method runs on all points around x at once, by a program compiled for it: up to
    # so many entries of y, and from so many of x on, since the program of a small problem would take longer than it
    # saves. Its steps, and the length, relative, of one that needs none after it.
    joint_most_y: int = 300
    joint_fewest_x: int = 50
    joint_steps: int = 6
    joint_last_step: float = 1e-9


EXACT_SETTINGS = ExactSettings()


@dataclasses.dataclass(frozen=True)
class CurvedSettings:
    """Newton's method for lower levels with rows that are not affine."""

    steps: int = 60
    halvings: int = 12  # of a step that makes the merit worse
    first_multiplier: float = 1.0  # of every row: without any, a linear g on a ball has no minimiser on the tangents
    accuracy: float = 1e-11  # what a step may still change, relative
    accurate: float = 1e-8  # above which the rows may contradict each other
    too_large: float = 1e9  # a multiplier: the rows contradict each other, or only just do not
    cuts: int = 60  # rounds of tangents that may show a contradiction
    rounding: float = 1e-14  # of the merit


CURVED = CurvedSettings()
