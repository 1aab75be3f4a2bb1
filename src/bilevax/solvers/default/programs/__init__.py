"""Convex programs that the search solves on its way, and the sets of x and (x, y) they are about."""
