"""The paper's theory: its reformulation, and the step sizes and start points of its theorems."""
