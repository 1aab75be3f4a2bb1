"""Where a command speaks: tables for people or one JSON object, messages for mistakes, exit codes."""

import contextlib
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from bilevax.driver.solution import Solution


class Output:
    """Where a command speaks: tables on standard output, or one JSON object there and everything else beside it.

    As a context it turns what the user did wrong into a message and exit code 2; an error that is ours keeps its
    traceback.
    """

    def __init__(self, as_json: bool, file: Path | None = None):
        self.as_json, self.file = as_json, file
        self.console = Console(stderr=as_json)
        self._prints = contextlib.ExitStack()

    def __enter__(self) -> "Output":
        if self.as_json:  # what the user's file prints must not spoil the object
            self._prints.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._prints.close()
        if not isinstance(error, Exception):
            return
        line = _line_in(error, self.file)
        if line is not None:
            says = "" if type(error) is ValueError else f"{type(error).__name__}: "
            self._fail(f"{self.file}, line {line}: {says}{error.msg if isinstance(error, SyntaxError) else error}")
        if isinstance(error, ValueError | ImportError):
            self._fail(str(error) if self.file is None or str(self.file) in str(error) else f"{self.file}: {error}")
        if isinstance(error, OSError):
            self._fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))

    def say(self, message: str) -> None:
        """Print a line as it is, however long."""
        if not self.as_json:
            self.console.print(Text(message), soft_wrap=True)

    def show(self, *parts: Any) -> None:
        """Print tables and lines, where people are the readers."""
        if not self.as_json:
            for part in parts:
                self.console.print(part)

    def end(self, result: Mapping[str, Any], success: bool, page: Path | None = None) -> NoReturn:
        """Print the object, if that is asked for, and exit."""
        if self.as_json:
            self._print_json(dict(result) | ({} if page is None else {"report": page}))
        raise typer.Exit(0 if success else 1)

    def _fail(self, message: str) -> NoReturn:
        if self.as_json:
            self._print_json({"error": message})
        Console(stderr=True).print(Text("error: ", style="bold red"), Text(message), sep="", soft_wrap=True)
        raise typer.Exit(2) from None

    def _print_json(self, result: dict[str, Any]) -> None:
        print(json.dumps(_plain(result), indent=2, allow_nan=False))


def _line_in(error: BaseException, file: Path | None) -> int | None:
    """Return the line of the user's file where an error, or what caused it, came up."""
    if file is None:
        return None
    place = os.path.realpath(file)
    if isinstance(error, SyntaxError) and error.filename and os.path.realpath(error.filename) == place:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.realpath(frame.filename) == place]
    cause = error.__cause__ or error.__context__
    return lines[-1] if lines else None if cause is None else _line_in(cause, file)


def answer(solution: Solution) -> dict[str, Any]:
    """Return what the object says of a solution."""
    keys = ("status", "success", "message", "value", "x", "y", "multipliers", "certificate", "stats")
    return {key: getattr(solution, key) for key in keys}


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, bool | int | float) else str(value)
