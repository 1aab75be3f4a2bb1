"""Every Python block of the README and of the documentation runs, and prints what stands below it."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```([^\n`]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page, each with its language."""
    return [(language.strip(), body) for language, body in FENCED.findall(page.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.name
)
def test_examples_run_and_print_what_is_shown(page, capsys):
    names: dict = {}
    printed = None
    for language, body in blocks(page):
        if language == "python":
            exec(compile(body, page.name, "exec"), names)
            printed = capsys.readouterr().out
            assert "no success" not in printed
        elif language == "text" and printed is not None:
            alike = doctest.OutputChecker().check_output(body, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert alike, f"{page.name} shows\n{body}\nbut its example prints\n{printed}"
            printed = None


def test_no_python_hides_under_another_name():
    languages = {language for page in PAGES for language, _ in blocks(page)}
    assert {language for language in languages if "py" in language} == {"python"}
