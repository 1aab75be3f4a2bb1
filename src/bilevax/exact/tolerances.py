"""The thresholds that decide what is said of the lower level and of Phi at a point."""

import dataclasses

from bilevax.convex.tolerances import ConvexTolerances


@dataclasses.dataclass(frozen=True)
class ExactTolerances(ConvexTolerances):
    """Thresholds of Phi(x), besides those of the convex program that is the lower level.

    Lengths, multipliers and values are in natural units (see `bilevax.model.scales`).

    Attributes
    ----------
    lower
        The lower level's KKT residuals, and the distance of x from X, are at most this.
    value
        The error of Phi(x) is at most this, relative to f's natural unit plus abs(Phi(x)).
    x_margin
        A side of X counts as active within this, relative.
    piece_zero
        A multiplier up to this, relative to 1 plus the largest, counts as zero on a piece of Phi.
    row_equality
        An active row is an equality if its sides differ by at most this, relative.
    row_digits
        Active rows of unit length are the same row if their entries agree to this many decimals.
    dependent_row
        An equality follows from others if its pivot, in a QR factorisation of rows of unit length, is at most this.
    kkt_residual
        The solution of a KKT system counts if it satisfies the system to this, relative.
    kkt_rounding
        The same by a factor of the Hessian alone, or pivots are chosen in the whole system.
    tilts
        How much the lower level is tilted, to bracket its minimisers: the next where the last bracket is wide.
    tilt_residual
        The tilted lower level is solved to this part of its tilt.
    closed_bracket
        There is one minimiser if its bracket is at most this wide.
    closing_bracket
        There is also one if the bracket shrinks to at most this part of its width from one tilt to the next.
    known_value
        No smaller tilt is needed where f is known to this part of ``value``.
    line_curvature, line_change
        g is constant along a direction if its Hessians have at most this curvature there, relative to the largest, and
        if it changes by at most this far out, relative.
    penalty
        The weight of f in ``g + weight f``, whose minimiser is next to the leader's choice among those of g.
    flat_error
        What is left of the error of that f, in parts of its last change, where it falls as slowly as the ninth root of
        the weight.
    face_multiplier
        A row holds on the face of all minimisers of a quadratic g if its multiplier is above this, relative.
    response_residual
        An answer that is extrapolated from a neighbouring x counts if it satisfies the optimality conditions to this.
    spread_margin
        A row counts as active within this, relative, where the minimisers of a large lower level are searched.
    spread_direction
        There is one minimiser if a random vector, projected onto the directions along which g stays constant, has no
        entry above this.
    spread_value
        f is the same at all minimisers if it moves by at most this along that direction, relative.
    curved
        g is curved along an entry of y if its second derivative is above this, relative to 1 plus the largest.
    spread_step
        How far the direction is followed, relative to the size of y.
    """

    lower: float = 1e-7
    value: float = 1e-6
    x_margin: float = 1e-7
    piece_zero: float = 1e-6
    row_equality: float = 1e-12
    row_digits: int = 10
    dependent_row: float = 1e-9
    kkt_residual: float = 1e-8
    kkt_rounding: float = 1e-12
    tilts: tuple[float, ...] = (1e-6, 1e-8, 1e-10)
    tilt_residual: float = 1e-2
    closed_bracket: float = 1e-6
    closing_bracket: float = 0.1
    known_value: float = 0.1
    line_curvature: float = 1e-12
    line_change: float = 1e-11
    penalty: float = 1e-8
    flat_error: float = 4.0
    face_multiplier: float = 1e-9
    response_residual: float = 1e-10
    spread_margin: float = 1e-7
    spread_direction: float = 1e-8
    spread_value: float = 1e-9
    curved: float = 1e-7
    spread_step: float = 0.1


EXACT_TOLERANCES = ExactTolerances()
