"""The subject of the attack: bilevax gets a case in the user's units, and its claim comes back in base units."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from attack.model import Ball, Box, Case, Claim, Objective, Problem, Region, Rows, Simplex, Units

RTOL = 1e-6


class Answer(NamedTuple):
    """What bilevax said: one claim for each call that confirmed the answer, and the words of the first that did not."""

    status: str
    claims: list[Claim]
    contradiction: str = ""


class Bounds(NamedTuple):
    """Global bounds, and whether they are said to meet."""

    lower: float
    upper: float
    proven: bool
    status: str


def ask(case: Case, time_limit: float) -> Answer:
    """Solve the case, or certify its point. What `solve` calls a success, `certify` is asked about, too."""
    problem, units = case.problem, case.units or ones(case)
    stated = build(case)
    if case.point is not None:
        certificate = bx.certify(stated, case.point / units.x, y=_start(case, units))
        confirmed = certificate.confirms(RTOL)
        words = f"stationarity {certificate.stationarity:.1e} ({certificate.stationarity_test})"
        if certificate.failure is not None:
            words = str(certificate.failure)
        claims = [_claim(case, case.point / units.x, certificate, units)] if confirmed else []
        return Answer("confirmed" if confirmed else f"not confirmed: {words}", claims)
    solution = bx.solve(
        stated, problem.x0 / units.x, y0=_start(case, units), time_limit=time_limit, progress=False, rtol=RTOL
    )
    if not solution.success:
        stationarity = getattr(solution.certificate, "stationarity", np.nan)
        return Answer(f"{solution.status}, value {solution.value:.6g}, stationarity {stationarity:.1e}", [])
    claims = [_claim(case, solution.x, solution, units)]
    certificate = bx.certify(stated, solution.x)
    if certificate.confirms(RTOL):
        claims.append(_claim(case, solution.x, certificate, units))
        return Answer(str(solution.status), claims)
    return Answer(str(solution.status), claims, "certify(problem, solution.x) does not confirm solve's success")


def prove(case: Case, time_limit: float) -> Bounds:
    """Return the global bounds of a case, in base units."""
    units = case.units or ones(case)
    proof = bx.prove(build(case), case.problem.x0 / units.x, time_limit=time_limit, progress=False)
    return Bounds(proof.lower_bound / units.f, proof.upper_bound / units.f, proof.proven, str(proof.status))


def build(case: Case) -> bx.BilevelProblem:
    """Return the case in the user's units. All numbers go through ``data``, so that each shape compiles once."""
    problem, units = case.problem, case.units
    if problem.multipliers:
        return _with_multipliers(problem)
    rows = problem.rows
    data, fns = problem.data, (_plain(problem.upper), _plain(problem.lower))
    if units is not None:
        data = {"base": data, "x": units.x, "y": units.y, "f": units.f, "g": units.g}
        fns = _in_units(problem.upper, "f"), _in_units(problem.lower, "g")
        if rows is not None:
            A, B = units.rows[:, None] * rows.A * units.y, units.rows[:, None] * rows.B * units.x
            rows = rows._replace(A=A, B=B, low=units.rows * rows.low, high=units.rows * rows.high)
    scale = units or ones(case)
    coupling = [] if rows is None else [bx.LinearCoupling(A=rows.A, B=rows.B, lower=rows.low, upper=rows.high)]
    coupling += [] if problem.bent_rows is None else [_rows(problem.bent_rows, units)]
    upper = problem.leader_rows
    upper_rows = [] if upper is None else [_leader_rows(upper, scale)]
    upper_rows += [] if problem.leader_bent is None else [_rows(problem.leader_bent, units)]
    return bx.BilevelProblem(
        *fns,
        coupling=coupling or None,
        upper_rows=upper_rows or None,
        x_set=_set(problem.x_set, scale.x),
        y_set=_set(problem.y_set, scale.y),
        data=data,
        y_like=np.zeros(problem.y_set.size),
    )


def _with_multipliers(problem: Problem) -> bx.BilevelProblem:
    """Return a problem whose y ends with the multipliers of its rows, in base units."""
    own, rows = slice(problem.y_set.size - problem.multipliers), problem.rows
    assert rows is not None
    assert isinstance(problem.y_set, Box)
    return bx.BilevelProblem(
        *_of_both(problem.upper, problem.lower, problem.multipliers),
        coupling=[bx.LinearCoupling(A=rows.A[:, own], B=rows.B, lower=rows.low, upper=rows.high)],
        x_set=_set(problem.x_set, np.ones(problem.x0.size)),
        y_set=bx.Box(problem.y_set.lower[own], problem.y_set.upper[own]),
        data=problem.data,
        multipliers_in_upper=True,
    )


def _rows(fn: Objective, units: Units | None) -> bx.ConvexCoupling:
    return bx.ConvexCoupling(_plain(fn) if units is None else _at_base(fn))


def _leader_rows(rows: Rows, units: Units) -> bx.LinearCoupling:
    return bx.LinearCoupling(A=rows.A * units.y, B=rows.B * units.x, lower=rows.low, upper=rows.high)


def ones(case: Case) -> Units:
    """Return base units."""
    rows = 0 if case.problem.rows is None else len(case.problem.rows.low)
    return Units(np.ones(case.problem.x0.size), np.ones(case.problem.y_set.size), np.ones(rows))


def _claim(case: Case, x: Any, answer: bx.Solution | bx.Certificate, units: Units) -> Claim:
    y = np.asarray(answer.y, float)
    if case.problem.multipliers:
        y = np.r_[y, answer.multipliers[0]]
    return Claim(np.asarray(x, float) * units.x, y * units.y, float(answer.value) / units.f)


def _start(case: Case, units: Units) -> np.ndarray | None:
    return None if case.problem.y0 is None else case.problem.y0 / units.y


def _set(region: Region, unit: np.ndarray) -> Any:
    if isinstance(region, Box):
        free = np.isneginf(region.lower).all() and np.isposinf(region.upper).all()
        return bx.Free() if free else bx.Box(region.lower / unit, region.upper / unit)
    if not (unit == unit[0]).all():
        raise ValueError("only a box may be given in different units entry by entry")
    if isinstance(region, Simplex):
        return bx.Simplex(region.total / unit[0])
    assert isinstance(region, Ball)
    return bx.Ball(region.radius / unit[0], region.center / unit)


@functools.cache
def _plain(fn: Objective) -> Callable:
    return lambda x, y, data: fn(jnp, x, y, data)


@functools.cache
def _of_both(upper: Objective, lower: Objective, count: int) -> tuple[Callable, Callable]:
    return (
        lambda x, y, multipliers, data: upper(jnp, x, jnp.concatenate([y, multipliers[0]]), data),
        lambda x, y, data: lower(jnp, x, jnp.concatenate([y, jnp.zeros(count)]), data),
    )


@functools.cache
def _at_base(fn: Objective) -> Callable:
    return lambda x, y, data: fn(jnp, data["x"] * x, data["y"] * y, data["base"])


@functools.cache
def _in_units(fn: Objective, factor: str) -> Callable:
    return lambda x, y, data: data[factor] * fn(jnp, data["x"] * x, data["y"] * y, data["base"])
