"""Runs cases, here or in processes: the same results, whatever their number."""

import concurrent.futures
import dataclasses
import multiprocessing
import queue
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from attack.families import FAMILIES
from attack.judge import judge
from attack.judge.global_optimum import complaint
from attack.model import Abstain, Claim, Expect
from bilevax._support.elsewhere import as_they_come

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
    from attack.subject import ask, prove

    began = time.process_time()
    case = FAMILIES[family].draw(seed, index)
    solvable = case.expect is Expect.SOLUTION

    def result(outcome: str, success: bool, words: str) -> Result:
        note = f"[{case.note}] " if case.note else ""
        return Result(family, index, outcome, success, solvable, time.process_time() - began, note + words)

    try:
        if case.optimum is not None:
            bounds = prove(case, TIME_LIMIT)
            if words := complaint(case.optimum, bounds.lower, bounds.upper, bounds.proven):
                return result("wrong", True, words)
            return result("right" if bounds.proven or not solvable else "missed", bounds.proven, bounds.status)
        answer = ask(case, TIME_LIMIT)
        if not answer.claims:
            return result("missed" if solvable else "refused", False, answer.status)
        if case.expect is Expect.REFUSAL:
            return result("wrong", True, f"success with value {answer.claims[0].value:.9g}, but there is no answer")
        for claim in _distinct(answer.claims):
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


def _distinct(claims: list[Claim]) -> list[Claim]:
    """Return the claims without repetitions: solve and certify usually say the same."""
    same = lambda a, b: all(np.allclose(p, q, rtol=1e-9, atol=1e-12) for p, q in zip(a, b, strict=True))
    return [claim for k, claim in enumerate(claims) if not any(same(claim, before) for before in claims[:k])]


def plan(families: list[str], seed: int, total: int) -> list[Task]:
    """Spread ``total`` cases evenly over the families."""
    share, rest = divmod(total, len(families))
    counts = [share + (k < rest) for k in range(len(families))]
    return [Task(name, seed, tuple(range(count))) for name, count in zip(families, counts, strict=True) if count]


def run(tasks: list[Task], workers: int) -> Iterator[Result]:
    """Yield the results as they come, each task from a process of its own."""
    results: queue.Queue[Result | BaseException | None] = queue.Queue()

    def supervise(task: Task) -> None:
        try:
            for result in _isolated(task):
                results.put(result)
        except BaseException as error:
            results.put(error)
        results.put(None)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for task in tasks:
            pool.submit(supervise, task)
        running = len(tasks)
        while running:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                running -= 1
            else:
                yield result


def run_on(executor: Any, tasks: list[Task]) -> Iterator[Result]:
    """Yield the results as they come from an executor whose workers can import this package, a case at a time."""
    cases = [(task.family, task.seed, index) for task in tasks for index in task.indices]
    for case, found in as_they_come(executor, run_case, cases, lambda case: case):
        yield found if isinstance(found, Result) else _lost(*case, f"lost with its worker: {found!r}")


def _lost(family: str, seed: int, index: int, words: str) -> Result:
    solvable = FAMILIES[family].draw(seed, index).expect is Expect.SOLUTION
    return Result(family, index, "error", False, solvable, 0.0, words)


def _isolated(task: Task) -> Iterator[Result]:
    """Run a task in a fresh process; a case at which the process dies is an error, and the rest go on in another."""
    context = multiprocessing.get_context("spawn")
    rest = list(task.indices)
    while rest:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(task._replace(indices=tuple(rest)), sender), daemon=True)
        process.start()
        sender.close()
        try:
            while rest:
                yield receiver.recv()
                rest.pop(0)
        except EOFError:
            process.join()
            index = rest.pop(0)
            yield _lost(task.family, task.seed, index, f"the process died, exit code {process.exitcode}")
        process.join()


def _work(task: Task, sender: Connection) -> None:
    signal.signal(signal.SIGALRM, _out_of_time)
    for index in task.indices:
        signal.alarm(HARD_LIMIT)
        result = run_case(task.family, task.seed, index)
        signal.alarm(0)
        sender.send(result)


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"no answer within {HARD_LIMIT} s")
