"""Running a solver: `solve`, compiled runs, several starts, comparisons, checkpoints."""
