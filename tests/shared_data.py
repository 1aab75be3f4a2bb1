"""Where data lie: in the package, or, if it has none of them, in the folder BILEVAX_DATA or beside the checkout."""

import os
from pathlib import Path

import pytest

import bilevax

INSIDE = Path(bilevax.__file__).parent / "data"
FOLDER = Path(os.environ.get("BILEVAX_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def data_file(*parts: str) -> Path:
    """Return the path of a file of the data folder; the test is skipped where it is missing."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is missing; set BILEVAX_DATA to the folder with the data")
    return path
