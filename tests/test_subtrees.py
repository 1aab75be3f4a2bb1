"""Proofs whose subtrees are searched elsewhere: the same bounds, whoever searches them and whatever becomes of him."""

import concurrent.futures
import dataclasses
import json
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import bilevax as bx
from attack.judge.global_optimum import Quadratics
from bilevax._support.clock import OutOfTime, deadline
from bilevax.app.cli import app
from bilevax.proof import search as proof_search
from bilevax.proof import subtrees
from bilevax.proof.settings import PROOF
from test_proof import FILE, apart, planted, two_valleys


def hard() -> Quadratics:
    """A problem with some hundred nodes."""
    n, m = 20, 40
    random = np.random.default_rng(3)

    def definite(size: int, least: float) -> np.ndarray:
        root = random.standard_normal((size, size)) / np.sqrt(size)
        return root @ root.T + least * np.eye(size)

    A, B = random.standard_normal((m, m)) / np.sqrt(m), random.standard_normal((m, n)) / np.sqrt(n)
    box = np.hstack([np.eye(n), np.zeros((n, m))]), np.full(n, -5.0), np.full(n, 5.0)
    R, W, w = random.standard_normal((m, n)), definite(n + m, 0.1), 2 * random.standard_normal(n + m)
    low, high = np.full(m, -np.inf), random.uniform(0, 0.5, m)
    return Quadratics(W, w, definite(m, 0.5), R, random.standard_normal(m), A, B, low, high, box)


class Backwards(concurrent.futures.Executor):
    """Does first what it was given last, and loses every third task."""

    def __init__(self):
        self.given = 0

    def submit(self, function, /, *arguments, **options):
        self.given += 1
        future = concurrent.futures.Future()
        if self.given % 3 == 0:
            future.set_exception(ConnectionError("gone"))
        else:
            future.set_result(function(*arguments, **options))
        return future


def begun():
    """Return a tree that others shall go on with."""
    tree = planted(hard())
    for _ in tree.search():
        if tree.nodes > 30:
            return tree
    raise AssertionError("the problem is too easy")


def told(tree):
    return tree.lower_bound, tree.upper, tree.nodes


@pytest.fixture(autouse=True)
def small_hands(monkeypatch):
    """Hands so small that there are several rounds, and problems that are handed out from the first node on."""
    settings = dataclasses.replace(PROOF, hands=4, roots_in_hand=2, nodes_of_hand=15, help_after=0)
    monkeypatch.setattr(subtrees, "PROOF", settings)
    monkeypatch.setattr(proof_search, "PROOF", settings)


@pytest.mark.filterwarnings("ignore:subtrees were lost")
def test_nothing_depends_on_who_searches_which_subtree():
    found = []
    for executor in (
        concurrent.futures.ThreadPoolExecutor(1),
        concurrent.futures.ThreadPoolExecutor(3),
        Backwards(),
    ):
        tree = begun()
        for _ in subtrees.search_elsewhere(tree, executor):
            pass
        found.append(told(tree))
    assert found[1:] == found[:1] * 2
    alone = planted(hard())
    for _ in alone.search():
        pass
    lower, upper, _ = found[0]
    assert lower >= tree.cutoff
    assert lower <= alone.upper
    assert alone.lower_bound <= upper
    assert found[0][2] > 150  # that took several rounds


def test_what_is_not_back_in_time_stays_open(monkeypatch):
    monkeypatch.setattr(subtrees, "PROOF", dataclasses.replace(subtrees.PROOF, patience=0.0))
    tree = begun()
    before = tree.lower_bound
    waits = concurrent.futures.ThreadPoolExecutor(1)
    waits.submit(time.sleep, 0.3)
    with pytest.raises(OutOfTime), deadline(time.monotonic() + 0.1):
        for _ in subtrees.search_elsewhere(tree, waits):
            pass
    assert told(tree)[0] == before
    assert not tree.lent
    for _ in tree.go_on():
        pass
    assert tree.lower_bound >= tree.cutoff


def test_blocks_are_handed_out_too():
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        proof = bx.prove(apart(), executor=executor)
    assert proof.proven
    assert proof.upper_bound == pytest.approx(-7.8 * np.linspace(1.0, 2.0, 15).sum(), abs=1e-7)


@pytest.mark.slow
def test_processes_prove_what_one_proves(tmp_path, monkeypatch):
    executor = Backwards()
    alone = bx.prove(two_valleys(), np.array([-1.0]), executor=executor)
    assert executor.given > 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "valleys.py").write_text(FILE)
    said = json.loads(CliRunner().invoke(app, ["prove", "valleys.py", "--json", "--workers", "1"]).stdout)
    assert said["proven"]
    assert all(said[name] == getattr(alone, name) for name in ("lower_bound", "upper_bound", "nodes"))


def test_what_is_no_executor():
    with pytest.raises(ValueError, match="executor: expected an executor"):
        bx.prove(two_valleys(), executor="pool")
