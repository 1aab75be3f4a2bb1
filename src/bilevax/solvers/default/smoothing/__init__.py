"""Phi smoothed: the stages of less and less smoothing, the central path, and how a stage is minimised."""
