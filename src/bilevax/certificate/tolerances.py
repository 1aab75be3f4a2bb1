"""``TOLERANCES``: all thresholds that decide what a certificate says, in one record.

The record has three parts, each defined where it is used, and each an extension of the one before:
`bilevax.convex.tolerances.ConvexTolerances` for a convex program, `bilevax.exact.tolerances.ExactTolerances` for the
lower level and Phi at a point, and `Tolerances` for the certificate. Numbers that only limit the work (how many
branches, how many points) are in the packages' ``settings``. All lengths, slopes and multipliers are in natural units
(see `bilevax.model.scales`), in which 1 is the size of an ordinary term.
"""

import dataclasses

from bilevax.exact.tolerances import ExactTolerances


@dataclasses.dataclass(frozen=True)
class Tolerances(ExactTolerances):
    """The thresholds of a certificate; ``rtol``, for slope and radius, is the user's.

    Attributes
    ----------
    margins
        A row counts as active, and a multiplier as zero, within these relative margins. They are tried in turn, since a
        point found to seven digits lies 1e-7 beside its kink; ``radius`` says how far x would have to move for what a
        margin assumes to hold exactly.
    wide_margin
        Margins from here on also apply to the sides of X, in place of ``x_margin``.
    settled
        With a slope and a radius up to this, no wider margin and no further branch is tried.
    exactly_zero
        Slacks and multipliers up to this are rounding: their radius is 0.
    misfit_weight
        A violated condition counts this many times its size, in the strong test and in the radius, where the
        conditions contradict each other.
    independent
        Active rows are independent (LICQ) if their smallest singular value is above this.
    unique_multiplier
        A row's multiplier is unique if its entry in a random vector of the null space of the rows' transpose is at
        most this.
    same_multipliers
        Multiplier vectors are the same along a direction d of x if their ``lambda' b d`` differ by at most this,
        relative.
    consistent_rows
        y can follow x with all active rows kept active if it satisfies their equations to this, relative.
    positive_multiplier
        A multiplier above this, relative to the largest, is positive.
    complementary
        A row gets slack and a multiplier at once, in a direction of x, if both are above this, relative.
    clearly_independent, clearly_dependent
        Rows are clearly independent if their smallest singular value is above the one, and clearly dependent if it is
        at most the other. Where it is in between, multiplier vectors are looked at by linear programs.
    least_norm_residual
        The answer of a least-norm program is used if it satisfies its conditions to this, relative.
    least_norm_rounding
        That of a sparse linear system instead is used if it does to this.
    piece_rows
        Rows can be active together on a piece of Phi if their smallest singular value is at least this.
    piece_normal
        A row bounds a piece's cone of directions if its normal there is longer than this.
    piece_interior
        A piece exists if some direction into it, with entries up to 1, is further than this from all sides of its cone.
    piece_multiplier
        In sampling pieces, a multiplier above this, relative to 1 plus the largest, makes its row active.
    same_gradient
        Gradients of pieces are one gradient if they differ by at most this, relative.
    steepest_distances
        How far from x Phi is evaluated along the steepest directions of its pieces.
    coordinate_distances
        The same along coordinates, with up to three of them.
    coordinate_distance
        The same along coordinates, with more than three.
    random_distances
        The same along random directions.
    other_point
        A trial point this close to x, after projection onto X, is x itself.
    no_slope
        A slope of Phi up to this, relative to those of its pieces, does not refute x,
    slope_factor
        nor does one up to this many times the stationarity, as far as that is at most ``no_slope`` itself.
    tangent_rank
        Equality rows are independent, in testing convexity along them, if their singular values are above this,
        relative to the largest.
    value_rounding
        A decrease of Phi up to this, relative to 1 + abs(Phi(x)), is rounding.
    on_x_set
        Violations of X up to this are rounding, in trial points.
    ray_distances
        Where a Phi that falls without bound has to fall, along a ray.
    on_ray
        A point of the ray lies in X if it does to this, relative to its distance.
    ray_fall
        Each fall along the ray is at least this part of the one before.
    """

    margins: tuple[float, ...] = (1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
    wide_margin: float = 1e-4
    settled: float = 1e-8
    exactly_zero: float = 1e-13
    misfit_weight: float = 1e3
    independent: float = 1e-9
    unique_multiplier: float = 1e-7
    same_multipliers: float = 1e-7
    consistent_rows: float = 1e-9
    positive_multiplier: float = 1e-9
    complementary: float = 1e-7
    clearly_independent: float = 1e-5
    clearly_dependent: float = 1e-11
    least_norm_residual: float = 1e-7
    least_norm_rounding: float = 1e-11
    piece_rows: float = 1e-9
    piece_normal: float = 1e-10
    piece_interior: float = 1e-9
    piece_multiplier: float = 1e-10
    same_gradient: float = 1e-9
    steepest_distances: tuple[float, ...] = (1e-6, 1e-4, 1e-2)
    coordinate_distances: tuple[float, ...] = (1e-4, 1e-2)
    coordinate_distance: float = 1e-3
    random_distances: tuple[float, ...] = (1e-5, 1e-2)
    other_point: float = 1e-9
    no_slope: float = 1e-5
    slope_factor: float = 10.0
    tangent_rank: float = 1e-12
    value_rounding: float = 1e-9
    on_x_set: float = 1e-13
    ray_distances: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
    on_ray: float = 1e-9
    ray_fall: float = 0.5


TOLERANCES = Tolerances()
