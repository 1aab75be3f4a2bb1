"""The verdict on a run: its certificate, further searches where that refutes the answer, status and message."""

import time

import jax
import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax._support.clock import deadline, in_time
from bilevax.certificate.certificate import Certificate
from bilevax.certificate.certify import certify_flat
from bilevax.certificate.challenge import falls_forever
from bilevax.certificate.status import Status
from bilevax.driver.arguments import Start
from bilevax.driver.checkpoints import Checkpoint, Files
from bilevax.driver.ending import Ending
from bilevax.driver.search import search
from bilevax.driver.solution import Solution
from bilevax.driver.watch import Watch
from bilevax.model.flat import FlatProblem
from bilevax.solvers.base import HostSolver, Solver

_MOST_PURSUITS = 5  # searches that go on from a point that refuted the last answer


def certified(flat: FlatProblem, solver: Solver, ending: Ending) -> tuple[Ending, Certificate]:
    """Return an ending and its certificate: for a run that was stopped, the better of its best and its last point."""

    def judge(x: PyTree, y: PyTree) -> Certificate:
        # A lower-level iterate that is not finite is no help, but still tells the structure of y.
        y = jax.tree.map(lambda leaf: np.nan_to_num(leaf, posinf=0.0, neginf=0.0), y)
        return certify_flat(flat, x, y, getattr(solver, "delta", None))

    later = in_time(ending.later) if ending.exact else None
    ending = ending if later is None else ending._replace(x=later[0], y=later[1])
    certificate = judge(ending.x, ending.y)
    if certificate.failure is Status.LOWER_INFEASIBLE and (later := in_time(ending.later)) is not None:
        ending = ending._replace(x=later[0], y=later[1])
        certificate = judge(*later)
    if np.isnan(certificate.value) or (np.isinf(certificate.value) and certificate.failure is None):
        x, y = trees.flatten_host(ending.x), trees.flatten_host(certificate.y)
        numbers = in_time(lambda: [flat.value_and_gradients(level, x, y) for level in ("upper", "lower")])
        if not all(np.isfinite(part).all() for level in numbers or () for part in level):
            ending = ending._replace(failure=Status.NOT_A_NUMBER)
    return ending, certificate


def judged(flat: FlatProblem, solver: Solver, ending: Ending, watch: Watch) -> tuple[Ending, Certificate]:
    """Return `certified` in the time that a certificate has."""
    with deadline(watch.last_call):
        return certified(flat, solver, ending)


def pursued(
    flat: FlatProblem,
    solver: HostSolver,
    ending: Ending,
    watch: Watch,
    checkpoint: Checkpoint | None,
) -> tuple[Ending, Certificate]:
    """Return an ending and its certificate; where the challenge found a better point, the search goes on from there.

    Where a search saw no descent left but the certificate does, it goes on from its answer, once: with new steps it may
    see it, too.
    """
    ending, certificate = judged(flat, solver, ending, watch)
    again = True
    for _ in range(_MOST_PURSUITS if solver.keeps_diary else 0):
        over = watch.ended is not None or time.monotonic() >= watch.ends
        if certificate.failure is not None or over:
            break
        if certificate.descent is not None:
            start = Start(certificate.descent.x, flat.y_like, certificate.y)
        elif again and ending.converged and not certificate.confirms(watch.limits.rtol):
            again = False
            answer = conclude(type(solver).__name__, ending, certificate, watch)
            start = Start(ending.x, flat.y_like, certificate.y, answer)
        else:
            break
        further = search(flat, solver, start, watch, Files(checkpoint))
        found = judged(flat, solver, further.after(ending), watch)
        if not found[1].value < certificate.value:
            break
        ending, certificate = found
    return ending, certificate


def unbounded_if_it_falls_forever(
    flat: FlatProblem, x0: PyTree, ending: Ending, certificate: Certificate, watch: Watch
) -> Ending:
    """Return the ending, as unbounded where its answer is not confirmed and Phi is seen to fall without end."""
    open_question = ending.failure is not Status.DIVERGED and not certificate.confirms(watch.limits.rtol)
    if open_question and watch.ended is None:
        with deadline(watch.ends + watch.grace):
            if in_time(lambda: falls_forever(flat.problem, ending.x, certificate.y, x0)):
                return ending._replace(failure=Status.UNBOUNDED)
    return ending


def conclude(name: str, ending: Ending, certificate: Certificate, watch: Watch) -> Solution:
    """Return the solution that an ending and its certificate amount to; ``name`` is that of the method."""
    rtol = watch.limits.rtol
    status = _status(ending, watch.ended, certificate, rtol)
    stats = {"solver": name, "steps": ending.steps, "time": time.monotonic() - watch.began}
    if ending.sweeps is not None:
        stats["sweeps"] = ending.sweeps
    objection = certificate.objection(rtol)
    reason = "" if status is Status.CONVERGED or objection is None else f" Not confirmed: {objection}."
    numbers = (
        f"value {certificate.value:.6g}, "
        f"stationarity {certificate.stationarity:.2g} ({certificate.stationarity_test}), "
        f"lower-level infeasibility {certificate.lower_infeasibility:.2g}, after {ending.steps} steps."
    )
    return Solution(
        x=ending.x,
        y=certificate.y,
        value=certificate.value,
        multipliers=certificate.multipliers,
        status=status,
        success=status is Status.CONVERGED,
        message=f"{status.value}{reason} ({numbers})",
        certificate=certificate,
        history=watch.history,
        stats=stats,
        state=ending.state,
    )


def _status(ending: Ending, ended: Status | None, certificate: Certificate, rtol: float) -> Status:
    if ending.failure in (Status.NOT_A_NUMBER, Status.DIVERGED, Status.UNBOUNDED):
        return ending.failure
    if certificate.failure is not None:
        return certificate.failure
    if not (certificate.complete or certificate.confirms(rtol)):
        return Status.TIME_LIMIT
    # A search that saw no further progress may have arrived without noticing: that is for the certificate to tell.
    if ending.converged or ending.failure is Status.STALLED:
        if certificate.confirms(rtol):
            return Status.CONVERGED
        return Status.ALMOST_SOLVED if ending.converged else Status.STALLED
    return ended or ending.failure or Status.MAX_STEPS
