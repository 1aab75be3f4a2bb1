"""Small tools that know nothing of optimisation."""
