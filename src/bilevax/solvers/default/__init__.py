"""The tuning-free default: one file an idea, `solver` puts them together."""

from bilevax.solvers.default.solver import Default, Snapshot

__all__ = ["Default", "Snapshot"]
