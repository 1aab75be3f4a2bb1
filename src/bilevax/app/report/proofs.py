"""A proof on a page: its lines, and the picture of its bounds closing."""

from typing import TYPE_CHECKING

import numpy as np

from bilevax.app import plot
from bilevax.driver.proof import Proof

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def bounds_closing(proof: Proof) -> tuple[str, "Figure"]:
    """Return the picture of both bounds against the nodes of the search, and its caption."""
    import plotly.graph_objects as go

    figure = go.Figure(layout={"template": "none", "xaxis_title": "nodes", "yaxis_title": "Φ"})
    lines = (("lower_bound", "lower bound", plot.BLUE), ("upper_bound", "best value", plot.ORANGE))
    for key, name, colour in lines:
        bound = proof.history[key]
        known = np.isfinite(bound)
        line = {"color": colour, "shape": "hv"}
        figure.add_scatter(x=proof.history["nodes"][known], y=bound[known], mode="lines", name=name, line=line)
    return "The global bounds closing: no x has a value below the lower one", figure
