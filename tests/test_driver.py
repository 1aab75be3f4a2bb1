import importlib.util
import os
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax._support.clock import OutOfTime
from bilevax._support.trees import summarise
from bilevax.driver.arguments import Limits
from bilevax.driver.watch import Watch
from bilevax.problems.quadratic import random_quadratic
from bilevax.solvers.base import HostSolver, Snapshot
from known import TOY_MINIMA, bordered, present, slopes, toy
from stopwatch import Stopwatch

SOLVER = bx.SFLCB(delta=0.1, eta_u=0.05, eta_v=0.05)
FOREVER: dict[str, Any] = {"rtol": 0.0, "atol": 0.0}


# --- statuses


def test_converged():
    solution = bx.solve(toy(), 0.7, solver=SOLVER, rtol=1e-5)
    assert solution.status is bx.Status.CONVERGED
    assert solution.success
    assert np.abs(solution.x - TOY_MINIMA).min() < 1e-4
    assert solution.value == solution.certificate.value == pytest.approx(bx.certify(toy(), solution.x).value, rel=1e-12)
    assert solution.certificate.stationarity <= 1e-5
    assert solution.certificate.delta == 0.1
    assert solution.certificate.penalty_gap >= -1e-9
    assert solution.certificate.y_error < 1e-3
    assert isinstance(solution.x, np.ndarray)
    assert solution.x.dtype == np.float64
    assert solution.multipliers == pytest.approx(2 * solution.x, rel=1e-6)
    assert solution.stats["steps"] == solution.history["step"][-1] < 100_000
    assert solution.stats["solver"] == "SFLCB"


def biased(x, y):
    return (y - 1) ** 2 + x**2


def follow(x, y):
    return 0.5 * (y - x) ** 2


def test_almost_solved():
    """Phi_delta's minimiser is not Phi's: the stopping test holds, the certificate says no."""
    problem = bx.BilevelProblem(biased, follow, y_like=0.0)
    solution = bx.solve(problem, 0.0, solver=bx.SFLCB(delta=0.2, eta_x=0.1, eta_y=0.1, eta_z=0.1), rtol=1e-6)
    assert solution.status is bx.Status.ALMOST_SOLVED
    assert not solution.success
    assert solution.certificate.stationarity > 1e-3
    assert "stationarity" in solution.message


def test_max_steps():
    solution = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=150)
    assert solution.status is bx.Status.MAX_STEPS
    assert not solution.success
    assert solution.stats["steps"] == 150
    assert bx.solve(toy(), 0.7, solver=SOLVER, max_steps=0).stats["steps"] == 0


@pytest.mark.parametrize("limit", [0.3, 1.0])
def test_time_limit_is_kept_within_a_second(limit):
    problem = toy()
    bx.solve(problem, 0.7, solver=SOLVER, max_steps=100, time_limit=60.0)  # compiled before the clock counts
    began, stopwatch = time.monotonic(), Stopwatch()
    solution = bx.solve(problem, 0.7, solver=SOLVER, max_steps=10**9, time_limit=limit, **FOREVER)
    assert time.monotonic() - began >= limit
    assert stopwatch.seconds() <= limit + 1.0
    assert solution.status is bx.Status.TIME_LIMIT
    assert not solution.success
    assert solution.stats["steps"] > 0


def test_callback_stops_and_sees_the_run():
    seen = []

    def callback(progress):
        seen.append(progress)
        return len(seen) == 3

    solution = bx.solve(toy(), 0.7, solver=SOLVER, callback=callback, **FOREVER)
    assert solution.status is bx.Status.CALLBACK
    assert not solution.success
    assert len(seen) == 3
    assert [entry.steps for entry in seen] == sorted({entry.steps for entry in seen})
    assert seen[-1].steps == solution.stats["steps"]
    np.testing.assert_array_equal(seen[-1].x, solution.x)
    assert seen[-1].residuals.keys() >= {"gradient", "rows_y", "rows_z"}


def test_keyboard_interrupt_returns_the_last_point():
    def callback(progress):
        if progress.steps:
            raise KeyboardInterrupt

    solution = bx.solve(toy(), 0.7, solver=SOLVER, callback=callback, **FOREVER)
    assert solution.status is bx.Status.INTERRUPTED
    assert solution.stats["steps"] > 0
    assert np.isfinite(solution.value)


def interrupt_at(step, raising):
    def callback(progress):
        if progress.steps >= step:
            raising()

    return callback


def raise_interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def heeds_interrupts():
    """A process in the background may have been started deaf to them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize(
    "raising", [raise_interrupt, lambda: os.kill(os.getpid(), signal.SIGINT)], ids=["raise", "kill"]
)
def test_an_interrupt_returns_the_best_point_of_the_default(raising):
    problem, x0 = random_quadratic(8, 12, 8, upper="quadratic", seed=3, with_theta_bar=False)[0], np.zeros(8)
    whole = bx.solve(problem, x0)
    stops = [int(step) for step in np.linspace(0, whole.stats["steps"] - 1, 6)]
    stopped = [bx.solve(problem, x0, callback=interrupt_at(step, raising)) for step in stops]
    assert {solution.status for solution in stopped} == {bx.Status.INTERRUPTED}
    assert [solution.stats["steps"] for solution in stopped] == stops
    values = np.array([bx.certify(problem, x0).value, *(solution.value for solution in stopped), whole.value])
    assert np.all(np.diff(values) <= 1e-9)
    assert values[1] > values[3] > values[-1]
    assert all("best point so far" in solution.message for solution in stopped)


@pytest.mark.slow
def test_an_interrupt_where_the_smoothing_is_beyond_the_feasible_set():
    """Softened rows let the smoothing leave it; what is returned has a lower level all the same."""
    problem = bordered(slopes(1.0, square=0.1))
    for step in range(6):
        for variant in ("direct", "first-order"):
            solver = bx.Default(variant=variant)
            solution = bx.solve(problem, [0.2], solver=solver, callback=interrupt_at(step, raise_interrupt))
            assert solution.status in (bx.Status.INTERRUPTED, bx.Status.CONVERGED)
            assert solution.certificate.lower_feasible


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, bx.Status.INTERRUPTED), (OutOfTime, bx.Status.TIME_LIMIT)], ids=str
)
def test_a_stop_before_the_first_snapshot_returns_the_start(error, status, monkeypatch):
    def stopped(*_):
        raise error

    monkeypatch.setattr("bilevax.solvers.default.pieces.dense.DensePieces.evaluate", stopped)
    solution = bx.solve(toy(), 0.7)
    assert solution.status is status
    assert solution.x == 0.7
    assert solution.value == pytest.approx(bx.certify(toy(), 0.7).value)
    assert solution.stats["steps"] == 0
    assert list(solution.history["phase"]) == ["start"]  # where the run began


class Wandering(HostSolver):
    """Shows exact points and others, good ones first, and is interrupted."""

    default_max_steps = 100

    def search(self, flat, x0, y0, rtol, multipliers=None, diary=None):
        for x, exact in ((0.986, True), (1.4, True), (1.5, False)):
            yield Snapshot(
                np.array([x]), np.array([x]), "step", flat.value("upper", np.array([x]), np.array([x])), exact
            )
        raise KeyboardInterrupt


def test_an_exact_point_seen_before_is_returned_if_it_is_better():
    solution = bx.solve(toy(), 0.7, solver=Wandering())
    assert solution.status is bx.Status.INTERRUPTED
    assert solution.x == 0.986
    assert solution.stats["steps"] == 2


def test_an_error_in_the_callback_is_the_users():
    def callback(progress):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        bx.solve(toy(), 0.7, solver=SOLVER, callback=callback)


def test_lower_infeasible_is_never_a_success():
    solution = bx.solve(bordered(slopes(1.0)), [0.5], y0=[1.0], solver=SOLVER, max_steps=1)
    assert solution.status is bx.Status.LOWER_INFEASIBLE
    assert not solution.success
    assert solution.value == np.inf
    assert solution.certificate.lower_infeasibility == pytest.approx(0.25, rel=0.1)


def test_a_start_where_the_lower_level_is_infeasible():
    """Without y0 the run starts from the point of the smallest relaxation, and may still find its way."""
    solution = bx.solve(bordered(slopes(-1.0, square=0.2)), [0.5], solver=bx.SFLCB(), max_steps=20_000, rtol=1e-4)
    assert solution.certificate.lower_feasible
    assert solution.x == pytest.approx([2.5], abs=0.1)


@pytest.mark.parametrize(
    ("lower", "status"),
    [
        (lambda x, y: y + x, bx.Status.LOWER_UNBOUNDED),
        (lambda x, y: -(y**2) + x, bx.Status.LOWER_NOT_CONVEX),
    ],
)
def test_lower_level_without_minimiser(lower, status):
    problem = bx.BilevelProblem(lambda x, y: x**2, lower, y_like=0.0)
    solution = bx.solve(problem, 1.0, y0=0.5, solver=SOLVER, max_steps=10)
    assert solution.status is status
    assert not solution.success


def test_throw():
    with pytest.raises(RuntimeError, match="max_steps"):
        bx.solve(toy(), 0.7, solver=SOLVER, max_steps=10, throw=True)
    assert bx.solve(toy(), 0.7, solver=SOLVER, rtol=1e-5, throw=True).success


def test_statuses_are_sentences():
    for status in bx.Status:
        assert status.value.rstrip().endswith(".")
        assert len(status.value) > 20
        assert str(status) == status.name.lower()


# --- arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rtol": -1.0}, "rtol: expected a number >= 0, got -1.0"),
        ({"atol": np.nan}, "atol: expected a number >= 0, got nan"),
        ({"max_steps": -5}, "max_steps: expected a whole number >= 0, got -5"),
        ({"max_steps": 2.5}, "max_steps: expected a whole number >= 0, got 2.5"),
        ({"time_limit": 0.0}, "time_limit: expected a number of seconds > 0, got 0.0"),
        ({"solver": "SFLCB"}, "solver: expected a solver object"),
        ({"solver": bx.SFLCB}, "solver: expected a solver object"),
        ({"warm_start": 3.0}, "warm_start: expected a Solution"),
        ({"resume": "nowhere/file"}, "resume: cannot read nowhere/file"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        bx.solve(toy(), 0.7, **{"solver": SOLVER, "max_steps": 10, **change})


# --- history, printing, warm start


def test_history():
    solution = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=3050, callback=lambda progress: False, **FOREVER)
    history = solution.history
    assert {"step", "time", "gradient", "rows_y", "rows_z", "stationarity_y", "stationarity_z"} <= set(history)
    lengths = {len(values) for values in history.values()}
    assert lengths == {len(history["step"])}
    assert lengths.pop() >= 3
    assert all(isinstance(values, np.ndarray) for values in history.values())
    assert history["step"][0] == 0
    assert history["step"][-1] == 3050
    assert np.all(np.diff(history["step"]) > 0)
    assert np.all(np.diff(history["time"]) >= 0)
    assert history["gradient"][-1] < history["gradient"][0]


@pytest.mark.parametrize(
    "solver",
    [SOLVER, bx.Default(), bx.Default(variant="first-order"), bx.GAM(), bx.BLOCC()],
    ids=lambda s: type(s).__name__,
)
def test_history_is_a_table(solver):
    solution = bx.solve(toy(), 1.5, solver=solver, max_steps=300, callback=lambda progress: False)
    history = solution.history
    assert {"step", "time", "upper"} <= set(history)
    assert all(type(name) is str for name in history)
    assert {values.shape for values in history.values()} == {(len(history["step"]),)}
    assert len(history["step"]) >= 3
    kinds = {name: values.dtype.kind for name, values in history.items()}
    assert kinds.pop("step") == kinds.pop("sweeps", "i") == "i"
    assert kinds.pop("phase", "U") == "U"
    assert set(kinds.values()) == {"f"}
    for library in ("pandas", "polars"):
        if importlib.util.find_spec(library):
            table = importlib.import_module(library).DataFrame(history)
            assert table.shape == (len(history["step"]), len(history))
            assert list(table["step"]) == list(history["step"])


def test_history_of_a_search_that_counts_now_and_then():
    watch = Watch(time.monotonic(), Limits(1e-6, 1e-8, 10, None))
    assert watch.history == {}
    watch.look(0, None, None, {"phase": "start", "upper": 1.0})
    watch.look(1, None, None, {"phase": "sweep", "upper": 1.0, "sweeps": 3})
    assert {name: len(values) for name, values in watch.history.items()} == dict.fromkeys(watch.history, 2)
    np.testing.assert_array_equal(watch.history["sweeps"], [np.nan, 3])


def test_printing(capsys):
    solution = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=300, progress=True)
    assert "step 0/300" in capsys.readouterr().err
    text = str(solution)
    for word in ("max_steps", "value", "stationarity", "Certificate", "lower level", f"{solution.value:.6g}"):
        assert word in text
    for progress in (False, None):  # standard error is no terminal here
        bx.solve(toy(), 0.7, solver=SOLVER, max_steps=300, progress=progress)
        captured = capsys.readouterr()
        assert captured.err == captured.out == ""


def live_lines(text):
    """Return the lines that replaced each other; the last one has to be empty: the line vanishes."""
    lines = text.split("\r\033[K")
    assert lines[0] == lines[-1] == ""
    return lines[1:-1]


@pytest.mark.slow
def test_live_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    settings = {"solver": SOLVER, "progress": True, **FOREVER}
    bx.solve(toy(), 0.7, max_steps=100, time_limit=60.0, **settings)  # compiles
    capsys.readouterr()
    bx.solve(toy(), 0.7, max_steps=10**9, time_limit=1.5, **settings)
    lines = live_lines(capsys.readouterr().err)
    assert 3 <= len(lines) <= 20  # about ten a second, however many looks
    for word in ("steps/s", "left", "upper", "gradient", "rows_y", "/1000000000"):
        assert word in lines[-1]
    left = [float(line.split(" s left")[0].split()[-1]) for line in lines[1:]]
    assert left == sorted(left, reverse=True)
    assert all(0 <= seconds <= 1.5 for seconds in left)
    bx.solve(toy(), 1.5, progress=True, callback=lambda progress: time.sleep(0.11))
    lines = live_lines(capsys.readouterr().err)
    assert "phase answer" in lines[-1]
    assert "best" in lines[-1]
    assert any("stationarity" in line for line in lines)  # of Phi, where a descent on it has looked
    assert "upper" not in lines[-1]  # what was tried last may be worse than what is known
    assert "left" not in "".join(lines)  # the default's steps do not tell how many are still to come
    monkeypatch.setenv("COLUMNS", "40")
    bx.solve(toy(), 0.7, max_steps=200, **settings)
    assert max(map(len, live_lines(capsys.readouterr().err))) < 40


@pytest.mark.parametrize(
    ("step", "limit", "words"),
    [
        (500, None, ["0:01:40 ", " 50 steps/s", "0:30:00 left"]),
        (500, 120.0, ["20.0 s left"]),
        (0, None, ["step 0/90500"]),
    ],
)
def test_rate_and_time_left(step, limit, words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    clock = iter([90.0, 100.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    watch = Watch(0.0, Limits(1e-6, 1e-8, 90_500, limit), progress=True, steady=True)
    watch.look(0, None, None, {"upper": 1.0})
    watch.look(step, None, None, {"upper": 1.0})
    line = live_lines(capsys.readouterr().err + "\r\033[K")[-1]
    assert all(word in line for word in words)


def test_warm_start_goes_on_from_the_state():
    whole = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=400, **FOREVER)
    half = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=200, **FOREVER)
    rest = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=200, warm_start=half, **FOREVER)
    np.testing.assert_array_equal(rest.x, whole.x)
    assert rest.stats["steps"] == 200
    other = bx.BilevelProblem(lambda x, y: jnp.sum(x**2), lambda x, y: jnp.sum((y - x) ** 2), y_like=np.zeros(2))
    with pytest.raises(ValueError, match="warm_start: expected a Solution of the same solver"):
        bx.solve(other, np.zeros(2), solver=SOLVER, warm_start=half)


# --- chunks do not change anything


def same_state(a, b):
    for left, right in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_array_equal(left, right)
    assert a.stats["steps"] == b.stats["steps"]
    assert a.status == b.status


def test_chunks_do_not_change_a_bit():
    several: list[dict[str, Any]] = [{"max_steps": 1777, **FOREVER}, {"rtol": 1e-5}]
    for settings in several:
        same_state(
            bx.solve(toy(), 0.7, solver=SOLVER, **settings),
            bx.solve(toy(), 0.7, solver=SOLVER, callback=lambda progress: False, **settings),
        )


def test_chunks_do_not_change_where_divergence_is_seen():
    """Slow growth: a chunk that starts late must not be allowed to grow further."""
    problem = bx.BilevelProblem(lambda x, y: -0.5 * x**2 + 0 * y, lambda x, y: (y - x) ** 2, y_like=0.0)
    solver = bx.SFLCB(delta=1.0, eta_x=0.05)
    whole = bx.solve(problem, 1.0, solver=solver, max_steps=50_000)
    parts = bx.solve(problem, 1.0, solver=solver, max_steps=50_000, callback=lambda progress: False)
    assert whole.status is bx.Status.DIVERGED
    same_state(whole, parts)


# --- nothing is compiled twice


def fit(x, y, data):
    return jnp.sum((y - data["target"]) ** 2) + 0.1 * jnp.sum(x**2)


def ridge(x, y, data):
    return jnp.sum((data["matrix"] @ y - x) ** 2) + 0.5 * jnp.sum(y**2)


def regression(random, sparse=False):
    A = random.standard_normal((4, 3)) * np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 1]])
    B = 0.1 * random.standard_normal((4, 2))
    return bx.BilevelProblem(
        fit,
        ridge,
        bx.LinearCoupling(sp.csr_matrix(A) if sparse else A, B, upper=random.uniform(0.5, 2.0, 4)),
        x_set=bx.Box(random.uniform(-3, -2, 2), random.uniform(2, 3, 2)),
        y_set=bx.Box(-random.uniform(1, 2), 5.0),
        data={"target": random.standard_normal(3), "matrix": random.standard_normal((2, 3))},
    )


def test_the_counter_counts(compilations):
    with compilations() as count:
        jax.jit(lambda x: jnp.sin(x) * 3.217)(1.0)
    assert count[0] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_second_solve_compiles_nothing(compilations, sparse):
    random = np.random.default_rng(1)
    settings = {"callback": lambda progress: False, "time_limit": 60.0}
    for _ in range(2):  # both exits of the certificate, smooth and not, may be needed once
        bx.solve(regression(random, sparse), random.standard_normal(2), solver=bx.SFLCB(), max_steps=900, **settings)
    with compilations() as count:
        for steps, rtol in ((1000, 1e-6), (350, 1e-3)):
            solver = bx.SFLCB(*random.uniform(0.005, 0.02, 8))
            solution = bx.solve(
                regression(random, sparse),
                random.standard_normal(2),
                solver=solver,
                max_steps=steps,
                rtol=rtol,
                **settings,
            )
            assert solution.stats["steps"] > 0
    assert count[0] == 0


def test_second_certify_and_run_compile_nothing(compilations):
    random = np.random.default_rng(2)
    bx.certify(regression(random), random.standard_normal(2), delta=0.1)
    with compilations() as count:
        for _ in range(5):
            bx.certify(regression(random), random.standard_normal(2), delta=random.uniform(0.01, 0.1))
    assert count[0] == 0
    with jax.enable_x64(True):
        bx.run(regression(random), random.standard_normal(2), solver=bx.SFLCB(), max_steps=30)
        with compilations() as count:
            solver = bx.SFLCB(eta_x=0.003)
            bx.run(regression(random), random.standard_normal(2), solver=solver, max_steps=57, rtol=1e-3)
    assert count[0] == 0


# --- degenerate inputs


def chase(x, y):
    return jnp.sum((y - 1) ** 2) + jnp.sum((x - 2) ** 2)


def tail(x, y):
    return jnp.sum((y - x) ** 2)


EYE, ONES = np.eye(2), np.ones((1, 2))
DEGENERATE = {
    "no rows": None,
    "empty sequence": (),
    "zero rows": bx.LinearCoupling(np.zeros((0, 2)), upper=0.0),
    "zero sparse rows": bx.LinearCoupling(sp.csr_matrix((0, 2)), sp.csr_matrix((0, 2))),
    "infinite on both sides": bx.LinearCoupling(EYE, EYE),
    "row of zeros": bx.LinearCoupling(0 * ONES, 0 * ONES, lower=-1.0, upper=1.0),
    "sparse row of zeros": bx.LinearCoupling(sp.csr_matrix((3, 2)), upper=0.0),
    "equality of zeros": bx.LinearCoupling(0 * ONES, lower=0.0, upper=0.0),
    "slack duplicates": bx.LinearCoupling(np.vstack([ONES, ONES, 3 * ONES]), upper=[9.0, 9.0, 27.0]),
    "slack in float32": bx.LinearCoupling(np.float32(ONES), np.float32(ONES), upper=np.float32(9)),
    "slack in integers": bx.LinearCoupling([[1, 1]], [[0, 1]], upper=9),
    "affine without x": bx.AffineCoupling(lambda x, y: y, upper=9.0),
    "affine without rows": bx.AffineCoupling(lambda x, y: jnp.zeros(0), upper=9.0),
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_rows_run(kind):
    problem = bx.BilevelProblem(chase, tail, DEGENERATE[kind], y_like=np.zeros(2))
    certificate = bx.certify(problem, [1.0, 2.0])
    assert certificate.failure is None
    assert certificate.value == pytest.approx(2.0, abs=1e-9)
    np.testing.assert_allclose(present(certificate.hypergradient), [-2.0, 2.0], atol=1e-8)
    assert bx.certify(problem, [1.5, 1.5]).stationarity <= 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no rows", "zero sparse rows", "infinite on both sides", "equality of zeros"])
def test_degenerate_rows_are_iterated(kind):
    problem = bx.BilevelProblem(chase, tail, DEGENERATE[kind], y_like=np.zeros(2))
    solution = bx.solve(problem, [1, 2], solver=bx.SFLCB(delta=0.01), max_steps=150)
    assert solution.stats["steps"] == 150
    assert np.isfinite(solution.value)
    assert np.abs(solution.x - 1.5).max() < 0.5
    assert solution.certificate.lower_feasible


def test_a_row_of_zeros_that_nothing_satisfies():
    problem = bx.BilevelProblem(chase, tail, bx.LinearCoupling(0 * ONES, lower=0.5, upper=1.0), y_like=np.zeros(2))
    certificate = bx.certify(problem, [1.0, 2.0])
    assert not certificate.lower_feasible
    assert certificate.lower_infeasibility == pytest.approx(0.5, rel=1e-6)


def test_a_row_that_only_x_can_satisfy():
    """0 y - x <= -1: the row says x >= 1 and nothing about y."""
    problem = bx.BilevelProblem(chase, tail, bx.LinearCoupling(0 * ONES, [[-1.0, 0.0]], upper=-1.0), y_like=np.zeros(2))
    assert bx.certify(problem, [1.5, 1.5]).stationarity <= 1e-8
    outside = bx.certify(problem, [0.25, 1.5])
    assert not outside.lower_feasible
    assert outside.lower_infeasibility == pytest.approx(0.75, rel=1e-6)


def any_upper(x, y):
    return sum(jnp.sum((leaf - 1) ** 2) for leaf in jax.tree.leaves(x)) + y**2


def any_lower(x, y):
    return jnp.asarray(sum(jnp.sum((y - leaf) ** 2) for leaf in jax.tree.leaves(x)))


@pytest.mark.slow
@pytest.mark.parametrize("x0", [2, np.int64(2), np.float32(2), jnp.float32(2), np.array(2), [2], (2.0,), {"a": 2}])
def test_one_variable_in_any_form(x0):
    solution = bx.solve(bx.BilevelProblem(any_upper, any_lower, y_like=0.0), x0, solver=SOLVER, max_steps=10)
    wanted = jnp.asarray(x0) if isinstance(x0, list) else jax.tree.map(jnp.asarray, x0)
    assert jax.tree.structure(solution.x) == jax.tree.structure(wanted)
    (leaf,) = jax.tree.leaves(solution.x)
    assert leaf.dtype == np.float64
    assert 1.8 < leaf.item() < 2.0


def test_float32_run():
    solution = bx.solve(toy(), 0.7, solver=SOLVER, dtype=np.float32, rtol=1e-4, max_steps=20_000)
    assert solution.state.x.dtype == np.float32
    assert np.abs(solution.x - TOY_MINIMA).min() < 1e-3
    assert isinstance(solution.value, float)


def test_float32_run_with_every_set():
    """A set that returned float64 would break the compiled loop."""
    sets = {"a": bx.Ball(1.0), "b": bx.Simplex(), "c": bx.Box(0.0, [1.0]), "d": bx.Polyhedron([[1.0]], upper=1.0)}
    problem = bx.BilevelProblem(any_upper, any_lower, x_set=bx.Product(sets), y_like=0.0)
    solution = bx.solve(problem, {key: [0.5] for key in sets}, solver=SOLVER, dtype=np.float32, max_steps=3)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(solution.x))
    assert solution.stats["steps"] == 3


# --- sparse matrices stay sparse


def refuse(*_, **__):
    raise AssertionError("a sparse matrix was turned dense")


@pytest.fixture
def no_dense(monkeypatch):
    classes = [sp._base._spbase]
    while classes:
        found = classes.pop()
        classes += found.__subclasses__()
        for name in ("toarray", "todense", "__array__"):
            if name in vars(found):
                monkeypatch.setattr(found, name, refuse)


def sparse_problem(rows, columns, n_x=5):
    random = np.random.default_rng(0)
    count = 3 * rows
    triplets = random.uniform(0, 1, count), (random.integers(0, rows, count), random.integers(0, columns, count))
    dense_row = 0.01 * sp.csr_matrix(np.ones((1, columns)))
    A = sp.vstack([sp.coo_matrix(triplets, shape=(rows, columns)), dense_row])
    B = sp.random(rows + 1, n_x, 0.3, random_state=1, format="coo")
    target = random.standard_normal(columns)
    return bx.BilevelProblem(
        lambda x, y, data: jnp.mean((y - data) ** 2) + jnp.sum(x**2),
        lambda x, y, data: 0.5 * jnp.sum((y - 0.1 * jnp.sum(x)) ** 2),
        bx.LinearCoupling(A, B, upper=1.0),
        data=target,
    )


@pytest.mark.slow
def test_sparse_rows_are_never_turned_dense(no_dense):
    """100,000 x 150,000, 120 GB as an array of numbers; and parts of it may not be turned dense either."""
    with pytest.raises(AssertionError, match="turned dense"):
        sp.eye(3).tocsr().toarray()
    problem = sparse_problem(100_000, 150_000)
    with jax.enable_x64(True):
        result = bx.run(problem, np.ones(5), solver=bx.SFLCB(delta=0.1), max_steps=5)
    assert int(result.steps) == 5
    assert np.isfinite(result.x).all()


# --- jit


def test_run_inside_jit_with_traced_problem():
    """Bounds, matrices, data and step sizes may all be traced."""

    @jax.jit
    def answer(bound, matrix, target, eta):
        problem = bx.BilevelProblem(
            lambda x, y, data: jnp.sum((y - data) ** 2) + jnp.sum(x**2),
            lambda x, y, data: jnp.sum((y - x) ** 2),
            bx.LinearCoupling(matrix, upper=bound),
            x_set=bx.Box(-bound, jnp.inf),
            data=target,
        )
        return bx.run(problem, jnp.zeros(2), solver=bx.SFLCB(eta_x=eta), max_steps=300).x

    with jax.enable_x64(True):
        found = answer(jnp.array(1.0), jnp.eye(2), jnp.array([2.0, 0.3]), jnp.array(0.02))
        problem = bx.BilevelProblem(
            lambda x, y: jnp.sum((y - jnp.array([2.0, 0.3])) ** 2) + jnp.sum(x**2),
            lambda x, y: jnp.sum((y - x) ** 2),
            bx.LinearCoupling(np.eye(2), upper=1.0),
            x_set=bx.Box(-1.0, np.inf),
        )
        expected = bx.run(problem, np.zeros(2), solver=bx.SFLCB(eta_x=0.02), max_steps=300).x
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coupling", "x_set"),
    [
        (bx.AffineCoupling(lambda x, y: y - x, upper=0.0), bx.Box(0.0, 3.0)),
        (bx.LinearCoupling([[1.0]], [[-1.0]], upper=0.0), bx.Polyhedron([[1.0]], lower=0.0, upper=3.0)),
    ],
    ids=["affine", "polyhedron"],
)
def test_run_inside_jit_and_vmap(coupling, x_set):
    problem = bx.BilevelProblem(
        chase, lambda x, y: jnp.sum((y - 2 * x) ** 2), coupling, x_set=x_set, y_like=np.zeros(1)
    )
    run = lambda x0: bx.run(problem, x0, solver=bx.SFLCB(), max_steps=20, **FOREVER).x
    starts = np.array([[0.5], [2.9]])
    with jax.enable_x64(True):
        expected = np.array([run(start) for start in starts])
        np.testing.assert_allclose(jax.jit(jax.vmap(run))(starts), expected, rtol=1e-12)


def test_a_start_without_a_lower_level_answer_is_a_status_not_an_error():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum(x**2),
        lambda x, y: jnp.sum(y**2),
        bx.LinearCoupling(A=[[1.0]], B=[[1.0]], upper=-1.0),
        y_set=bx.Box(0.0, 1.0),
    )
    solution = bx.solve(problem, np.array([3.0]), solver=bx.SFLCB(), max_steps=0)
    assert solution.status is bx.Status.LOWER_INFEASIBLE


@pytest.mark.parametrize("solver", [bx.Default(), bx.GAM(), None], ids=["default", "GAM", "none"])
def test_run_says_what_it_cannot_run(solver):
    name = "Default" if solver is None else type(solver).__name__
    with pytest.raises(ValueError, match=f"run expects a compiled solver such as SFLCB.*, got {name}.*use solve"):
        bx.run(toy(), 1.5, solver=solver)  # pyright: ignore[reportArgumentType]


def test_what_works_on_the_host_cannot_be_traced():
    calls = {
        "x0": [
            lambda x: bx.solve(toy(), x).value,
            lambda x: bx.solve(toy(), x, solver=bx.SFLCB()).value,
            lambda x: bx.certify(toy(), x).value,
            lambda x: bx.solve_lower_level(toy(), x).y,
            lambda x: bx.reformulation.penalised_value(toy(), x, 0.1),
            lambda x: bx.compare(toy(), x).rows(),
        ],
        "y0": [lambda y: bx.solve(toy(), 1.5, y0=y).value],
        "starts": [lambda x: bx.multistart(toy(), x[None]).best.value],
        "problem": [lambda bound: bx.solve(toy(x_set=bx.Box(0.0, bound)), 1.5).value],
    }
    for name, functions in calls.items():
        for function in functions:
            for transform in (jax.jit, jax.grad, lambda call: lambda x: jax.vmap(call)(x[None])):
                with pytest.raises(ValueError, match=rf"{name}: expected numbers, got a tracer.*run\(\.\.\.\)"):
                    transform(function)(jnp.asarray(1.5))


def test_what_notebooks_and_terminals_show():
    solution = bx.solve(bx.problems.toy(), 0.7)
    shown = solution._repr_html_()
    assert "<table>" in shown
    assert "stationarity" in shown
    assert "&lt;" not in solution.certificate._repr_html_()
    assert summarise(np.array([1.0, 7e-27, -2.0])) == "[ 1.,  0., -2.]"
    assert summarise(np.array([7e-27])) == "[7.e-27]"
    assert summarise(np.arange(20.0)).count(",") == 19
    exact = solution.history["best"][np.isfinite(solution.history["best"])]
    assert np.all(np.diff(exact) <= 0)
    assert exact[-1] == pytest.approx(solution.value, abs=1e-8)
