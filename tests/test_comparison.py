"""Several methods on one problem, judged alike."""

import json

import numpy as np
import pytest

import bilevax as bx
from bilevax.driver import comparison as comparing
from bilevax.exact.hyperobjective import Hyperobjective
from bilevax.problems import toy

METHODS = {
    "default": bx.Default(),
    "SFLCB": bx.SFLCB(),
    "BLOCC": bx.BLOCC(),
    "GAM": bx.GAM(),
    "LV-HBA": bx.LVHBA(),
    "BiC-GAFFA": bx.BiCGAFFA(),
    "projected": bx.ProjectedPenalty(),
}


@pytest.fixture(scope="module")
def comparison():
    return bx.compare(toy(), 0.7, METHODS, max_steps=400, points=5)


def test_one_exact_phi_judges_all_methods(monkeypatch):
    made = []
    monkeypatch.setattr(comparing, "Hyperobjective", lambda *given: made.append(given) or Hyperobjective(*given))
    bx.compare(toy(), 0.7, {"default": bx.Default(), "GAM": bx.GAM()}, max_steps=2, points=1)
    assert len(made) == 1


@pytest.mark.slow
def test_every_method_is_judged_by_its_certificate(comparison):
    for contender in comparison.contenders:
        if contender.solution is None:
            continue
        row = contender.row()
        assert row["phi"] == bx.certify(toy(), contender.solution.x).value
        assert row["certified"] == contender.solution.success
        assert contender.phi[-1] == contender.solution.value
        assert len(contender.phi) == len(contender.seconds) == len(contender.reported) <= 6
        assert np.all(np.diff(contender.seconds) >= 0)
    assert comparison["default"].row()["certified"]


def test_reported_values_are_the_methods_own(comparison):
    # Until it has converged, BiC-GAFFA's y is not the answer to its x, and what it reports is not Phi.
    contender = comparison["BiC-GAFFA"]
    assert abs(contender.row()["reported"] - contender.row()["phi"]) > 1e-3


def test_a_refusal_is_told_with_its_reason(comparison):
    contender = comparison["projected"]
    assert contender.solution is None
    assert contender.row()["status"] == "refused"
    assert "B = 0" in str(comparison)


def test_rows_are_for_machines_and_the_table_for_people(comparison):
    assert [row["method"] for row in json.loads(json.dumps(comparison.rows()))] == list(METHODS)
    assert all(name in str(comparison) for name in METHODS)
    with pytest.raises(KeyError, match="expected one of default, SFLCB"):
        comparison["IPOPT"]


def test_the_figure_has_a_line_a_method(comparison):
    pytest.importorskip("matplotlib")
    figure = comparison.plot()
    labels = figure.axes[0].get_legend_handles_labels()[1]
    ran = [contender.name for contender in comparison.contenders if contender.solution is not None]
    assert all(any(name in label for label in labels) for name in ran)


@pytest.mark.parametrize(
    ("solvers", "message"),
    [({}, "expected a dictionary"), ([bx.SFLCB()], "expected a dictionary"), ({"a": 3}, "got int for 'a'")],
)
def test_wrong_solvers_are_told(solvers, message):
    with pytest.raises(ValueError, match=message):
        bx.compare(toy(), 0.7, solvers)


class _Failing(bx.Default):
    def search(self, *args, **kwargs):
        raise FloatingPointError("lost its way")


def test_a_method_that_fails_is_a_row():
    found = bx.compare(bx.problems.toy(), 0.7, {"default": bx.Default(), "other": _Failing()}, points=0)
    assert [row["status"] for row in found.rows()] == ["converged", "failed"]
    assert "other: FloatingPointError: lost its way" in str(found)
    assert "lost its way" in found._repr_html_()
    with pytest.raises(ValueError, match="x0: expected finite numbers"):  # nobody's failure
        bx.compare(bx.problems.toy(), np.nan, {"other": _Failing()}, points=0)
