"""Arrays on several devices and in several processes, and the compiled path without the host."""

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from test_docs import script

TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def environment(**more):
    """Return the surroundings of a process: those of the tests, without what would make it part of a cluster."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return kept | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {more.pop('flags', '')}"} | more


def finish(process):
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error[-3000:]
    return out


def begin(*command, folder=None, **more):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=folder, env=environment(**more), **pipes)


class Printed(NamedTuple):
    """What a run of the page's script said, and found."""

    line: str
    y: np.ndarray


def printed(out: str, folder: Path) -> Printed:
    return Printed(out.splitlines()[-1], np.load(folder / "y.npy"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's script and its rows."""
    folder = tmp_path_factory.mktemp("spread")
    for name in ("rows.py", "spread.py"):
        (folder / name).write_text(script("parallel.md", name))
    finish(begin("rows.py", folder=folder))
    return folder


@pytest.fixture(scope="module")
def two_devices(folder):
    """The page's script on two devices, in the process that looks at much else there."""
    program = Path(__file__).with_name("spread_program.py")
    return printed(finish(begin(program, "spread.py", folder=folder, flags=TWO_DEVICES)), folder)


@pytest.mark.slow
def test_what_is_spread_over_two_devices_stays_there(two_devices):
    assert two_devices.line


def free_job_number():
    """Return the number of a SLURM job for which JAX will choose a port that is free."""
    first = 65535 - 2**12 + 1
    for number in range(2**12):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", first + number)):
                return number
    raise RuntimeError("no port is free")


@pytest.mark.slow
def test_the_script_of_the_page_on_one_device_on_two_and_as_two_slurm_processes(
    folder, two_devices, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    runpy.run_path("spread.py")
    one = printed(capsys.readouterr().out, folder)
    job = {"SLURM_JOB_ID": str(free_job_number()), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    both = [
        begin("spread.py", folder=folder, **job, SLURM_PROCID=str(number), SLURM_LOCALID="0") for number in range(2)
    ]
    outs = [finish(process) for process in both]
    assert outs[1].count("\n") <= 1  # only the first one speaks, besides Gloo
    assert one.y.dtype == np.float64
    for other in (two_devices, printed(outs[0], folder)):
        assert other.line == one.line
        np.testing.assert_allclose(other.y, one.y, rtol=0, atol=1e-12)


SOLVERS = {"SFLCB": bx.SFLCB, "BLOCC": bx.BLOCC, "LVHBA": bx.LVHBA, "BiCGAFFA": bx.BiCGAFFA}


def guarded_problem():
    return bx.BilevelProblem(
        upper=lambda x, y, data: jnp.sum((y - data) ** 2) + 0.5 * x @ x,
        lower=lambda x, y, data: 0.5 * jnp.sum((y - x) ** 2),
        coupling=bx.LinearCoupling(A=np.eye(3), B=-0.5 * np.eye(3), upper=0.5),
        x_set=bx.Box(-1.0, 1.0),
        y_set=bx.Ball(5.0),
        data=np.arange(3.0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("double", [False, True])
def test_nothing_moves_between_host_and_device_unasked(double):
    with jax.enable_x64(double):
        x0 = jax.device_put(np.zeros(3))
        with jax.transfer_guard("disallow"):
            found = bx.run(guarded_problem(), x0, solver=bx.SFLCB(), max_steps=100)
        assert found.x.dtype == (np.float64 if double else np.float32)
        assert np.isfinite(found.x).all()


@pytest.mark.parametrize("method", SOLVERS)
def test_no_compiled_solver_calls_the_host(method):
    program = jax.make_jaxpr(lambda x0: bx.run(guarded_problem(), x0, solver=SOLVERS[method](), max_steps=100))
    text = str(program(np.zeros(3)))
    assert "while" in text
    assert "callback" not in text
