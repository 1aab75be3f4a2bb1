"""Every Python block of the README and of the documentation runs, and prints what stands below it."""

import doctest
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PICTURE = re.compile(r"!\[[^\]]*\]\((?:\S*/)?pictures/(\S+)\)")
FENCED = re.compile(r"^```([^\n`]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page, each with its language."""
    return [(language.strip(), body) for language, body in FENCED.findall(page.read_text())]


def script(page: str, name: str) -> str:
    """Return a complete script of a page: the block that begins with its name."""
    return next(body for _, body in blocks(ROOT / "docs" / page) if body.startswith(f"# {name}:"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.name
)
def test_examples_run_and_print_what_is_shown(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    printed = None
    for language, body in blocks(page):
        if language == "python":
            names = {} if page.name == "README.md" else names  # each of the README's examples runs on its own
            exec(compile(body, page.name, "exec"), names)
            printed = capsys.readouterr().out
            assert "no success" not in printed
        elif language == "text" and printed is not None:
            alike = doctest.OutputChecker().check_output(body, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert alike, f"{page.name} shows\n{body}\nbut its example prints\n{printed}"
            printed = None
    if page.parent.name == "gallery":
        assert {path.name for path in tmp_path.iterdir()} == set(PICTURE.findall(page.read_text()))


def test_pictures_that_are_shown_are_there():
    shown = {name for page in PAGES for name in PICTURE.findall(page.read_text())}
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").iterdir()} != set()


def test_no_python_hides_under_another_name():
    languages = {language for page in PAGES for language, _ in blocks(page)}
    assert {language for language in languages if "py" in language} == {"python"}


def generator():
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["experiments.md", "results.md", "sklearn.md", "speed.md"])
def test_tables_are_those_of_the_checked_in_figures(name):
    text = (ROOT / "docs" / name).read_text()
    assert generator().filled(text) == text, "run `make results`"


def test_another_figure_makes_another_table(tmp_path, monkeypatch):
    results = generator()
    told = json.loads((results.FIGURES / "toy.json").read_text())
    told["table"][0]["certified"] = 1234567
    (tmp_path / "toy.json").write_text(json.dumps(told))
    monkeypatch.setattr(results, "FIGURES", tmp_path)
    assert "| 1234567 |" in results.filled("<!-- results: toy -->\nold\n<!-- end -->")
