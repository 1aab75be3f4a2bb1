"""The tuning-free default."""
