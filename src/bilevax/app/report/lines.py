"""A certificate line by line: what was measured, what success asks of it, and what it means."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevax._support.trees import summarise
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.tolerances import TOLERANCES

if TYPE_CHECKING:
    pass


class Check(NamedTuple):
    """A line of a certificate: what was measured, what it has to be, and whether it is.

    Attributes
    ----------
    name
        What was measured.
    value
        A number, a yes or no, or a text.
    limit
        What success asks of it, as text; empty where nothing.
    passed
        Whether it is so; None where success does not ask.
    meaning
        A sentence on what the number means.
    """

    name: str
    value: Any
    limit: str
    passed: bool | None
    meaning: str


def checks(certificate: Certificate, rtol: float = 1e-6) -> list[Check]:
    """Return a certificate line by line; all of those that are asked for hold exactly when it ``confirms(rtol)``."""
    return [
        Check(
            "Φ(x)",
            certificate.value,
            "finite",
            bool(np.isfinite(certificate.value)),
            "The upper objective at x and the exact lower-level answer: the value of this x, and of no other y.",
        ),
        *_of_lower_level(certificate),
        *_of_point(certificate, rtol),
        *_not_asked_for(certificate),
    ]


def _at_most(name: str, value: float, limit: float, meaning: str) -> Check:
    return Check(name, value, f"≤ {limit:.3g}", bool(value <= limit), meaning)


def _told(name: str, value: Any, meaning: str) -> Check:
    return Check(name, value, "", None, meaning)


def _of_lower_level(certificate: Certificate) -> list[Check]:
    return [
        Check(
            "lower level solved",
            "yes" if certificate.failure is None else certificate.failure.value,
            "yes",
            certificate.failure is None,
            "Whether an independent exact method found the lower level's minimiser at x.",
        ),
        Check(
            "lower level feasible",
            certificate.lower_feasible,
            "yes",
            certificate.lower_feasible,
            "Whether any y satisfies the rows at x.",
        ),
        _at_most(
            "lower-level infeasibility",
            certificate.lower_infeasibility,
            TOLERANCES.lower,
            "How far y violates the rows and Y, relative to their size."
            if certificate.lower_feasible
            else "The smallest uniform relaxation of the rows that would make the lower level feasible.",
        ),
        _at_most(
            "lower-level stationarity",
            certificate.lower_stationarity,
            TOLERANCES.lower,
            "The gradient of the lower level's Lagrangian in y at the minimiser of g, relative to its terms.",
        ),
        _at_most(
            "lower-level complementarity",
            certificate.lower_complementarity,
            TOLERANCES.lower,
            "How far rows that are not active are from having no multiplier.",
        ),
    ]


def _of_upper_rows(certificate: Certificate) -> list[Check]:
    if certificate.upper_multipliers is None:
        return []
    meaning = f"What the leader has to satisfy. Multipliers {summarise(certificate.upper_multipliers)}."
    return [_at_most("violation of the upper rows", certificate.upper_infeasibility, TOLERANCES.lower, meaning)]


def _of_point(certificate: Certificate, rtol: float) -> list[Check]:
    return [
        _at_most("distance of x from X", certificate.x_infeasibility, TOLERANCES.lower, "Relative to the size of x."),
        *_of_upper_rows(certificate),
        _at_most(
            "stationarity of x",
            certificate.stationarity,
            rtol,
            "The slope of Φ that is left, relative to its pieces', kinks and borders of feasibility included. "
            f"Test: {certificate.stationarity_test}.",
        ),
        _at_most(
            "radius of stationarity",
            certificate.radius,
            rtol,
            "How far x would have to move, in natural units, for that slope to hold; 0 where no margin was used.",
        ),
        _at_most(
            "error of the value",
            certificate.value_error,
            TOLERANCES.value * (certificate.value_unit + np.nan_to_num(abs(certificate.value), posinf=0.0)),
            "How far Φ(x) may be off, since y*(x) is known only so well.",
        ),
    ]


def _not_asked_for(certificate: Certificate) -> list[Check]:
    """Return what is good to know, whatever it is."""
    rows = [
        _told(
            "challenged",
            f"{certificate.challenges} points, " + ("none lower" if certificate.descent is None else "one lower"),
            "Points around x at which Φ was evaluated exactly; one that is lower refutes x.",
        ),
        _told("g convex in y", certificate.lower_convexity, "Proven by its composition, or tested at points."),
        _told(
            "y*(x) unique",
            "yes" if certificate.lower_unique else "not proven",
            "Whether y is known to be the lower level's only minimiser."
            if certificate.lower_unique
            else "Over the minimisers f lies in [{:.6g}, {:.6g}].".format(*certificate.value_range),
        ),
        _told(
            "hypergradient",
            "none here" if certificate.hypergradient is None else summarise(certificate.hypergradient),
            "The gradient of Φ at x; Φ has none at a kink or a border. It need not vanish at the edge of X.",
        ),
        _told(
            "active rows independent (LICQ)",
            certificate.licq,
            f"Smallest singular value {certificate.smallest_singular_value:.2g}.",
        ),
        _told(
            "strict complementarity",
            certificate.strict_complementarity,
            "Whether each active row presses: else Φ may have a kink here. "
            f"Margin {certificate.complementarity_margin:.2g}.",
        ),
    ]
    if certificate.penalty_gap is not None:
        meaning = f"Φ(x) minus its penalised form at delta {certificate.delta:g}."
        rows.append(_told("penalty gap", certificate.penalty_gap, meaning))
    if certificate.y_error is not None:
        meaning = "Largest distance of the given y from the exact one."
        rows.append(_told("error of the given y", certificate.y_error, meaning))
    return rows


def short(value: Any, digits: int = 3) -> str:
    """Return a measured value as a short text."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value + 0.0:.{digits}g}"  # + 0.0: no minus before a zero
    return str(value)
