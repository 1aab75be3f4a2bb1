"""The search for global bounds of a flat problem: which engine fits, its limits, its trace."""

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from bilevax._support.clock import OutOfTime
from bilevax._support.elsewhere import opened
from bilevax.model.flat import FlatProblem
from bilevax.proof.blocks import Forest, block_variables
from bilevax.proof.bounds import Bounds
from bilevax.proof.building import Unsupported, build
from bilevax.proof.incumbents import Exactly, incumbent_at
from bilevax.proof.least_distance import Contradiction, NotConvex, reduce
from bilevax.proof.others import bounds_by_others
from bilevax.proof.program import ComplementarityProgram
from bilevax.proof.settings import PROOF
from bilevax.proof.status import ProofStatus
from bilevax.proof.subtrees import search_elsewhere
from bilevax.proof.tree import Allowed, Evaluate, Tree


def global_bounds(
    flat: FlatProblem,
    x: np.ndarray | None,
    gap: float,
    help: Callable[[], np.ndarray | None] = lambda: None,
    look: Callable[[int, float, float], None] = lambda nodes, lower, upper: None,
    most_nodes: float = np.inf,
    executor: Any = None,
) -> Bounds:
    """Return proven bounds on the least Phi; stopped by the deadline of `clock`, or from the keyboard.

    Parameters
    ----------
    flat
        The problem in its natural units.
    x
        A point to begin with.
    gap
        Relative to f's natural unit and its value, when to stop.
    help
        Called once, where the search does not end at once; returns another point, or None.
    look
        Called on the way with the nodes so far, and both bounds.
    most_nodes
        After how many nodes to stop.
    executor
        Of `concurrent.futures`, or how many processes to use, for a search that does not end at once.
    """
    try:
        program = build(flat)
        tree = _planted(program, Exactly(flat, program), lambda value: gap * max(abs(value), PROOF.smallest_value))
    except (Unsupported, NotConvex) as reason:
        if np.isfinite(most_nodes):  # in a hurry
            return Bounds(-np.inf, np.inf, None, 0, ProofStatus.UNSUPPORTED)
        return bounds_by_others(flat, x, gap, help, str(reason))
    except Contradiction as reason:
        return Bounds(np.inf, np.inf, None, 1, ProofStatus.INFEASIBLE, f"{reason}.")
    except OutOfTime:
        return Bounds(-np.inf, np.inf, None, 0, ProofStatus.TIME_LIMIT)
    unit = flat.scales.upper
    began, trace, status = time.monotonic(), [], None
    offer = lambda point: tree.offer(None if point is None else incumbent_at(flat, point))
    try:
        offer(x)
        with contextlib.closing(_steps(tree, lambda: offer(help()), executor)) as steps:
            for _ in steps:
                trace.append((time.monotonic() - began, tree.nodes, tree.lower_bound / unit, tree.upper / unit))
                look(*trace[-1][1:])
                if tree.nodes > most_nodes:
                    raise OutOfTime
    except OutOfTime:
        status = ProofStatus.TIME_LIMIT
    except KeyboardInterrupt:
        status = ProofStatus.INTERRUPTED
    if status is None:
        status = _settled(tree)
    bounds = tree.lower_bound / unit, tree.upper / unit
    return Bounds(*bounds, tree.best, tree.nodes, status, unit=1 / unit, trace=tuple(trace))


def _steps(tree: Tree | Forest, help: Callable[[], None], executor: Any) -> Generator[None, None, None]:
    """Search a tree, alone at first; where that does not end at once, with help, and together with others."""
    steps = tree.search()
    for _ in steps:
        yield
        if tree.nodes > PROOF.help_after:
            break
    else:
        return
    with opened(executor) as pool:  # new processes get ready while the others help
        help()
        yield from steps if pool is None else search_elsewhere(tree, pool)


def _planted(program: ComplementarityProgram, evaluate: Evaluate, allowed: Allowed) -> Tree | Forest:
    """Return the tree of a program, or those of its blocks where it falls apart."""
    blocks = block_variables(program)
    if len(blocks) > 1:
        try:
            return Forest(program, blocks, evaluate, allowed)
        except NotConvex:  # what is rounding for the whole may be none for a block
            pass
    return Tree(program, reduce(program), evaluate, allowed)


def is_small(flat: FlatProblem) -> bool:
    """Return whether a problem is of the class and the size for which a few nodes take no time."""
    if flat.problem.curved:
        return False
    rows = flat.rows.A.shape[0] + flat.y_rows.matrix.shape[0] + flat.x_rows.matrix.shape[0]
    return (
        flat.n_x + flat.n_y + rows <= PROOF.most_at_once
        and flat.quadratics["upper"] is not None
        and flat.lower_quadratic is not None
    )


def _settled(tree: Tree | Forest) -> ProofStatus:
    if tree.lower_bound == np.inf:
        return ProofStatus.INFEASIBLE
    return ProofStatus.PROVEN if tree.lower_bound >= tree.cutoff else ProofStatus.UNSETTLED
