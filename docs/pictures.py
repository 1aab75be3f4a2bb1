"""Draw the pictures of the documentation into ``docs/pictures``: run the pages that draw their own.

python docs/pictures.py
"""

import contextlib
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def main() -> None:
    """Draw all pictures."""
    folder = HERE / "pictures"
    folder.mkdir(exist_ok=True)
    for page in (*sorted((HERE / "gallery").glob("*.md")), HERE / "proof.md"):
        names: dict = {}
        with contextlib.chdir(folder):
            for body in PYTHON.findall(page.read_text()):
                exec(compile(body, page.name, "exec"), names)


if __name__ == "__main__":
    main()
