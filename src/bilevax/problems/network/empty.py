"""The certificate of building nothing: there is nothing to travel on, and nothing to be stationary in."""

import numpy as np

from bilevax.certificate.certificate import Certificate
from bilevax.problems.network.restriction import Restriction


def certificate_of_nothing(part: Restriction) -> Certificate:
    """Return the certificate of a design without links: nobody travels, and the utility is 0."""
    assert len(part.links) == 0
    nothing = np.zeros(0)
    return Certificate(
        value=0.0,
        y={"flow": nothing, "share": nothing},
        multipliers=(nothing, nothing),
        lower_feasible=True,
        lower_stationarity=0.0,
        lower_infeasibility=0.0,
        lower_complementarity=0.0,
        lower_unique=True,
        value_range=(0.0, 0.0),
        value_error=0.0,
        value_unit=1.0,
        x_infeasibility=0.0,
        upper_infeasibility=0.0,
        upper_multipliers=None,
        hypergradient=nothing,
        stationarity=0.0,
        stationarity_test="smooth",
        radius=0.0,
        descent=None,
        challenges=0,
        licq=True,
        smallest_singular_value=np.inf,
        strict_complementarity=True,
        complementarity_margin=np.inf,
        penalty_gap=None,
        delta=None,
        y_error=None,
        lower_convexity="proven",
        failure=None,
    )
