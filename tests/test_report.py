"""The report page: what it says is what the solution says, and a browser shows it."""

import dataclasses
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bilevax as bx
from bilevax.app import report
from bilevax.problems import NetworkDesign
from known import bordered, slopes, toy

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)><b>&amp;"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def towns(name: str = "c") -> NetworkDesign:
    return NetworkDesign.from_arrays(
        tail=["a", "b", "b", name],
        head=["b", "a", name, "b"],
        time=1.0,
        cost=1.0,
        origin=["a", "b"],
        destination=["b", name],
        demand=1.0,
        outside=3.0,
        revenue=[4.0, 5.0],
        coordinates=[[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]],
        nodes=["a", "b", name],
    )


@pytest.fixture(scope="module")
def solved() -> bx.Solution:
    return bx.solve(toy(), 0.7)


@pytest.fixture(scope="module")
def stopped() -> bx.Solution:
    return bx.solve(toy(), 0.7, solver=bx.SFLCB(delta=0.1), max_steps=300, time_limit=1e3)


@pytest.fixture(scope="module")
def designed() -> tuple[NetworkDesign, bx.Solution]:
    network = towns(HOSTILE)
    return network, bx.solve(network.problem(), network.start())


class Page(html.parser.HTMLParser):
    """A page's tables as rows of (text, exact value) cells, and its other text."""

    def __init__(self, text: str):
        super().__init__()
        self.rows: list[list[tuple[str, str | None]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._exact, self._cell, self._hidden = "", None, None, False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell, self._exact = "", None
        elif tag == "data":
            self._exact = dict(attrs)["value"]
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.rows[-1].append((" ".join(self._cell.split()), self._exact))
            self._cell = None
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data
            if self._cell is not None:
                self._cell += data

    def row(self, name: str) -> list[tuple[str, str | None]]:
        """Return the first row whose first cell is ``name``."""
        return next(row for row in self.rows if row and row[0][0] == name)


def written(tmp_path: Path, *arguments: Any, **options: Any) -> tuple[Path, str]:
    path = report.write(arguments[0], tmp_path / "page.html", *arguments[1:], **options)
    return path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({}, None),
        ({"value": np.nan}, "Φ(x)"),
        ({"failure": bx.Status.LOWER_UNBOUNDED}, "lower level solved"),
        ({"lower_feasible": False}, "lower level feasible"),
        ({"lower_infeasibility": 2e-7}, "lower-level infeasibility"),
        ({"lower_stationarity": 2e-7}, "lower-level stationarity"),
        ({"lower_complementarity": np.inf}, "lower-level complementarity"),
        ({"x_infeasibility": 2e-7}, "distance of x from X"),
        ({"stationarity": 2e-6}, "stationarity of x"),
        ({"value_error": 1e-3}, "error of the value"),
        ({"radius": 2e-6}, "radius of stationarity"),
        ({"licq": False, "strict_complementarity": False, "lower_unique": False}, None),
    ],
)
def test_the_checks_that_fail_are_those_for_which_the_certificate_does_not_confirm(solved, change, failing):
    certificate = dataclasses.replace(solved.certificate, **change)
    failed = [check.name for check in report.checks(certificate, 1e-6) if check.passed is False]
    assert failed == ([] if failing is None else [failing])
    assert certificate.confirms(1e-6) == (failing is None)


def test_numbers_in_the_page_are_those_of_the_solution(tmp_path, stopped):
    page = Page(written(tmp_path, stopped, toy())[1])
    certificate = stopped.certificate
    shown = {
        "Φ(x)": stopped.value,
        "stationarity of x": certificate.stationarity,
        "lower-level infeasibility": certificate.lower_infeasibility,
        "lower-level stationarity": certificate.lower_stationarity,
        "penalty gap": certificate.penalty_gap,
        "error of the given y": certificate.y_error,
    }
    for name, number in shown.items():
        exact = page.row(name)[2][1]
        assert exact is not None
        assert float(exact) == number, name
    assert page.row("stationarity of x")[1][0] == "✗ fails"
    assert page.row("lower-level infeasibility")[1][0] == "✓ holds"
    assert float(page.row("x")[1][0]) == pytest.approx(float(stopped.x), rel=1e-9)
    assert page.row("steps")[1][0] == "300"
    assert page.row("upper level")[1][0] == "x: 1 variable, X: Box"
    assert "✗ No success." in page.text
    assert stopped.message in page.text


def test_rows_are_counted_by_kind(tmp_path, designed):
    network, solution = designed
    page = Page(written(tmp_path, solution, network.problem(), network)[1])
    rows = sum(len(np.ravel(part)) for part in solution.multipliers)
    equations = len(np.ravel(solution.multipliers[0]))
    assert f"{rows} rows ({equations} equations among them)" in page.row("lower level")[1][0]
    assert page.row("network")[1][0] == "3 nodes, 4 links, 2 origin-destination pairs"


def figures_of(text: str) -> dict[str, Any]:
    return {
        name: json.loads(body) for name, body in re.findall(r'^  "(plot-\d+-\d+)": (.*),$', text, flags=re.MULTILINE)
    }


def test_the_history_is_drawn_against_steps_and_time(tmp_path, stopped):
    _, text = written(tmp_path, stopped)
    figures = figures_of(text).values()
    assert [figure["layout"]["xaxis"]["title"]["text"] for figure in figures] == ["step"] * 2 + ["seconds"] * 2
    named = {trace["name"] for figure in figures for trace in figure["data"] if "name" in trace}
    residuals = set(stopped.history) - {"step", "time", "upper"}
    positive = {name for name in residuals if (stopped.history[name] > 0).any()}
    assert positive
    assert named == positive | {"iterates"}


def test_links_are_drawn_with_their_numbers_and_tabled(tmp_path, designed):
    network, solution = designed
    _, text = written(tmp_path, solution, None, network)
    (name, drawing), *_ = figures_of(text).items()
    assert name == "plot-1-1"
    assert len(drawing["data"]) == len(network.tail) + 1
    assert drawing["data"][0]["text"].startswith(f"a to b: capacity {solution.x[0]:.4g}, ")
    page = Page(text)
    assert page.row("from")[2][0] == "capacity"
    assert ("a", "b", f"{solution.x[0]:.4g}") in [tuple(cell[0] for cell in row[:3]) for row in page.rows]


def test_several_answers_have_a_table_in_front(tmp_path, solved, stopped):
    page = Page(written(tmp_path, {"default": solved, "SFLCB": stopped})[1])
    assert [cell[0] for cell in page.row("default")[:3]] == ["default", "✓ success", "converged"]
    assert [cell[0] for cell in page.row("SFLCB")[:3]] == ["SFLCB", "✗ no success", "max_steps"]
    assert float(page.row("default")[3][1] or "nan") == solved.value
    many = Page(written(tmp_path, bx.multistart(toy(), np.array([0.7, 2.1])))[1])
    assert many.row("answer 2")[1][0] == "✓ success"


def test_an_infeasible_lower_level_is_told(tmp_path):
    problem = bordered(slopes(1.0))
    solution = bx.solve(problem, [0.2], solver=bx.SFLCB(), max_steps=0)
    assert not solution.certificate.lower_feasible
    page = Page(written(tmp_path, solution, problem)[1])
    assert page.row("Φ(x)")[1:3] == [("✗ fails", None), ("inf", "inf")]
    assert page.row("lower level feasible")[1][0] == "✗ fails"


def test_strings_are_escaped(tmp_path, solved, designed):
    network, solution = designed
    _, text = written(
        tmp_path, {HOSTILE: solution, "other": solved}, None, {HOSTILE: network}, HOSTILE, settings={HOSTILE: HOSTILE}
    )
    page = Page(text)
    assert "document.title='broken'" not in text.replace(html_escaped(HOSTILE), "")
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert page.text.count(HOSTILE) >= 5


def html_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")


def test_the_page_needs_nothing_else(tmp_path, solved):
    from plotly.offline import get_plotlyjs

    _, text = written(tmp_path, {"one": solved, "two": solved})
    assert text.count(get_plotlyjs()) == 1
    page = Page(text.replace(get_plotlyjs(), ""))
    fetched = {"src", "srcset", "action"} | {"href"}
    links = [value for _, attributes in page.tags for key, value in attributes.items() if key in fetched]
    assert all(str(link).startswith("#") for link in links)
    policy = next(found["content"] for tag, found in page.tags if found.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none';")


def test_folders_are_made(tmp_path, solved):
    assert report.write(solved, str(tmp_path / "new" / "page.html")).is_file()


@pytest.mark.parametrize("given", [3, [], {}, ["no solution"], {"a": None}])
def test_what_is_no_solution_is_refused(tmp_path, given):
    with pytest.raises(ValueError, match="solutions: expected"):
        report.write(given, tmp_path / "page.html")


def test_missing_packages_are_named(monkeypatch, tmp_path, solved):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"jinja2 and plotly: pip install 'bilevax\[report\]'"):
        report.write(solved, tmp_path / "page.html")


_MEASURE = """<script>
addEventListener("load", () => setTimeout(() => {
  const drawn = [...document.querySelectorAll(".plot")].map((plot) => plot.querySelectorAll(".main-svg path").length);
  document.body.dataset.measured = JSON.stringify({
    title: document.title, drawn, page: document.documentElement.scrollWidth, window: innerWidth,
    sideways: [...document.querySelectorAll("body, .scroll, .status, figure")]
      .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.innerText.slice(0, 60)),
    background: getComputedStyle(document.body).backgroundColor,
    nodes: [...document.querySelectorAll(".main-svg .textpoint text")].map((node) => node.textContent),
    label: getComputedStyle(document.querySelector(".main-svg .xtick text")).fill,
    stationarity: [...document.querySelectorAll(".certificate tr")]
      .filter((row) => row.cells[0].innerText === "stationarity of x").map((row) => row.querySelector("data").value),
  });
}, 500));
</script>"""


def opened(path: Path, folder: Path, width: int = 1200, *options: str, style: str = "") -> dict[str, Any]:
    """Open a page in a browser; return what it measured there. A message on its console fails the test."""
    copy = folder / "measured.html"
    page = path.read_text(encoding="utf-8").replace("</head>", f"<style>{style}</style></head>", 1)
    copy.write_text(page + _MEASURE, encoding="utf-8")
    command = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += ["--enable-logging=stderr", "--virtual-time-budget=8000", f"--window-size={width},2000", *options]
    run = subprocess.run([*command, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120)
    assert [line for line in run.stderr.splitlines() if "CONSOLE" in line] == []
    (measured,) = [found["data-measured"] for tag, found in Page(run.stdout).tags if tag == "body"]
    return json.loads(str(measured))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_shows_it(tmp_path, stopped, designed):
    network, solution = designed
    path, text = written(tmp_path, {"toy": stopped, HOSTILE: solution}, None, {HOSTILE: network}, HOSTILE)
    light = opened(path, tmp_path)
    assert light["title"] == HOSTILE
    assert [name.replace("\xa0", " ") for name in light["nodes"]] == ["a", "b", HOSTILE]
    assert len(light["drawn"]) == len(figures_of(text))
    assert min(light["drawn"]) > 0
    numbers = [stopped.certificate.stationarity, solution.certificate.stationarity]
    assert [float(number) for number in light["stationarity"]] == numbers

    dark = opened(path, tmp_path, 1200, "--blink-settings=preferredColorScheme=0")
    assert brightness(light["background"]) > 200 > 80 > brightness(light["label"])
    assert brightness(dark["background"]) < 80 < 200 < brightness(dark["label"])

    narrow = opened(path, tmp_path, 500)
    assert narrow["window"] <= 500
    assert narrow["page"] <= narrow["window"], "the page scrolls sideways"
    # No window is narrower than that, but a page in it may be as wide as a phone.
    phone = opened(path, tmp_path, 500, style="html { width: 360px; }")
    assert phone["sideways"] == []
    assert min(phone["drawn"]) > 0


def brightness(colour: str) -> float:
    return float(np.mean([float(number) for number in re.findall(r"[\d.]+", colour)[:3]]))


def test_phi_is_drawn_over_x_with_start_and_answer(tmp_path, solved):
    _, text = written(tmp_path, solved, toy(), x0=0.7)
    curve, start, answer = next(iter(figures_of(text).values()))["data"]
    assert (curve["x"][0], curve["x"][-1]) == (0.0, 3.0)
    assert start["x"] == [pytest.approx(0.7)]
    assert answer["y"] == [pytest.approx(solved.value)]
    assert min(curve["y"]) == pytest.approx(solved.value, abs=1e-3)
