"""Attack bilevax with hard problems and an independent judge.

Exit code 0 when no success was wrong and at most 3 % of the cases that have a solution were missed.
"""

import argparse
import os
import sys

# Before NumPy is loaded, and inherited by the workers: every worker is one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from attack.families import FAMILIES
from attack.report import complaints, passed, table
from attack.runner import Result, Task, plan, run, run_on
from bilevax._support.elsewhere import dask_executor


def main() -> int:
    """Run what the command line asks for and return the exit code."""
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many, spread evenly over the families")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", default="", help="names or beginnings of names, with commas; all when absent")
    parser.add_argument("--case", type=int, default=None, help="one case alone, by its number")
    parser.add_argument("--workers", type=int, default=2, help="processes; the results do not depend on them")
    parser.add_argument("--dask", metavar="ADDRESS", help="of a Dask scheduler whose workers run in this folder")
    parser.add_argument("--list", action="store_true", help="list the families")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{family.name:<20} {family.about.strip().splitlines()[0]}" for family in FAMILIES.values()))
        return 0
    names = _chosen(arguments.family)
    if not names:
        parser.error(f"--family: no family is called {arguments.family}; --list shows them")
    if arguments.case is None:
        tasks = plan(names, arguments.seed, arguments.cases)
    else:
        tasks = [Task(name, arguments.seed, (arguments.case,)) for name in names]
    results: list[Result] = []
    total = sum(len(task.indices) for task in tasks)
    executor = dask_executor(arguments.dask)
    for result in run(tasks, arguments.workers) if executor is None else run_on(executor, tasks):
        results.append(result)
        for line in complaints([result], arguments.seed):
            print(line, file=sys.stderr, flush=True)
        if sys.stderr.isatty() or len(results) % 50 == 0:
            wrong, missed = (sum(each.outcome == kind for each in results) for kind in ("wrong", "missed"))
            end = "\r" if sys.stderr.isatty() else "\n"
            print(f"{len(results)} of {total}, {wrong} wrong, {missed} missed ", end=end, file=sys.stderr, flush=True)
    order = {name: k for k, name in enumerate(FAMILIES)}
    results.sort(key=lambda result: (order[result.family], result.index))
    print("\n".join([table(results), *complaints(results, arguments.seed)]))
    return 0 if passed(results) else 1


def _chosen(text: str) -> list[str]:
    """Return the families that are named, or that begin with a name."""
    if not text:
        return list(FAMILIES)
    wanted = text.split(",")
    exact = [name for name in FAMILIES if name in wanted]
    loose = [word for word in wanted if word not in FAMILIES]
    return exact + [name for name in FAMILIES if name not in exact and any(name.startswith(word) for word in loose)]


if __name__ == "__main__":
    sys.exit(main())
