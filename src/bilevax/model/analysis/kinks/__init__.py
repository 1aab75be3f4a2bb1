"""Kinks: operations with branches, and what the branches do to the function.

An operation such as ``abs`` or ``max`` is only a candidate: ``abs(y) ** 2`` and ``logaddexp`` are smooth. So the
function is followed along lines until the candidate takes another branch, the crossing is found by bisection, and
value, slope and curvature of the whole function are compared on its two sides, ever closer to it.
"""

from bilevax.model.analysis.kinks.finding import Kink, find_kinks, irrelevant_stops, stopped
from bilevax.model.analysis.kinks.region import Region

__all__ = ["Kink", "Region", "find_kinks", "irrelevant_stops", "stopped"]
