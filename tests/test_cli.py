"""The command: what it prints, its exit codes, and what it says of other people's mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

import bilevax as bx
from bilevax.app import cli
from bilevax.app.cli import project, solving
from bilevax.app.experiments import __main__ as experiments
from bilevax.problems.toy import LOCAL_MINIMA
from shared_data import INSIDE

TOY = """
import jax.numpy as jnp
import bilevax as bx

print("read")
problem = bx.BilevelProblem(
    upper=lambda x, y: jnp.exp(2 - y) / (2 + jnp.cos(6 * x)) + 0.5 * jnp.log((4 * x - 2) ** 2 + 1),
    lower=lambda x, y: (y - 2 * x) ** 2,
    coupling=bx.LinearCoupling(A=1.0, B=-1.0, upper=0.0),
    x_set=bx.Box(0.0, 3.0),
)
x0 = 0.7
"""
TREE = """
import jax.numpy as jnp
import numpy as np
import bilevax as bx

problem = bx.BilevelProblem(
    upper=lambda x, y: jnp.sum((x["b"] - 1) ** 2) + (x["a"] - 2) ** 2 + jnp.sum(y**2),
    lower=lambda x, y: jnp.sum((y - x["b"]) ** 2),
    y_like=np.zeros(2),
)
x0 = {"b": np.array([0.2, 0.3]), "a": 0.1}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command lets a file import its neighbours
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


def call(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def told(*arguments: Any, code: int = 0) -> dict[str, Any]:
    """Return the object that a command prints with --json, having refused what strict JSON has not."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(call(*arguments, "--json", code=code).stdout, parse_constant=refuse)


def test_solve_prints_the_certified_answer(folder):
    output = call("solve", "toy.py").stdout
    assert "✓ success" in output
    assert "1.721878815" in output
    assert "0.98622483" in output


def test_solve_as_json_is_one_object_though_the_file_prints(folder):
    found = told("solve", "toy.py")
    assert found["success"] is True
    assert found["status"] == "converged"
    assert found["x"] == pytest.approx(LOCAL_MINIMA[1], abs=1e-8)
    assert found["value"] == found["certificate"]["value"]
    assert found["stats"]["solver"] == "Default"


def test_an_answer_without_success_has_exit_code_1(folder):
    (folder / "slow.py").write_text(TOY + "solver = bx.SFLCB(delta=0.1)\n")
    found = told("solve", "slow.py", "--max-steps", 100, "--time-limit", 1000, code=1)
    assert found["status"] == "max_steps"
    assert found["stats"] | {"time": 0} == {"solver": "SFLCB", "steps": 100, "time": 0}


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(folder):
    (folder / "slow.py").write_text(TOY + "solver = bx.SFLCB(delta=0.1)\n")
    told("solve", "slow.py", "--max-steps", 100, "--checkpoint", "run.ckpt", code=1)
    resumed = told("solve", "slow.py", "--max-steps", 300, "--resume", "run.ckpt", code=1)
    assert resumed["x"] == told("solve", "slow.py", "--max-steps", 300, code=1)["x"]
    (folder / "other.py").write_text(TOY + "solver = bx.SFLCB(delta=0.2)\n")
    assert "another settings" in told("solve", "other.py", "--resume", "run.ckpt", code=2)["error"]
    (folder / "half.ckpt").write_bytes((folder / "run.ckpt").read_bytes()[:500])
    assert "half.ckpt is no complete checkpoint" in told("solve", "slow.py", "--resume", "half.ckpt", code=2)["error"]
    assert "cannot read none.ckpt" in told("solve", "slow.py", "--resume", "none.ckpt", code=2)["error"]


def test_the_default_goes_on_from_its_checkpoint(folder):
    told("solve", "toy.py", "--max-steps", 0, "--checkpoint", "run.ckpt", code=1)
    assert told("solve", "toy.py", "--resume", "run.ckpt")["x"] == told("solve", "toy.py")["x"]


def test_solve_writes_a_report(folder):
    found = told("solve", "toy.py", "--rtol", 1e-9, "--report", "pages/toy.html")
    assert found["report"] == "pages/toy.html"
    text = (folder / "pages" / "toy.html").read_text(encoding="utf-8")
    assert f'<data value="{found["value"]}">' in text
    assert "≤ 1e-09" in text


def test_a_report_that_cannot_be_written_is_refused_before_the_work(folder, monkeypatch):
    monkeypatch.setattr(solving, "solve", lambda *_, **__: pytest.fail("it was solved first"))
    (folder / "page.html").mkdir()
    assert (
        "report: expected a file that can be written" in call("solve", "toy.py", "--report", "page.html", code=2).stderr
    )
    assert "toy.py" in call("solve", "toy.py", "--report", "toy.py/page.html", code=2).stderr


MISTAKES = {
    "syntax": ("x0 = 1.0\nproblem = (\n", "line 2: SyntaxError: '(' was never closed"),
    "error": ("x0 = 1.0\n\nproblem = 1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
    "import": ("import no_such_package\n", "line 1: ModuleNotFoundError: No module named 'no_such_package'"),
    "exit": ("x0 = 1.0\nraise SystemExit(0)\n", "line 2: RuntimeError: expected definitions"),
    "set": ("import bilevax as bx\n\nx_set = bx.Box(3.0, 1.0)\n", "line 3: Box: expected lower <= upper"),
    "objective": (TOY.replace("(y - 2 * x) ** 2", "y @ x[:, 3]"), "line 8: lower: the objective failed"),
    "no problem": ("x0 = 1.0\n", "expected it to define problem and x0, found no problem"),
    "type": ("problem, x0 = 3, 1.0\n", "problem: expected a BilevelProblem, got int"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_the_file_is_told_with_its_line(folder, kind):
    text, message = MISTAKES[kind]
    (folder / "wrong.py").write_text(text)
    result = call("solve", "wrong.py", code=2)
    assert result.stderr.startswith("error: wrong.py")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert message in told("certify", "wrong.py", code=2)["error"]


def test_an_error_of_ours_keeps_its_traceback(folder, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(solving, "solve", broken)
    result = CliRunner().invoke(cli.app, ["solve", "toy.py"])
    assert isinstance(result.exception, RuntimeError)


def test_wrong_options_have_exit_code_2(folder):
    call("solve", "missing.py", code=2)
    call("solve", "toy.py", "--max-steps", "many", code=2)
    assert "rtol: expected a number >= 0" in told("solve", "toy.py", "--rtol", -1, code=2)["error"]


def test_certify_takes_what_solve_printed(folder):
    (folder / "answer.json").write_text(call("solve", "toy.py", "--json").stdout)
    assert told("certify", "toy.py", "--x", "answer.json")["confirmed"] is True
    assert "✓ confirmed" in call("certify", "toy.py", "--x", "answer.json").stdout


@pytest.mark.parametrize("given", [{"a": 2.0, "b": [0.5, 0.5]}, [2.0, 0.5, 0.5]])
def test_certify_reads_points_in_the_form_of_x0(folder, given):
    (folder / "tree.py").write_text(TREE)
    (folder / "x.json").write_text(json.dumps(given))
    np.save(folder / "x.npy", [2.0, 0.5, 0.5])
    found = told("certify", "tree.py", "--x", "x.json")
    assert found == told("certify", "tree.py", "--x", "x.npy")
    assert found["x"] == {"a": 2.0, "b": [0.5, 0.5]}
    assert found["certificate"]["value"] == pytest.approx(1.0)
    assert found["certificate"]["y_error"] is None


def test_certify_without_x_takes_that_of_the_file(folder):
    assert told("certify", "toy.py", code=1)["x"] == 0.7
    (folder / "claim.py").write_text(TOY + f"x = {LOCAL_MINIMA[1]}\ny = x + 0.25\n")
    found = told("certify", "claim.py")
    assert found["x"] == LOCAL_MINIMA[1]
    assert found["certificate"]["y_error"] == pytest.approx(0.25)
    told("certify", "claim.py", "--rtol", 1e-15, code=1)


def test_certify_says_infeasible_in_strict_json(folder):
    (folder / "far.py").write_text(
        "import bilevax as bx\n"
        "rows = bx.LinearCoupling(A=[[1.0], [-1.0]], B=[[-1.0], [0.0]], upper=[0.0, -1.0])\n"
        "problem = bx.BilevelProblem(lambda x, y: x[0] + y[0], lambda x, y: y[0] ** 2, rows)\n"
        "x0 = [0.0]\n"
    )
    certificate = told("certify", "far.py", code=1)["certificate"]
    assert certificate["lower_feasible"] is False
    assert certificate["value"] == "Infinity"
    assert certificate["complementarity_margin"] == "NaN"
    assert certificate["failure"] == "lower_infeasible"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "1 numbers, got 2"),
        ("{", "expected a file *.npy, or JSON"),
        ('["one"]', "expected numbers, got 'one'"),
    ],
)
def test_a_point_that_does_not_fit_is_refused(folder, text, message):
    (folder / "x.json").write_text(text)
    assert message in told("certify", "toy.py", "--x", "x.json", code=2)["error"]


def test_network_from_json(folder):
    links = [{"i": "a", "j": "b", "t": 1.0, "c": 1.0}, {"i": "b", "j": "c", "t": 1.0, "c": 1.0}]
    pairs = [
        {"o": "a", "d": "b", "w": 1.0, "t_ext": 3.0, "m": 4.0},
        {"o": "a", "d": "c", "w": 1.0, "t_ext": 3.0, "m": 5.0},
    ]
    (folder / "town.json").write_text(json.dumps({"links": links, "od": pairs}))
    found = told("network", "town.json", "--report", "town.html")
    shares = np.array(found["pairs"]["share"])
    assert found["links"]["from"] == ["a", "b"]
    assert found["utility"] == pytest.approx(shares @ [4.0, 5.0] - sum(found["links"]["capacity"]), abs=1e-9)
    assert found["utility"] == pytest.approx(-found["value"])
    # Ample capacity, on a line where every pair has one way: the shares are those of the logit model.
    assert shares == pytest.approx(1 / (1 + np.exp([1.0 - 3.0, 2.0 - 3.0])), rel=1e-6)
    assert "town.json" in (folder / "town.html").read_text(encoding="utf-8")
    output = call("network", "town.json", "--rows", 1, "--starts", 2).stdout
    assert "Links: 2; 1 more not shown" in output


def test_network_files_that_are_wrong(folder):
    (folder / "town.json").write_text("{}")
    assert "expected a list 'links'" in told("network", "town.json", code=2)["error"]
    assert "town.json, line 1: expected ten numbers" in told("network", "town.json", "town.json", code=2)["error"]
    assert "got 4 files" in told("network", *["town.json"] * 4, code=2)["error"]


def test_network_from_tntp(folder):
    net, trips = (INSIDE / "roads" / "Braess-Example" / f"{kind}.tntp" for kind in ("net", "trips"))
    found = told("network", net, trips)
    assert found["success"] is True
    assert len(found["links"]["capacity"]) == 5


@pytest.mark.slow
def test_demo_solves_its_problems(folder):
    answers = told("demo", "--report", "demo.html")["answers"]
    assert all(answer["success"] for answer in answers.values())
    assert answers["toy"]["x"] == pytest.approx(LOCAL_MINIMA[1], abs=1e-8)
    assert answers["svm"]["value"] == pytest.approx(417.3201, abs=1e-4)  # the certified global optimum of that split
    assert answers["network"]["value"] == pytest.approx(-1.761594, abs=1e-6)  # 2 sigma(2)
    assert (folder / "demo.html").stat().st_size > 1e6


def test_info(folder, monkeypatch):
    monkeypatch.setenv("BILEVAX_DATA", "somewhere")
    found = told("info")
    assert found["bilevax"] == "0.1.0"
    assert found["data folder"] == "somewhere"
    assert found["extra cli"] == "installed"
    assert "compilation cache" in call("info").stdout


@pytest.mark.slow
def test_bench_lists_and_runs(folder):
    assert "sflcb_step" in told("bench")["benchmarks"]
    assert "expected one of" in told("bench", "nothing", code=2)["error"]
    command = [sys.executable, "-m", "bilevax.app.cli", "bench", "sflcb_step", "--", "--help"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0
    assert "--turns" in run.stdout


def test_bench_outside_a_checkout_says_so(folder, monkeypatch):
    monkeypatch.setattr(project, "__file__", str(folder / "lib/site-packages/bilevax/app/cli/project.py"))
    assert "expected a checkout" in told("bench", code=2)["error"]


def test_compare_judges_each_method(folder):
    (folder / "toy.py").write_text(TOY)
    found = told("compare", "toy.py", "--method", "default", "--method", "ProjectedPenalty", "--figure", "found.png")
    assert [row["status"] for row in found["methods"]] == ["converged", "refused"]
    assert found["methods"][0]["certified"]
    assert (folder / "found.png").stat().st_size > 0
    call("compare", "toy.py", "--method", "IPOPT", code=2)


def test_reproduce_delegates(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(experiments, "main", lambda arguments: (asked.append(arguments), print("a table")))
    found = told("reproduce", "toy", "--output", "figures")
    assert asked == [["toy", "--output", "figures"]]
    assert found == {"figure": "toy", "output": "figures", "text": "a table\n"}


def test_reproduce_refuses_a_figure_there_is_not(folder):
    told = call("reproduce", "nothing", code=2).output
    assert "reproduce [OPTIONS]" in told
    assert all(f"'{figure}'" in told for figure in ("nothing", "toy", "seville"))
    assert get_args(project.Figure) == (*experiments.FIGURES, "all")


def test_help_has_exit_codes_and_examples():
    assert "1 an answer, but without success" in call("--help").stdout
    for command in ("demo", "solve", "certify", "network", "reproduce", "bench", "info"):
        assert f"bilevax {command}" in call(command, "--help").stdout.partition("Usage")[2].partition("\n")[2]


def test_without_typer_it_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; import bilevax.app.cli"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 2
    assert "pip install 'bilevax[cli]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_version():
    assert call("--version").stdout.strip() == bx.__version__


def test_certify_takes_numbers_on_the_line(folder):
    assert told("certify", "toy.py", "--x", str(LOCAL_MINIMA[1]))["confirmed"] is True
    assert told("certify", "toy.py", "--x", "0.9", code=1)["confirmed"] is False
    assert "expected a file, or numbers such as" in told("certify", "toy.py", "--x", "nothing", code=2)["error"]


def test_multistart(folder):
    found = told("multistart", "toy.py", "--starts", "3", "--seed", "1")
    assert len(found["answer_of"]) == 3
    assert found["answers"][0]["success"] is True
    assert "distinct answers from 2 starts" in call("multistart", "toy.py", "--starts", "2").stdout
