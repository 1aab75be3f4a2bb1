"""How far a point is from first-order stationary, on kinks and on the border of feasibility too."""

from bilevax.stationarity.measure import Stationarity, measure, value_spread

__all__ = ["Stationarity", "measure", "value_spread"]
