"""``make demo``: the toy problem, solved and printed with its certificate."""

from bilevax.driver import solve
from bilevax.problems.toy import toy
from bilevax.solvers.sflcb import SFLCB


def main() -> None:
    """Solve the toy problem with the paper's method and print the answer."""
    print(solve(toy(), x0=0.7, solver=SFLCB(delta=0.1)))


if __name__ == "__main__":
    main()
