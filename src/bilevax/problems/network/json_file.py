"""Networks from JSON files."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bilevax._support import parsing


def read(path: str | Path) -> dict[str, Any]:
    """Return the arguments of `NetworkDesign.from_arrays` that a file holds; see `NetworkDesign.from_json`."""
    path = Path(path)
    try:
        content = json.loads(parsing.text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: expected JSON: {error.msg}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object with links and od, got {type(content).__name__}.")
    link = _columns(path, content, "links", ("i", "j", "t", "c"))
    pair = _columns(path, content, "od", ("o", "d", "w", "t_ext", "m"))
    node = _columns(path, content, "nodes", ("id", "lon", "lat")) if "nodes" in content else None
    return {
        "tail": link["i"],
        "head": link["j"],
        "time": link["t"],
        "cost": link["c"],
        "origin": pair["o"],
        "destination": pair["d"],
        "demand": pair["w"],
        "outside": pair["t_ext"],
        "revenue": pair["m"],
        "nodes": None if node is None else node["id"],
        "coordinates": None if node is None else np.column_stack([node["lon"], node["lat"]]),
        "capacities": content.get("x_start"),
    }


def _columns(path: Path, content: dict[str, Any], table: str, keys: tuple[str, ...]) -> dict[str, list[Any]]:
    rows = content.get(table)
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a list {table!r}, got {type(rows).__name__}.")
    for index, row in enumerate(rows):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            raise ValueError(f"{path}, {table}[{index}]: expected {', '.join(keys)}, found no {', '.join(missing)}.")
    return {key: [row[key] for row in rows] for key in keys}
