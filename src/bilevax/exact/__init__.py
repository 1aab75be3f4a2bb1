"""y*(x) and Phi(x), exactly: what certificates, plots and comparisons stand on."""
