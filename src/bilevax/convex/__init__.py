"""Exact convex programs: minimise, its active set and its optimality conditions. Knows no bilevel problem."""
