"""``make demo``: the toy problem, solved and printed with its certificate."""

from bilevax.driver import solve
from bilevax.problems.toy import toy


def main() -> None:
    """Solve the toy problem with the default and print the answer."""
    print(solve(toy(), x0=0.7))


if __name__ == "__main__":
    main()
