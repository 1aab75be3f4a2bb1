"""Time limits: who looks at the clock, and what a certificate says that ran out of time."""

import dataclasses
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax._support import clock, compiling
from bilevax._support.clock import OutOfTime, deadline, in_time
from bilevax._support.programs import conic, linprog
from bilevax.certificate import certify
from bilevax.convex.basic_multipliers import basic_multipliers, independent, rows_within
from bilevax.convex.optimality import Local, scaled_rows
from bilevax.convex.problem import Constraints, Objective
from bilevax.datasets import Dataset
from bilevax.driver import chunks
from bilevax.exact import phi
from bilevax.exact.active_rows import project_out, smallest_singular_value
from bilevax.exact.sensitivity import solve_kkt
from bilevax.model import objectives, scales
from bilevax.model.log_factors import MOST_UNKNOWNS, factors_of
from bilevax.problems import svm
from bilevax.problems.quadratic import random_quadratic
from known import made_up_network, toy


def test_a_deadline_inside_another_is_never_later():
    now = time.monotonic()
    with deadline(now + 10), deadline(now + 100):
        assert 9 < clock.remaining() <= 10
        clock.check()
        with pytest.raises(OutOfTime):
            clock.check(needed=50)  # what cannot be interrupted is not begun
        assert clock.remaining() <= 0  # and whoever asks later is told that not all was done
    assert clock.remaining() == np.inf


def test_programs_stop_at_the_deadline():
    random = np.random.default_rng(0)
    matrix, cost = random.standard_normal((400, 300)), random.standard_normal(300)
    program = {"A_ub": matrix, "b_ub": np.ones(400), "bounds": (-1, 1)}
    assert linprog(cost, **program).status == 0
    began = time.monotonic()
    with deadline(began + 1e-3):
        assert in_time(lambda: linprog(cost, **program)) is None
        assert in_time(lambda: conic(settings=None)) is None  # not even looked at
    assert time.monotonic() - began < 5


def test_a_certificate_without_time_says_so():
    found = bx.certify(toy(), 0.98622483, time_limit=1e-9)
    assert found.failure is bx.Status.TIME_LIMIT
    assert not found.complete
    assert np.isnan(found.value)
    assert not found.confirms(np.inf)
    assert "Stopped at time_limit" in str(found)
    whole = bx.certify(toy(), 0.98622483, time_limit=600)
    assert whole.complete
    assert whole.confirms(1e-6)


def test_a_certificate_without_time_says_so_of_rows_that_are_not_affine():
    disc = bx.ConvexCoupling(lambda x, y: y @ y, upper=1.0)
    problem = bx.BilevelProblem(lambda x, y: x @ x + y[0], lambda x, y: -x @ y, disc, y_like=np.zeros(2))
    found = bx.certify(problem, np.ones(2), time_limit=1e-9)
    assert found.failure is bx.Status.TIME_LIMIT
    assert not found.complete


@pytest.mark.slow
@pytest.mark.parametrize("name", ["measure", "challenge"])
def test_what_is_proven_when_the_time_is_over_stays_proven(monkeypatch, name):
    """The value is, once the lower level is solved; stationarity or uniqueness may not be."""

    whole = bx.certify(toy(), 0.98622483)
    monkeypatch.setattr(certify, name, slow)
    found = bx.certify(toy(), 0.98622483, time_limit=1.0)
    assert found.value == whole.value
    assert found.proves_value
    assert not found.complete
    assert not found.confirms(1e-6)
    solution = bx.solve(toy(), 0.98622483, time_limit=2.0)
    assert solution.status is bx.Status.TIME_LIMIT
    assert solution.value == pytest.approx(whole.value, rel=1e-6)
    assert solution.stats["time"] < 20


def test_margins_measured_in_time_count(monkeypatch):
    """At a kink that only a wide margin explains: without the time for it, the distance of the narrow ones stands."""
    module = sys.modules["bilevax.certificate.stationarity.measure"]
    original, calls = module._measure_with, []

    def measured(*given):
        calls.append(given)
        if len(calls) > 1:
            raise OutOfTime
        return dataclasses.replace(original(*given), value=0.5)

    monkeypatch.setattr(module, "_measure_with", measured)
    problem = bx.BilevelProblem(
        lambda x, y: (x - 1) ** 2 - y, lambda x, y: (y - x) ** 2, bx.LinearCoupling(A=1.0, B=0.0, upper=0.5)
    )
    found = bx.certify(problem, 0.5 + 1e-6)  # the row is active within some margins, not within others
    assert found.stationarity == 0.5
    assert len(calls) == 2


def vectors(count, seed):
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, 20))
    return Dataset(features, np.where(features[:, 0] + 0.5 * random.standard_normal(count) > 0, 1.0, -1.0))


def network():
    design = made_up_network()
    return design.problem(), design.start()


PROBLEMS = {
    "dense": lambda: (random_quadratic(8, 12, 8, upper="quadratic", seed=3, with_theta_bar=False)[0], np.zeros(8)),
    "svm": lambda: (svm(vectors(60, 0), vectors(60, 1)), np.full(60, 3.0)),
    "sparse": network,
    "first-order": lambda: (svm(vectors(60, 0), vectors(60, 1)), np.full(60, 3.0)),
}


def test_every_factorisation_of_rows_looks_at_the_clock():
    """Those of a thousand rows take a good part of a second each, and a certificate asks for dozens."""
    rows = sp.csr_matrix(np.eye(3, 4))
    some = scaled_rows(Constraints(rows, -np.ones(3), np.ones(3)), 0.0)[0]
    at = Local(Objective(lambda y: 0.5 * float(y @ y), lambda y: y, lambda y: sp.csc_matrix(np.eye(4))), np.zeros(4))
    active = rows_within(some, at.y, 0.0)
    for work in (
        lambda: independent(some, at.y, active),
        lambda: basic_multipliers(some, at, active),
        lambda: smallest_singular_value(rows),
        lambda: project_out(rows, np.ones(4)),
        lambda: solve_kkt(sp.csc_matrix(np.eye(4)), rows, np.ones(7)),
    ):
        work()
        with deadline(time.monotonic()), pytest.raises(OutOfTime):
            work()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_phase_looks_at_the_clock(name, monkeypatch):
    """Where the time is over, not one more step is made; neither is a certificate, but for saying so."""
    problem, x0 = PROBLEMS[name]()
    solver = bx.Default(variant="first-order") if name == "first-order" else bx.Default()
    settings: dict[str, Any] = {"solver": solver}
    whole = bx.solve(problem, x0, **settings)
    phases = [phase for phase in dict.fromkeys(whole.history["phase"]) if phase != "answer"]
    assert {"smooth descent", "exact descent"} <= set(phases)
    over = []
    limited = lambda: clock._ends.get() < np.inf
    monkeypatch.setattr(clock, "remaining", lambda: -1.0 if over and limited() else np.inf)
    for phase in phases:
        over.clear()
        note = lambda at, phase=phase: over.extend({at.residuals["phase"]} & {phase})
        solution = bx.solve(problem, x0, callback=note, time_limit=1e6, **settings)
        assert over == [phase]
        assert solution.status is bx.Status.TIME_LIMIT
        assert solution.history["phase"][-1] == phase
        assert not solution.certificate.complete


def test_a_projection_inside_compiled_code_is_not_interrupted():
    """No exception of ours gets through XLA."""
    polyhedron = bx.Polyhedron(np.random.default_rng(0).standard_normal((3, 50)), upper=0.2)
    point = np.linspace(-1.0, 2.0, 50)
    with deadline(time.monotonic() - 1):
        found = jax.jit(lambda value: polyhedron.project(value))(point)
    np.testing.assert_allclose(found, polyhedron.project(point), atol=1e-6)
    assert np.abs(found - point).max() > 0.1  # it was outside


@pytest.mark.slow
def test_a_search_that_projects_inside_compiled_code_keeps_its_time_limit():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((y - 0.1) ** 2) + jnp.sum(jnp.cos(x)),
        lambda x, y: jnp.sum((y - x - 1) ** 2),
        y_set=bx.Polyhedron(np.random.default_rng(0).standard_normal((3, 50)), upper=0.2),
    )
    solution = bx.solve(problem, np.zeros(50), solver=bx.Default(variant="first-order"), rtol=1e-14, time_limit=0.01)
    assert solution.status in (bx.Status.TIME_LIMIT, bx.Status.ALMOST_SOLVED, bx.Status.STALLED)


def test_a_compiled_solver_without_time_for_an_exact_start_begins_anyway(monkeypatch):
    monkeypatch.setattr(chunks, "solve_lower_level", lambda *_: clock.check(np.inf))
    solution = bx.solve(toy(), 0.7, solver=bx.SFLCB(), max_steps=200, time_limit=100)
    assert solution.stats["steps"] == 200


def slow(*_, **__):
    """Take all the time there is."""
    time.sleep(max(clock.remaining(), 0.0) + 1e-3)
    clock.check()


def test_infeasibility_found_in_time_is_reported_though_its_measure_is_not(monkeypatch):
    monkeypatch.setattr(certify, "smallest_relaxation_at", slow)
    problem = bx.BilevelProblem(
        lambda x, y: x**2 + y, lambda x, y: (y - x) ** 2, bx.LinearCoupling(1.0, 0.0, lower=1.0), y_set=bx.Box(0.0, 0.5)
    )
    found = bx.certify(problem, 0.3, time_limit=2.0)
    assert found.failure is bx.Status.LOWER_INFEASIBLE
    assert found.lower_infeasibility == np.inf
    assert not found.complete


@pytest.mark.slow
def test_a_minimiser_found_in_time_counts_though_others_are_not_looked_for(monkeypatch):
    problem = bx.BilevelProblem(lambda x, y: (y - 1) ** 2 + x**2, lambda x, y: jnp.cosh(y - x))
    whole = bx.certify(problem, 0.3, 0.0)
    monkeypatch.setattr(phi, "_bracketed", slow)
    found = bx.certify(problem, 0.3, 0.0, time_limit=2.0)
    assert found.failure is None
    assert found.value == pytest.approx(whole.value, rel=1e-12)
    assert not found.lower_unique
    assert not found.confirms(np.inf)


@pytest.mark.slow
def test_a_refutation_found_in_time_counts(monkeypatch):
    """The challenge finds a lower point, and then the time is over."""
    genuine, calls = phi.Surroundings.evaluate, []

    def evaluate(*given, **options):
        calls.append(given)
        return slow() if len(calls) > 4 else genuine(*given, **options)

    monkeypatch.setattr(phi.Surroundings, "evaluate", evaluate)
    problem = bx.BilevelProblem(lambda x, y: x[0] ** 2 + y[0], lambda x, y: (y[0] - x[0]) ** 2)
    found = bx.certify(problem, [1.0], [1.0], time_limit=3.0)
    assert found.challenges == 4
    assert found.descent is not None
    assert found.descent.value < found.value
    assert not found.complete


def test_a_run_without_time_for_a_step_has_a_history_and_its_start():
    solution = bx.solve(toy(), 0.7, time_limit=1e-9)
    assert solution.status is bx.Status.TIME_LIMIT
    assert list(solution.history["phase"]) == ["start"]
    assert solution.x == 0.7


def test_scales_look_at_the_clock(monkeypatch):
    """They come first, and take long where there are many variables."""
    problem, x0 = network()
    monkeypatch.setattr(scales, "factors_of", slow)
    found = bx.certify(problem, x0, time_limit=0.5)
    assert found.failure is bx.Status.TIME_LIMIT
    assert bx.solve(problem, x0, time_limit=0.5).status is bx.Status.TIME_LIMIT


def test_no_long_step_begins_when_the_time_is_over(monkeypatch):
    """Each part of a certificate would try it again: what f is by its numbers, the fit of the units, scaled rows."""
    problem, x0 = random_quadratic(seed=3, upper="quadratic", with_theta_bar=False)[0], np.zeros(3)
    begun = []
    monkeypatch.setattr(objectives, "joint_quadratic", lambda *_: begun.append("numbers"))
    monkeypatch.setattr(certify, "lower_convexity", lambda *_: begun.append("convexity"))
    assert bx.certify(problem, x0, time_limit=1e-9).failure is bx.Status.TIME_LIMIT
    assert begun == []
    many = MOST_UNKNOWNS + 1
    factors = factors_of([[np.arange(many)]], [many], many, np.arange(many))
    with deadline(time.monotonic() - 1):
        assert in_time(lambda: factors.times(np.ones(many))) is None
        assert in_time(lambda: scaled_rows(Constraints(sp.eye(2), -np.ones(2), np.ones(2)), 0.0)) is None


def test_compiling_does_not_begin_without_the_time_that_it_took_before(monkeypatch):
    compile_again, calls = [0.2, 0.2], []

    def program(numbers, x):
        calls.append(x.shape)
        time.sleep(compile_again.pop() if compile_again else 0.0)
        return x

    monkeypatch.setattr(compiling, "_last_seconds", [0.0])
    function = compiling.foreseen(program)
    function(None, np.zeros(2))
    with deadline(time.monotonic() + 0.1):
        function(None, np.ones(2))  # is compiled already
        with pytest.raises(OutOfTime):
            function(None, np.zeros(3))
    function(None, np.zeros(3))
    assert calls == [(2,), (2,), (3,)]


def test_work_that_cannot_be_interrupted_begins_only_if_it_will_end_in_time(monkeypatch):
    monkeypatch.setattr(clock, "_speed", [1e10])
    with clock.work(1e9):
        time.sleep(0.4)
    (learned,) = clock._speed
    assert 1e9 < learned < 1e10  # between what was expected and what was seen
    with deadline(time.monotonic() + 1e9 / learned):
        with clock.work(1e7):
            pass
        begun = False
        with pytest.raises(OutOfTime), clock.work(1e10):
            begun = True
    assert not begun
