"""The default solver against pympcc with IPOPT and against SFLCB: answers, certificates and times, in one run.

python benchmarks/default.py latency|public|smooth|dense|svm|random|sweeps|networks|sizes|parallel [--json] [--turns N]

Every table ends with the targets beside what was measured.
"""

import argparse
import importlib
import os

# Before NumPy is loaded: idle threads of its BLAS spin, and would disturb whoever takes the next turn.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax

from comparisons.mpcc import MODES
from comparisons.report import CLOCKS, choose_clock

_COMMANDS = ("latency", "public", "smooth", "dense", "svm", "random", "sweeps", "networks", "sizes", "parallel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {name: importlib.import_module(f"comparisons.{name}") for name in _COMMANDS}
    for name, module in modules.items():
        command = commands.add_parser(name, help=module.__doc__, description=module.__doc__)
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
        command.add_argument("--turns", type=int, default=1, help="how often each is timed; the fastest counts")
        command.add_argument("--pympcc", choices=MODES, default="compiled", help="how pympcc is run; see the README")
        command.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: on a machine that others keep busy")
        module.add_arguments(command)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    choose_clock(arguments.clock)
    modules[arguments.command].run(arguments).finish()


if __name__ == "__main__":
    main()
