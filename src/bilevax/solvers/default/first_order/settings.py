"""The numbers that steer the first-order oracle: its smoothing, its step sizes, its sweeps and when they end."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FirstOrderSettings:
    """How the first-order oracle works; sizes are relative unless stated otherwise."""

    # Smoothing: the first delta moves y by this part of its size, which counts as at least this times sqrt(its length).
    first_move: float = 1e-2
    least_size: float = 0.1
    # Softness of the rows and distance of the two answers in the first stage, and what is left of them in the next one.
    first_softness: float = 1e-3
    first_spread: float = 0.1
    stage_factor: float = 0.1
    # delta is changed if the distance of the two answers is off by more than this factor,
    refit_factor: float = 5.0
    # by this factor at most, or at the start this one, and never increased by more than the last.
    refit_change: float = 10.0
    refit_change_first: float = 1e3
    refit_growth: float = 100.0
    # At the start delta is changed so often at most.
    first_refits: int = 8
    # Limits of the change of delta from one stage to the next.
    stage_change: tuple[float, float] = (1e-2, 3.0)
    # Sizes per sqrt(length) of y, and of all multipliers, that count at least in the distance of the two answers.
    spread_least_y: float = 1e-3
    spread_least_multipliers: float = 1e-6
    # Multipliers up to this do not count in it at all.
    spread_no_multipliers: float = 1e-9
    # The price of infeasibility: this quantile of the rows' marginal values, times this.
    price_quantile: float = 0.75
    price_factor: float = 2.0
    # What is added to the bound on Phi near a point, relative to 1 + the bound.
    promise_margin: float = 1e-3

    # Exact descent is tried from points of the smooth descent where it is possible. Once so many in a row have come to
    # the same value, to this accuracy, and the projected gradient has fallen to this part, that is the answer.
    agreement: int = 2
    agreement_accuracy: float = 1e-6
    agreement_fall: float = 0.3
    # Exact descents may take so many steps for each step of the smooth descent,
    exact_steps: float = 2.0
    # and end where they come so near to the x of an earlier answer.
    joining: float = 1e-2

    # Step sizes: variables up to which A and g's Hessian are measured exactly, and random signs for more of them.
    probes: int = 64
    # Rows of A shorter than this, relative to the longest, are zero.
    zero_row: float = 1e-12
    # Rows of g's Hessian count as at least this part of the longest, which counts as at least this.
    flat_row: float = 1e-8
    flat_hessian: float = 1e-4
    # The least curvature of g, in the metric of the steps.
    least_curvature: float = 1e-12
    # Steps that turn out too long become this part of what the curvature allows.
    shortening: float = 0.7
    # After so many sweeps the steps of y and of the multipliers are balanced anew, if that changes them by more than
    # this, in logarithms.
    rebalance_at: tuple[int, ...] = (20, 60, 150, 400)
    rebalance_change: float = 0.7
    # The least size of a vector or of a distance that is divided by.
    least_divisor: float = 1e-12
    # Power iterations end at this accuracy or after so many steps: for A, for g's Hessian. Norms get this margin.
    power_accuracy_rows: float = 1e-4
    power_steps_rows: int = 60
    power_accuracy_hessian: float = 1e-3
    power_steps_hessian: int = 30
    power_margin: float = 1.02

    # Accuracy: the error of the hypergradient, as a part of its size, in an ordinary and in a refined evaluation.
    error_share: float = 0.1
    refined_share: float = 0.01
    # By how much the error may exceed that in the final test, against rounding.
    error_rounding: float = 1.001
    # The hypergradient counts as at least this part of its largest size so far, or of 1,
    least_gradient: float = 1e-6
    # and as at most this many times its last known size.
    gradient_growth: float = 3.0
    # Sweeps after which its largest size is no longer updated.
    gradient_scale_sweeps: int = 400

    # Sweeps of one evaluation, and how many times more when a stage begins.
    max_sweeps: int = 1500
    stage_patience: int = 4
    # Under a time limit, seconds and sweeps (the larger counts) between two looks at the clock.
    look_seconds: float = 0.3
    look_sweeps: int = 50
    # Sweeps before an answer counts as accurate, and accurate sweeps in a row.
    fewest_sweeps: int = 4
    accurate_sweeps: int = 2
    # Sweeps in a row after which a hypergradient that is not finite is given up: y may pass where f has no number.
    blind_sweeps: int = 5
    # The largest ratio of error to residual is forgotten by this factor in a sweep, and grows by this one at most.
    ratio_decay: float = 0.97
    ratio_growth: float = 1e3
    # The residuals of the two lower levels may differ by this part of the difference of their answers.
    largest_noise: float = 3e-2
    # The curvature seen on the way may be this many times the one that the step sizes allow for,
    largest_bend: float = 1.2
    # unless y moved by less than this: then it is rounding.
    least_move: float = 1e-8

    # Anderson acceleration: sweeps in its memory, fewer in large problems, where reading it costs more than a sweep.
    memory: int = 20
    memory_large: int = 10
    # Variables and rows from which a problem is large for that.
    large: int = 20_000
    # An extrapolation is taken back if it makes the residual grow by more than this factor.
    extrapolation_growth: float = 2.0
    # What is added to the diagonal of its normalised Gram matrix.
    gram_regularisation: float = 1e-10


FIRST_ORDER = FirstOrderSettings()
