"""Runs cases, here or in processes: the same results, whatever their number."""

import concurrent.futures
import dataclasses
import multiprocessing
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from attack.families import FAMILIES
from attack.judge import judge
from attack.model import Abstain, Expect

TIME_LIMIT = 20.0  # of a solve
HARD_LIMIT = 90  # of a case, compilation, certificates and judge included


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one case: right, refused, wrong, missed, error or unjudged."""

    family: str
    index: int
    outcome: str
    success: bool
    solvable: bool
    seconds: float
    words: str = ""


class Task(NamedTuple):
    """Cases of one family that are run one after another, sharing what was compiled."""

    family: str
    seed: int
    indices: tuple[int, ...]


def run_case(family: str, seed: int, index: int) -> Result:
    """Draw a case, ask bilevax, and let the judge decide."""
    from attack.subject import ask

    began = time.process_time()
    case = FAMILIES[family].draw(seed, index)
    solvable = case.expect is Expect.SOLUTION

    def result(outcome: str, success: bool, words: str) -> Result:
        note = f"[{case.note}] " if case.note else ""
        return Result(family, index, outcome, success, solvable, time.process_time() - began, note + words)

    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(HARD_LIMIT)
    try:
        answer = ask(case, TIME_LIMIT)
        if not answer.claims:
            return result("missed" if solvable else "refused", False, answer.status)
        if case.expect is Expect.REFUSAL:
            return result("wrong", True, f"success with value {answer.claims[0].value:.9g}, but there is no answer")
        for claim in answer.claims:
            verdict = judge(case.problem, claim)
            if not verdict.right:
                return result("wrong", True, verdict.reason)
        if answer.contradiction:
            return result("wrong", True, answer.contradiction)
        return result("right", True, "")
    except Abstain as reason:
        return result("unjudged", True, str(reason))
    except Exception as error:
        refusal = isinstance(error, ValueError) and not solvable
        return result("refused" if refusal else "error", False, f"{type(error).__name__}: {str(error)[:300]}")
    finally:
        signal.alarm(0)


def run_task(task: Task) -> list[Result]:
    """Run the cases of a task."""
    return [run_case(task.family, task.seed, index) for index in task.indices]


def plan(families: list[str], seed: int, total: int) -> list[Task]:
    """Spread ``total`` cases evenly over the families."""
    share, rest = divmod(total, len(families))
    counts = [share + (k < rest) for k in range(len(families))]
    return [Task(name, seed, tuple(range(count))) for name, count in zip(families, counts, strict=True) if count]


def run(tasks: list[Task], workers: int) -> Iterator[list[Result]]:
    """Yield the results of each task as it finishes."""
    if workers == 1 or len(tasks) == 1:
        yield from map(run_task, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = [pool.submit(run_task, task) for task in tasks]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"no answer within {HARD_LIMIT} s")
