"""What a command reads and writes: the user's Python file, a point, the file for a page."""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bilevax._support import trees
from bilevax.app import report


def load(file: Path) -> dict[str, Any]:
    """Run the user's file and return what it defines."""
    spec = importlib.util.spec_from_file_location("bilevax_file", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file}: expected a Python file, *.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.resolve().parent))  # so that it can import what lies beside it
    _execute(spec.loader, module)
    names = vars(module)
    for name in ("problem", "x0"):
        if name not in names:
            raise ValueError(f"{file}: expected it to define problem and x0, found no {name}.")
    return names


def _execute(loader: Any, module: ModuleType) -> None:
    try:
        loader.exec_module(module)
    except SystemExit as error:  # it would pass for our own exit code
        raise RuntimeError(f"expected definitions, but the file ended the program: exit code {error.code}") from error


def read_point(given: str, like: PyTree) -> PyTree:
    """Return a point in the structure of ``like``, from a file or from its numbers themselves."""
    path = Path(given)
    if not path.is_file():
        try:
            found = json.loads(given if given.lstrip().startswith(("[", "{")) else f"[{given}]")
        except json.JSONDecodeError as error:
            raise ValueError(f"--x: expected a file, or numbers such as 0.9 or 1,2,3; got {given!r}.") from error
    elif path.suffix == ".npy":
        found = np.load(path, allow_pickle=False)
    else:
        try:
            found = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: expected a file *.npy, or JSON: {error}.") from error
        if isinstance(found, dict) and {"x", "certificate"} <= set(found):
            found = found["x"]
    like = trees.map_arrays(np.asarray, like)
    numbers, size = _numbers(found, path), trees.size(like)
    if numbers.size != size:
        raise ValueError(f"{path}: expected {trees.describe(like)} as in x0, {size} numbers, got {numbers.size}.")
    return trees.unflatten(numbers, like)


def _numbers(found: Any, path: Path) -> np.ndarray:
    """Return all numbers of nested lists and objects, those of an object by sorted keys, as in a pytree."""
    if isinstance(found, dict):
        found = [found[key] for key in sorted(found)]
    if isinstance(found, list):
        return np.concatenate([np.zeros(0), *(_numbers(item, path) for item in found)])
    try:
        return np.asarray(found, np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected numbers, got {found!r}.") from error


def writable(page: Path) -> None:
    """Refuse a report that could not be written before the work is done, not after."""
    report.require()
    page.parent.mkdir(parents=True, exist_ok=True)
    if page.is_dir() or not os.access(page if page.exists() else page.parent, os.W_OK):
        raise ValueError(f"report: expected a file that can be written, got {page}.")


def given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, for the report."""
    return {key: value for key, value in settings.items() if value is not None}
