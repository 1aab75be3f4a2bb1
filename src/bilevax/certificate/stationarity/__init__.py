"""How far a point is from first-order stationary, on kinks and on the border of feasibility too."""

from bilevax.certificate.stationarity.measure import Stationarity, measure

__all__ = ["Stationarity", "measure"]
