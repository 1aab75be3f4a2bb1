"""Global lower bounds: what no x can do better than, by branching on the lower level's complementarity."""
