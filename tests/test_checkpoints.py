import functools
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import bilevax as bx
from bilevax import checkpoints
from known import toy
from test_driver import FOREVER, SOLVER, same_state

KILLED = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    import bilevax as bx
    from known import toy
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


def test_numbers_inside_functions_belong_to_the_problem():
    """Constants, closures, defaults and partials: each makes another problem, though the byte code is the same."""
    digest = checkpoints._digest
    assert digest(scaled_toy(2.0)) == digest(scaled_toy(2.0))
    assert digest(scaled_toy(2.0)) != digest(scaled_toy(3.0))
    assert digest(lambda x: x + 1.0) == digest(lambda x: x + 1.0)
    assert digest(lambda x: x + 1.0) != digest(lambda x: x + 2.0)
    assert digest(lambda x, k=1.0: x + k) != digest(lambda x, k=2.0: x + k)
    assert digest(functools.partial(max, 1.0)) != digest(functools.partial(max, 2.0))
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
    ],
)
def test_broken_checkpoints_are_refused(written, tmp_path, content):
    path = tmp_path / "broken.ckpt"
    path.write_bytes(content(written.read_bytes()))
    with pytest.raises(ValueError, match=r"resume: .*broken.ckpt is no complete checkpoint"):
        bx.solve(toy(), 0.7, solver=SOLVER, resume=path)


def test_an_unwritable_folder_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="checkpoint: could not write .*The run goes on"):
        solution = bx.solve(
            toy(), 0.7, solver=SOLVER, max_steps=200, checkpoint=tmp_path / "gone" / "run.ckpt", **FOREVER
        )
    assert solution.stats["steps"] == 200


def test_a_full_disk_is_a_warning_and_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    bx.solve(toy(), 0.7, solver=SOLVER, max_steps=100, checkpoint=path, **FOREVER)
    old = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(UserWarning, match="No space left"):
        bx.solve(toy(), 0.7, solver=SOLVER, max_steps=200, checkpoint=path, **FOREVER)
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
