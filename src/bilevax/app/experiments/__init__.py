"""The figures of the SFLCB paper, reproduced and evaluated exactly: ``python -m bilevax.app.experiments``.

One file a figure. Each runs the paper's method with its published settings beside the default solver, and judges the
points of both by solving the lower level at them: what an iteration says of itself is shown, but never trusted.
"""
