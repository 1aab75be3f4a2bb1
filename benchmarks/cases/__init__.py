"""The benchmark's problems, each with the same step three times: bilevax, plain NumPy and a C kernel."""
