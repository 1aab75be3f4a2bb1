"""Descent on Phi itself by its exact gradient, where Phi is smooth: no smoothing, no second derivatives in x."""
