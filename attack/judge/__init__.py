"""The independent judge: exact lower levels, exact Phi, and a verdict. NumPy and SciPy only."""

from attack.judge.verdict import Verdict, judge

__all__ = ["Verdict", "judge"]
