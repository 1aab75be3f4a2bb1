"""Where third-party data lie: in the folder BILEVAX_DATA, or in shared/data beside the checkout."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("BILEVAX_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def data_file(*parts: str) -> Path:
    """Return the path of a file of the data folder; the test is skipped where it is missing."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is missing; set BILEVAX_DATA to the folder with the data")
    return path
