import errno
import functools
import hashlib
import json
import pathlib
import subprocess
import sys
import textwrap
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax._support.precision import float64
from bilevax.driver import checkpoints, verdict
from bilevax.model.flat import FlatProblem
from bilevax.model.problem import validate
from bilevax.problems.quadratic import random_quadratic
from bilevax.solvers.diary import Diary, Learning
from known import made_up_network, toy
from test_driver import FOREVER, SOLVER, same_state
from test_sparse_direct import roads

KILLED = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    import bilevax as bx
    from known import made_up_network, toy
    from test_driver import SOLVER, FOREVER

    def callback(progress):
        if progress.steps >= 700:
            os.kill(os.getpid(), signal.SIGKILL)

    bx.solve(toy(), 0.7, solver=SOLVER, max_steps=20_000, checkpoint={path!r}, callback=callback, **FOREVER)
    """
)


def test_killed_and_resumed_bit_for_bit(tmp_path):
    path = tmp_path / "run.ckpt"
    code = KILLED.format(tests=str(pathlib.Path(__file__).parent), path=str(path))
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    assert path.exists()
    resumed = bx.solve(toy(), 0.7, solver=SOLVER, max_steps=20_000, resume=path, **FOREVER)
    assert 700 <= resumed.history["step"][0] < 20_000
    same_state(resumed, bx.solve(toy(), 0.7, solver=SOLVER, max_steps=20_000, **FOREVER))


def test_a_checkpoint_goes_on_with_tighter_tolerances(tmp_path):
    path = tmp_path / "run.ckpt"
    rough = bx.solve(toy(), 0.7, solver=SOLVER, rtol=1e-2, checkpoint=path)
    fine = bx.solve(toy(), 0.7, solver=SOLVER, rtol=1e-6, resume=path)
    assert fine.stats["steps"] > rough.stats["steps"]
    assert fine.certificate.stationarity < 0.1 * rough.certificate.stationarity
    same_state(fine, bx.solve(toy(), 0.7, solver=SOLVER, rtol=1e-6))


def test_checkpoint_of_a_float32_run(tmp_path):
    path = tmp_path / "run.ckpt"
    settings = {"solver": SOLVER, "dtype": np.float32, **FOREVER}
    bx.solve(toy(), 0.7, max_steps=200, checkpoint=path, **settings)
    resumed = bx.solve(toy(), 0.7, max_steps=300, resume=path, **settings)
    same_state(resumed, bx.solve(toy(), 0.7, max_steps=300, **settings))
    with pytest.raises(ValueError, match="state"):
        bx.solve(toy(), 0.7, solver=SOLVER, resume=path)


# --- the default


@functools.cache
def quadratic():
    """Dense, with inequality rows."""
    return random_quadratic(8, 12, 8, upper="quadratic", seed=3, with_theta_bar=False)[0], np.zeros(8)


@functools.cache
def bent():
    """Dense, g not quadratic: Hessians change from point to point."""
    random = np.random.default_rng(0)
    data = {"mixed": random.standard_normal((6, 3)), "target": random.standard_normal(6)}
    problem = bx.BilevelProblem(
        lambda x, y, data: jnp.sum(jnp.log1p((y - data["target"]) ** 2)) + jnp.sum(jnp.cos(x)),
        lambda x, y, data: jnp.sum(jnp.cosh(y)) + y @ (data["mixed"] @ x),
        bx.LinearCoupling(random.standard_normal((2, 6)), random.standard_normal((2, 3)), upper=0.1),
        x_set=bx.Box(-1.0, 1.0),
        y_set=bx.Box(-0.5, 0.5),
        data=data,
    )
    return problem, np.full(3, 0.3)


@functools.cache
def network():
    """Sparse: g is linear in the flows."""
    design = made_up_network()
    return design.problem(), design.start()


def crossing():
    """Sparse, with second derivatives: what a stage learns of their reach, the next one uses."""
    design = roads(2)
    return design.problem(), design.start()


FIRST_ORDER = {"solver": bx.Default(variant="first-order")}
CASES = {
    "toy": (lambda: (toy(), 1.5), {}),
    "quadratic": (quadratic, {"solver": bx.Default()}),  # else a proof would come before the search
    "bent": (bent, {}),
    "network": (network, {}),
    "toy, first-order": (lambda: (toy(), 1.5), FIRST_ORDER),
    "bent, first-order": (bent, FIRST_ORDER),
}


def same_answer(a, b):
    assert a.status is b.status
    assert a.value == b.value
    assert {**a.stats, "time": 0.0} == {**b.stats, "time": 0.0}
    for left, right in zip(jax.tree.leaves((a.x, a.y)), jax.tree.leaves((b.x, b.y)), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.fixture
def certified_once(monkeypatch):
    """Give a point that was certified before, the same to the last bit, its certificate: here the way to it counts."""
    known, certify = {}, verdict.certify_flat

    def remembered(flat, *point):
        key = id(flat.problem), *(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(point))
        if key not in known:
            known[key] = certify(flat, *point), flat.problem  # while it is kept, its id is no other's
        return known[key][0]

    monkeypatch.setattr(verdict, "certify_flat", remembered)


class BreakOff(Exception):
    """Ends a run on the spot, without a certificate."""


def broken_off(stop, problem, x0, **settings):
    """Run to ``stop`` steps; return the steps that were seen, and the solution of a run that came to its end before."""
    steps = []

    def callback(progress):
        steps.append(progress.steps)
        if progress.steps >= stop:
            raise BreakOff

    try:
        return steps, bx.solve(problem, x0, callback=callback, **settings)
    except BreakOff:
        return steps, None


def in_slices(path, every, problem, x0, **settings):
    """Solve by one run after another, each broken off ``every`` steps beyond the last one and resumed by the next."""
    stop, firsts = every, []
    while True:
        steps, solution = broken_off(stop, problem, x0, checkpoint=path, **settings)
        firsts.append(steps[0])
        if solution is not None:
            return solution, firsts
        settings = {key: settings[key] for key in settings if key != "warm_start"} | {"resume": path}
        stop += every


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_default_stopped_and_resumed_bit_for_bit(case, tmp_path, certified_once):
    make, settings = CASES[case]
    problem, x0 = make()
    whole = bx.solve(problem, x0, **settings)
    assert {"smooth descent", "exact descent"} <= set(whole.history["phase"])
    for every in (2, 7):
        sliced, firsts = in_slices(tmp_path / f"{every}.ckpt", every, problem, x0, **settings)
        same_answer(sliced, whole)
        assert firsts == sorted(firsts)
        assert len(set(firsts)) >= 3 or every > 2  # what is finished is not done again


@pytest.mark.slow
def test_what_the_sparse_path_has_learned_is_resumed(tmp_path, certified_once):
    problem, x0 = crossing()
    whole, path, settings = bx.solve(problem, x0), tmp_path / "run.ckpt", {}
    for stop in (8, 17, 49):
        broken_off(stop, problem, x0, checkpoint=tmp_path / "next.ckpt", **settings)
        (tmp_path / "next.ckpt").rename(path)
        settings = {"resume": path}
    same_answer(bx.solve(problem, x0, **settings), whole)


def test_a_run_stopped_by_its_callback_is_resumed(tmp_path):
    path = tmp_path / "run.ckpt"
    stopped = bx.solve(toy(), 1.5, checkpoint=path, callback=lambda progress: progress.steps >= 7)
    assert stopped.status is bx.Status.CALLBACK
    resumed = bx.solve(toy(), 1.5, resume=path)
    same_answer(resumed, bx.solve(toy(), 1.5))
    assert resumed.history["step"][0] > 0


def test_a_learner_changes_nothing_but_its_state():
    class Seen(NamedTuple):
        total: int

    class Pupil(Learning):
        State = Seen

        def __init__(self):
            self.name, self.total, self._cache = "pupil", 0, ""

    pupil = Pupil()
    pupil.total, pupil._cache = 3, "anything"
    with pytest.raises(AttributeError, match=r"Pupil\.name is set already: what is learned belongs to its State"):
        pupil.name = "other"
    other = Pupil()
    other.state = pupil.state
    assert other.state == Seen(3)


@pytest.mark.slow
def test_every_learner_of_the_default_declares_its_state():
    """Caches aside, what a whole search changes in its learners is in their states: all else stays the same object."""
    seen = []

    class Spy(Diary):
        def learner(self, make):
            made = super().learner(make)
            seen.append((made, dict(vars(made))))
            return made

    for make, settings in (CASES["bent"], CASES["network"], CASES["bent, first-order"]):
        problem, x0 = make()
        with float64():
            flat = FlatProblem(problem, *validate(problem, x0)[:2])
            for _ in settings.get("solver", bx.Default()).search(flat, np.asarray(x0), None, 1e-6, diary=Spy()):
                pass
    kinds = {type(made).__name__ for made, _ in seen}
    assert kinds == {"FlatProblem", "DenseAlgebra", "CentralLower", "CentralPath", "PairOracle"}
    for made, before in seen:
        changed = {name for name in before if not name.startswith("_") and vars(made)[name] is not before[name]}
        assert changed <= set(made.state._fields), (type(made), changed)


def test_a_warm_start_resumed_bit_for_bit(tmp_path, certified_once):
    for make in (quadratic, network):
        problem, x0 = make()
        earlier = bx.solve(problem, x0, rtol=1e-2)
        whole = bx.solve(problem, x0, warm_start=earlier)
        sliced, firsts = in_slices(tmp_path / "run.ckpt", 1, problem, x0, warm_start=earlier)
        same_answer(sliced, whole)
        assert len(firsts) > 1


KILLED_DEFAULT = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    import bilevax as bx
    from test_checkpoints import CASES

    make, settings = CASES[{case!r}]
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
    written, fsync = [], os.fsync

    def while_writing(file):
        written.append(fsync(file))
        if len(written) == {write}:
            kill()

    os.fsync = while_writing
    callback = lambda progress: progress.steps >= {step} and kill()
    bx.solve(*make(), checkpoint={path!r}, callback=callback, **settings)
    """
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "step", "write"),
    [
        ("quadratic", 0, 99),
        ("quadratic", 12, 99),
        ("quadratic", 99, 5),
        ("network", 12, 99),
        ("bent, first-order", 99, 3),
    ],
)
def test_the_default_killed_and_resumed_bit_for_bit(case, step, write, tmp_path, certified_once):
    path = tmp_path / "run.ckpt"
    tests = str(pathlib.Path(__file__).parent)
    code = KILLED_DEFAULT.format(tests=tests, case=case, path=str(path), step=step, write=write)
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert killed.returncode == -9, killed.stderr
    make, settings = CASES[case]
    problem, x0 = make()
    resumed, whole = (bx.solve(problem, x0, **settings, **more) for more in ({"resume": path}, {}))
    same_answer(resumed, whole)
    assert (resumed.history["step"][0] > 0) == (step > 0)


@pytest.fixture(scope="module")
def written_by_the_default(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "run.ckpt"
    bx.solve(toy(), 1.5, checkpoint=path)
    return path


def test_a_finished_run_resumed_is_the_same_answer(written_by_the_default):
    whole, resumed = bx.solve(toy(), 1.5), bx.solve(toy(), 1.5, resume=written_by_the_default)
    same_answer(resumed, whole)
    assert list(resumed.history["phase"]) == ["answer"]


def test_other_runs_of_the_default_are_refused(written_by_the_default):
    others: list[tuple[bx.BilevelProblem, dict[str, Any], str]] = [
        (toy(upper=0.1), {}, "problem"),
        (toy(), FIRST_ORDER, "settings"),
        (toy(), {"solver": SOLVER}, "solver"),
        (toy(), {"rtol": 1e-3}, "rtol"),
    ]
    for problem, change, other in others:
        with pytest.raises(ValueError, match=f"was written for another {other}: expected .*, got"):
            bx.solve(problem, 1.5, resume=written_by_the_default, **change)


def test_a_method_that_keeps_no_diary_says_so(tmp_path):
    for change in ({"checkpoint": tmp_path / "run.ckpt"}, {"resume": tmp_path / "run.ckpt"}):
        with pytest.raises(ValueError, match=r"expected the default or a compiled solver such as SFLCB.*, got GAM"):
            bx.solve(toy(), 0.7, solver=bx.GAM(), **change)


def with_header(data, **change):
    """Return a checkpoint with another first line, and a fingerprint that fits."""
    header, rest = data[:-32].split(b"\n", 1)
    data = json.dumps({**json.loads(header), **change}).encode() + b"\n" + rest
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize("change", [{"version": "0.0.9"}, {"format": 1}], ids=str)
@pytest.mark.parametrize("solver", [None, SOLVER], ids=["default", "SFLCB"])
def test_checkpoints_of_another_version_are_refused(written, written_by_the_default, tmp_path, solver, change):
    path, original = tmp_path / "old.ckpt", written_by_the_default if solver is None else written
    path.write_bytes(with_header(original.read_bytes()))
    assert bx.solve(toy(), 1.5, solver=solver, resume=path).stats["steps"] > 0
    path.write_bytes(with_header(original.read_bytes(), **change))
    ((key, value),) = change.items()
    with pytest.raises(ValueError, match=f"old.ckpt was written for another {key}: expected .*, got {value}"):
        bx.solve(toy(), 1.5, solver=solver, resume=path)


def test_a_checkpoint_names_no_class_but_our_own(written_by_the_default, tmp_path):
    path = tmp_path / "run.ckpt"
    ours, foreign = b'["bilevax.solvers.default.pieces.point", "ExactPoint"]', b'["subprocess", "Popen"]'
    data = written_by_the_default.read_bytes()[:-32].replace(ours, foreign)
    path.write_bytes(data + hashlib.sha256(data).digest())
    with pytest.raises(ValueError, match=r"expected a record of bilevax, got subprocess.Popen"):
        bx.solve(toy(), 1.5, resume=path)


def forged(data, change):
    """Return a checkpoint whose state was changed, and a fingerprint that fits."""
    header, state, arrays = data[:-32].split(b"\n", 2)
    state = json.loads(state)
    change(state)
    data = b"\n".join([header, json.dumps(state).encode(), arrays])
    return data + hashlib.sha256(data).digest()


def without_fields(state):
    """Take the fields from the first record in a state."""
    inside = list(state.values() if isinstance(state, dict) else state if isinstance(state, list) else ())
    if isinstance(state, dict) and "fields" in state:
        state["fields"] = {"dict": []}
        return True
    return any(without_fields(part) for part in inside)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: state.update(state=None), id="nothing"),
        pytest.param(lambda state: state.update(state=[1, 2]), id="numbers"),
        pytest.param(lambda state: state.update(state={"dict": [[1]]}), id="half a dictionary"),
        pytest.param(lambda state: state.update(state={"tuple": [None] * 4}), id="four times nothing"),
        pytest.param(lambda state: state.update(arrays=0), id="no arrays"),
        pytest.param(lambda state: state.pop("arrays"), id="no count"),
        pytest.param(lambda state: without_fields(state) or state.clear(), id="a record without fields"),
        pytest.param(
            lambda state: state.update(state={"record": [checkpoints.__name__, "Path"], "fields": {"dict": []}}),
            id="a class that we only import",
        ),
    ],
)
@pytest.mark.parametrize("solver", [None, SOLVER], ids=["default", "SFLCB"])
def test_forged_checkpoints_are_refused(written, written_by_the_default, tmp_path, solver, change):
    path = tmp_path / "forged.ckpt"
    path.write_bytes(forged((written_by_the_default if solver is None else written).read_bytes(), change))
    with pytest.raises(ValueError, match=r"resume: .*forged.ckpt is no checkpoint from which this run can go on: "):
        bx.solve(toy(), 1.5, solver=solver, resume=path)


def test_results_of_the_wrong_kind_are_the_files_fault(written_by_the_default, tmp_path):
    """Whatever depth it is found at; what the callback raises is the user's own."""
    path = tmp_path / "forged.ckpt"

    def change(state):
        results = state["state"]["tuple"][3]["dict"][0][1]
        results["dict"] = [[name, {"tuple": []}] for name, _ in results["dict"]]

    path.write_bytes(forged(written_by_the_default.read_bytes(), change))
    with pytest.raises(ValueError, match=r"resume: .* is no checkpoint from which this run can go on"):
        bx.solve(toy(), 1.5, resume=path)

    def callback(progress):
        raise TypeError("my own")

    with pytest.raises(TypeError, match="my own"):
        bx.solve(toy(), 1.5, resume=written_by_the_default, callback=callback)


# --- refusals


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "run.ckpt"
    bx.solve(toy(), 0.7, solver=SOLVER, max_steps=100, checkpoint=path, **FOREVER)
    return path


def scaled_toy(factor):
    return bx.BilevelProblem(
        lambda x, y: x**2, lambda x, y: (y - factor * x) ** 2, bx.LinearCoupling(1.0, -1.0, upper=0.0)
    )


def test_checkpoints_of_something_else_are_refused(written):
    for problem in (toy(upper=0.1), toy(x_set=bx.Box(0.0, 2.0)), scaled_toy(2.0)):
        with pytest.raises(ValueError, match=r"was written for another problem: expected .*, got"):
            bx.solve(problem, 0.7, solver=SOLVER, resume=written)
    with pytest.raises(ValueError, match=r"was written for another settings: expected .*, got"):
        bx.solve(toy(), 0.7, solver=bx.SFLCB(delta=0.2), resume=written)


_FACTOR = 2.0


def beside_itself(x):
    return _FACTOR * x


def test_numbers_inside_functions_belong_to_the_problem():
    """Constants, closures, defaults and partials: each makes another problem, though the byte code is the same."""
    digest = checkpoints._digest
    assert digest(scaled_toy(2.0)) == digest(scaled_toy(2.0))
    assert digest(scaled_toy(2.0)) != digest(scaled_toy(3.0))
    assert digest(lambda x: x + 1.0) == digest(lambda x: x + 1.0)
    assert digest(lambda x: x + 1.0) != digest(lambda x: x + 2.0)
    assert digest(lambda x, k=1.0: x + k) != digest(lambda x, k=2.0: x + k)
    assert digest(functools.partial(max, 1.0)) != digest(functools.partial(max, 2.0))
    assert digest(bx.Default()) != digest(bx.Default(variant="first-order"))
    other, same = (types.FunctionType(beside_itself.__code__, {"_FACTOR": number}) for number in (3.0, _FACTOR))
    assert digest(beside_itself) == digest(same) != digest(other)
    array = np.arange(3.0)
    inner = lambda x: x + array
    first = digest(lambda x: inner(x))
    array[1] = 7.0
    assert digest(lambda x: inner(x)) != first


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"not a checkpoint at all", id="text"),
        pytest.param(lambda data: bytes(range(256)) * 8, id="garbage"),
        pytest.param(lambda data: b"[1, 2]\n", id="other json"),
        pytest.param(lambda data: data[: data.index(b"\n") + 1], id="header only"),
        pytest.param(lambda data: data[:-5], id="truncated"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[: data.index(b"\n") + 1] + b"x" * 400, id="garbage after the header"),
        pytest.param(lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:], id="one bit flipped"),
    ],
)
@pytest.mark.parametrize("solver", [None, SOLVER], ids=["default", "SFLCB"])
def test_broken_checkpoints_are_refused(written, written_by_the_default, tmp_path, solver, content):
    path = tmp_path / "broken.ckpt"
    path.write_bytes(content((written_by_the_default if solver is None else written).read_bytes()))
    with pytest.raises(ValueError, match=r"resume: .*broken.ckpt is no complete checkpoint"):
        bx.solve(toy(), 0.7, solver=solver, resume=path)


def test_an_unwritable_folder_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="checkpoint: could not write .*The run goes on"):
        solution = bx.solve(
            toy(), 0.7, solver=SOLVER, max_steps=200, checkpoint=tmp_path / "gone" / "run.ckpt", **FOREVER
        )
    assert solution.stats["steps"] == 200


@pytest.mark.parametrize("call", ["os.fsync", "numpy.save"])
@pytest.mark.parametrize(
    "settings",
    [{"solver": SOLVER, "max_steps": 200, **FOREVER}, {}, FIRST_ORDER],
    ids=["SFLCB", "default", "first-order"],
)
def test_a_full_disk_is_a_warning_and_keeps_the_old_file(settings, call, tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    whole = bx.solve(toy(), 1.5, checkpoint=path, **settings)
    old = path.read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(call, full)
    with pytest.warns(UserWarning, match=r"checkpoint: could not write .*No space left on device\. The run goes on"):
        solution = bx.solve(toy(), 1.5, checkpoint=path, **settings)
    same_answer(solution, whole)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    solution = bx.solve(toy(), 0.7, solver=SOLVER, checkpoint=path, **FOREVER)
    assert solution.status is bx.Status.INTERRUPTED
    assert list(tmp_path.iterdir()) == []
