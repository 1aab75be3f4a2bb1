"""The frame of the benchmarks: what becomes of the comparisons' numbers."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


@pytest.fixture
def frame(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("all"), importlib.import_module("growth")


ABOUT = {"command": "default.py dense", "date": "today", "commit": "abc", "machine": "m", "load": 0.5, "clock": "cpu"}
RESULTS = {
    "dense": ABOUT
    | {
        "rows": [{"n": 500, "s": 2.0, "s_mpcc": 90.0}, {"n": 100, "s": 0.5, "s_mpcc": None}, {"s": 1.0}],
        "targets": [{"name": "ratio", "measured": 45.0, "relation": ">=", "wanted": 50.0, "met": False}],
    },
    "sizes": ABOUT | {"rows": [{"n": 10, "s": 7.0, "cpu_s": 0.1, "family": "chain"}], "targets": []},
    "torch": ABOUT | {"failure": "No module named 'torch'"},
}


def test_every_size_is_a_point_of_its_program(frame, tmp_path):
    _, growth = frame
    assert growth.curves(RESULTS) == {
        ("dense", "bilevax"): [(100, 0.5), (500, 2.0)],
        ("dense", "pympcc"): [(500, 90.0)],
        ("chain", "bilevax"): [(10, 0.1)],
    }
    growth.draw(RESULTS, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"growth.svg", "growth.png"}


def test_the_table_shows_what_was_missed_and_what_failed(frame):
    table = frame[0].table(RESULTS)
    assert "| dense | ratio | 45 | >= 50 | no |" in table
    assert "| torch | failed: No module named 'torch' | | | |" in table
    assert "| torch | default.py dense | today | abc | m | 0.5 | cpu |" in table


def test_a_failing_comparison_is_a_result(frame):
    found = frame[0].measured(["there_is_no_such_script.py"], "cpu", limit=60.0)
    assert "there_is_no_such_script.py" in found["failure"]
    assert found["command"] == "there_is_no_such_script.py"
