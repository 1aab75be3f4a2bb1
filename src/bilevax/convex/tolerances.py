"""The thresholds that decide what is said of an exact convex program."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvexTolerances:
    """Thresholds that decide the outcome of a convex program, and whether its minimiser is unique.

    Attributes
    ----------
    optimality
        A point is a minimiser if the residuals of the optimality conditions are at most this.
    cancelled
        Which part of the terms of a gradient that cancel counts for its size. Times ``optimality`` it is rounding.
    feasibility
        A program is infeasible if its smallest relaxation is larger, relative to 1 plus the largest bound.
    gross_violation
        It is also infeasible if the relaxed point violates a row by this many times ``feasibility``, relative to the
        row's own size.
    equality_width
        A row whose two sides are this close, relative, is an equality.
    negative_curvature
        An objective is not convex if its Hessian, scaled to a unit diagonal, has an eigenvalue below minus this.
    unique_curvature
        A minimiser is unique if the Hessian, scaled, has no eigenvalue below this along the strongly active rows.
    strong_multiplier
        In that test a row is strongly active if its multiplier is above this, relative to the gradient.
    unique_rank
        In that test rows are independent if the pivots of their QR factorisation are above this.
    unbounded_entry
        Entries of the way that the iteration has come, up to this part of the largest, do not belong to a ray along
        which the objective may fall for ever.
    unbounded_row
        A row does not end a ray along which it grows by at most this.
    unbounded_distances
        Where the objective must still fall along such a ray, in lengths of the way.
    unbounded_curvature
        Second derivatives up to this, relative to the gradient and the size of y, do not end a ray.
    unbounded_slope
        A ray found by a linear program descends if its slope is steeper than this, relative to the gradient.
    unbounded_rounding
        Entries of such a ray up to this are zero.
    unbounded_lengths
        Where the objective must have fallen along such a ray.
    unbounded_fall
        By how much: this part of what the slope at its beginning predicts.
    """

    optimality: float = 1e-9
    cancelled: float = 1e-6
    feasibility: float = 1e-8
    gross_violation: float = 100.0
    equality_width: float = 1e-13
    negative_curvature: float = 1e-9
    unique_curvature: float = 1e-9
    strong_multiplier: float = 1e-8
    unique_rank: float = 1e-10
    unbounded_entry: float = 1e-3
    unbounded_row: float = 1e-9
    unbounded_distances: tuple[float, ...] = (1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
    unbounded_curvature: float = 1e-9
    unbounded_slope: float = 1e-8
    unbounded_rounding: float = 1e-9
    unbounded_lengths: tuple[float, ...] = tuple(10.0**power for power in range(14))
    unbounded_fall: float = 0.5


CONVEX_TOLERANCES = ConvexTolerances()
