"""Phi smoothed without factorisations, by sweeps that only apply the problem's functions and operators."""
